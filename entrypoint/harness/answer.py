"""What an answer looks like in each task, when there is none, and what the benchmark's own grader said of it.

In: examples as a benchmark returned them. Out: verdicts, format-fail and box flags. Nothing is graded here: a
verdict is the stored one, or that of the very function with which the benchmark counts its solved examples.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, NamedTuple

from entrypoint.errors import HarnessError
from entrypoint.record import GRADER_FAULTS

Example = Mapping[str, Any]
_TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerShape:
    """Where a task keeps the answers of an example.

    per_repetition: `key` holds one value per repetition. single: `key` holds the value. boxes: `key` holds
    all boxed values of the one output. code: `key` holds the code blocks of each repetition; once graded,
    those of the last one are under `graded_key`. `nothing` stands for "no answer found"; with `letters`, so
    does every answer that is none of them: the extractor then returns the whole output. An example has a
    `verdict`, or, where credit is partial, a `credit` in [0, 1].
    """

    form: str
    gold: str
    nothing: object = ""
    key: str = "model_answers"
    graded_key: str | None = None
    letters: tuple[str, ...] = ()
    verdict: Callable[[Example], bool] | None = None
    credit: Callable[[Example], float] | None = None


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
    if shape.letters:
        return any(value not in shape.letters for value in answer)
    return any(value == shape.nothing for value in answer)


def grader_error(example: Example) -> str | None:
    """What the grader says of its own failure on an example, which it counts as wrong; None where it did grade."""
    reason = str(example.get("reason") or "")
    return reason if reason.startswith(GRADER_FAULTS) else None


def answer_letters(task: str, examples: list[dict[str, Any]]) -> dict[str, int] | None:
    """How often each letter is the right one, for tasks that choose the order of the options themselves."""
    if task != "GPQADiamond":
        return None
    found = Counter(str(example["answer"]) for example in examples)
    return {letter: found[letter] for letter in SHAPES[task].letters}


def correctness(task: str, example: Example) -> bool:
    """The verdict of the benchmark's own grader on the first repetition of a graded example."""
    shape = SHAPES.get(task)
    if shape is None or shape.verdict is None:
        raise HarnessError(f"{task}: its grader gives no verdict per example that is known here")
    try:
        return shape.verdict(example)
    except (KeyError, IndexError) as error:
        raise HarnessError(f"{task}: a graded example lacks {error}; was it graded?") from error


def credits(task: str, graded: Mapping[str, Any]) -> tuple[float, ...]:
    """The credit of each example of a graded trial, in order, proved by the benchmark's own count."""
    each = tuple(_credit(task, example) for example in graded["examples"])
    counted = graded["run_stats"][0] if "run_stats" in graded else graded
    if abs(sum(each) - counted["num_solved"]) > _TOLERANCE * len(each) or len(each) != counted["num_total"]:
        raise HarnessError(
            f"{task}: the benchmark counted {counted['num_solved']} solved of {counted['num_total']}, its"
            f" examples say {sum(each)} of {len(each)}; no score is published"
        )
    return each


def verdicts(task: str, graded: Mapping[str, Any]) -> tuple[dict[str, bool], ...]:
    """`{"correctness": …}` per example of a graded trial, in order; empty where credit is partial.

    An example with partial credit keeps its `score: [x]`, and a reader that finds `correctness` looks no further.
    """
    each = credits(task, graded)
    if SHAPES[task].credit is not None:
        return tuple({} for _ in each)
    return tuple({"correctness": bool(credit)} for credit in each)


def _credit(task: str, example: Example) -> float:
    shape = SHAPES.get(task)
    if shape is None or shape.credit is None:
        return correctness(task, example)
    try:
        return shape.credit(example)
    except (KeyError, IndexError) as error:
        raise HarnessError(f"{task}: a graded example lacks {error}; was it graded?") from error


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


def mend_blank_boxes(text: str) -> str:
    """`text` with the box that was meant: `\\boxed {x}` joined, mentions with a blank before the last box disarmed."""
    text = re.sub(r"\\boxed\s+\{", r"\\boxed{", text)
    last = max(text.rfind("\\boxed{"), 0)
    return text[:last].replace("\\boxed ", "boxed ") + text[last:]


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
    "HMMT": AnswerShape(
        form="per_repetition", gold="answer", nothing=None, verdict=lambda example: bool(example["label"][0])
    ),
    **{
        task: AnswerShape(
            form="per_repetition",
            gold="answer",
            letters=tuple(letters),
            verdict=lambda example: bool(example["answer"] == example["model_answers"][0]),
        )
        for task, letters in (("GPQADiamond", "ABCD"), ("HLE", ascii_uppercase))
    },
    "JEEBench": AnswerShape(form="per_repetition", gold="gold", credit=lambda example: float(example["score"][0])),
    **{
        task: AnswerShape(
            form="code",
            gold="test",
            nothing=[],
            graded_key="content",
            verdict=lambda example: bool(example["correctness"]),
        )
        for task in ("LiveCodeBench", "LiveCodeBenchv5_official", "LiveCodeBenchv6_official")
    },
}
