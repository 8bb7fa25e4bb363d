"""The seven tasks whose data is on a hub: from locked files through the real harness children to the canonical layout.

marin-community/marin#8083: 167 LiveCodeBench samples wrong because the checker failed, published as 0.0. datasets
from 4 on refuses LiveCodeBench's script. sympy's `equals` may say None, never end, or meet an integer that Python
refuses to write. GPQADiamond's right answer is D for every question. JEEBench's partial credit was rounded away by
readers that found a verdict. The data are our own questions, their credit known by hand.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import types
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from entrypoint import fingerprint
from entrypoint.collect import CollectedTask, collect
from entrypoint.completion import TaskSummary
from entrypoint.errors import EvalcrateError
from entrypoint.grade import GenerationsOfTrial, grade_trial
from entrypoint.layout import Layout
from entrypoint.plan import DataFiles, Plan
from entrypoint.record import Generation, Request, read_requests
from entrypoint.settle import settle_task
from tests.fakes import hub_data
from tests.fakes.graded import Clock, layout_of, plan_of, task_plan
from tests.fakes.hub_data import Canned

ROOT = Path(__file__).parents[2]
ADDER = ROOT / "examples/checkpoints/adder/hf/step-300"
DEFAULTS = {
    **{name: {"livecodebench": "isolated"} for name in hub_data.CODE_TASKS},
    "GPQADiamond": {"gpqa_order": "upstream"},
    "JEEBench": {"boxed_blank": "upstream"},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Graded:
    """One task after settle: `documents` by seed, `validity` of the first seed, `log` of its graders."""

    plan: Plan
    layout: Layout
    collected: CollectedTask
    summary: TaskSummary
    documents: dict[int, dict[str, Any]]
    raw: dict[str, Any]
    log: str

    @property
    def results(self) -> dict[str, Any]:
        """`results.<TASK>` of the first seed."""
        (task,) = self.plan.evaluation.tasks
        results: dict[str, Any] = self.documents[task.seeds[0]]["results"][task.name]
        return results

    @property
    def examples(self) -> list[dict[str, Any]]:
        examples: list[dict[str, Any]] = self.results["examples"]
        return examples


def run_task(
    tree: Path,
    folder: Path,
    task: str,
    outputs: Sequence[str],
    *,
    seeds: Sequence[int] = (42,),
    data: DataFiles | None = None,
    fails: bool = False,
    **options: str,
) -> Graded:
    """Collects, answers with `outputs`, grades and settles one task."""
    asked = task_plan(task, seeds, options={**DEFAULTS.get(task, {}), **options})
    plan = plan_of(asked, results=folder / "results", chat_template="none")
    data = data or hub_data.write(folder / "data", task)
    placement = replace(
        plan.placement, checkpoint=str(ADDER), template=None, folders={task: str(tree)}, data={task: (data,)}
    )
    plan = replace(plan, placement=placement)
    layout = layout_of(plan)
    done, failed = collect(plan, layout, cores=1, on_task=ignore)
    assert not failed
    for seed in seeds:
        grade_trial(plan, layout, trial(plan, layout, done[task], seed, outputs), Event(), cores=2)
    summary = settle_task(plan, layout, asked, image={}, now=Clock())
    assert summary.status == "ok" or fails, summary
    files = {seed: sorted(layout.seed_dir(task, seed).glob("*/*/results_*.json")) for seed in seeds}
    return Graded(
        plan=plan,
        layout=layout,
        collected=done[task],
        summary=summary,
        documents={seed: strict(found[0]) for seed, found in files.items() if found},
        raw=strict(layout.graded(task, seeds[0])),
        log="".join(file.read_text(errors="replace") for file in sorted(layout.logs.glob("*.log"))),
    )


def ignore(task: str, outcome: CollectedTask | EvalcrateError) -> None:
    """Progress that nobody watches."""


def strict(file: Path) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    return json.loads(file.read_bytes(), parse_constant=refuse)


def trial(
    plan: Plan, layout: Layout, collected: CollectedTask, seed: int, outputs: Sequence[str]
) -> GenerationsOfTrial:
    requests = read_requests(layout.requests(collected.task.name, seed))
    return GenerationsOfTrial(
        task=collected.task,
        seed=seed,
        collected=collected.trials[seed],
        requests=requests,
        rows=[generation(request, text) for request, text in zip(requests, outputs, strict=True)],
        fingerprint=fingerprint.generation(plan, collected.task, collected.trials[seed].digest),
    )


def generation(request: Request, text: str) -> Generation:
    return Generation(
        id=request.id,
        task=request.task,
        seed=request.seed,
        sample=request.sample,
        fingerprint="f",
        text=text,
        token_ids=None,
        finish_reason="stop",
        stop_reason=None,
        prompt_tokens=1,
        completion_tokens=len(text),
        sampler_seed=request.body["seed"],
        started_at="2026-11-30T10:00:00+00:00",
        finished_at="2026-11-30T10:00:01+00:00",
        attempt=1,
    )


_DONE: dict[str, Graded] = {}


@pytest.fixture
def graded(evalchemy_tree: Path, tmp_path_factory: pytest.TempPathFactory, task: str) -> Graded:
    """The task on the canned outputs, once for all tests."""
    if task not in _DONE:
        outputs = [canned.output for canned in hub_data.outputs(task)]
        seeds = (42, 43) if task == "JEEBench" else (42,)
        _DONE[task] = run_task(evalchemy_tree, tmp_path_factory.mktemp(task), task, outputs, seeds=seeds)
    return _DONE[task]


# ---- all seven ----

every_task = pytest.mark.parametrize("task", hub_data.TASKS)


def credit(example: dict[str, Any]) -> float:
    return float(example["correctness"] if "correctness" in example else example["score"][0])


@every_task
def test_hub_outputs_get_the_credit_known_by_hand(graded: Graded, task: str) -> None:
    canned: list[Canned] = hub_data.outputs(task)
    assert graded.raw["validity"]["reason"] is None
    assert [credit(example) for example in graded.examples] == [one.credit for one in canned]
    assert graded.results["accuracy"] == pytest.approx(sum(one.credit for one in canned) / len(canned))
    validity = graded.raw["validity"]
    assert validity["format_fail"] == sum("format_fail" in one.counted for one in canned)
    assert (validity["grader_timeout"], validity["grader_error"]) == (0, 0)


@every_task
def test_every_hub_task_goes_from_its_data_to_the_canonical_layout(graded: Graded, task: str) -> None:
    assert graded.summary.status == "ok"
    results = graded.results
    assert (results["num_repeat"], results["accuracy_std_err"]) == (1, 0.0)
    outputs = [canned.output for canned in hub_data.outputs(task)]
    assert [example["model_outputs"] for example in results["examples"]] == [[output] for output in outputs]
    assert all(isinstance(e["id"], str) and len(e["model_answers"]) == 1 for e in results["examples"])
    assert len({example["id"] for example in results["examples"]}) == len(outputs)
    assert all(("correctness" in example) != (task == "JEEBench") for example in results["examples"])
    assert graded.layout.marker(task).is_file()


@every_task
def test_benchmarks_say_nothing_of_a_hub(graded: Graded) -> None:
    assert "HF_HUB_CACHE" not in graded.log


def test_data_that_is_not_listed_is_refused_by_name(evalchemy_tree: Path) -> None:
    said = child(evalchemy_tree, "refusals_without_data")
    assert said["HMMT"].endswith("MathArena/hmmt_feb_2025 : EVALCRATE_DATA lists 0 data sets of this name")
    assert said["GPQADiamond"].endswith("Idavidrein/gpqa gpqa_diamond: EVALCRATE_DATA lists 0 data sets of this name")
    assert "code_generation_lite release_v6: EVALCRATE_DATA lists 0" in said["LiveCodeBenchv6_official"]
    assert said["unset"].startswith("cais/hle: EVALCRATE_DATA is not set")


def test_every_request_of_a_hub_task_says_sampled_at_the_asked_seed(evalchemy_tree: Path, tmp_path: Path) -> None:
    data = {task: [asdict(hub_data.write(tmp_path / task, task))] for task in hub_data.TASKS}
    asked = child(evalchemy_tree, "requests_asked", DATA=json.dumps(data))
    assert {task: len(requests) for task, requests in asked.items()} == {
        task: len(hub_data.outputs(task)) for task in hub_data.TASKS
    }
    for requests in asked.values():
        for settings in requests:
            assert settings == {"do_sample": True, "temperature": 0.7, "seed": 42, "max_gen_toks": 77}


# ---- HMMT ----


@pytest.mark.parametrize("task", ["HMMT"])
def test_hmmt_answers_are_text(graded: Graded) -> None:
    answers = [example["model_answers"][0] for example in graded.examples]
    assert answers[:3] == ["0.5", "[-2,2]", "2*sqrt(2)"]
    assert answers[4] is None
    assert answers[5] == hub_data.huge_text()
    assert answers[6] is None


def test_hmmt_survives_what_sympy_can_not(evalchemy_tree: Path) -> None:
    found = child(evalchemy_tree, "hard_hmmt_answers", EVALCRATE_SAMPLE_TIMEOUT_S="1")
    assert found["labels"] == {text: text in ("7", "7.0") for text in HARD}
    assert found["timeouts"] == ENDLESS
    assert found["undecided"] is False


def test_hmmt_in_debug_asks_two_questions(evalchemy_tree: Path, tmp_path: Path) -> None:
    data = json.dumps([asdict(hub_data.write(tmp_path, "HMMT"))])
    assert child(evalchemy_tree, "hmmt_questions_in_debug", EVALCRATE_DATA=data) == 2


# ---- GPQADiamond ----


@pytest.mark.parametrize("task", ["GPQADiamond"])
def test_gpqa_counts_where_the_right_answer_is(graded: Graded) -> None:
    assert graded.results["answer_letters"] == {"A": 0, "B": 0, "C": 0, "D": 4}


@pytest.mark.parametrize("task", ["GPQADiamond"])
def test_gpqa_shuffled_moves_the_right_letter_with_its_answer(
    graded: Graded, evalchemy_tree: Path, tmp_path: Path
) -> None:
    shuffled = run_task(evalchemy_tree, tmp_path, "GPQADiamond", ["D"] * 4, gpqa_order="shuffled")
    assert max(shuffled.results["answer_letters"].values()) < 4
    for before, after in zip(graded.examples, shuffled.examples, strict=True):
        assert f"D) {before['Correct Answer']}" in before["multiple_choice_string"]
        assert f"{after['answer']}) {after['Correct Answer']}" in after["multiple_choice_string"]
        assert after["correctness"] is (after["answer"] == "D")
    fields = [run.raw["fingerprints"]["grading"]["fields"]["gpqa_order"] for run in (graded, shuffled)]
    assert fields == ["upstream", "shuffled"]


# ---- JEEBench ----


@pytest.mark.parametrize("task", ["JEEBench"])
def test_partial_credit_is_averaged_and_compiled_as_it_is(graded: Graded) -> None:
    folder = graded.layout.compile_dir("JEEBench", 2)
    (averaged,) = strict(folder / "averaged_results.json")
    assert averaged["correct_mean"] == pytest.approx(4.5 / 8)
    rows = strict(folder / "compiled_results.json")
    assert [row["correct"] for row in rows[:4]] == [1.0, 0.0, 0.5, 0.0]
    assert all(isinstance(row["correct"], float) for row in rows)


def test_jeebench_grades_with_its_own_utils(evalchemy_tree: Path) -> None:
    assert child(evalchemy_tree, "jeebench_beside_another_utils") == [1.0, 0.25]


def test_a_blank_box_is_read_as_meant_only_when_the_job_says_so(evalchemy_tree: Path, tmp_path: Path) -> None:
    outputs = ["put it in \\boxed form. So \\boxed{B}", "\\boxed {C}", *["\\boxed{A}"] * 6]
    runs = {
        way: run_task(evalchemy_tree, tmp_path / way, "JEEBench", outputs, boxed_blank=way)
        for way in ("upstream", "mended")
    }
    answers = {way: [example["model_answers"][0] for example in run.examples[:2]] for way, run in runs.items()}
    assert answers == {"upstream": ["form. So \\boxed{B}", "{C}"], "mended": ["B", "C"]}
    for run in runs.values():
        assert run.raw["validity"]["boxed_blank"] == 2
        assert [example["model_outputs"] for example in run.examples] == [[output] for output in outputs]


# ---- LiveCodeBench ----


@pytest.mark.parametrize("task", ["LiveCodeBench"])
def test_difficulties_are_the_trials_own_and_nothing_is_nan(graded: Graded) -> None:
    wanted = {"hard": 1.0, "easy": 0.5, "medium": 0.0}
    for difficulty, accuracy in wanted.items():
        assert graded.results[f"accuracy_{difficulty}_avg"] == accuracy
        assert graded.results[f"accuracy_{difficulty}_std_err"] == 0.0
    assert [example["difficulty"] for example in graded.examples] == ["hard", "easy", "easy", "medium"]


@pytest.mark.parametrize("task", ["LiveCodeBench"])
def test_the_checker_is_named_in_the_fingerprint(graded: Graded) -> None:
    fields = graded.raw["fingerprints"]["grading"]["fields"]
    assert fields["livecodebench"] == "isolated"
    assert fields["livecodebench_checker"].startswith("livecodebench-isolated-")


@pytest.mark.parametrize("task", ["LiveCodeBench"])
def test_no_test_case_is_in_a_results_file(graded: Graded, tmp_path: Path) -> None:
    (file,) = graded.layout.seed_dir("LiveCodeBench", 42).glob("*/*/results_*.json")
    tests = json.loads(Path(hub_data.write(tmp_path, "LiveCodeBench").splits["test"][0]).read_text().splitlines()[0])
    assert tests["private_test_cases"] not in file.read_text()
    assert "public_test_cases" not in file.read_text()


def test_problems_are_read_in_file_order_with_their_tests_left_there(evalchemy_tree: Path, tmp_path: Path) -> None:
    data = {task: [asdict(hub_data.write(tmp_path, task))] for task in hub_data.CODE_TASKS}
    found = child(evalchemy_tree, "problems_read", DATA=json.dumps(data))
    for task, problems in found.items():
        assert [problem["id"] for problem in problems] == [problem.id for problem in hub_data.problems(task)]
        for problem in problems:
            assert problem["kept"] == ["column", "file", "length", "offset"]
            assert json.loads(problem["tests"])[0]["testtype"] in ("stdin", "functional")
    assert list(tmp_path.glob("*cache*")) == []


def test_both_checkers_agree_on_plain_programs(evalchemy_tree: Path, tmp_path: Path) -> None:
    canned = hub_data.outputs("LiveCodeBenchv6_official")
    outputs = [one.output for one in canned]
    run = run_task(evalchemy_tree, tmp_path, "LiveCodeBenchv6_official", outputs, livecodebench="upstream")
    assert [credit(example) for example in run.examples] == [one.credit for one in canned]


def test_the_upstream_checker_needs_no_socket(evalchemy_tree: Path) -> None:
    found = child(evalchemy_tree, "upstream_checks_without_sockets")
    assert found["verdicts"] == [True, False, False, False]
    assert found["partial"] == [True, False]


def test_the_upstream_checker_says_nothing(evalchemy_tree: Path) -> None:
    assert "a line of its own" not in child_output(evalchemy_tree, "upstream_checks_without_sockets").stderr


def test_a_checker_that_fails_on_a_sample_fails_the_trial_with_the_count(evalchemy_tree: Path, tmp_path: Path) -> None:
    data = hub_data.write(tmp_path / "data", "LiveCodeBench")
    file = Path(data.splits["test"][1])
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[0]["private_test_cases"] = base64.b64encode(b"cut off").decode()
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    outputs = [canned.output for canned in hub_data.outputs("LiveCodeBench")]
    run = run_task(evalchemy_tree, tmp_path, "LiveCodeBench", outputs, data=data, fails=True)
    assert run.summary.status == "failed"
    assert run.documents == {}
    assert "the grader itself failed on 1 of 4 samples (3 graded): Evaluation error:" in run.raw["validity"]["reason"]


# ---- in a child: each returns plain JSON ----

ENDLESS = ["10^{10^{10}}", "100000000!"]
HARD = ["7", "7.0", "1e400", "\\infty", "²", "(" * 60 + "1", "x=y", "\\frac{1}{0}", "7" * 6000, *ENDLESS]


def refusals_without_data(tree: Path) -> dict[str, str]:
    from entrypoint.errors import HarnessError
    from entrypoint.harness import evalchemy

    said = {}
    for task in ("HMMT", "GPQADiamond", "LiveCodeBenchv6_official"):
        settings: Any = {"seed": 1, "n_repeat": 1, "max_tokens": 1, "limit": None, "system_instruction": None}
        try:
            evalchemy.run(tree, task, answers([]), grade=False, **settings)
        except HarnessError as error:
            said[task] = str(error)
    from eval.locked_data import load_dataset

    try:
        load_dataset("cais/hle", split="test")
    except RuntimeError as error:
        said["unset"] = str(error)
    return said


def requests_asked(tree: Path) -> dict[str, list[Any]]:
    from entrypoint.harness import evalchemy

    found = {}
    for task, data in json.loads(os.environ["DATA"]).items():
        lm = answers([canned.output for canned in hub_data.outputs(task)])
        settings: Any = {"seed": 42, "n_repeat": 1, "max_tokens": 77, "limit": None, "system_instruction": None}
        evalchemy.run(tree, task, lm, grade=False, data=data, **settings)
        found[task] = lm.settings
    return found


class Answers:
    """As much of a model as a benchmark uses, giving its outputs in order."""

    per_request_seeds = True
    rank = 0
    world_size = 1

    def __init__(self, outputs: list[str]) -> None:
        self.outputs = outputs

    def apply_chat_template(self, messages: list[dict[str, str]]) -> str:
        return messages[-1]["content"]

    def generate_until(self, requests: list[Any]) -> list[str]:
        self.settings = [dict(request.args[1]) for request in requests]
        return self.outputs


def answers(outputs: list[str]) -> Any:
    return Answers(outputs)


def hard_hmmt_answers(tree: Path) -> dict[str, Any]:
    import sympy

    from entrypoint.harness import evalchemy

    questions = [{"problem": "", "answer": "7"} for _ in HARD]
    graded = evalchemy.run_on(tree, "HMMT", answers([f"\\boxed{{{text}}}" for text in HARD]), questions)
    labels = {text: example["label"][0] for text, example in zip(HARD, graded["examples"], strict=True)}
    timeouts = [t for t, example in zip(HARD, graded["examples"], strict=True) if example.get("grader_timeout")]
    sympy.Basic.equals = sympy.Expr.equals = lambda self, other, failing_expression=False: None
    undecided = evalchemy.run_on(tree, "HMMT", answers(["\\boxed{x}"]), [{"problem": "", "answer": "x"}])
    return {"labels": labels, "timeouts": timeouts, "undecided": undecided["examples"][0]["label"][0]}


def hmmt_questions_in_debug(tree: Path) -> int:
    from entrypoint.harness import evalchemy

    benchmark = evalchemy._load(tree, "HMMT", seed=0, n_repeat=1, max_tokens=1, system_instruction=None)
    benchmark.debug = True
    return len(benchmark.load_questions())


def jeebench_beside_another_utils(tree: Path) -> list[float]:
    from entrypoint.harness import answer, evalchemy

    sys.modules["utils"] = types.ModuleType("utils")
    question = {"subject": "", "question": "", "index": 1, "type": "MCQ(multiple)", "gold": "AB"}
    graded = evalchemy.run_on(
        tree, "JEEBench", answers(["\\boxed{AB}", "\\boxed{B}"]), [dict(question), dict(question)]
    )
    return list(answer.credits("JEEBench", graded))


def problems_read(tree: Path) -> dict[str, Any]:
    from entrypoint.harness import evalchemy

    found = {}
    for task, data in json.loads(os.environ["DATA"]).items():
        os.environ["EVALCRATE_DATA"] = json.dumps(data)
        benchmark = evalchemy._load(tree, task, seed=0, n_repeat=1, max_tokens=1, system_instruction=None)
        utils = sys.modules[f"eval.chat_benchmarks.{task}.livecodebench_utils"]
        found[task] = [
            {
                "id": question["task_id"],
                "kept": sorted(question["test"]),
                "tests": json.dumps(utils.translate_private_test_cases(utils.read_apart(question["test"]))),
            }
            for question in benchmark.load_questions()
        ]
    return found


def upstream_checks_without_sockets(tree: Path) -> dict[str, Any]:
    from entrypoint.harness import evalchemy

    def refuse(*arguments: object) -> None:
        raise PermissionError("no sockets here")

    socket.socket.bind = socket.socket.connect = refuse  # type: ignore[method-assign,assignment]
    task = "LiveCodeBench"
    benchmark = evalchemy._load(tree, task, seed=0, n_repeat=1, max_tokens=1, system_instruction=None)
    utils = sys.modules[f"eval.chat_benchmarks.{task}.livecodebench_utils"]
    tests = [{"input": f"{n}", "output": f"{2 * n}", "testtype": "functional"} for n in (1, 2)]
    problem = {"test": hub_data.encode_tests(tests)}
    programs = (
        "def double(n):\n    return 2 * n\nprint('a line of its own')",
        "def double(n):\n    return 2 if n == 1 else 5",
        "import os\ndef double(n):\n    os._exit(0)",
        "def double(n):\n    return (x for x in ())",
    )
    verdicts = [benchmark.check_correctness(problem, program, timeout=6, is_extracted=True) for program in programs]
    late = "import time\ndef double(n):\n    if n > 1:\n        time.sleep(60)\n    return 2 * n"
    partial = [result[0] for result in utils.lcb_run(problem, late, timeout=-2, is_extracted=True)]
    return {"verdicts": verdicts, "partial": partial}


def child_output(tree: Path, work: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "EVALCRATE_DATA"}
    done = subprocess.run(
        [sys.executable, __file__, str(tree), work],
        env={**environment, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done


def child(tree: Path, work: str, **variables: str) -> Any:
    return json.loads(child_output(tree, work, **variables).stdout)


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[2]](Path(sys.argv[1]))))
