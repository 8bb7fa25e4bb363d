"""Only what is whole and bound to today's settings counts as done; nothing may be reused under other ones.

Incidents: stale numbers after a changed temperature or template (lm-eval#3881, pytorch/ao#3073), half files
counted as results (verifiers#1376), the newest file chosen by file time (product-integrator#1464).
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from entrypoint.completion import early_conflicts, settings_mismatch, task_state
from entrypoint.report import write_report
from tests.fakes.graded import (
    Bench,
    load,
    prints,
    snapshot,
    task_plan,
)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def done(bench: Bench) -> Bench:
    bench.put_all({42: 4, 43: 5})
    bench.settle()
    assert bench.state().complete
    return bench


def test_a_complete_task_is_cached_with_its_numbers(done: Bench) -> None:
    summary = done.state().summary
    assert summary is not None
    assert (summary.status, summary.mean, dict(summary.per_seed)) == ("cached", 0.45, {42: 0.4, 43: 0.5})


@pytest.mark.parametrize("cut", [0, 1, 200])
def test_a_cut_or_empty_file_means_not_complete(done: Bench, cut: int) -> None:
    whole = snapshot(done.layout.root)
    targets = [*done.seed_files(42), done.layout.marker("AIME24")]
    targets += [done.layout.compile_dir("AIME24", 2) / "averaged_results.json"]
    if cut == 0:
        targets = [done.layout.root / name for name in done.published()]
        assert len(targets) == 7
    for path in targets:
        content = path.read_bytes()
        path.write_bytes(content[:cut])
        state = done.state()
        assert not state.complete
        assert state.conflicts == ()
        assert done.settle().status == "ok"
        assert done.state().complete
        published = {k: v for k, v in snapshot(done.layout.root).items() if not k.startswith("_work")}
        assert published.keys() == {k for k in whole if not k.startswith("_work")}


@pytest.mark.parametrize(
    "name", ["averaged_results.json", "averaged_results.csv", "compiled_results.json", "compiled_results.csv"]
)
def test_a_missing_compile_file_is_written_again(done: Bench, name: str) -> None:
    path = done.layout.compile_dir("AIME24", 2) / name
    content = path.read_bytes()
    path.unlink()
    state = done.state()
    assert (state.complete, state.settled) == (False, (42, 43))
    done.settle()
    assert path.read_bytes() == content
    assert done.state().complete


def test_a_temporary_file_is_not_counted(done: Bench) -> None:
    path = done.seed_files(42)[0]
    path.rename(path.with_name(path.name + ".tmp"))
    state = done.state()
    assert (state.complete, state.settled) == (False, (43,))


def test_file_times_do_not_matter(done: Bench) -> None:
    for path in done.layout.root.rglob("*"):
        os.utime(path, (0, 0))
    assert done.state().complete


def test_the_row_count_must_be_the_expected_one(done: Bench) -> None:
    assert done.state(rows=30).settled == ()


def test_a_second_results_file_means_not_complete(done: Bench) -> None:
    path = done.seed_files(42)[0]
    shutil.copy(path, path.with_name("results_copy.json"))
    assert done.state().settled == (43,)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("temperature", 0.6, "temperature: 0.7 -> 0.6"), ("max_tokens", 16384, "max_tokens: 32768 -> 16384")],
)
def test_a_complete_task_made_under_other_settings_is_a_conflict_that_names_them(
    done: Bench, field: str, value: Any, said: str
) -> None:
    done.task = replace(done.task, sampling=replace(done.task.sampling, **{field: value}))
    state = done.state()
    assert (state.complete, state.settled, state.conflicts) == (False, (), (said,))


def test_other_seeds_under_other_settings_are_a_conflict_too(done: Bench) -> None:
    done.reseed((50, 51))
    assert done.state().conflicts == ()
    done.task = replace(done.task, sampling=replace(done.task.sampling, top_p=0.9))
    assert done.state().conflicts == ("top_p: 1.0 -> 0.9",)


def test_an_unfinished_task_under_other_settings_is_simply_done_again(done: Bench) -> None:
    done.layout.marker("AIME24").unlink()
    done.task = replace(done.task, sampling=replace(done.task.sampling, temperature=0.6))
    state = done.state()
    assert (state.settled, state.conflicts) == ((), ())


def test_another_checkpoint_is_a_conflict_even_in_an_unfinished_task(done: Bench) -> None:
    done.layout.marker("AIME24").unlink()
    done.plan = replace(done.plan, evaluation=replace(done.plan.evaluation, checkpoint_identity="d1" * 32))
    assert done.state().conflicts == (f"checkpoint: {'c0' * 32} -> {'d1' * 32}",)


def test_another_grader_means_not_complete_but_no_conflict(done: Bench) -> None:
    expected = {seed: prints(done.plan, done.task, seed, 10) for seed in done.task.seeds}
    newer = {seed: replace(one, grading={**one.grading, "lark": "1.2.2"}) for seed, one in expected.items()}
    state = task_state(done.layout, done.task, newer)
    assert (state.complete, state.settled, state.conflicts) == (False, (), ())


def changed(bench: Bench, **evaluation: Any) -> None:
    bench.plan = replace(bench.plan, evaluation=replace(bench.plan.evaluation, **evaluation))


def retask(bench: Bench, **changes: Any) -> None:
    bench.task = replace(bench.task, **changes)
    changed(bench, tasks=(bench.task,))


def test_a_folder_of_this_plan_has_no_conflicts(done: Bench) -> None:
    write_report(done.plan, done.layout)
    assert early_conflicts(done.plan, done.layout) == ()
    done.reseed((42, 44))
    assert early_conflicts(done.plan, done.layout) == ()


def test_other_settings_of_a_complete_task_are_told_before_it_is_asked(done: Bench) -> None:
    retask(done, sampling=replace(done.task.sampling, temperature=0.6), seeds=(42, 50))
    changed(done, dtype="float32")
    told = ("AIME24: temperature: 0.7 -> 0.6", "AIME24: dtype: bfloat16 -> float32")
    assert early_conflicts(done.plan, done.layout) == told


def test_another_number_of_shots_is_told_too_though_it_is_in_the_folders_names(done: Bench) -> None:
    retask(done, num_fewshot=5)
    assert early_conflicts(done.plan, done.layout) == ("AIME24: num_fewshot: 0 -> 5",)


def test_other_settings_of_what_is_not_complete_are_no_early_conflict(done: Bench) -> None:
    (done.layout.compile_dir("AIME24", 2) / "averaged_results.json").unlink()
    retask(done, sampling=replace(done.task.sampling, temperature=0.6))
    assert early_conflicts(done.plan, done.layout) == ()


def test_another_checkpoint_is_told_of_every_task_of_the_folder_and_of_the_report(done: Bench) -> None:
    other = Bench(done.layout.results, task_plan("MATH500", (42,)))
    other.put_all({42: 3})
    other.settle()
    write_report(done.plan, done.layout)
    changed(done, checkpoint_identity="d1" * 32)
    told = f"checkpoint: {'c0' * 32} -> {'d1' * 32}"
    assert early_conflicts(done.plan, done.layout) == (
        f"AIME24: {told}",
        f"results.json: {told}",
        f"MATH500: {told}",
    )


def test_another_checkpoint_is_told_of_unfinished_trials_too(done: Bench) -> None:
    done.layout.marker("AIME24").unlink()
    changed(done, checkpoint_identity="d1" * 32)
    assert early_conflicts(done.plan, done.layout) == (f"AIME24: checkpoint: {'c0' * 32} -> {'d1' * 32}",)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"checkpoint": 3}', '{"checkpoint_identity": null}'])
def test_a_marker_or_report_that_is_not_whole_is_no_conflict(done: Bench, content: str) -> None:
    for path in (done.layout.marker("MATH500"), done.layout.results_json):
        path.write_text(content)
    assert early_conflicts(done.plan, done.layout) == ()


@pytest.mark.parametrize(
    ("evaluation", "task", "said"),
    [
        ({"checkpoint_identity": "d1" * 32}, {}, f"checkpoint: {'c0' * 32} -> {'d1' * 32}"),
        ({"max_model_len": 4096}, {}, "max_model_len: 36864 -> 4096"),
        ({"think_end_token": "</think>"}, {}, "think_end_token: None -> </think>"),
        ({}, {"source": "6f" * 32}, f"benchmark: {'5e' * 32} -> {'6f' * 32}"),
        ({}, {"metric": "exact_match,none"}, "metric: None -> exact_match,none"),
    ],
)
def test_a_trial_made_for_another_plan_says_what_differs(
    done: Bench, evaluation: dict[str, Any], task: dict[str, Any], said: str
) -> None:
    about = load(done.seed_files(42)[0])["_evalcrate"]
    assert settings_mismatch(done.plan, done.task, about) is None
    retask(done, **task)
    changed(done, **evaluation)
    assert settings_mismatch(done.plan, done.task, about) == f"made under other settings than the plan's: {said}"


def test_another_machine_is_no_other_setting(done: Bench) -> None:
    about = load(done.seed_files(42)[0])["_evalcrate"]
    elsewhere = {"engine": "vllm 0.32.0", "device": "sm90"}
    done.plan = replace(done.plan, placement=replace(done.plan.placement, numerics=elsewhere))
    assert settings_mismatch(done.plan, done.task, about) is None
