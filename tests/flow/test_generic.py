"""Any other benchmark of the pinned evalchemy, named in a job: its own number in the canonical layout, or the reason.

Must not break: a score is a number that the benchmark reports under a name that the job or the benchmark gives it,
never a guess; an example has a verdict only where those stored prove that number; what can't be run here is refused in
collect, before hours of generation (tasks silently skipped while the suite "succeeds": EleutherAI/lm-eval#1434).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from entrypoint import source
from entrypoint.errors import HarnessError, MachineError
from entrypoint.layout import short_hash
from tests.conftest import PATCHES
from tests.fakes import trial
from tests.flow.conftest import Bench

# As much of evalchemy as a benchmark is loaded with, and one folder per benchmark.
TASK_PY = """
import importlib.util, logging, os, sys

class BaseBenchmark:
    pass

class TaskManager:
    def __init__(self, task_list, **kwargs):
        self.made = {}
        for name in task_list:
            path = os.path.join(os.path.dirname(__file__), "chat_benchmarks", name, "eval_instruct.py")
            try:
                spec = importlib.util.spec_from_file_location(f"bench_{name}", path)
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                self.made[name] = module.Benchmark()
            except Exception as error:
                logging.getLogger("TaskManager").error(f"Error loading benchmark from {name}: {error}")

    def get_benchmark(self, name):
        return self.made.get(name)
"""
# Two questions; `stored` and `reported` are what a benchmark keeps of its grading.
BENCHMARK = """
from lm_eval.api.instance import Instance

class Benchmark:
    n_repeat = 3

    def generate_responses(self, model):
        examples = [{{"question": q, "gold": g}} for q, g in (("1+1=", "2"), ("2+2=", "4"))]
        for n in range(self.n_repeat):
            asked = [
                Instance("generate_until", e, (model.apply_chat_template([dict(role="user", content=e["question"])]),
                         {{"max_gen_toks": 9}}), i)
                for i, e in enumerate(examples)
            ]
            for example, output in zip(examples, model.generate_until(asked)):
                example["model_output"] = output
        return {{"examples": examples}}

    def evaluate_responses(self, results):
        right = [e["gold"] == e["model_output"] for e in results["examples"]]
        share = sum(right) / len(right)
        for example, verdict in zip(results["examples"], right):
            example.update({stored})
        return {{**results, **{reported}}}
"""
REFUSALS = {
    "Judged": (
        "import openai\nclass Benchmark:\n    def __init__(self, annotator_model='x'): pass\n",
        "its answers are graded by a judge, a model behind a network",
    ),
    "Flagged": (
        "import openai\nclass Benchmark:\n    REQUIRES_OPENAI_ANNOTATOR = True\n",
        "its answers are graded by a judge",
    ),
    "Managed": (
        "import multiprocessing\nclass Benchmark:\n    def evaluate_responses(self, results):\n"
        "        multiprocessing.Manager().list()\n",
        "its grader uses multiprocessing.Manager (eval_instruct.py), which needs a socket",
    ),
    "Needy": ("import no_such_package.inner\n", "needs package no_such_package, which is not in the harness"),
    "Hub": (
        "import datasets\nclass Benchmark:\n    def generate_responses(self, model):\n"
        "        datasets.load_dataset('some-lab/some-data')\n",
        "its data set some-lab/some-data is not locked",
    ),
    "Turns": (
        "from lm_eval.api.instance import Instance\nclass Benchmark:\n    def generate_responses(self, model):\n"
        "        (a,) = model.generate_until([Instance('generate_until', {}, ('hello', {}), 0)])\n"
        "        model.generate_until([Instance('generate_until', {}, ('and' + a, {}), 1)])\n"
        "        return {'examples': []}\n",
        "its requests depend on the model's earlier answers",
    ),
}


def tree(folder: Path, name: str, code: str) -> Path:
    bench = folder / "tree/eval/chat_benchmarks" / name
    bench.mkdir(parents=True)
    (bench / "eval_instruct.py").write_text(code)
    (folder / "tree/eval/__init__.py").touch()
    (folder / "tree/eval/task.py").write_text(TASK_PY)
    return folder / "tree"


def benchmark(stored: str = "{}", reported: str = "{}") -> str:
    return BENCHMARK.format(stored=stored, reported=reported)


def half_right(folder: Path, code: str, metric: str | None = None) -> Any:
    """The first of the two answers is right."""
    task = trial.source("Sums", "evalchemy", tree(folder, "Sums", code))
    trial.graded(trial.collect(folder, task))
    return trial.grade(folder, task, lambda row: ("2", "5")[row.sample], metric=metric)


@pytest.mark.parametrize("name", REFUSALS)
def test_what_can_not_run_here_is_refused_in_collect_with_the_reason(tmp_path: Path, name: str) -> None:
    code, reason = REFUSALS[name]
    refused = trial.collect(tmp_path, trial.source(name, "evalchemy", tree(tmp_path, name, code)))
    assert isinstance(refused, HarnessError)
    assert str(refused).startswith(f"{name}: {reason}")


def test_a_limit_needs_questions_that_can_be_chosen(tmp_path: Path) -> None:
    task = trial.source("Sums", "evalchemy", tree(tmp_path, "Sums", benchmark()), limit=1)
    assert "Sums: has no load_questions, so that its samples can't be chosen; drop `limit`" in str(
        trial.collect(tmp_path, task)
    )


def test_stored_booleans_that_give_the_accuracy_are_the_verdicts(tmp_path: Path) -> None:
    code = benchmark("{'correct': verdict, 'seen': True}", "{'accuracy': share, 'pass': {'all': 0.0}}")
    results = trial.graded(half_right(tmp_path, code))["results"]
    assert [example["correctness"] for example in results["examples"]] == [True, False]
    assert (results["accuracy"], results["num_solved"], results["verdict_per_example"]) == (0.5, 1, True)
    assert results["reported"] == {"accuracy": 0.5, "pass.all": 0.0}


def test_a_named_metric_without_verdicts_that_prove_it_stands_alone(tmp_path: Path) -> None:
    code = benchmark("{'correct': verdict}", "{'accuracy': share, 'pass': {'all': 0.25}}")
    results = trial.graded(half_right(tmp_path, code, "pass.all"))["results"]
    assert (results["accuracy"], results["metric"], results["verdict_per_example"]) == (0.25, "pass.all", False)
    assert not any({"correctness", "score"} & set(example) for example in results["examples"])


def test_two_columns_of_the_same_mean_prove_nothing(tmp_path: Path) -> None:
    code = benchmark("{'correct': verdict, 'long': not verdict}", "{'accuracy': share}")
    assert trial.graded(half_right(tmp_path, code))["results"]["verdict_per_example"] is False


@pytest.mark.parametrize(
    ("metric", "reported", "said"),
    [
        (None, "{'pass@1': share}", "metric: is needed, as it reports no accuracy; the numbers it reports are pass@1"),
        ("acc", "{'pass@1': share}", "metric: acc: is not reported; the numbers it reports are pass@1"),
        ("n", "{'n': 50}", "metric: n: is 50.0, not a share in [0, 1]"),
    ],
)
def test_a_metric_is_never_guessed(tmp_path: Path, metric: str | None, reported: str, said: str) -> None:
    refused = half_right(tmp_path, benchmark(reported=reported), metric)
    assert isinstance(refused, HarnessError)
    assert str(refused).startswith(f"Sums: {said}")


# ---- the pinned source, through the command line ----


@pytest.fixture(scope="module")
def aiw(evalchemy_tree: Path) -> list[dict[str, Any]]:
    """The questions of AIW that it asks; skips where that benchmark can't be had."""
    cache = source.cache_root(os.environ)
    found = source.find_tree(PATCHES, cache, "AIW")
    if found is None and os.environ.get("EVALCHEMY_REPO"):
        try:
            found = source.fetch(PATCHES, cache, os.environ["EVALCHEMY_REPO"], "AIW")
        except MachineError as error:
            pytest.skip(str(error))
    if found is None:
        pytest.skip("AIW is not on this machine: run `evalcrate sources AIW`")
    rows: list[dict[str, Any]] = json.loads((found / "eval/chat_benchmarks/AIW/data/aiw_data.json").read_bytes())
    asked = {*range(559, 565), 577, *range(580, 585), *range(637, 643)}
    return [row for row in rows if row["id"] in asked]


