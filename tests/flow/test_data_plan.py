"""A job sees its data before anything starts: whole data is named in the plan, anything else refuses by name.

Incidents: a gated or half-filled data set that fails, or is skipped, hours into a run (lm-eval#1434, datasets#7551);
data folders on read-only mounts that fail on a lock file (huggingface_hub#2797).
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from entrypoint import data_folder, prepare
from entrypoint.cli import run_command
from entrypoint.data_lock import read_lock
from tests.fakes import hub_data
from tests.fakes.data import with_synthetic_data
from tests.fakes.hub_data import TASKS
from tests.flow.conftest import Bench

ALL = {"suites": ["math", "science", "code"], "tasks": []}


def plan(bench: Bench, *arguments: str, **changes: Any) -> tuple[int, dict[str, Any], str]:
    """Exit code, the plan as values and what was refused."""
    code = bench.run("--json", *arguments, command="plan", **changes)
    out, err = bench.said()
    return code, json.loads(out), err


def identity(values: dict[str, Any]) -> str:
    return str(values["plan"]["identity"])


def engine(bench: Bench) -> dict[str, Any]:
    """Room for prompts of benchmarks, which the small checkpoint's tokenizer makes long."""
    return {"max_model_len": 4096, "command": bench.command}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return with_synthetic_data(monkeypatch, tmp_path / "hub", *TASKS)


@pytest.mark.usefixtures("evalchemy_tree")
def test_all_fourteen_tasks_are_listed_with_the_state_of_their_data(bench: Bench, data: Path) -> None:
    code, values, err = plan(bench, **ALL, data=str(data))
    assert code == 0, err
    states = {task: found["state"] for task, found in values["data"].items()}
    assert len(states) == 14
    assert {task for task, state in states.items() if state == "in the source tree"} == {
        *("AIME24", "AIME25", "AIME26", "AMC23", "MATH500", "OlympiadBench", "OlympiadBench_Physics")
    }
    assert all(state.startswith("present (") and "rev 5e5e5e5e)" in state for t, state in states.items() if t in TASKS)
    tasks = {task["name"]: task["data"] for task in values["plan"]["evaluation"]["tasks"]}
    assert all(bool(digest) == (task in TASKS) for task, digest in tasks.items())
    assert len({tasks[task] for task in TASKS}) == len(TASKS)


def test_without_data_each_task_is_refused_by_name_with_the_command_and_nothing_starts(
    bench: Bench, tmp_path: Path
) -> None:
    changes = {"suite": "science", "tasks": [], "data": str(tmp_path / "empty")}
    code, values, err = plan(bench, **changes)
    assert code == 4
    assert [found["whole"] for found in values["data"].values()] == [False, False, False, True]
    for part in (
        "GPQADiamond: Idavidrein/gpqa gpqa_diamond is absent",
        "JEEBench: daman1209arora/jeebench is absent",
        "HLE: cais/hle is absent",
        f"run `evalcrate data fetch --suite science --data {tmp_path}/empty`",
        "https://huggingface.co/datasets/cais/hle",
        "HF_TOKEN",
    ):
        assert part in err
    assert bench.run(**changes) == 4
    assert bench.engine_starts() == 0


def test_a_task_of_no_suite_of_the_job_is_fetched_by_its_name(bench: Bench, tmp_path: Path) -> None:
    _, _, err = plan(bench, tasks=["HMMT"], data=str(tmp_path / "empty"))
    assert f"run `evalcrate data fetch --task HMMT --data {tmp_path}/empty`" in err


def test_half_a_data_set_is_refused(bench: Bench, data: Path) -> None:
    _, values, _ = plan(bench, tasks=["HMMT"], data=str(data))
    (files,) = values["plan"]["placement"]["data"]["HMMT"]
    Path(files["splits"]["train"][0]).unlink()
    code, values, err = plan(bench, tasks=["HMMT", "JEEBench"], data=str(data))
    assert code == 4
    assert "HMMT: MathArena/hmmt_feb_2025 is incomplete: 0 of 1 files" in err
    assert values["data"]["JEEBench"]["whole"]


