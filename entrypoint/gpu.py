"""The cards of this machine and what uses them, as nvidia-smi tells it.

In: nvidia-smi's answers, the host's own memory for cards that share it. Out: a Cards value; MachineError repeats what
nvidia-smi said. No line is dropped without a word, and no number is made up.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from entrypoint.errors import MachineError

_TIMEOUT_S = 30.0  # a slow node with many cards may take that long
_REAP_S = 1.0
_WRONG_ARGUMENT = 2
_INFOROM_CORRUPTED = 14  # a warning by its nature: the rows are there, the exit code stays
_BASIC = ("index", "uuid", "name", "memory.total", "memory.used", "memory.free", "driver_version")
_FIELDS = (*_BASIC, "compute_cap", "mig.mode.current")
_UNKNOWN_FIELD = "is not a valid field to query"  # what drivers older than a field answer
_NOT_THERE = ("[n/a]", "n/a", "[not supported]", "not supported")
# These share the host's memory, so that nvidia-smi has none to report for them (unslothai/unsloth#10283).
_UNIFIED = re.compile(r"\b(GB10|Thor|Orin|Xavier|Tegra)\b")
_MIB = re.compile(r"([0-9]{1,9})(?: MiB)?")
_CUDA_ID = re.compile(r"(GPU|MIG)-\S+")


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuProcess:
    """A process that computes on a card; `used_mib` None where nvidia-smi does not tell."""

    pid: str
    name: str
    used_mib: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One card, or one MIG slice of a card.

    `unreported`: what nvidia-smi says in place of the memory, which is 0 here then and must not be computed with.
    `used_mib`: what is allocated; used and free do not add up to the total. `uuid` is empty where it is not told.
    `mig`: the card is cut into slices and can't be used whole.
    """

    index: int
    uuid: str
    name: str
    total_mib: int
    free_mib: int
    driver: str
    used_mib: int = 0
    compute_capability: tuple[int, int] | None = None
    mig: bool = False
    unreported: str | None = None
    processes: tuple[GpuProcess, ...] = ()

    @property
    def cuda_id(self) -> str:
        """What CUDA_VISIBLE_DEVICES calls this card under CUDA_DEVICE_ORDER=PCI_BUS_ID."""
        return self.uuid or str(self.index)

    @property
    def label(self) -> str:
        """`0 NVIDIA H100 80GB HBM3, 81559 MiB`."""
        memory = self.unreported and f"memory {self.unreported}"
        return f"{self.index} {self.name}, {memory or f'{self.total_mib} MiB'}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cards:
    """`gpus` in nvidia-smi's order (PCI bus); `warnings` are its own, between the rows; `missing` says why there is
    none."""

    gpus: tuple[Gpu, ...] = ()
    warnings: tuple[str, ...] = ()
    missing: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HostMemory:
    """MemTotal and MemAvailable of /proc/meminfo, in MiB."""

    total_mib: int
    available_mib: int


def query_gpus(shared: HostMemory | None = None) -> Cards:
    """Every card that nvidia-smi reports; none when there is no nvidia-smi. `shared`: what unified cards take part in.

    MachineError when it fails, hangs (30 s), finds no device, or a row of it can't be read.
    """
    if shutil.which("nvidia-smi") is None:
        if any(Path("/dev").glob("nvidia[0-9]*")):
            raise MachineError(
                "nvidia-smi: is not on PATH, though /dev has NVIDIA cards; in a container give it the driver's "
                "programs (NVIDIA_DRIVER_CAPABILITIES=compute,utility), else install them"
            )
        return Cards(missing="nvidia-smi is not on PATH")
    fields: tuple[str, ...] = _FIELDS
    code, out, err = ask(*_query("gpu", fields))
    if code == _WRONG_ARGUMENT or (code != 0 and _UNKNOWN_FIELD in out + err):
        fields = _BASIC
        code, out, err = ask(*_query("gpu", fields))
    if "No devices were found" in out + err:
        raise _no_gpu("No devices were found")
    if code not in (0, _INFOROM_CORRUPTED) or not out.strip():
        raise MachineError(
            f"nvidia-smi: failed (exit code {code}): {_one_line(err or out) or 'it said nothing'}; mend the driver "
            "(after an update: reload it or reboot; in a container: start it again)"
        )
    cards = read_rows(out, fields, shared)
    if not cards.gpus:
        raise _no_gpu(_one_line(out))
    return cards


def _no_gpu(said: str) -> MachineError:
    return MachineError(
        f"no GPU: nvidia-smi says `{said}`; check that the job was given cards (--gpus, --gres), or set "
        "engine.profile: cpu where the engine is the CPU one"
    )


def _query(what: str, fields: tuple[str, ...]) -> tuple[str, ...]:
    return f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits"


