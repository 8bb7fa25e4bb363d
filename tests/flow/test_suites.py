"""The math, science and code suites in one job: one engine load, all fourteen tasks in the canonical layout.

A suite that "works" task by task and not as a job is what people meet: data absent for one of them, two benchmarks
that can't share a process, one task's failure that hides the others'.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest

from entrypoint.completion import read_marker
from entrypoint.layout import Layout
from tests.fakes import hub_data
from tests.fakes.data import with_synthetic_data
from tests.flow.conftest import STEP_300, Bench

SUITES = ["math", "science", "code"]
IN_TREE = {"AIME24": 30, "AIME25": 30, "AIME26": 30, "AMC23": 40, "MATH500": 500, "OlympiadBench": 674}
IN_TREE |= {"OlympiadBench_Physics": 236}


def test_all_fourteen_tasks_run_from_one_job_to_the_canonical_layout(
    evalchemy_tree: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.job |= {"tasks": [], "suites": SUITES, "seeds": 1, "sampling": {"max_tokens": 8192}}
    bench.job["engine"] |= {"max_model_len": 16384}
    bench.job["data"] = str(with_synthetic_data(monkeypatch, bench.folder, *hub_data.TASKS))
    bench.script["default"] = "So it is \\boxed{17}."
    assert bench.run(command="plan") == 0
    shown = bench.said()[0]
    assert shown.count("in the source tree") == len(IN_TREE)
    assert shown.count("present (") == len(hub_data.TASKS)
    assert bench.run(command="collect") == 0, bench.said()
    bench.script["answers"] = [
        {"match": prompt, "text": canned.output}
        for task in hub_data.TASKS
        for prompt, canned in zip(prompts(bench, task), hub_data.outputs(task), strict=True)
    ]
    assert bench.run() == 0, bench.said()
    assert bench.engine_starts() == 1
    layout = Layout(
        results=bench.folder / "results", experiment="exp", step=300, limit=None, model=str(STEP_300.resolve())
    )
    results = bench.results()["tasks"]
    assert set(results) == {*IN_TREE, *hub_data.TASKS}
    for task, rows in (IN_TREE | {task: len(hub_data.outputs(task)) for task in hub_data.TASKS}).items():
        (file,) = layout.seed_dir(task, 42).glob(f"{task}_0shot/*/results_*.json")
        entry = json.loads(file.read_bytes())["results"][task]
        assert entry["num_total"] == len(entry["examples"]) == rows, task
        assert results[task]["validity"]["graded"] == rows
        assert read_marker(layout, task), task
    for task in hub_data.TASKS:
        credit = fmean(canned.credit for canned in hub_data.outputs(task))
        assert results[task]["mean"] == pytest.approx(credit), task


def prompts(bench: Bench, task: str) -> list[str]:
    file = bench.root / "_work/requests" / task / "seed42.jsonl"
    return [json.loads(line)["prompt"] for line in file.read_text(encoding="utf-8").splitlines()]
