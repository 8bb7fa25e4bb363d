"""Whatever nvidia-smi says, a card is read right or refused in one sentence: never a crash, never 0 MiB, never dropped.

unslothai/unsloth#10283 (unified memory), IDSIA/sacred#864 and nvidia-container-toolkit#842 (permission markers),
kaito#1374 (free memory is not total - used), microsoft/pai#3756 (lines that are no rows).
"""

from __future__ import annotations

import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from entrypoint.errors import MachineError
from entrypoint.gpu import Gpu, GpuProcess, HostMemory, read_rows, with_processes
from entrypoint.mig import read_sizes, read_slices
from entrypoint.visible import visible_gpus

ROW = "0, GPU-aa, NVIDIA L40S, 46068, 3, 41500, 580.65.06, 8.9, [N/A]"
SHARED = HostMemory(total_mib=124610, available_mib=61440)


def row(**changes: str) -> str:
    names = ("index", "uuid", "name", "total", "used", "free", "driver", "capability", "mig")
    return ", ".join({**dict(zip(names, ROW.split(", "), strict=True)), **changes}.values())


def one(line: str, shared: HostMemory | None = SHARED) -> Gpu:
    (gpu,) = read_rows(line, shared=shared).gpus
    return gpu


def test_free_memory_is_the_reported_one() -> None:
    assert (one(ROW).total_mib, one(ROW).used_mib, one(ROW).free_mib) == (46068, 3, 41500)


@pytest.mark.parametrize("marker", ["[N/A]", "N/A", "[Not Supported]"])
@pytest.mark.parametrize("name", ["NVIDIA GB10", "NVIDIA Thor", "Orin (nvgpu)"])
def test_a_card_with_unified_memory_has_the_hosts(name: str, marker: str) -> None:
    gpu = one(row(name=name, total=marker, used=marker, free=marker))
    assert (gpu.total_mib, gpu.free_mib, gpu.unreported) == (124610, 61440, None)


@pytest.mark.parametrize(
    "marker", ["[Insufficient Permissions]", "[Not Supported]", "N/A", "ERR!", "[Unknown Error]", "", "-1", "1e5", "٣"]
)
def test_any_other_card_without_numbers_is_marked_with_what_was_said(marker: str) -> None:
    gpu = one(row(total=marker, used=marker, free=marker))
    assert gpu.unreported == (marker or "not reported")
    assert "0 MiB" not in gpu.label
    assert one(row(free=marker)).unreported == (marker or "not reported")


def test_the_permission_marker_is_not_taken_for_unified_memory() -> None:
    assert one(row(name="NVIDIA GB10", total="[Insufficient Permissions]", free="[N/A]")).unreported


@pytest.mark.parametrize(("total", "free"), [("0", "0"), ("100", "101")])
def test_numbers_that_contradict_each_other_are_not_computed_with(total: str, free: str) -> None:
    assert one(row(total=total, free=free)).unreported


def test_one_card_twice_is_refused() -> None:
    with pytest.raises(MachineError, match="two cards with index 0"):
        read_rows(f"{ROW}\n{ROW}")
    with pytest.raises(MachineError, match="two cards with uuid GPU-aa"):
        read_rows(f"{ROW}\n{row(index='1')}")


WORDS = [
    "[N/A]",
    "[Not Supported]",
    "[Insufficient Permissions]",
    "ERR!",
    "GPU-aa",
    "MIG-bb",
    "NVIDIA GB10",
    "Enabled",
    "8.9",
]
FIELD = st.one_of(
    st.integers(-5, 2**70).map(str), st.sampled_from(WORDS), st.text(max_size=12), st.text(string.digits, max_size=400)
)
LINE = st.one_of(
    st.lists(FIELD, max_size=11).map(", ".join),
    st.lists(FIELD, min_size=8, max_size=8).map(lambda fields: ", ".join(["0", *fields])),
    st.sampled_from([ROW, "WARNING: infoROM is corrupted", "No devices were found", "", "NVRM: x"]),
    st.text(max_size=60),
)
MASK = st.one_of(
    st.none(),
    st.text(max_size=20),
    st.lists(st.one_of(FIELD, st.sampled_from(["-1", " 1 ", "", "GPU-", "MIG-", "GPU-a", "²", "0x1"])), max_size=5).map(
        ",".join
    ),
)


@settings(max_examples=2000, deadline=None)
@given(lines=st.lists(LINE, max_size=5), mask=MASK)
@example(lines=["²" + ROW], mask="²")
@example(lines=[ROW], mask="\u0660")
@example(lines=[ROW.replace("46068", "9" * 5000)], mask=None)
def test_random_answers_give_right_cards_or_one_clean_refusal(lines: list[str], mask: str | None) -> None:
    try:
        cards = read_rows("\n".join(lines), shared=SHARED)
        chosen = visible_gpus(cards.gpus, mask)
    except MachineError:
        return
    assert bool(cards.gpus) == (cards.missing is None)
    for gpu in cards.gpus:
        assert gpu.unreported is not None or 0 <= gpu.free_mib <= gpu.total_mib > 0
    assert len(chosen) == len(set(chosen))
    assert set(chosen) <= set(cards.gpus)
    assert mask is not None or chosen == cards.gpus


@settings(max_examples=500, deadline=None)
@given(text=st.one_of(st.text(max_size=200), st.lists(LINE, max_size=4).map("\n".join)))
def test_random_lists_of_processes_and_slices_are_never_a_crash(text: str) -> None:
    cards = (one(ROW),)
    assert [gpu.uuid for gpu in with_processes(cards, text)] == ["GPU-aa"]
    for part in read_slices(cards, f"GPU 0: NVIDIA L40S (UUID: GPU-aa)\n{text}", read_sizes(text)):
        assert part.uuid.startswith("MIG-")


def test_processes_are_told_by_card() -> None:
    text = "GPU-aa, 12, python, with, commas, 3000\nGPU-bb, 13, x, 1\nGPU-aa, 14, [Not Found], [N/A]\nnonsense"
    (gpu,) = with_processes((one(ROW),), text)
    assert gpu.processes == (
        GpuProcess(pid="12", name="python,with,commas", used_mib=3000),
        GpuProcess(pid="14", name="[Not Found]", used_mib=None),
    )


LISTING = """GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-aa)
  MIG 3g.40gb     Device  0: (UUID: MIG-11)
  MIG 1g.10gb     Device  1: (UUID: MIG-22)
"""
REPORT = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log><gpu id="0"><uuid>GPU-aa</uuid><fb_memory_usage><total>81920 MiB</total></fb_memory_usage>
<mig_devices>
<mig_device><index>0</index><fb_memory_usage><total>40192 MiB</total><free>40100 MiB</free></fb_memory_usage>
</mig_device><mig_device><index>1</index><fb_memory_usage><total>N/A</total></fb_memory_usage></mig_device></mig_devices>
</gpu></nvidia_smi_log>"""


def test_a_slice_has_its_own_memory_or_none_never_its_cards() -> None:
    card = one(row(name="NVIDIA A100-SXM4-80GB", total="81920", free="81000", mig="Enabled"))
    first, second = read_slices((card,), LISTING, read_sizes(REPORT))
    assert (first.name, first.total_mib, first.free_mib) == ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 40192, 40100)
    assert second.unreported == "of the MIG slice not reported"
