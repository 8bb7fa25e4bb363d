"""The report says what the settled files say: all tasks of the plan, failed ones too, in the same bytes.

Incidents: a mean of what happened to exist, labelled with the planned seeds (lighteval#771); truncation by a
small limit that nobody saw in the scores (marin#8315); a failed task missing from the table (marin#7391).
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from entrypoint.layout import Layout
from entrypoint.plan import Plan
from entrypoint.report import write_report
from entrypoint.report.summary import percent
from entrypoint.settle import settle_task
from tests.fakes.graded import (
    Clock,
    graded_trial,
    layout_of,
    load,
    native_shape,
    plan_of,
    repeat_shape,
    task_plan,
    write_graded,
)

METRIC = "exact_match,strict-match"


def evaluated(folder: Path, *, failing: bool = False, later: int = 0, **changes: Any) -> tuple[Plan, Layout]:
    """AIME24 under two seeds and an lm-eval task under one, graded and settled."""
    aime = task_plan()
    arithmetic = task_plan("arithmetic", (42,), harness="lm_eval", metric=METRIC)
    plan = plan_of(aime, arithmetic, results=folder, **changes)
    layout = layout_of(plan)
    for seed in aime.seeds:
        trial = graded_trial(plan, aime, seed, repeat_shape([True, seed == 43, False, False], seed))
        trial["validity"]["truncated"] = seed - 42
        write_graded(layout, {**trial, "elapsed_seconds": 1.0 + later})
    checks = {"status": "failed", "reason": "the engine | died\ntwice"} if failing else {}
    write_graded(layout, graded_trial(plan, arithmetic, 42, native_shape([True, False], 42), checks=checks))
    clock = Clock()
    for _ in range(later):
        clock()
    for task in plan.evaluation.tasks:
        settle_task(plan, layout, task, image={"name": f"image-{later}"}, now=clock)
    return plan, layout


def reported(plan: Plan, layout: Layout) -> dict[str, Any]:
    """The tasks of results.json."""
    write_report(plan, layout)
    rows: dict[str, Any] = load(layout.results_json)["tasks"]
    return rows


def test_results_json_has_the_fields_of_the_contract_in_their_order(tmp_path: Path) -> None:
    plan, layout = evaluated(tmp_path)
    write_report(plan, layout)
    document = load(layout.results_json)
    assert list(document) == ["schema", "experiment", "step", "checkpoint_identity", "tasks"]
    assert (document["schema"], document["experiment"], document["step"]) == (1, "exp", 300)
    assert list(document["tasks"]) == ["AIME24", "arithmetic"]
    row = document["tasks"]["AIME24"]
    assert list(row) == [
        "status",
        "metric",
        "mean",
        "std",
        "n_seeds",
        "per_seed",
        "validity",
        "asked",
        "effective",
        "fingerprints",
    ]
    assert (row["status"], row["metric"], row["mean"], row["n_seeds"]) == ("ok", "accuracy", 0.375, 2)
    assert row["per_seed"] == {"42": 0.25, "43": 0.5}
    assert {len(digest) for pair in row["fingerprints"].values() for digest in pair.values()} == {64}
    assert document["tasks"]["arithmetic"]["metric"] == METRIC


def test_what_was_asked_and_what_took_effect_are_two_fields(tmp_path: Path) -> None:
    plan, layout = evaluated(tmp_path)
    write_report(plan, layout)
    row = load(layout.results_json)["tasks"]["AIME24"]
    asked = {
        "temperature": 0.7,
        "top_p": 1.0,
        "max_tokens": 32768,
        "seed_policy": "per_sample",
        "num_fewshot": 0,
    }
    assert row["asked"] == asked
    assert row["effective"]["temperature"] == 0.7
    seeds = {seed: {"policy": "per_sample", "first": int(seed) * 1000, "distinct": 4} for seed in ("42", "43")}
    assert row["effective"]["seed"] == seeds
    assert row["effective"]["generation_config_ignored"] == {"top_k": 20}
    settings = next(line for line in layout.summary.read_text().splitlines() if line.startswith("| AIME24 | 0.7"))
    assert "42 policy per_sample, first 42000, distinct 4" in settings
    assert settings.endswith("| top_k 20 |")


@pytest.mark.parametrize(
    ("proved", "said"),
    [((True, True), "| ok |"), ((False, False), "| ok, seeds unproven |"), ((True, False), "| ok, seeds unproven |")],
)
def test_seeds_that_no_one_proved_are_told_in_the_tasks_row(
    tmp_path: Path, proved: tuple[bool, bool], said: str
) -> None:
    plan, layout = evaluated(tmp_path)
    aime = plan.evaluation.tasks[0]
    for seed, one in zip(aime.seeds, proved, strict=True):
        trial = load(layout.graded("AIME24", seed))
        trial["effective"]["seeds_proved"] = one
        write_graded(layout, trial)
    settle_task(plan, layout, aime, image={}, now=Clock())
    rows = reported(plan, layout)
    merged = proved[0] if proved[0] == proved[1] else {"42": proved[0], "43": proved[1]}
    assert rows["AIME24"]["effective"]["seeds_proved"] == merged
    line = next(line for line in layout.summary.read_text().splitlines() if line.startswith("| AIME24 | accuracy"))
    assert line.endswith(said)


@pytest.mark.parametrize("limit", [None, 4])
@pytest.mark.parametrize("other", ["checkpoint", "temperature"])
def test_trials_of_other_weights_or_settings_are_not_shown_as_this_plans(
    tmp_path: Path, limit: int | None, other: str
) -> None:
    plan, layout = evaluated(tmp_path, limit=limit)
    what = plan.evaluation
    if other == "checkpoint":
        what, said = replace(what, checkpoint_identity="d1" * 32), f"checkpoint: {'c0' * 32} -> {'d1' * 32}"
    else:
        cooler = [replace(task, sampling=replace(task.sampling, temperature=0.6)) for task in what.tasks]
        what, said = replace(what, tasks=tuple(cooler)), "temperature: 0.7 -> 0.6"
    rows = reported(replace(plan, evaluation=what), layout)
    for row in rows.values():
        assert (row["status"], row["mean"], row["per_seed"], row["effective"]) == ("failed", None, {}, {})
        assert said in row["reason"]
    assert "- AIME24: no results for AIME24: seed 42, 43 is not of this plan: made under" in layout.summary.read_text()


def test_truncation_is_told_per_seed_and_in_all(tmp_path: Path) -> None:
    plan, layout = evaluated(tmp_path)
    write_report(plan, layout)
    validity = load(layout.results_json)["tasks"]["AIME24"]["validity"]
    assert (validity["truncated"], validity["expected"], validity["format_fail"]) == (1, 8, 2)
    assert {seed: block["truncated"] for seed, block in validity["per_seed"].items()} == {"42": 0, "43": 1}
    assert "1 of 8 (12.5 %)" in layout.summary.read_text()


def test_two_runs_into_two_folders_give_the_same_bytes(tmp_path: Path) -> None:
    reports = []
    for name, later in (("a", 0), ("some/where/else", 7)):
        plan, layout = evaluated(tmp_path / name, later=later)
        write_report(plan, layout)
        reports.append((layout.results_json.read_bytes(), layout.summary.read_bytes()))
    assert reports[0] == reports[1]
    text = b"".join(reports[0]).decode()
    assert not [word for word in (str(tmp_path), "image-0", "2026-11", "elapsed") if word in text]


def test_a_failed_task_stays_in_the_report_with_its_reason_and_no_mean(tmp_path: Path) -> None:
    plan, layout = evaluated(tmp_path, failing=True)
    rows = reported(plan, layout)
    assert [(name, row["status"]) for name, row in rows.items()] == [("AIME24", "ok"), ("arithmetic", "failed")]
    row = rows["arithmetic"]
    assert (row["status"], row["mean"], row["std"], row["per_seed"]) == ("failed", None, None, {})
    assert "no results for arithmetic" in row["reason"]
    assert row["reason"] == row["validity"]["reason"]
    assert row["validity"]["per_seed"]["42"]["status"] == "failed"
    assert row["asked"]["temperature"] == 0.7


def test_a_task_without_all_its_seeds_is_no_result(tmp_path: Path) -> None:
    plan, layout = evaluated(tmp_path)
    layout.marker("AIME24").unlink()
    assert reported(plan, layout)["AIME24"]["status"] == "failed"
    more = replace(plan.evaluation.tasks[0], seeds=(42, 43, 44))
    wider = replace(plan, evaluation=replace(plan.evaluation, tasks=(more,)))
    row = reported(wider, layout)["AIME24"]
    assert (row["status"], row["mean"]) == ("failed", None)
    assert "2 of 3 seeds are settled" in row["reason"]


def test_a_report_with_nothing_settled_names_every_task(tmp_path: Path) -> None:
    plan = plan_of(task_plan(), task_plan("MATH500", (42,)), results=tmp_path)
    rows = reported(plan, layout_of(plan))
    assert {name: row["status"] for name, row in rows.items()} == {"AIME24": "failed", "MATH500": "failed"}


def test_a_limited_run_reports_its_scores_and_says_that_they_are_a_test(tmp_path: Path) -> None:
    plan, layout = evaluated(tmp_path, limit=4)
    assert [row["status"] for row in reported(plan, layout).values()] == ["ok", "ok"]
    assert "Only 4 samples per task" in layout.summary.read_text()


def test_the_report_needs_neither_work_files_nor_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, layout = evaluated(tmp_path)
    write_report(plan, layout)
    before = layout.results_json.read_bytes()
    layout.work.rename(tmp_path / "gone")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the report started a process")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    write_report(plan, layout)
    assert layout.results_json.read_bytes() == before


def test_the_summary_shows_percentages_and_keeps_its_table_whole(tmp_path: Path) -> None:
    plan, layout = evaluated(tmp_path, failing=True)
    write_report(plan, layout)
    lines = layout.summary.read_text().splitlines()
    aime = next(line for line in lines if line.startswith("| AIME24 | accuracy"))
    assert [cell.strip() for cell in aime.split("|")][3:7] == ["37.5", "17.7", "2", "42: 25.0, 43: 50.0"]
    failed = next(line for line in lines if line.startswith("| arithmetic | exact"))
    assert failed.endswith("| failed |")
    assert any("the engine | died" in line for line in lines if line.startswith("- arithmetic"))


def test_a_score_is_shown_with_one_decimal() -> None:
    assert [percent(value) for value in (0.018, 0.0, 1.0, 0.426667)] == ["1.8", "0.0", "100.0", "42.7"]
    assert not any(sign.isdigit() for sign in percent(None))


def test_results_json_is_strict(tmp_path: Path) -> None:
    plan, layout = evaluated(tmp_path, failing=True)
    write_report(plan, layout)

    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads(layout.results_json.read_bytes(), parse_constant=refuse)
