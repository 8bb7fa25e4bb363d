"""The share of a card's memory that the engine may take, and the refusal of a card that has too little left.

In: the job's wish, the profile, what the checkpoint needs, the cards of the engine. Out: a fraction of *total* memory,
which is what vLLM's gpu_memory_utilization means. Pure.
"""

from __future__ import annotations

import math

from entrypoint.catalog import Profile
from entrypoint.errors import MachineError
from entrypoint.gpu import Gpu
from entrypoint.job import EngineSpec
from entrypoint.need import Need

_SHOWN_PROCESSES = 5


def memory_fraction(
    asked: EngineSpec, profile: Profile, need: Need, cards: tuple[Gpu, ...], tensor_parallel_size: int | None = None
) -> tuple[float, str]:
    """The smallest (free - headroom) / total over the cards, never above what was wanted, rounded down to 3 places.

    With where it came from: job, profile or clamp. MachineError when a card's budget is below the profile's minimum, or
    below the weights and one sequence of full length. `tensor_parallel_size`: where the cards are not all one engine's.
    """
    if asked.gpu_memory_utilization is not None:
        wanted, origin = asked.gpu_memory_utilization, "job"
    else:
        wanted, origin = profile.gpu_memory_utilization or 0.9, "profile"
    if not asked.vram_clamp or not cards:
        return wanted, origin
    for card in cards:
        refuse_unreported(card)
    fractions = {card: (card.free_mib - asked.vram_headroom_mib) / card.total_mib for card in cards}
    fraction = math.floor(round(min(wanted, *fractions.values()) * 1000, 6)) / 1000
    for card in sorted(cards, key=lambda card: fractions[card]):
        _refuse_small(card, fraction, asked, profile, need, tensor_parallel_size or len(cards))
    return fraction, origin if fraction >= wanted else "clamp"


def refuse_unreported(card: Gpu) -> None:
    """MachineError for a card whose memory nvidia-smi does not tell (IDSIA/sacred#864, unslothai/unsloth#10283)."""
    if card.unreported is not None:
        why = "MIG or missing permission, or memory shared with the host"
        raise MachineError(
            f"card {card.index} ({card.name}): its memory is not reported as MiB but as {card.unreported!r} ({why}); a "
            "whole card's size is not taken for it. Run where nvidia-smi may read it, name another card or a MIG slice "
            "in CUDA_VISIBLE_DEVICES, or set engine.vram_clamp: false with engine.profile and "
            "engine.gpu_memory_utilization of your own"
        )


def _refuse_small(
    card: Gpu, fraction: float, asked: EngineSpec, profile: Profile, need: Need, tensor_parallel_size: int
) -> None:
    budget_gib = fraction * card.total_mib / 1024
    least = asked.min_gib_per_gpu if asked.min_gib_per_gpu is not None else profile.min_gib_per_gpu or 0
    needed_gib = need.gib(tensor_parallel_size)
    if budget_gib >= max(least, needed_gib):
        return
    why = (
        f"where profile {profile.name} wants {least:g} GiB (for an 8B model at full context; "
        "engine.min_gib_per_gpu overrides it)"
        if budget_gib < least
        else f"where the checkpoint needs {needed_gib:.1f} GiB on each of {tensor_parallel_size} cards "
        f"({need.told(tensor_parallel_size)})"
    )
    raise MachineError(
        f"card {card.index} ({card.name}): {card.free_mib} of {card.total_mib} MiB are free{_users(card)}, which "
        f"leaves {max(budget_gib, 0):.1f} GiB after {asked.vram_headroom_mib} MiB of headroom, {why}; end what "
        "uses the card, choose another with CUDA_VISIBLE_DEVICES, use more cards, or set engine.vram_headroom_mib or "
        "engine.profile"
    )


def _users(card: Gpu) -> str:
    """Who holds how much, where nvidia-smi tells; a container may see none of it."""
    if not card.processes:
        return f" and {card.used_mib} MiB in use by what nvidia-smi does not name" if card.used_mib else ""
    shown = [
        f"process {p.pid} {p.name}" + ("" if p.used_mib is None else f" {p.used_mib} MiB")
        for p in sorted(card.processes, key=lambda p: -(p.used_mib or 0))[:_SHOWN_PROCESSES]
    ]
    more = len(card.processes) - len(shown)
    return f" ({', '.join(shown)}{f' and {more} more' if more else ''})"