def test_the_same_data_is_the_same_evaluation_wherever_it_lies(bench: Bench, data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "elsewhere")
    _, here, _ = plan(bench, tasks=["HMMT"], data=str(data))
    _, there, _ = plan(bench, tasks=["HMMT"], data=str(tmp_path / "elsewhere"))
    assert identity(here) == identity(there)
    assert here["plan"]["placement"]["data"] != there["plan"]["placement"]["data"]


def test_other_questions_are_another_evaluation(
    bench: Bench, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, before, _ = plan(bench, tasks=["HMMT"], data=str(data))
    monkeypatch.setattr("tests.fakes.hub_data._HMMT", (("Name nine.", "9", "\\boxed{9}", True),))
    other = with_synthetic_data(monkeypatch, tmp_path / "other", "HMMT")
    _, after, _ = plan(bench, tasks=["HMMT"], data=str(other))
    assert identity(before) != identity(after)


def test_a_folder_that_can_only_be_read_is_enough(bench: Bench, data: Path) -> None:
    folders = [data, data / "files"]
    for folder in folders:
        folder.chmod(0o555)
    before = sorted(str(path) for path in data.rglob("*"))
    try:
        assert plan(bench, tasks=["HMMT"], data=str(data))[0] == 0
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert sorted(str(path) for path in data.rglob("*")) == before


@pytest.mark.usefixtures("evalchemy_tree")
def test_what_a_benchmark_asks_are_the_questions_of_the_folder(bench: Bench, data: Path) -> None:
    assert bench.run(command="collect", tasks=["HMMT"], seeds=1, data=str(data), engine=engine(bench)) == 0
    lines = (bench.root / "_work/requests/HMMT/seed42.jsonl").read_text().splitlines()
    asked = [json.loads(line)["prompt"] for line in lines]
    questions = [question for question, *_ in hub_data._HMMT]
    assert len(asked) == hub_data.expected_rows("HMMT")
    assert all(question in prompt for question, prompt in zip(questions, asked, strict=False))


def test_the_default_folder_is_beside_the_caches(bench: Bench, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Path(os.environ.get("EVALCRATE_CACHE") or Path.home() / ".cache/evalcrate") / "evalchemy-patched"
    if tree.is_dir():
        (data.parent / tree.name).symlink_to(tree)
    monkeypatch.setenv("EVALCRATE_CACHE", str(data.parent))
    _, values, _ = plan(bench, tasks=["HMMT"])
    assert values["data"]["HMMT"]["whole"]


def test_a_run_reads_altered_data_before_it_collects(
    bench: Bench, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, values, _ = plan(bench, tasks=["JEEBench"], data=str(data))
    victim = Path(values["plan"]["placement"]["data"]["JEEBench"][0]["splits"]["test"][0])
    content = victim.read_bytes()
    victim.write_bytes(content[:-2] + bytes(reversed(content[-2:])))
    assert plan(bench, tasks=["JEEBench"], data=str(data))[0] == 0, "the plan looks at sizes only"
    monkeypatch.setattr("entrypoint.source.cache_root", lambda _: tmp_path)
    monkeypatch.setattr("entrypoint.source.find_tree", lambda *_: tmp_path)
    assert bench.run(tasks=["JEEBench"], data=str(data)) == 4
    assert f"JEEBench: {victim}: its content is not what its name says" in bench.said()[1]
    assert not (bench.root / "_work" / "requests").exists()
    assert data_folder.sha256_of(victim) != victim.name


@pytest.mark.usefixtures("evalchemy_tree")
def test_the_data_in_the_benchmark_source_is_the_locked_one(capsys: pytest.CaptureFixture[str]) -> None:
    tree = read_lock(prepare.lock_file(os.environ)).tree
    chosen = [argument for one in tree for argument in ("--task", one.task)]
    assert run_command(["data", "verify", "--json", *chosen], os.environ) == 0
    rows = json.loads(capsys.readouterr().out)["data"]
    assert [row["state"] for row in rows] == [f"in the source tree ({one.rows} rows)" for one in tree]
