"""A failure of ours must never look like a score: whatever does not hold together publishes nothing, by name.

Incidents: an empty `results` with exit 0 (marin#7391); a grader that failed on all 167 samples, which became
0.0 for every model (marin#8083); `run_stats` with fewer repetitions than claimed (lighteval#771);
seeds that never reached the sampler (tt-inference-server#4292); an integer too long to save (marin#3690).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from entrypoint.completion import read_settled
from tests.fakes.graded import (
    Bench,
    graded_trial,
    load,
    native_shape,
    partial_shape,
    plain_shape,
    repeat_shape,
    task_plan,
    write_graded,
)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("shape", [repeat_shape, plain_shape])
def test_either_shape_of_evalchemy_becomes_the_shape_of_one_repetition(
    tmp_path: Path, shape: Callable[[Sequence[bool], int], dict[str, Any]]
) -> None:
    bench = Bench(tmp_path, task_plan(seeds=(42,)))
    bench.put(42, {**shape([True, True, False], 42), "accuracy_easy_avg": 0.75})
    bench.settle()
    results = load(bench.seed_files(42)[0])["results"]["AIME24"]
    examples = results.pop("examples")
    assert results == {
        "num_total": 3,
        "num_solved": 2,
        "accuracy": 2 / 3,
        "accuracy_avg": 2 / 3,
        "accuracy_std_err": 0.0,
        "num_repeat": 1,
        "solved_avg": 2.0,
        "run_stats": [{"repetition": 1, "num_total": 3, "num_solved": 2, "accuracy": 2 / 3}],
        "accuracy_easy_avg": 0.75,
    }
    assert [e["correctness"] for e in examples] == [True, True, False]


def test_lm_eval_keeps_its_own_keys_and_gains_the_accuracy_of_the_named_metric(tmp_path: Path) -> None:
    metric = "exact_match,strict-match"
    bench = Bench(tmp_path, task_plan("gsm8k", (42,), harness="lm_eval", metric=metric, num_fewshot=5))
    bench.put(42, native_shape([True, False, False, False], 42))
    assert bench.settle().mean == 0.25
    path = bench.seed_files(42)[0]
    assert path.parts[-3] == "gsm8k_5shot"
    results = load(path)["results"]["gsm8k"]
    assert (results["accuracy"], results[metric], results["exact_match,flexible-extract"]) == (
        0.25,
        0.25,
        1.0,
    )
    assert (results["num_total"], results["num_solved"]) == (4, 1)


def test_partial_credit_is_a_float_in_the_compiled_rows_and_has_no_verdict(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task_plan("JEEBench"))
    for seed in (42, 43):
        bench.put(seed, partial_shape([1.0, 0.25, 0.5, 0.0], seed))
    assert bench.settle().mean == 0.4375
    rows = load(bench.layout.compile_dir("JEEBench", 2) / "compiled_results.json")
    assert [row["correct"] for row in rows] == [1.0, 0.25, 0.5, 0.0] * 2
    assert all(isinstance(row["correct"], float) for row in rows)


def test_an_integer_of_more_than_4300_digits_does_not_kill_the_save(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task_plan("HMMT", (42,)))
    results = repeat_shape([True, False], 42)
    results["examples"][0]["gold"] = 10**5000
    bench.put(42, results)
    assert bench.settle().mean == 0.5
    example = load(bench.seed_files(42)[0])["results"]["HMMT"]["examples"][0]
    assert example["gold"] == "1" + "0" * 5000


def assert_nothing_published(bench: Bench, *said: str) -> None:
    summary = bench.settle()
    assert (summary.status, summary.mean, summary.std, dict(summary.per_seed)) == ("failed", None, None, {})
    assert f"no results for {bench.task.name}" in str(summary.reason)
    for words in said:
        assert words in str(summary.reason)
    assert str(bench.layout.results) not in str(summary.reason)
    assert bench.published() == set()


@pytest.mark.parametrize("results", [{}, None, [], 0, "x", {"MATH500": {}}, {"AIME24": None}, {"examples": []}])
def test_empty_or_foreign_results_publish_nothing(bench: Bench, results: Any) -> None:
    for seed in bench.task.seeds:
        bench.put(seed, results)
    assert_nothing_published(bench)


@pytest.mark.parametrize("content", ["", "{", "null", "[]", '{"results": {}}', '{"task": "AIME24", "seed": 42}'])
def test_a_graded_file_that_is_not_whole_publishes_nothing(bench: Bench, content: str) -> None:
    for seed in bench.task.seeds:
        path = bench.layout.graded("AIME24", seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert_nothing_published(bench, "is not whole", "_work/logs")


def test_a_trial_that_was_never_graded_names_where_the_logs_are(bench: Bench) -> None:
    assert_nothing_published(bench, "is missing", "_work/logs")


def test_a_failed_trial_says_what_the_grade_stage_said(bench: Bench) -> None:
    for seed in bench.task.seeds:
        bench.put(seed, None, status="failed", reason="the grader ended with signal 9")
    assert_nothing_published(bench, "seed 42, 43: the grader ended with signal 9")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"accuracy": float("nan")}, "is not whole"),
        ({"accuracy": True}, "not a number in [0, 1]"),
        ({"accuracy": 1.2}, "not a number in [0, 1]"),
        ({"accuracy": None}, "no accuracy"),
        ({"accuracy": 0.9}, "2 of 4 are solved"),
        ({"num_solved": 3}, "counts 3 solved"),
        ({"num_solved": None}, "counts nothing"),
        ({"num_total": 3}, "num_total is 3"),
        ({"num_repeat": 3}, "num_repeat is 3"),
        ({"run_stats": [{}, {}, {}]}, "3 repetitions"),
        ({"run_stats": []}, "0 repetitions"),
    ],
)
def test_a_number_that_does_not_hold_together_publishes_nothing(
    bench: Bench, changes: dict[str, Any], said: str
) -> None:
    for seed in bench.task.seeds:
        trial = graded_trial(bench.plan, bench.task, seed, plain_shape([True, True, False, False], seed) | changes)
        path = bench.layout.graded("AIME24", seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(trial))
    assert_nothing_published(bench, said)


@pytest.mark.parametrize("value", [None, True, "0.5", -0.1, 1.5])
def test_a_metric_of_lm_eval_that_is_no_share_publishes_nothing(tmp_path: Path, value: Any) -> None:
    bench = Bench(tmp_path, task_plan("gsm8k", (42,), harness="lm_eval", metric="exact_match,strict-match"))
    bench.put(42, native_shape([True, False], 42) | {"exact_match,strict-match": value})
    assert_nothing_published(bench, "exact_match,strict-match", "exact_match,flexible-extract")


def test_a_metric_of_lm_eval_that_its_own_samples_contradict_publishes_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task_plan("gsm8k", (42,), harness="lm_eval", metric="exact_match,strict-match"))
    bench.put(42, native_shape([False] * 64, 42) | {"exact_match,strict-match": 0.5})
    assert_nothing_published(bench, "the metric 'exact_match,strict-match' is 0.5", "0 of 64")


@pytest.mark.parametrize(("told", "status"), [(0.5, "ok"), (0.5 + 1e-9, "ok"), (0.50001, "failed"), (0.75, "failed")])
def test_a_metric_of_lm_eval_with_partial_credit_is_the_mean_of_its_samples(
    tmp_path: Path, told: float, status: str
) -> None:
    bench = Bench(tmp_path, task_plan("tool_calls", (42,), harness="lm_eval", metric="content,none"))
    examples = partial_shape([0.25, 0.75, 0.3, 0.7], 42)["examples"]
    bench.put(42, {"content,none": told, "examples": examples})
    if status == "ok":
        assert bench.settle().mean == told
    else:
        assert_nothing_published(bench, "the metric 'content,none' is", "2.0 of 4")


@pytest.mark.parametrize(
    ("checks", "said"),
    [
        ({"generated": 3}, "expected 4, generated 3, graded 4"),
        ({"graded": 3}, "graded 3"),
        ({"expected": 5}, "expected 5"),
        ({"infra_failed": 1}, "1 samples failed"),
    ],
)
def test_a_score_needs_every_sample_generated_and_graded(bench: Bench, checks: dict[str, int], said: str) -> None:
    for seed in bench.task.seeds:
        bench.put(seed, repeat_shape([True, True, False, False], seed), **checks)
    assert_nothing_published(bench, said)


def test_a_grader_that_failed_on_every_sample_is_no_zero(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task_plan("LiveCodeBench", (42,)))
    results = repeat_shape([False] * 167, 42)
    for one in results["examples"]:
        one["reason"] = "Evaluation error: cannot import name 'x'"
    bench.put(42, results)
    assert_nothing_published(bench, "167 of 167 samples (0 graded)", "cannot import name")


@pytest.mark.parametrize("missing", ["id", "correctness", "model_outputs", "tokens", "sampler_seed", "finish_reason"])
def test_an_example_that_is_not_whole_publishes_nothing(bench: Bench, missing: str) -> None:
    for seed in bench.task.seeds:
        results = repeat_shape([True, False], seed)
        del results["examples"][1][missing]
        bench.put(seed, results)
    assert_nothing_published(bench, "example 1")


def test_what_took_effect_must_be_what_was_asked(bench: Bench) -> None:
    for seed in bench.task.seeds:
        trial = graded_trial(bench.plan, bench.task, seed, repeat_shape([True], seed))
        trial["effective"]["temperature"] = 0.0
        write_graded(bench.layout, trial)
    assert_nothing_published(bench, "temperature 0.7 was asked for, 0.0 took effect")


def test_a_trial_graded_under_other_settings_is_not_settled_under_these(bench: Bench) -> None:
    bench.put_all({42: 4, 43: 5})
    cooler = replace(bench.task.sampling, temperature=0.6)
    bench.task = replace(bench.task, sampling=cooler)
    assert_nothing_published(bench, "temperature: 0.7 -> 0.6")


def put_copies(bench: Bench, rows: int, different: int, tokens: int) -> None:
    for seed in bench.task.seeds:
        results = repeat_shape([True] * rows, seed)
        for number, one in enumerate(results["examples"]):
            one["tokens"] = tokens
            if number >= different:
                one["model_outputs"] = ["the same"]
        bench.put(seed, results)


@pytest.mark.parametrize(
    ("rows", "different", "tokens", "status"),
    [(20, 0, 32, "failed"), (19, 0, 32, "ok"), (20, 0, 31, "ok"), (200, 2, 40, "failed"), (200, 3, 40, "ok")],
)
def test_copies_across_seeds_fail_a_sampled_task_only_when_nearly_all_long_ones_agree(
    bench: Bench, rows: int, different: int, tokens: int, status: str
) -> None:
    put_copies(bench, rows, different, tokens)
    summary = bench.settle()
    assert summary.status == status
    if status == "ok":
        settled = read_settled(bench.layout, bench.task, 42)
        assert settled is not None
        assert settled.about["validity"]["identical_across_seeds"] == rows - different
    else:
        assert bench.published() == set()


def test_copies_are_right_when_nothing_is_sampled(tmp_path: Path) -> None:
    greedy = task_plan()
    bench = Bench(tmp_path, replace(greedy, sampling=replace(greedy.sampling, temperature=0.0)))
    put_copies(bench, 30, 0, 40)
    assert bench.settle().status == "ok"
