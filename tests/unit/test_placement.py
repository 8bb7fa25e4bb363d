"""The cards, the tensor parallel size and the memory fraction of an engine, and each refusal with its way out.

gpustack#814 and vllm#414 (as many cards as there are need not divide the heads), dcgm-exporter#136 (free memory as
reported), modal-client#2797 (names and totals of real cards), vllm#10533 (two engines on one card).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entrypoint.capacity import capacity
from entrypoint.card_set import CardSet, choose_cards
from entrypoint.catalog import Profile, load_catalog
from entrypoint.clamp import memory_fraction
from entrypoint.errors import MachineError
from entrypoint.gpu import Gpu, GpuProcess
from entrypoint.job import EngineSpec
from entrypoint.need import Need
from entrypoint.shape import shape_of

CATALOG = load_catalog(Path(__file__).parents[2])
H100 = Gpu(index=0, uuid="GPU-0", name="NVIDIA H100 80GB HBM3", total_mib=81559, free_mib=81000, driver="580.65.06")
L40S = replace(H100, name="NVIDIA L40S", total_mib=46068, free_mib=45400)
A10 = replace(H100, name="NVIDIA A10", total_mib=23028, free_mib=22600)


def cards(kind: Gpu, count: int) -> tuple[Gpu, ...]:
    return tuple(replace(kind, index=n, uuid=f"GPU-{n}") for n in range(count))


def need(gigabytes: float = 16.4, *, heads: int = 32, kv_heads: int = 8, length: int = 36864, **config: Any) -> Need:
    """An 8B model in bfloat16 unless changed: 147456 bytes of KV cache per token."""
    shape = {"num_hidden_layers": 36, "head_dim": 128, "hidden_size": 4096, **config}
    shape |= {"num_attention_heads": heads, "num_key_value_heads": kv_heads}
    return Need(weights_bytes=int(gigabytes * 1e9), length=length, shape=shape_of(shape))


def profile(kind: Gpu) -> Profile:
    found = CATALOG.profile_for(kind.name, kind.total_mib)
    assert found is not None
    return found


def chosen(kind: Gpu, count: int, what: Need, **keys: Any) -> CardSet:
    return choose_cards(EngineSpec(**keys), profile(kind), what, cards(kind, count))


@pytest.mark.parametrize(
    ("kind", "count", "heads", "kv_heads", "size"),
    [(H100, 3, 32, 8, 2), (H100, 8, 28, 4, 4), (L40S, 2, 32, 8, 1), (H100, 8, 64, 8, 8), (H100, 8, 40, 10, 5)],
)
def test_one_engine_takes_the_most_cards_that_its_heads_allow(
    kind: Gpu, count: int, heads: int, kv_heads: int, size: int
) -> None:
    found = chosen(kind, count, need(heads=heads, kv_heads=kv_heads), replicas=1)
    assert found.tensor_parallel_size == size
    assert len(found.used) == size


@pytest.mark.parametrize(
    ("kind", "count", "gigabytes", "size", "engines"),
    [(H100, 8, 16.4, 1, 8), (H100, 8, 141, 4, 2), (H100, 3, 58, 1, 3), (A10, 4, 16.4, 2, 2), (H100, 7, 141, 4, 1)],
)
def test_auto_takes_the_fewest_cards_that_the_checkpoint_fits_on(
    kind: Gpu, count: int, gigabytes: float, size: int, engines: int
) -> None:
    found = chosen(kind, count, need(gigabytes, heads=64, num_hidden_layers=80 if gigabytes > 100 else 36))
    assert (found.tensor_parallel_size, found.replicas, found.origin) == (size, engines, "checkpoint")
    assert (len(found.used), len(set(found.used)), len(found.idle)) == (size * engines, size * engines, count % size)
    assert (found.idle_warning() is not None) == bool(count % size)


def test_engines_without_cards_share_the_cores() -> None:
    cpu = CATALOG.profile("cpu")
    assert choose_cards(EngineSpec(), cpu, need(), (), 8).replicas == 1
    assert choose_cards(EngineSpec(replicas=2), cpu, need(), (), 8).replicas == 2
    with pytest.raises(MachineError, match=r"engine.replicas: 9: profile cpu has 8 cores .*use 1 to 8, or auto"):
        choose_cards(EngineSpec(replicas=9), cpu, need(), (), 8)


def test_another_process_on_a_card_never_changes_the_choice() -> None:
    busy = tuple(replace(card, free_mib=100) for card in cards(H100, 4))
    assert choose_cards(EngineSpec(), profile(H100), need(), busy).tensor_parallel_size == 1


def test_a_checkpoint_that_fits_nowhere_is_refused_with_what_it_needs() -> None:
    with pytest.raises(MachineError, match=r"fits on none of 1, 2 cards: on 2 .*weights 65.7 GiB .*36864 tokens"):
        chosen(H100, 2, need(141, num_hidden_layers=80))


@pytest.mark.parametrize(("size", "count"), [(3, 8), (5, 8), (16, 8), (2, 1)])
def test_a_size_that_the_engine_would_not_take_is_refused_with_the_ones_it_takes(size: int, count: int) -> None:
    valid = "1, 2, 4, 8" if count == 8 else "1"
    with pytest.raises(MachineError, match=rf"engine.tensor_parallel_size: {size}: .*allows {valid};"):
        chosen(H100, count, need(), tensor_parallel_size=size)


def test_no_size_is_made_up_for_a_config_without_heads() -> None:
    unknown = replace(need(16.4), shape=shape_of({}))
    assert chosen(H100, 2, unknown).tensor_parallel_size == 1
    with pytest.raises(MachineError, match=r"does not tell its heads; set the size"):
        chosen(H100, 2, unknown, replicas=1)
    with pytest.raises(MachineError, match=r"does not tell its heads"):
        chosen(H100, 2, replace(unknown, weights_bytes=10**11))


def fraction(card: Gpu, what: Need | None = None, **keys: Any) -> tuple[float, str]:
    return memory_fraction(EngineSpec(**keys), profile(card), what or need(), (card,))


@pytest.mark.parametrize(
    ("card", "keys", "expected"),
    [
        (replace(L40S, free_mib=41500), {}, (0.856, "clamp")),
        (H100, {}, (0.9, "profile")),
        (H100, {"gpu_memory_utilization": 0.95}, (0.95, "job")),
        (replace(H100, free_mib=60000), {"gpu_memory_utilization": 0.95}, (0.71, "clamp")),
        (replace(H100, free_mib=60000), {"vram_headroom_mib": 0}, (0.735, "clamp")),
        (replace(H100, free_mib=10), {"vram_clamp": False}, (0.9, "profile")),
    ],
)
def test_the_fraction_is_of_total_memory_and_rounded_down(
    card: Gpu, keys: dict[str, Any], expected: tuple[float, str]
) -> None:
    assert fraction(card, **keys) == expected


def test_a_full_card_is_refused_with_who_uses_it() -> None:
    busy = replace(
        H100, index=3, free_mib=20000, used_mib=61000, processes=(GpuProcess(pid="77", name="python", used_mib=60000),)
    )
    with pytest.raises(MachineError, match=r"card 3 .*20000 of 81559 MiB are free \(process 77 python 60000 MiB\)"):
        fraction(busy)
    with pytest.raises(MachineError, match=r"61000 MiB in use by what nvidia-smi does not name"):
        fraction(replace(busy, processes=()))


def test_the_minimum_of_a_profile_can_be_overridden_but_not_the_checkpoints_need() -> None:
    busy = replace(H100, free_mib=20000)
    assert fraction(busy, need(1), min_gib_per_gpu=10) == (0.22, "clamp")
    with pytest.raises(MachineError, match=r"needs 20.3 GiB on each of 1 cards \(weights 15.3 GiB and one sequence"):
        fraction(busy, min_gib_per_gpu=10)


def test_a_card_whose_memory_is_not_told_is_never_sized() -> None:
    with pytest.raises(MachineError, match=r"'\[Insufficient Permissions\]' \(MIG or missing permission"):
        fraction(replace(H100, unreported="[Insufficient Permissions]"))
    assert fraction(replace(H100, unreported="ERR!"), vram_clamp=False) == (0.9, "profile")


@settings(max_examples=1000, deadline=None)
@given(
    memory=st.lists(st.tuples(st.integers(1, 200_000), st.floats(0, 1)), min_size=1, max_size=8),
    headroom=st.integers(0, 10_000),
    wanted=st.one_of(st.none(), st.floats(0.01, 1)),
    gigabytes=st.floats(0.001, 1000),
)
def test_no_card_is_ever_asked_for_more_than_is_free(
    memory: list[tuple[int, float]], headroom: int, wanted: float | None, gigabytes: float
) -> None:
    here = tuple(
        replace(H100, index=n, uuid=f"GPU-{n}", total_mib=total, free_mib=int(total * share))
        for n, (total, share) in enumerate(memory)
    )
    asked = EngineSpec(vram_headroom_mib=headroom, gpu_memory_utilization=wanted, min_gib_per_gpu=0.001)
    try:
        used = choose_cards(asked, profile(H100), need(gigabytes), here).used
        found, _ = memory_fraction(asked, profile(H100), need(gigabytes), used)
    except MachineError:
        return
    assert 0 < found <= (wanted or 0.9)
    for card in used:
        assert found * card.total_mib <= card.free_mib - headroom + 1e-6 * card.total_mib


def test_sequences_that_fit_are_counted_on_what_is_left_after_the_weights() -> None:
    from tests.unit.test_plan import job, plan_of

    placement = plan_of(job(tasks=["AIME24"])).placement
    room = capacity(placement, (H100,), need())
    assert room is not None
    assert room.kv_cache_gib == pytest.approx(0.9 * 81559 / 1024 - 16.4e9 / 2**30 - 2)
    assert room.sequences == int(room.kv_cache_gib / (36864 * 147456 / 2**30))
    assert "64: the KV cache holds 10 sequences of 36864 tokens" in (room.warning() or "")
