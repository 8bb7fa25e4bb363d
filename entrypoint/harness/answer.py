"""What an answer looks like in each task, when there is none, and what the benchmark's own grader said of it.

In: examples as a benchmark returned them. Out: verdicts, format-fail and box flags. Nothing is graded here: a
verdict is the stored one, or that of the very function with which the benchmark counts its solved examples.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from entrypoint.errors import HarnessError

Example = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerShape:
    """Where a task keeps the answers of an example.

    per_repetition: `key` holds one value per repetition. single: `key` holds the value. boxes: `key` holds
    all boxed values of the one output. code: `key` holds the code blocks of each repetition; once graded,
    those of the last one are under `graded_key`. `nothing` stands for "no answer found". `verdict` is None
    for tasks without one per example here: partial credit, or not carried out yet.
    """

    form: str
    gold: str
    nothing: object = ""
    key: str = "model_answers"
    graded_key: str | None = None
    verdict: Callable[[Example], bool] | None = None


class BoxProblems(NamedTuple):
    """Why an output with an answer in it may count as having none.

    `empty` and `unclosed` are about the last box. `blank`: a `\\boxed ` with a blank stands somewhere, from
    where lm-eval's extractor then reads on, whatever boxes follow.
    """

    empty: bool
    unclosed: bool
    blank: bool


def format_fail(task: str, example: Example) -> bool:
    """Whether the answer extractor found nothing. Counts as wrong; kept apart from truncation."""
    shape = SHAPES.get(task)
    if shape is None:
        return _lm_eval_format_fail(task, example)
    if shape.graded_key is not None and shape.graded_key in example:
        return bool(example[shape.graded_key] == shape.nothing)
    answer = _field(task, example, shape.key)
    if shape.form in ("single", "boxes"):
        return bool(answer == shape.nothing)
    return any(value == shape.nothing for value in answer)


def correctness(task: str, example: Example) -> bool:
    """The verdict of the benchmark's own grader on the first repetition of a graded example."""
    shape = SHAPES.get(task)
    if shape is None or shape.verdict is None:
        raise HarnessError(f"{task}: its grader gives no verdict per example that is known here")
    try:
        return shape.verdict(example)
    except (KeyError, IndexError) as error:
        raise HarnessError(f"{task}: a graded example lacks {error}; was it graded?") from error


def verdicts(task: str, graded: Mapping[str, Any]) -> tuple[dict[str, bool], ...]:
    """`{"correctness": …}` per example of a graded trial, in order, proved by the benchmark's own count."""
    each = [correctness(task, example) for example in graded["examples"]]
    counted = graded["run_stats"][0] if "run_stats" in graded else graded
    if sum(each) != counted["num_solved"] or len(each) != counted["num_total"]:
        raise HarnessError(
            f"{task}: the benchmark counted {counted['num_solved']} solved of {counted['num_total']}, its"
            f" examples say {sum(each)} of {len(each)}; no score is published"
        )
    return tuple({"correctness": verdict} for verdict in each)


def empty_gold(example: Example) -> bool:
    """Whether the expected answer is missing: an empty one would equal an empty answer and score as right."""
    golds = [example[key] for key in ("expected_answer", "answer", "answers", "gold", "target") if key in example]
    parts = [part for gold in golds for part in (gold if isinstance(gold, list) and gold else [gold])]
    return any(part is None or part == [] or not str(part).strip() for part in parts)


def boxed_problems(text: str) -> BoxProblems:
    """The flags of one output, whole as it was generated."""
    start = text.rfind("\\boxed{")
    content, closed = _box_content(text, start + len("\\boxed{")) if start >= 0 else ("-", True)
    return BoxProblems(
        empty=closed and not content.strip(),
        unclosed=not closed,
        blank=re.search(r"\\boxed ", text) is not None,
    )


def _box_content(text: str, start: int) -> tuple[str, bool]:
    depth = 1
    for brace in re.finditer(r"[{}]", text[start:]):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return text[start : start + brace.start()], True
    return text[start:], False


def _lm_eval_format_fail(task: str, example: Example) -> bool:
    """lm-eval's regex filters give `[invalid]` where nothing matches."""
    return "[invalid]" in _field(task, example, "filtered_resps" if "filtered_resps" in example else "model_answers")


def _field(task: str, example: Example, key: str) -> Any:
    if key not in example:
        raise HarnessError(f"{task}: an example has no `{key}`, only {', '.join(sorted(example))}")
    return example[key]


def _is_equiv(gold: str, answer: str) -> bool:
    # Imported late: it pulls in datasets, and the plan reads this table too
    from lm_eval.tasks.hendrycks_math.utils import is_equiv

    return bool(is_equiv(gold, answer))


# The conversions to text are the benchmarks' own, AIME24's of the answer included.
SHAPES: Mapping[str, AnswerShape] = {
    "AIME24": AnswerShape(
        form="per_repetition",
        gold="expected_answer",
        verdict=lambda example: _is_equiv(str(example["expected_answer"]), str(example["model_answers"][0])),
    ),
    **{
        task: AnswerShape(
            form="per_repetition",
            gold="answer",
            verdict=lambda example: _is_equiv(str(example["answer"]), example["model_answers"][0]),
        )
        for task in ("AIME25", "AIME26", "AMC23")
    },
    **{
        task: AnswerShape(
            form="single",
            gold="answer",
            key="model_answer",
            verdict=lambda example: _is_equiv(str(example["answer"]), example["model_answer"]),
        )
        for task in ("MATH500", "OlympiadBench")
    },
    "OlympiadBench_Physics": AnswerShape(
        form="boxes", gold="answers", nothing=[], verdict=lambda example: bool(example["is_correct"])
    ),
    "HMMT": AnswerShape(form="per_repetition", gold="answer", nothing=None),
    "GPQADiamond": AnswerShape(form="per_repetition", gold="answer"),
    "HLE": AnswerShape(form="per_repetition", gold="answer"),
    "JEEBench": AnswerShape(form="per_repetition", gold="gold"),
    **{
        task: AnswerShape(form="code", gold="private_test_cases", nothing=[], graded_key="content")
        for task in ("LiveCodeBench", "LiveCodeBenchv5_official", "LiveCodeBenchv6_official")
    },
}