def test_a_named_benchmark_runs_to_the_canonical_layout(bench: Bench, aiw: list[dict[str, Any]]) -> None:
    known = [{"match": row["prompt"], "text": f"Answer: {row['right_answer']}"} for row in aiw[:3]]
    bench.script |= {"answers": known, "default": "no idea"}
    right = sum(any(one["match"] == row["prompt"] for one in known) for row in aiw)
    job = {"tasks": [{"name": "evalchemy:AIW", "metric": "overall_accuracy"}], "seeds": 1}
    assert bench.run(**job, engine={"max_model_len": 4096, "command": bench.command}) == 0
    assert not [name for name in bench.published() if ":" in name]
    (results,) = bench.root.glob(f"AIW_seed42-{short_hash('exp', '300', 'AIW', '42')}/AIW_0shot/*/results_*.json")
    entry = json.loads(results.read_bytes())["results"]["AIW"]
    assert entry["accuracy"] == pytest.approx(right / len(aiw))
    assert (entry["num_total"], entry["num_solved"], entry["verdict_per_example"]) == (len(aiw), None, False)
    assert bench.results()["tasks"]["AIW"]["mean"] == entry["accuracy"]


def test_seeds_of_a_benchmark_without_verdicts_are_averaged_with_null_rows(
    bench: Bench, aiw: list[dict[str, Any]]
) -> None:
    job = {"tasks": [{"name": "evalchemy:AIW", "metric": "overall_accuracy", "seeds": 2}]}
    assert bench.run(**job, engine={"max_model_len": 4096, "command": bench.command}) == 0
    (compiled,) = bench.root.glob("compile_AIW_avg2seeds-*/compiled_results/compiled_results.json")
    rows = json.loads(compiled.read_bytes())
    assert len(rows) == 2 * len(aiw)
    assert {row["correct"] for row in rows} == {None}
    assert bench.run(**job, engine={"max_model_len": 4096, "command": bench.command}) == 0
    assert bench.engine_starts() == 1


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        (["evalchemy:AIME24"], "tasks: evalchemy:AIME24: write AIME24"),
        (["evalchemy:AIWW"], "tasks: evalchemy:AIWW: the pinned evalchemy has no such benchmark; did you mean"),
        (["AIW"], "tasks: AIW: unknown task; write evalchemy:AIW"),
        (["lm_eval:gsm8k"], "only a benchmark of evalchemy has one, evalchemy:<Name>"),
        (["evalchemy:IFEval", "ifeval"], "its results would lie in the folders of"),
    ],
)
def test_names_that_can_not_be_meant_are_refused(bench: Bench, tasks: list[str], said: str) -> None:
    assert bench.run(command="plan", tasks=tasks) == 2
    assert said in bench.said()[1]


def test_a_benchmark_that_was_never_fetched_names_the_command(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EVALCRATE_CACHE", str(tmp_path / "cache"))
    assert bench.run(command="plan", tasks=["evalchemy:AIW"]) == 4
    assert "evalchemy:AIW: its source is not on this machine; run `evalcrate sources AIW`" in bench.said()[1]
