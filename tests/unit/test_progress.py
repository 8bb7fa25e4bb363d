"""What a person reads while hours of GPU time pass must be true: rate and time left of this run alone."""

from __future__ import annotations

import io
from dataclasses import replace

from entrypoint.completion import TaskSummary
from entrypoint.generate import Progress
from entrypoint.progress import Lines, describe, duration, score, table

HALF = Progress(done=60, total=100, running=8, generated_tokens=5000, elapsed_s=10.0, start_s=30.0, reused=20)
OK = TaskSummary(
    task="AIME24",
    status="ok",
    seeds=(42, 43),
    mean=0.049,
    std=0.012,
    per_seed={42: 0.04, 43: 0.058},
    elapsed_seconds=1.0,
    reason=None,
)


def test_rate_and_time_left_count_only_what_this_run_generated() -> None:
    assert describe(HALF) == "60/100 requests (20 from earlier runs), 8 running, 500 tokens/s, about 0:10 left"


def test_while_the_engine_starts_there_is_no_rate() -> None:
    assert describe(replace(HALF, done=20, generated_tokens=0, elapsed_s=0.0)) == "the engine starts (0:30)"


def test_durations_have_hours_only_when_there_are_some() -> None:
    assert [duration(s) for s in (5, 75, 3675)] == ["0:05", "1:15", "1:01:15"]


def test_the_end_is_said_once_on_plain_lines() -> None:
    out = io.StringIO()
    lines = Lines(out=out)
    lines.stage("generate")
    for _ in range(3):
        lines.progress(replace(HALF, done=100, running=0))
    assert out.getvalue().count("100/100") == 1


def test_a_score_is_times_100_with_one_decimal_and_a_named_deviation() -> None:
    assert score(OK) == "4.9 ± 1.2 (sd), 2 seeds"
    assert score(replace(OK, mean=None)) == "no score"


def test_quiet_keeps_failures() -> None:
    out = io.StringIO()
    lines = Lines(quiet=True, out=out)
    lines.stage("x")
    lines.task(OK)
    lines.task(replace(OK, status="failed", reason="why"))
    assert out.getvalue() == "  AIME24: failed: why\n"


def test_the_table_says_what_a_score_stands_on() -> None:
    text = table([OK], [{"expected": 60, "graded": 60, "truncated": 3, "empty": 0}])
    assert text.splitlines()[1].split() == [
        "AIME24",
        "ok",
        "0.0490",
        "0.0120",
        "2",
        "60/60",
        "graded,",
        "3",
        "truncated",
    ]
