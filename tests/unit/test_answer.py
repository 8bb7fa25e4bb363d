"""An extractor that finds nothing, an odd box, an empty expected answer: seen and counted, not smoothed over.

EleutherAI/lm-evaluation-harness#3477 (`\\boxed ` with a blank takes the wrong span), NVIDIA-NeMo/Skills#1074,
huggingface/Math-Verify#50: the pinned grader's verdict stays comparable, and oddities are counted beside it.
"""

from __future__ import annotations

from typing import Any

import pytest

from entrypoint.errors import HarnessError
from entrypoint.harness import answer

BLANK = "put it in \\boxed form. So \\boxed{42}"


def _graded(gold: object, text: str) -> dict[str, Any]:
    """An example of AIME25 as the benchmark itself extracts it."""
    from lm_eval.tasks.hendrycks_math.utils import last_boxed_only_string, remove_boxed

    try:
        found = remove_boxed(last_boxed_only_string(text))
    except (AssertionError, TypeError):
        found = ""
    return {"answer": gold, "model_answers": [found]}


@pytest.mark.parametrize(
    ("gold", "text", "right", "no_answer"),
    [
        ("42", "So \\boxed{42}", True, False),
        ("42", BLANK, False, False),
        ("33", "\\boxed{033}", False, False),
        ("42", "\\boxed{}", False, True),
        ("42", "\\boxed{42", False, True),
        ("42", "", False, True),
    ],
)
def test_the_pinned_graders_verdict_is_kept(gold: str, text: str, right: bool, no_answer: bool) -> None:
    example = _graded(gold, text)
    assert answer.correctness("AIME25", example) is right
    assert answer.format_fail("AIME25", example) is no_answer


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("So \\boxed{42}", (False, False, False)),
        (BLANK, (False, False, True)),
        ("\\boxed{}", (True, False, False)),
        ("\\boxed{ }", (True, False, False)),
        ("\\boxed{42", (False, True, False)),
        ("\\boxed{\\frac{1}{2}", (False, True, False)),
        ("\\boxed{} and then \\boxed{4}", (False, False, False)),
        ("no box at all {", (False, False, False)),
        ("", (False, False, False)),
    ],
)
def test_odd_boxes_are_flagged(text: str, flags: tuple[bool, bool, bool]) -> None:
    assert answer.boxed_problems(text) == flags


@pytest.mark.parametrize(
    "example",
    [
        {"answer": ""},
        {"answer": " "},
        {"answer": None},
        {"expected_answer": ""},
        {"answers": []},
        {"answers": ["1", ""]},
    ],
)
def test_an_empty_expected_answer_is_seen(example: dict[str, Any]) -> None:
    assert answer.empty_gold(example)


@pytest.mark.parametrize("example", [{"answer": 0}, {"answer": "0"}, {"answers": ["1", "2"]}, {"gold": "A"}])
def test_zero_is_an_expected_answer(example: dict[str, Any]) -> None:
    assert not answer.empty_gold(example)


@pytest.mark.parametrize(
    ("task", "nothing", "something"),
    [
        ("AIME24", {"model_answers": [""]}, {"model_answers": ["7"]}),
        ("HMMT", {"model_answers": [None]}, {"model_answers": [""]}),
        ("MATH500", {"model_answer": ""}, {"model_answer": "7"}),
        ("OlympiadBench", {"model_answer": ""}, {"model_answer": "7"}),
        ("OlympiadBench_Physics", {"model_answers": []}, {"model_answers": ["1", "2"]}),
        ("GPQADiamond", {"model_answers": ["none of them"]}, {"model_answers": ["D"]}),
        ("HLE", {"model_answers": [""]}, {"model_answers": ["G"]}),
        ("JEEBench", {"model_answers": [""]}, {"model_answers": ["AC"]}),
        ("LiveCodeBench", {"model_answers": [[]]}, {"model_answers": [["print()"]]}),
        ("LiveCodeBenchv6_official", {"content": []}, {"content": ["print()"]}),
        ("gsm8k", {"filtered_resps": ["[invalid]"]}, {"filtered_resps": ["7"]}),
        ("gsm8k", {"model_answers": ["[invalid]"]}, {"model_answers": ["7"]}),
    ],
)
def test_each_task_has_its_own_form_of_no_answer(task: str, nothing: dict[str, Any], something: dict[str, Any]) -> None:
    assert answer.format_fail(task, nothing)
    assert not answer.format_fail(task, something)


