"""The benchmarks' own graders give the verdicts known by hand, in bounded time, and never 0 for our fault.

marin-community/marin#8083: a broken grader scored every model 0.0. huggingface/Math-Verify#55: time limits by
signal fail in threads, and the error became 0 points. sympy on `10^{10^{10}}` keeps a benchmark waiting.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from entrypoint.harness import answer

ROOT = Path(__file__).parent.parent.parent
ENDLESS = ("10^{10^{10}}", "100000000!")

# Answers to the first two questions of each data file, right as a person would write them, and near misses.
FIRST_TWO: dict[str, tuple[tuple[str, str], tuple[str, str]]] = {
    "AIME24": (("73", "37"), ("236", "-236")),
    "AIME25": (("70", "7"), ("588", "588.5")),
    "AIME26": (("277", "278"), ("62", "26")),
    "AMC23": (("27", "28"), ("36", "63")),
    "MATH500": (("(3,\\dfrac{\\pi}{2})", "(3,\\pi)"), ("p-q", "q-p")),
    "OlympiadBench": (("2", "4"), ("\\dfrac{1}{2n+2}", "\\frac{1}{2n-2}")),
    "OlympiadBench_Physics": (("2022", "2222"), ("10^{14}", "10^{13}")),
}
# gold, boxed answers, verdict of the pinned grader with antlr4 and without lark
PAIRS: dict[str, list[tuple[Any, tuple[str, ...], bool]]] = {
    "AIME24": [("33", ("33",), True), ("33", ("033",), False), ("33", ("1", "33"), True)],
    "MATH500": [
        ("\\frac{14}{3}", ("\\frac{14}3",), False),
        ("\\frac{14}{3}", ("14/3",), True),
        ("\\frac{1}{2}", ("0.5",), True),
        ("\\frac{1}{4}", ("0.25",), False),
        ("x^2", ("x^{2}",), False),
    ],
    "OlympiadBench_Physics": [
        (["7.5"], ("7.501",), True),
        (["7.5"], ("7.6",), False),
        (["\\frac{1}{2} m v^{2}"], ("E=\\frac{m v^2}{2}",), True),
        (["\\frac{1}{2} m v^{2}"], ("m v^2",), False),
        (["1", "2"], ("2", "1"), True),
        (["1", "2"], ("1",), False),
        (["5"], (), False),
    ],
}


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
        assert len(requests) == len(self.outputs)
        return self.outputs


def boxed(*answers: str) -> str:
    return " and ".join(f"\\boxed{{{answer}}}" for answer in answers)


# ---- in the child: each returns plain JSON ----


def verdicts_of_first_two(tree: Path) -> dict[str, list[list[bool]]]:
    """[right, wrong] and [wrong, right] on the first two questions, through the whole of the benchmark."""
    from entrypoint.harness import evalchemy

    found: dict[str, list[list[bool]]] = {}
    for task, (first, second) in FIRST_TWO.items():
        for outputs in ([first[0], second[1]], [first[1], second[0]]):
            lm: Any = Answers([boxed(output) for output in outputs])
            settings: Any = {"seed": 42, "n_repeat": 1, "max_tokens": 9, "system_instruction": None}
            graded = evalchemy.run(tree, task, lm, limit=2, grade=True, **settings)
            assert not any(answer.empty_gold(example) for example in graded["examples"])
            found.setdefault(task, []).append([v["correctness"] for v in answer.verdicts(task, graded)])
    return found


def graded(tree: Path, task: str, pairs: list[tuple[Any, tuple[str, ...], bool]]) -> dict[str, Any]:
    from entrypoint.harness import evalchemy

    questions = [
        {"id": number, "problem": "", "question": "", answer.SHAPES[task].gold: gold}
        for number, (gold, _, _) in enumerate(pairs)
    ]
    lm: Any = Answers([boxed(*answers) for _, answers, _ in pairs])
    return evalchemy.run_on(tree, task, lm, questions)


def verdicts_of_pairs(tree: Path) -> dict[str, list[bool]]:
    return {
        task: [verdict["correctness"] for verdict in answer.verdicts(task, graded(tree, task, pairs))]
        for task, pairs in PAIRS.items()
    }


def endless_answers(tree: Path) -> list[dict[str, Any]]:
    pairs = [(["5"], (answer,), False) for answer in ENDLESS]
    return list(graded(tree, "OlympiadBench_Physics", [*pairs, (["5"], ("5",), True)])["examples"])


def physics_parses(tree: Path) -> list[str]:
    """What the parser is asked for two expected and two boxed answers, of which one has a variable before it."""
    from entrypoint.harness import evalchemy

    benchmark = evalchemy._load(
        tree, "OlympiadBench_Physics", seed=0, n_repeat=1, max_tokens=1, system_instruction=None
    )
    names = benchmark.evaluate_responses.__func__.__globals__
    parse, asked = names["parse_latex"], []
    names["parse_latex"] = lambda text: (asked.append(text), parse(text))[1]
    benchmark.evaluate_responses({"examples": [{"answers": ["v = 7", "8"], "model_answers": ["9", "8"]}] * 2})
    return asked


def errors_in_a_thread(tree: Path) -> list[str]:
    from entrypoint.harness import evalchemy

    benchmark = evalchemy._load(
        tree, "OlympiadBench_Physics", seed=0, n_repeat=1, max_tokens=1, system_instruction=None
    )
    example = {"answers": ["5"], "model_answers": ["5"]}
    errors: list[str] = []

    def work() -> None:
        for call in (
            lambda: graded(tree, "AIME24", PAIRS["AIME24"]),
            lambda: benchmark.evaluate_responses({"examples": [example]}),
        ):
            try:
                call()
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return errors


def passed_self_checks(tree: Path) -> list[str]:
    from entrypoint.harness import selfcheck

    for task in selfcheck.PROBES:
        for options in ({}, {"gpqa_order": "shuffled"}, {"livecodebench": "isolated"}):
            selfcheck.selfcheck(tree, task, options)
    return sorted(selfcheck.PROBES)


def repetitions_of_a_task_without(tree: Path) -> str:
    from entrypoint.errors import HarnessError
    from entrypoint.harness import evalchemy

    lm: Any = Answers([""])
    settings: Any = {"seed": 42, "max_tokens": 9, "limit": 1, "system_instruction": None, "grade": False}
    try:
        evalchemy.run(tree, "MATH500", lm, n_repeat=3, **settings)
    except HarnessError as error:
        return str(error)
    return "ran"


def empty_gold(tree: Path) -> str:
    from entrypoint.errors import HarnessError

    try:
        graded(tree, "MATH500", [("x", ("x",), True), ("", (), False)])
    except HarnessError as error:
        return str(error)
    return "graded"


def without_antlr4(tree: Path) -> dict[str, Any]:
    from entrypoint.errors import HarnessError
    from entrypoint.harness import selfcheck

    sys.modules["antlr4"] = None  # type: ignore[assignment]
    scored = graded(tree, "OlympiadBench_Physics", [(["5"], ("5",), True)])
    try:
        selfcheck.selfcheck(tree, "OlympiadBench_Physics", {})
    except HarnessError as error:
        return {"accuracy": scored["accuracy"], "refusal": str(error)}
    return {"accuracy": scored["accuracy"], "refusal": None}


def failed_import(tree: Path) -> str:
    from entrypoint.errors import HarnessError

    sys.modules["lm_eval.tasks.hendrycks_math.utils"] = None  # type: ignore[assignment]
    try:
        graded(tree, "AIME24", PAIRS["AIME24"])
    except HarnessError as error:
        return str(error)
    return "loaded"


# ---- the tests ----


def child(tree: Path, work: str, **variables: str) -> Any:
    done = subprocess.run(
        [sys.executable, __file__, str(tree), work],
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def first_two(evalchemy_tree: Path) -> Any:
    return child(evalchemy_tree, "verdicts_of_first_two")


@pytest.fixture(scope="module")
def pairs(evalchemy_tree: Path) -> Any:
    return child(evalchemy_tree, "verdicts_of_pairs")


@pytest.mark.parametrize("task", FIRST_TWO)
def test_right_and_wrong_answers_known_by_hand_are_told_apart(first_two: Any, task: str) -> None:
    assert first_two[task] == [[True, False], [False, True]]


@pytest.mark.parametrize("task", PAIRS)
def test_the_pinned_grader_judges_spellings_as_it_always_did(pairs: Any, task: str) -> None:
    assert pairs[task] == [expected for _, _, expected in PAIRS[task]]


def test_endless_physics_answers_are_wrong_and_counted(evalchemy_tree: Path) -> None:
    *endless, good = child(evalchemy_tree, "endless_answers", EVALCRATE_SAMPLE_TIMEOUT_S="1")
    assert [(example["is_correct"], example["grader_timeout"]) for example in endless] == [(False, True)] * 2
    assert good["is_correct"]
    assert "grader_timeout" not in good


def test_each_physics_answer_is_parsed_once(evalchemy_tree: Path) -> None:
    assert sorted(child(evalchemy_tree, "physics_parses")) == ["7", "8", "9", "v = 7"]


def test_grading_in_a_thread_is_an_error_and_not_zero(evalchemy_tree: Path) -> None:
    ours, upstreams = child(evalchemy_tree, "errors_in_a_thread")
    assert ours.startswith("HarnessError: AIME24: graders bound their time with signals")
    assert upstreams.startswith("ValueError: signal only works in main thread")


def test_every_grader_passes_its_self_check(evalchemy_tree: Path) -> None:
    assert child(evalchemy_tree, "passed_self_checks") == sorted(answer.SHAPES)


def test_a_machine_without_antlr4_is_refused_instead_of_scoring_zero(evalchemy_tree: Path) -> None:
    found = child(evalchemy_tree, "without_antlr4")
    assert found["accuracy"] == 0.0
    assert "OlympiadBench_Physics: self-check of the grader failed" in found["refusal"]
    assert "antlr4-python3-runtime" in found["refusal"]


def test_a_benchmark_that_does_not_load_says_why(evalchemy_tree: Path) -> None:
    said = child(evalchemy_tree, "failed_import")
    assert said.startswith("AIME24: evalchemy did not load this benchmark: Error loading benchmark from AIME24: ")
    assert "lm_eval.tasks.hendrycks_math.utils" in said


def test_an_empty_expected_answer_is_refused(evalchemy_tree: Path) -> None:
    assert child(evalchemy_tree, "empty_gold").startswith("MATH500: sample 1 has no expected answer")


def test_repetitions_that_a_task_would_ignore_are_refused(evalchemy_tree: Path) -> None:
    said = child(evalchemy_tree, "repetitions_of_a_task_without")
    assert said == "MATH500: has no repetitions of its own; ask 3 trials instead"


def test_a_locale_that_is_not_utf8_is_refused(evalchemy_tree: Path) -> None:
    code = f"import sys; sys.argv = ['', {str(evalchemy_tree)!r}]; import locale"
    code += "; locale.getpreferredencoding = lambda do: 'ISO-8859-1'; from pathlib import Path"
    code += "; from entrypoint.harness import selfcheck; selfcheck.selfcheck(Path(sys.argv[1]), 'AIME25', {})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert "AIME25: its data would be read in the locale's ISO-8859-1; set PYTHONUTF8=1" in done.stderr


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[2]](Path(sys.argv[1]))))
