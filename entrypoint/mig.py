"""MIG slices: parts of a card with memory of their own, each a device to CUDA.

In: `nvidia-smi -L` (which slices there are) and `nvidia-smi -q -x` (how much memory each has). Out: each slice as a Gpu
under its parent's index. A slice whose memory is not told is `unreported`, never sized like its parent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

from entrypoint.errors import MachineError
from entrypoint.gpu import Gpu, ask

_CARD = re.compile(r"\s*GPU ([0-9]{1,4}): .*\(UUID: ([^)\s]+)\)")
_SLICE = re.compile(r"\s*(MIG \S+)\s+Device\s+([0-9]{1,4}): \(UUID: (MIG-[^)\s]+)\)")
_MIB = re.compile(r"([0-9]{1,9}) MiB")

# Total and free MiB of the n-th slice of the card with this UUID.
Sizes = dict[tuple[str, int], tuple[int, int]]


def query_slices(gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Every slice that this process may see; none where nvidia-smi does not list any."""
    code, listing, _ = ask("-L")
    if code != 0:
        return ()
    try:
        _, report, _ = ask("-q", "-x")
    except MachineError:
        report = ""
    return read_slices(gpus, listing, read_sizes(report))


def read_slices(gpus: tuple[Gpu, ...], listing: str, sizes: Sizes) -> tuple[Gpu, ...]:
    """Slices from `nvidia-smi -L`, in its order; named `<card> MIG 3g.40gb`."""
    found = []
    parent: Gpu | None = None
    for line in listing.splitlines():
        if card := _CARD.match(line):
            parent = next((gpu for gpu in gpus if gpu.index == int(card[1])), None)
        elif (part := _SLICE.match(line)) and parent is not None:
            total_mib, free_mib = sizes.get((parent.uuid, int(part[2])), (0, 0))
            found.append(
                Gpu(
                    index=parent.index,
                    uuid=part[3],
                    name=f"{parent.name} {part[1]}",
                    total_mib=total_mib,
                    free_mib=free_mib,
                    driver=parent.driver,
                    compute_capability=parent.compute_capability,
                    unreported=None if total_mib else "of the MIG slice not reported",
                )
            )
    return tuple(found)


def read_sizes(report: str) -> Sizes:
    """Memory of each slice from `nvidia-smi -q -x`, which numbers slices as `-L` does; {} when it is no such report."""
    try:
        root = ElementTree.fromstring(report)
    except (ElementTree.ParseError, ValueError):
        return {}
    return {(uuid, number): memory for uuid, number, memory in _sizes(root)}


def _sizes(root: ElementTree.Element) -> Iterator[tuple[str, int, tuple[int, int]]]:
    for card in root.iter("gpu"):
        for part in card.iter("mig_device"):
            number = part.findtext("index", "").strip()
            total = _MIB.fullmatch(part.findtext("fb_memory_usage/total", "").strip())
            free = _MIB.fullmatch(part.findtext("fb_memory_usage/free", "").strip())
            if re.fullmatch(r"[0-9]{1,4}", number) and total and free and 0 < int(total[1]) >= int(free[1]):
                yield card.findtext("uuid", "").strip(), int(number), (int(total[1]), int(free[1]))