def test_an_example_without_answers_is_our_fault_and_not_a_format_fail() -> None:
    with pytest.raises(HarnessError, match="MATH500: an example has no `model_answer`, only model_answers"):
        answer.format_fail("MATH500", {"model_answers": [""]})


def test_all_fourteen_tasks_have_a_shape() -> None:
    tasks = (
        "AIME24 AIME25 AIME26 AMC23 GPQADiamond HLE HMMT JEEBench LiveCodeBench LiveCodeBenchv5_official"
        " LiveCodeBenchv6_official MATH500 OlympiadBench OlympiadBench_Physics"
    )
    assert sorted(answer.SHAPES) == sorted(tasks.split())


def test_verdicts_that_do_not_add_up_to_the_benchmarks_count_are_refused() -> None:
    examples = [_graded("1", "\\boxed{1}"), _graded("2", "\\boxed{3}")]
    stats = {"repetition": 1, "num_total": 2, "num_solved": 1}
    graded = {"examples": examples, "run_stats": [stats]}
    assert answer.verdicts("AIME25", graded) == ({"correctness": True}, {"correctness": False})
    stats["num_solved"] = 2
    with pytest.raises(HarnessError, match="counted 2 solved of 2, its examples say 1 of 2"):
        answer.verdicts("AIME25", graded)


def test_partial_credit_adds_up_and_gets_no_verdict() -> None:
    examples = [{"gold": "AB", "score": [0.25]}, {"gold": "C", "score": [1]}]
    graded = {"examples": examples, "run_stats": [{"num_total": 2, "num_solved": 1.25}]}
    assert answer.credits("JEEBench", graded) == (0.25, 1.0)
    assert answer.verdicts("JEEBench", graded) == ({}, {})
    graded["run_stats"] = [{"num_total": 2, "num_solved": 1.0}]
    with pytest.raises(HarnessError, match=r"counted 1.0 solved of 2, its examples say 1.25"):
        answer.verdicts("JEEBench", graded)


@pytest.mark.parametrize(
    ("text", "mended"),
    [
        (BLANK, "put it in boxed form. So \\boxed{42}"),
        ("\\boxed {42}", "\\boxed{42}"),
        ("\\boxed\n{42}", "\\boxed{42}"),
        ("\\boxed 42", "\\boxed 42"),
        ("So \\boxed{42}.", "So \\boxed{42}."),
        ("", ""),
    ],
)
def test_a_mended_box_is_the_one_that_was_meant(text: str, mended: str) -> None:
    assert answer.mend_blank_boxes(text) == mended


@pytest.mark.parametrize(
    ("reason", "ours"),
    [
        ("Evaluation error: x", True),
        ("Critical error: x", True),
        ("Future error: x", True),
        ("Code is incorrect.", False),
        ("Does not contain code component.", False),
        (None, False),
    ],
)
def test_a_failure_of_the_grader_is_told_from_a_wrong_answer(reason: str | None, ours: bool) -> None:
    assert (answer.grader_error({"correctness": False, "reason": reason}) is not None) is ours


def test_a_verdict_is_never_made_up() -> None:
    with pytest.raises(HarnessError, match="JEEBench: its grader gives no verdict per example"):
        answer.correctness("JEEBench", {"score": [0.25]})
    with pytest.raises(HarnessError, match="was it graded"):
        answer.correctness("OlympiadBench_Physics", {"answers": ["1"], "model_answers": ["1"]})
