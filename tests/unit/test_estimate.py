"""How long a run takes is told from runs like it, else from assumptions that are printed; never from unlike runs.

An estimate that mixes another card's speed or another budget's answers into the range is worse than none.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from entrypoint.capacity import Capacity
from entrypoint.estimate import Estimate, estimate
from entrypoint.layout import Layout
from entrypoint.outlook import Outlook, most_tokens
from entrypoint.plan import Placement, Sampling
from entrypoint.speed import Lengths, Speed, read_speeds, setting_of, write_speed
from tests.fakes.graded import plan_of, task_plan

WEIGHTS = 16_000_000_000


def placement(**values: Any) -> Placement:
    whole = plan_of(results=Path("/results")).placement
    return replace(whole, device="NVIDIA H100 80GB HBM3", profile="h100-80g", values=values)


def open_task(name: str, samples: int | None = 30, **more: Any) -> Outlook:
    sampling = Sampling(temperature=0.7, top_p=1.0, max_tokens=1000, seed_policy="per_sample")
    return Outlook(task=task_plan(name, sampling=sampling), samples=samples, **more)


def speed(where: Placement, *, tokens: int = 40_000, seconds: float = 10.0, **changes: Any) -> Speed:
    values = {
        "setting": setting_of(where),
        "weights_bytes": WEIGHTS,
        "answers": 100,
        "tokens": tokens,
        "seconds": seconds,
        "start_seconds": 30.0,
        "tasks": {"A": Lengths(answers=100, tokens=40_000, max_tokens=1000)},
    }
    return Speed(**{**values, **changes})


def told(outlooks: list[Outlook], *speeds: Speed, room: Capacity | None = None) -> Estimate:
    return estimate(outlooks, speeds, placement(max_num_seqs=64), WEIGHTS, room)


def test_earlier_runs_like_this_one_give_lengths_speed_and_start() -> None:
    here = placement(max_num_seqs=64)
    faster = speed(here, seconds=5.0, start_seconds=20.0, weights_bytes=WEIGHTS + 1000)
    found = told([open_task("A")], speed(here), faster)
    assert (found.answers, found.tokens) == (60, (24_000.0, 24_000.0))
    assert found.seconds == (24_000 / 8000 + 20, 24_000 / 4000 + 30)
    assert found.start_included
    assert found.speed_from == "4,000 to 8,000 tokens/s in 2 earlier runs like this"
    assert found.lengths_from == "as in earlier runs"


def test_another_device_another_size_and_a_handful_of_answers_tell_nothing_of_speed() -> None:
    here = placement(max_num_seqs=64)
    unlike = [
        speed(replace(here, device="NVIDIA L40S")),
        speed(here, weights_bytes=WEIGHTS // 2),
        speed(here, answers=10),
        speed(replace(here, values={**here.values, "tensor_parallel_size": 2})),
    ]
    found = told([open_task("A")], *unlike)
    assert not found.start_included
    assert found.speed_from.startswith("assumed: ")


def test_answers_under_another_limit_are_not_taken_for_these() -> None:
    other = {"A": Lengths(answers=100, tokens=90, max_tokens=8)}
    found = told([open_task("A"), open_task("B")], speed(placement(max_num_seqs=64), tasks=other))
    assert found.lengths_from == "assumed: a tenth of max_tokens up to max_tokens"
    assert found.tokens == (2 * 60 * 100, 2 * 60 * 1000)
    mixed = told([open_task("A"), open_task("B")], speed(placement(max_num_seqs=64)))
    assert mixed.lengths_from == "as in earlier runs; assumed for B: a tenth of max_tokens up to max_tokens"


def test_without_a_run_like_this_the_assumption_is_printed_with_its_numbers() -> None:
    room = Capacity(kv_cache_gib=40.0, sequences=8, length=4096, max_num_seqs=64)
    found = told([open_task("A")], room=room)
    slow, fast = 1 / (0.02 + WEIGHTS / 300e9), 1 / (0.005 + WEIGHTS / 4000e9)
    assert found.tokens == (6_000.0, 60_000.0)
    assert found.seconds is not None
    assert [round(s, 6) for s in found.seconds] == [round(6_000 / (fast * 60), 6), round(60_000 / (slow * 8), 6)]
    assert found.speed_from == (
        "assumed: 14 to 111 tokens/s for each of 8 to 60 sequences at once, a card reading the weights at 300 to "
        "4000 GB/s"
    )


def test_what_is_done_or_not_known_is_not_in_the_numbers() -> None:
    outlooks = [
        open_task("A", done=(42,)),
        open_task("B", complete=True),
        open_task("C", claimed=True),
        open_task("D", samples=None, at_most=True),
    ]
    found = told(outlooks)
    assert (found.answers, found.unknown) == (30, ("D",))
    assert most_tokens(outlooks) == 30_000
    nothing = told(outlooks[1:3])
    assert (nothing.answers, nothing.tokens, nothing.seconds) == (0, None, None)


def test_records_are_read_from_the_folders_right_under_the_results_and_bad_ones_left_out(tmp_path: Path) -> None:
    good = speed(placement())

    def layout(name: str) -> Layout:
        return Layout(results=tmp_path, experiment=name, step=None, limit=None, model="m")

    write_speed(layout("one"), good)
    write_speed(Layout(results=tmp_path / "deep", experiment="two", step=None, limit=None, model="m"), good)
    values = json.loads(layout("one").speed.read_bytes())
    bad = [b"", b"[]", b'{"schema": 1}', b"{", *(json.dumps({**values, **c}).encode() for c in CHANGES)]
    for number, data in enumerate(bad):
        file = layout(f"bad{number}").speed
        file.parent.mkdir(parents=True)
        file.write_bytes(data)
    assert read_speeds(tmp_path) == (good,)
    assert read_speeds(tmp_path / "absent") == ()


CHANGES: list[dict[str, Any]] = [
    {"schema": 2},
    {"seconds": 0},
    {"tokens": "many"},
    {"tasks": []},
    {"tasks": {"A": {"answers": 1}}},
    {"tasks": {"A": {"answers": 1, "tokens": "x", "max_tokens": 1}}},
    {"more": 1},
]
