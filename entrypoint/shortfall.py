"""What this machine lacks to carry a plan out: driver, kinds of number, memory, shared memory, open files, disk.

In: a Placement, the Host, the checkpoint's size. Out: MachineErrors, each with the way out. Pure, disk aside.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from entrypoint.errors import MachineError
from entrypoint.gpu import Gpu
from entrypoint.host import Host
from entrypoint.plan import Placement

# Least driver branch of each CUDA major version (NVIDIA's CUDA compatibility guide).
_DRIVERS = {11: 450, 12: 525, 13: 580}
_BFLOAT16_SINCE = (8, 0)  # below, vLLM refuses to start with it
_SHARED_MEMORY_MIB = 1024  # NCCL hangs or fails in docker's default of 64 MiB (vllm#1125, #6574)
_OWN_FILES = 256
# A token is stored as a number with its comma (up to 7 bytes) and as text (about 4) in the journal, and as text again
# in the graded file and in the published one.
_BYTES_PER_TOKEN = 20
_EARLIEST = datetime(2025, 1, 1, tzinfo=UTC)


def shortfalls(placement: Placement, host: Host, dtype: str, weights_bytes: int) -> Iterator[MachineError]:
    """Everything that would make the engine fail at its start, or a run end in the middle."""
    if placement.engine.kind != "vllm":
        return
    if placement.device in {gpu.name for gpu in host.gpus}:
        cards = used_cards(placement, host)
        if _is_installed(placement, host):
            yield from driver_errors(host, cards)
        yield from _kinds_of_number(cards, dtype)
        yield from _shared_memory(host, len(cards) // len(placement.engines))
    elif host.memory is not None:
        yield from _memory(placement, host.memory.available_mib, weights_bytes)
    yield from _open_files(host, open_files(placement))


def _is_installed(placement: Placement, host: Host) -> bool:
    """Whether the plan starts the engine that is installed here, and not a command of the job's own."""
    return host.engine is not None and placement.engine.argv[:1] == (str(host.engine.python),)


def used_cards(placement: Placement, host: Host) -> tuple[Gpu, ...]:
    """The cards of the placement's engines, in their order."""
    masks = (engine.env.get("CUDA_VISIBLE_DEVICES", "") for engine in placement.engines)
    ids = [cuda_id for mask in masks for cuda_id in mask.split(",")]
    return tuple(gpu for cuda_id in ids for gpu in host.gpus if gpu.cuda_id == cuda_id)


def open_files(placement: Placement) -> int:
    """As many as this program may have open at once: a connection for each open request, and its own."""
    return len(placement.engines) * placement.engine.max_open_requests + _OWN_FILES


def disk_room(results: Path, tokens: int) -> tuple[int, int]:
    """Bytes that are free on the results folder's disk, and bytes that answers of `tokens` take there at most."""
    place = next(p for p in (results, *results.parents) if p.exists())
    state = os.statvfs(place)
    return state.f_bavail * state.f_frsize, tokens * _BYTES_PER_TOKEN


def disk_error(results: Path, tokens: int) -> MachineError | None:
    """The results folder's disk against the longest that all answers together can get, in tokens."""
    free, needed = disk_room(results, tokens)
    if free >= needed:
        return None
    return MachineError(
        f"results: {results}: {free / 1e9:.1f} GB are free on its disk, and up to {needed / 1e9:.1f} GB may be written "
        f"({tokens} tokens at {_BYTES_PER_TOKEN} bytes); make room or set results: to another disk"
    )


def clock_warning(now: datetime) -> str | None:
    """A clock that was never set names results after another time."""
    if now >= _EARLIEST:
        return None
    return f"clock: it is {now:%Y-%m-%d} on this machine; results are named and dated by it: set the clock"


def driver_errors(host: Host, cards: tuple[Gpu, ...]) -> Iterator[MachineError]:
    """The driver against the CUDA of the installed engine.

    CUDA itself says only `forward compatibility was attempted on non supported HW`, minutes later.
    """
    cuda = host.engine.cuda if host.engine is not None else None
    least = _DRIVERS.get(cuda[0]) if cuda else None
    for card in cards[:1]:
        found = re.match(r"([0-9]{2,4})\.", card.driver)
        if cuda and least and found and int(found[1]) < least and not host.cuda_compat:
            yield MachineError(
                f"driver {card.driver}: the engine is built for CUDA {cuda[0]}.{cuda[1]}, which needs driver {least} "
                "or newer; update the driver, run on a node that has it, or put NVIDIA's cuda-compat libraries on "
                "LD_LIBRARY_PATH (data-centre cards)"
            )


def _kinds_of_number(cards: tuple[Gpu, ...], dtype: str) -> Iterator[MachineError]:
    for card in cards:
        capability = card.compute_capability
        if dtype == "bfloat16" and capability is not None and capability < _BFLOAT16_SINCE:
            yield MachineError(
                f"engine.dtype: bfloat16: card {card.index} ({card.name}) has compute capability {capability[0]}."
                f"{capability[1]}, and bfloat16 needs 8.0; set engine.dtype: float16 or use a newer card"
            )


def _shared_memory(host: Host, cards: int) -> Iterator[MachineError]:
    free = host.shared_memory_mib
    if cards > 1 and free is not None and free < _SHARED_MEMORY_MIB:
        yield MachineError(
            f"/dev/shm: {free} MiB are free, and {cards} cards of one engine exchange data there (at least "
            f"{_SHARED_MEMORY_MIB} MiB); run the container with ipc: host or shm_size: 8g (--shm-size 8g), or use "
            "engine.tensor_parallel_size: 1"
        )


def _memory(placement: Placement, available_mib: int, weights_bytes: int) -> Iterator[MachineError]:
    cache_gib = placement.values.get("kv_cache_gib")
    count = len(placement.engines)
    needed_mib = count * (weights_bytes / (1 << 20) + (cache_gib or 0) * 1024)
    if cache_gib is not None and needed_mib > available_mib:
        yield MachineError(
            f"memory: {available_mib} MiB are available, and {_engines(count)} {needed_mib:.0f} MiB for the weights "
            f"and {cache_gib:g} GiB of KV cache{' each' * (count > 1)} (engine.kv_cache_gib); raise the container's "
            "limit, or use a machine with more"
        )


def _engines(count: int) -> str:
    return "the CPU engine needs" if count == 1 else f"{count} CPU engines need"


def _open_files(host: Host, needed: int) -> Iterator[MachineError]:
    if host.open_files is not None and host.open_files < needed:
        yield MachineError(
            f"open files: the limit can't be raised over {host.open_files}, and {needed} are needed for the requests "
            "that are open at once; raise it (ulimit -Hn, --ulimit nofile) or lower engine.max_num_seqs"
        )
