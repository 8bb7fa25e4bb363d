"""The arithmetic task must load anywhere, without torch, cache or network, and tell right, wrong and no answer apart.

Incidents: lm-eval resolves relative data files against the working directory, and datasets 5.2 fails on a lock file
even for plain JSON when its cache is read-only (both tried on the pinned versions).
"""

from __future__ import annotations

import json
import logging
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager

TASKS = Path(__file__).parents[2] / "tasks"


class ScriptedLM(LM):  # type: ignore[misc]
    """Answers each request with `answer(gold)`; keeps the prompts and settings that it was asked with."""

    def __init__(self, answer: Callable[[str], str]) -> None:
        super().__init__()
        self.answer = answer
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def generate_until(self, requests: list[Instance]) -> list[str]:
        self.asked = [request.args for request in requests]
        return [self.answer(request.doc["answer"]) for request in requests]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        raise NotImplementedError

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise NotImplementedError


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The task as lm-eval loads it from a foreign working directory, with its own data loader out of reach."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("the task went through the datasets cache")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "load_dataset", refuse)
    manager = TaskManager(include_path=str(TASKS), include_defaults=False)
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    return manager.load(["arithmetic"])


def graded(loaded: Any, answer: Callable[[str], str]) -> tuple[float, set[str]]:
    """The score, and what the filter took from the texts."""
    result = evaluate(lm=ScriptedLM(answer), task_dict=loaded, bootstrap_iters=0)
    taken = {text for row in result["samples"]["arithmetic"] for text in row["filtered_resps"]}
    return float(result["results"]["arithmetic"]["exact_match,boxed"]), taken


def problems() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (TASKS / "arithmetic/problems.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("\\boxed{GOLD}", 1.0),
        ("first \\boxed{1}, then \\boxed{ GOLD }.", 1.0),
        ("first \\boxed{GOLD}, then \\boxed{1}", 0.0),
        ("\\boxed{0GOLD}", 0.0),
        ("GOLD", 0.0),
    ],
)
def test_the_last_box_is_the_answer(loaded: Any, answer: str, score: float) -> None:
    assert graded(loaded, lambda gold: answer.replace("GOLD", gold))[0] == score


@pytest.mark.parametrize("text", ["", "the sum is 85", "\\boxed{85", "\\boxed{}", "\\boxed{ }"])
def test_a_text_without_an_answer_is_marked_invalid_and_wrong(loaded: Any, text: str) -> None:
    assert graded(loaded, lambda gold: text) == (0.0, {"[invalid]"})


def test_every_problem_is_asked_once_without_stops_or_examples(loaded: Any) -> None:
    lm = ScriptedLM(lambda gold: "")
    evaluate(lm=lm, task_dict=loaded, bootstrap_iters=0)
    assert [prompt for prompt, _ in lm.asked] == [row["question"] for row in problems()]
    assert all(settings["until"] == [] for _, settings in lm.asked)


def test_the_problems_are_64_distinct_sums_with_their_right_answers() -> None:
    rows = problems()
    assert len(rows) == len({row["question"] for row in rows}) == 64
    assert [row["id"] for row in rows] == list(range(64))
    for row in rows:
        assert 0 <= row["a"] < 100
        assert 0 <= row["b"] < 100
        assert row["question"] == f"What is {row['a']} + {row['b']}? Put the answer in \\boxed{{}}."
        assert row["answer"] == str(row["a"] + row["b"])


def test_the_problems_are_what_their_script_writes() -> None:
    script = runpy.run_path(str(TASKS / "arithmetic/make_problems.py"))
    assert script["problem_lines"]() == (TASKS / "arithmetic/problems.jsonl").read_text()


def test_loading_and_grading_need_no_torch(loaded: Any) -> None:
    graded(loaded, lambda gold: gold)
    assert "torch" not in sys.modules
