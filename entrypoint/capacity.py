"""How many sequences the KV cache holds at once, as far as that can be told before the engine starts.

In: a Placement, the cards, what the checkpoint needs. Out: a Capacity, None where memory or shape are not known. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from entrypoint.gpu import Gpu
from entrypoint.need import RESERVE_GIB, Need
from entrypoint.plan import Placement
from entrypoint.shape import sequences_that_fit

_GIB = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Capacity:
    """`kv_cache_gib` on each card, after weights and a reserve; `sequences` of `length` tokens (max_model_len)."""

    kv_cache_gib: float
    sequences: int
    length: int
    max_num_seqs: int

    def warning(self) -> str | None:
        """Every sequence at full length is the worst case; what does not fit is preempted and computed again."""
        if self.sequences >= self.max_num_seqs:
            return None
        return (
            f"engine.max_num_seqs {self.max_num_seqs}: the KV cache holds {self.sequences} sequences of {self.length} "
            "tokens; when more get that long, some are preempted and computed again"
        )


def capacity(placement: Placement, cards: tuple[Gpu, ...], need: Need) -> Capacity | None:
    """On GPUs: fraction x total - weights - reserve; on the CPU: kv_cache_gib."""
    values = placement.values
    size = int(values.get("tensor_parallel_size", 1))
    if values.get("kv_cache_gib") is not None:
        cache_gib = float(values["kv_cache_gib"])
    elif cards and "gpu_memory_utilization" in values and not any(card.unreported for card in cards):
        total_gib = min(card.total_mib for card in cards) / 1024
        cache_gib = values["gpu_memory_utilization"] * total_gib - need.weights_gib(size) - RESERVE_GIB
    else:
        return None
    if need.shape is None:
        return None
    fitting = sequences_that_fit(int(max(cache_gib, 0) * _GIB), need.shape, need.length, tensor_parallel_size=size)
    if fitting is None:
        return None
    return Capacity(
        kv_cache_gib=max(cache_gib, 0),
        sequences=fitting,
        length=need.length,
        max_num_seqs=int(values["max_num_seqs"]),
    )
