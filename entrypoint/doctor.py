"""What this machine can do, on one screen: versions, engine, cards, benchmark source, isolation of graders, caches.

In: the program's folder and the environment. Out: plain values for `--json`, and the same as text. Nothing is judged
here: a run refuses what it can't do.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from entrypoint import enforcement, host, source
from entrypoint.errors import EvalcrateError, MachineError

_PACKAGES = ("evalcrate", "lm_eval", "transformers", "tokenizers", "sympy", "numpy")


def examine(root: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """Everything about this machine as plain values; what can't be looked at is its reason under `error`."""
    return {
        "python": platform.python_version(),
        "harness": {name: _version(name) for name in _PACKAGES},
        "engine": _engine(host.find_engine(root, environ)),
        "gpus": _gpus(environ),
        "source": _source(root / "patches/evalchemy", environ),
        "isolation": isolation(),
        "cache": _cache(source.cache_root(environ)),
    }


def isolation() -> dict[str, Any]:
    """Each promise with what enforces it, and why not where nothing does."""
    return enforcement.as_values(enforcement.describe())


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _engine(found: host.InstalledEngine | None) -> dict[str, Any]:
    if found is None:
        return {"error": "none is installed; run `make engine`, or set engine.kind: endpoint"}
    return {"package": found.package, "version": found.version, "python": str(found.python)}


def _gpus(environ: Mapping[str, str]) -> Any:
    try:
        cards = host.visible_gpus(host.query_gpus(), environ.get("CUDA_VISIBLE_DEVICES"))
    except MachineError as err:
        return {"error": str(err)}
    return [{"name": card.name, "total_mib": card.total_mib, "free_mib": card.free_mib} for card in cards]


def _source(patches: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    try:
        tree = source.find_tree(patches, source.cache_root(environ))
    except EvalcrateError as err:
        return {"error": str(err)}
    return {"tree": str(tree)} if tree else {"error": f"the benchmark source is not here; {source.HOW_TO_GET}"}


def _cache(folder: Path) -> dict[str, Any]:
    place = next(p for p in (folder, *folder.parents) if p.exists())
    writable = os.access(place, os.W_OK | os.X_OK)
    return {"folder": str(folder)} | ({} if writable else {"error": f"{place} can't be written; set EVALCRATE_CACHE"})


def as_text(found: Mapping[str, Any]) -> str:
    """One screen: a heading per line, and the table of what is enforced."""
    packages = ", ".join(f"{name} {version or 'missing'}" for name, version in found["harness"].items())
    lines = [f"python     {found['python']}", f"harness    {packages}"]
    lines += [f"{name:10} {_line(found[name])}" for name in ("engine", "gpus", "source", "cache")]
    lines += ["", "Graders on this machine:"]
    for what, said in found["isolation"].items():
        lines.append(f"  {what:20} {'; '.join(said['by']) or '-'}")
        if said["lacks"] is not None:
            lines.append(f"  {'':20} not enforced: {said['lacks']}")
    return "\n".join(lines)


def _line(value: Any) -> str:
    if isinstance(value, list):
        cards = (f"{card['name']} ({card['free_mib']} of {card['total_mib']} MiB free)" for card in value)
        return ", ".join(cards) or "none"
    return ", ".join(str(part) for part in value.values())
