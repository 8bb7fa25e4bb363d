"""Which cards CUDA would use: CUDA_VISIBLE_DEVICES by CUDA's own rules.

In: the machine's cards and MIG slices, the variable's value. Out: the chosen ones in CUDA's order. An entry that names
nothing here is refused: CUDA would quietly go on without it and all after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from entrypoint.errors import MachineError
from entrypoint.gpu import Gpu

MASK = "CUDA_VISIBLE_DEVICES"
# Slurm's word for a job without cards.
_NONE = "NoDevFiles"


def visible_gpus(gpus: tuple[Gpu, ...], mask: str | None, slices: tuple[Gpu, ...] = ()) -> tuple[Gpu, ...]:
    """The cards that the mask leaves, in its order; all of them when it is None, none when it is empty.

    A blank entry and a negative number end the list; a UUID may be cut short while it names one card only.
    """
    if mask is None or not gpus:
        return _whole_or_sliced(gpus, slices)
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in mask.split(",")):
        if entry in ("", _NONE) or re.fullmatch(r"-[0-9]+", entry):
            break
        card = _named(entry, mask, gpus, slices)
        if card in chosen:
            raise MachineError(f"{MASK}={mask}: {entry} is named twice, and CUDA then uses no card; name each once")
        chosen.append(card)
    if chosen and len({_kind(part.strip()) for part in mask.split(",")[: len(chosen)]}) > 1:
        raise MachineError(f"{MASK}={mask}: mixes numbers and UUIDs; write all of them one way")
    return _whole_or_sliced(tuple(chosen), slices)


def _kind(entry: str) -> str:
    return "number" if entry.isdecimal() else entry[:4]


def _named(entry: str, mask: str, gpus: tuple[Gpu, ...], slices: tuple[Gpu, ...]) -> Gpu:
    if re.fullmatch(r"[0-9]{1,9}", entry):
        found = [gpu for gpu in gpus if gpu.index == int(entry)]
    elif entry.startswith("GPU-"):
        found = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
    elif entry.startswith("MIG-"):
        found = [part for part in slices if part.uuid.startswith(entry)]
        if not found:
            raise MachineError(
                f"{MASK}={mask}: {entry} is a MIG slice that nvidia-smi does not list here (it lists "
                f"{_ids(slices) or 'none'}); its memory is not known, and the whole card's must not be taken for it: "
                "name a slice of this machine, or run where nvidia-smi may read MIG"
            )
    else:
        raise MachineError(
            f"{MASK}={mask}: {entry} is neither a card's number nor its UUID (GPU-…, MIG-…); correct the variable"
        )
    if len(found) == 1:
        return found[0]
    if found:
        raise MachineError(f"{MASK}={mask}: {entry} fits {_ids(found)}; write more of the UUID")
    raise MachineError(
        f"{MASK}={mask}: {entry} is none of the cards here ({_ids(gpus)}); if the mask came with the host's "
        "environment into a container or job, where cards are numbered anew from 0: unset it there"
    )


def _ids(gpus: Iterable[Gpu]) -> str:
    return ", ".join(f"{gpu.index} {gpu.uuid}".strip() for gpu in gpus)


def _whole_or_sliced(chosen: tuple[Gpu, ...], slices: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """A card in MIG mode is its only slice; CUDA uses one slice at a time and no whole card beside it."""
    devices: list[Gpu] = []
    for gpu in chosen:
        parts = [part for part in slices if part.index == gpu.index] if gpu.mig else [gpu]
        if not parts:
            raise MachineError(
                f"card {gpu.label}: is in MIG mode, but no slice of it is visible here, and the whole card's memory "
                f"must not be taken for one's; name a slice in {MASK} (MIG-…), or ask for one that you may use"
            )
        devices += parts
    if len(devices) > 1 and any(device.uuid.startswith("MIG-") for device in devices):
        raise MachineError(
            f"{MASK}: CUDA uses one MIG slice at a time and no other card beside it; name one of "
            f"{', '.join(f'{d.uuid} ({d.label})' for d in devices)}"
        )
    return tuple(devices)
