"""Where an lm-eval task's YAML lies: in our `tasks/`, else in the installed lm-eval; and a digest of what it says.

lm-eval itself is not imported: reading its YAML files for one line takes under a second, indexing them takes eleven.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from functools import cache
from importlib.metadata import version
from pathlib import Path


def find(root: Path, name: str) -> Path | None:
    """The folder that defines task `name`; ours wins over lm-eval's own."""
    ours = _folder_with(root / "tasks", name)
    return ours if ours is not None else _installed(name)


def source_digest(root: Path, folder: Path) -> str:
    """Hash of a folder of ours, or lm-eval's version for one of its own."""
    if not folder.is_relative_to(root / "tasks"):
        return f"lm-eval {version('lm_eval')}"
    total = hashlib.sha256()
    for file in sorted(f for f in folder.rglob("*") if f.is_file() and "__pycache__" not in f.parts):
        total.update(f"{file.relative_to(folder)}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def ours(root: Path) -> tuple[str, ...]:
    """Names of the tasks that ship in `tasks/`."""
    found = re.findall(r"^task:[ \t]*([\w.-]+)", _all_yaml(root / "tasks"), re.MULTILINE)
    return tuple(sorted(found))


def _all_yaml(folder: Path) -> str:
    return "\n".join(f.read_text(encoding="utf-8") for f in sorted(folder.rglob("*.yaml")))


@cache
def _installed(name: str) -> Path | None:
    spec = importlib.util.find_spec("lm_eval")
    return None if spec is None or spec.origin is None else _folder_with(Path(spec.origin).parent / "tasks", name)


def _folder_with(folder: Path, name: str) -> Path | None:
    line = re.compile(rb"^task:[ \t]*[\"']?" + re.escape(name.encode()) + rb"[\"']?[ \t]*(?:#.*)?\r?$", re.MULTILINE)
    return next((f.parent for f in sorted(folder.rglob("*.yaml")) if line.search(f.read_bytes())), None)
