"""The engine gets the cards that CUDA would use, in CUDA's order, or the mask is refused with what is wrong in it.

vllm#13815, #6551 and slurm-operator#112 (UUIDs), nvidia-docker#907 and pyxis#47 (a host's mask in a renumbered
container), CUDA's own rules for order, -1 and repeats (pytorch#92315).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from entrypoint.errors import MachineError
from entrypoint.gpu import Gpu
from entrypoint.visible import visible_gpus

FIRST = Gpu(
    index=0,
    uuid="GPU-11111111-f12f-20bf-e14e-d3c4c965af32",
    name="NVIDIA H100 80GB HBM3",
    total_mib=81559,
    free_mib=81000,
    driver="580.65.06",
)
SECOND = replace(FIRST, index=1, uuid="GPU-8c7c9c30-f12f-20bf-e14e-d3c4c965af32")
SLICE = replace(FIRST, uuid="MIG-377e0049-554c-540b-93c6-d0976f8426cb", name="NVIDIA A100 MIG 3g.40gb", total_mib=40192)


@pytest.mark.parametrize(
    ("mask", "indices"),
    [
        (None, [0, 1]),
        ("", []),
        (" ", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,-1,1", [0]),
        ("1,-2,0", [1]),
        ("1,,0", [1]),
        ("1,0", [1, 0]),
        (" 1 , 0 ", [1, 0]),
        ("01", [1]),
        (SECOND.uuid, [1]),
        ("GPU-8c7c9c30", [1]),
        (f"{SECOND.uuid},GPU-1", [1, 0]),
    ],
)
def test_the_mask_follows_cudas_rules(mask: str | None, indices: list[int]) -> None:
    assert [gpu.index for gpu in visible_gpus((FIRST, SECOND), mask)] == indices


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ("4", r"CUDA_VISIBLE_DEVICES=4: 4 is none of the cards here .*container.*numbered anew.*unset it"),
        ("0,7", "7 is none of the cards here"),
        ("0,0", "0 is named twice"),
        ("GPU-8c7c9c30,GPU-8", "GPU-8 is named twice"),
        ("GPU-", "GPU- fits 0 GPU-1.*write more of the UUID"),
        ("GPU-99", "GPU-99 is none of the cards"),
        ("MIG-377e0049", "MIG slice that nvidia-smi does not list"),
        ("all", "all is neither a card's number nor its UUID"),
        ("0x1", "neither"),
        ("0,GPU-8c7c9c30", "mixes numbers and UUIDs"),
    ],
)
def test_an_entry_that_names_no_card_is_refused(mask: str, words: str) -> None:
    with pytest.raises(MachineError, match=words):
        visible_gpus((FIRST, SECOND), mask)


def test_a_slice_is_chosen_by_its_uuid_and_has_its_own_memory() -> None:
    parent = replace(FIRST, mig=True)
    for mask in (SLICE.uuid, "MIG-377e0049", "0", None):
        assert visible_gpus((parent,), mask, (SLICE,)) == (SLICE,)


def test_a_card_in_mig_mode_is_never_used_whole() -> None:
    with pytest.raises(MachineError, match="MIG mode, but no slice of it is visible"):
        visible_gpus((replace(FIRST, mig=True),), None)


def test_one_slice_at_a_time_and_no_card_beside_it() -> None:
    other = replace(SLICE, uuid="MIG-99")
    with pytest.raises(MachineError, match=r"one MIG slice at a time.*MIG-377e0049.*MIG-99"):
        visible_gpus((replace(FIRST, mig=True),), None, (SLICE, other))
    with pytest.raises(MachineError, match="one MIG slice at a time"):
        visible_gpus((replace(FIRST, mig=True), SECOND), None, (SLICE,))