def ask(*arguments: str) -> tuple[int, str, str]:
    """Exit code and both outputs of nvidia-smi; MachineError when it can't be started or takes over 30 s."""
    try:
        child = subprocess.Popen(
            ["nvidia-smi", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as err:
        raise MachineError(f"nvidia-smi: can't be started ({err}); check the driver") from err
    try:
        out, err_text = child.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired as err:
        raise MachineError(
            f"nvidia-smi: no answer for {_TIMEOUT_S:g} s (timed out): the driver hangs, as after a card has failed; "
            "see the kernel's log, then reset the card or reboot"
        ) from err
    finally:
        _end(child)
    return child.returncode, out.decode("utf-8", "replace"), err_text.decode("utf-8", "replace")


def _end(child: subprocess.Popen[bytes]) -> None:
    """Its whole group; a process that hangs in the driver can't be reaped and is left to the kernel."""
    if child.poll() is not None:
        return
    with contextlib.suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_REAP_S)


def read_rows(text: str, fields: tuple[str, ...] = _FIELDS, shared: HostMemory | None = None) -> Cards:
    """Cards from nvidia-smi's CSV; a line that is neither a whole row nor a warning is refused, never dropped."""
    gpus: list[Gpu] = []
    warnings = []
    for line in filter(None, map(str.strip, text.splitlines())):
        values = [value.strip() for value in line.split(",")]
        if re.fullmatch(r"[0-9]{1,4}", values[0]):
            gpus.append(_gpu(line, dict(zip(fields, values, strict=False)), len(values) == len(fields), shared))
        elif line.lower().startswith("warning"):
            warnings.append(f"nvidia-smi: {_one_line(line)}")
        else:
            raise MachineError(f"nvidia-smi: can't read its line {line[:300]!r}; it names no card; check the driver")
    for key in ("index", "uuid"):
        named = [value for gpu in gpus if (value := getattr(gpu, key)) != ""]
        if twice := [value for value in named if named.count(value) > 1]:
            raise MachineError(f"nvidia-smi: names two cards with {key} {twice[0]}; check the driver")
    return Cards(gpus=tuple(gpus), warnings=tuple(warnings), missing=None if gpus else "nvidia-smi names none")


def _gpu(line: str, row: dict[str, str], whole: bool, shared: HostMemory | None) -> Gpu:
    if not whole or not row["name"]:
        raise MachineError(
            f"nvidia-smi: can't read the card {line[:300]!r}: the row is not whole; check the driver (dmesg)"
        )
    capability = re.fullmatch(r"([0-9]{1,3})\.([0-9]{1,3})", row.get("compute_cap", ""))
    gpu = Gpu(
        index=int(row["index"]),
        uuid=row["uuid"] if _CUDA_ID.fullmatch(row["uuid"]) else "",
        name=row["name"],
        total_mib=0,
        free_mib=0,
        driver=row["driver_version"],
        compute_capability=(int(capability[1]), int(capability[2])) if capability else None,
        mig=row.get("mig.mode.current", "").lower() == "enabled",
    )
    used = _MIB.fullmatch(row["memory.used"])
    return _sized(replace(gpu, used_mib=int(used[1]) if used else 0), row["memory.total"], row["memory.free"], shared)


def _sized(gpu: Gpu, total: str, free: str, shared: HostMemory | None) -> Gpu:
    """Memory as reported; of the host's for a card that shares it. `free` is never total - used (dcgm-exporter#136)."""
    numbers = _MIB.fullmatch(total), _MIB.fullmatch(free)
    if numbers[0] and numbers[1]:
        total_mib, free_mib = int(numbers[0][1]), int(numbers[1][1])
        if 0 <= free_mib <= total_mib and total_mib > 0:
            return replace(gpu, total_mib=total_mib, free_mib=free_mib)
        return replace(gpu, unreported=f"{free} MiB free of {total} MiB")
    if shared is not None and _UNIFIED.search(gpu.name) and {total.lower(), free.lower()} <= set(_NOT_THERE):
        return replace(gpu, total_mib=shared.total_mib, free_mib=min(shared.available_mib, shared.total_mib))
    return replace(gpu, unreported=(free if numbers[0] else total) or "not reported")


def query_processes(gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """The cards with the processes that nvidia-smi sees on them; a container often sees none but its own."""
    try:
        code, out, _ = ask(*_query("compute-apps", ("gpu_uuid", "pid", "process_name", "used_memory")))
    except MachineError:
        return gpus
    return with_processes(gpus, out) if code == 0 else gpus


def with_processes(gpus: tuple[Gpu, ...], text: str) -> tuple[Gpu, ...]:
    """Only for messages: what can't be read here is left out."""
    found: dict[str, list[GpuProcess]] = {}
    for line in text.splitlines():
        uuid, *values = (value.strip() for value in line.split(","))
        if len(values) >= 3 and _CUDA_ID.fullmatch(uuid) and re.fullmatch(r"[0-9]{1,10}", values[0]):
            used = _MIB.fullmatch(values[-1])
            name = _one_line(",".join(values[1:-1]))[:100]
            process = GpuProcess(pid=values[0], name=name, used_mib=int(used[1]) if used else None)
            found.setdefault(uuid, []).append(process)
    return tuple(replace(gpu, processes=tuple(found.get(gpu.uuid, ()))) if gpu.uuid else gpu for gpu in gpus)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500]
