"""A benchmark of the pinned evalchemy that no suite has: run as it is, scored by a number that it reports itself.

In: the patched tree with its folder, its name, an LM. Out: what it returned, and from that the results of one trial.
Nothing is known of it beforehand: what it can't do without (a judge, a hub, a package) is refused with the reason.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from entrypoint.errors import EvalcrateError, HarnessError
from entrypoint.harness import answer, evalchemy
from entrypoint.harness.nltk_data import nltk_resources
from entrypoint.harness.obstacle import obstacle

if TYPE_CHECKING:
    from lm_eval.api.model import LM

_OWN = ("accuracy", "accuracy_avg")
_REPETITIONS = ("n_repeat", "n_trials")
_TOLERANCE = 1e-9


def is_generic(task: str) -> bool:
    """Whether nothing is known here of the benchmark's answers and verdicts."""
    return task not in answer.SHAPES


def run(
    tree: Path,
    task: str,
    lm: LM,
    *,
    seed: int,
    max_tokens: int,
    limit: int | None,
    system_instruction: str | None,
    grade: bool,
    data: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Ask `lm` every request once and, with `grade`, let the benchmark grade the answers.

    It runs with the tree as working folder, from where these benchmarks find their data. HarnessError says why it
    can't be run. To be called from the main thread.
    """
    _refuse_judge(tree, task)
    _refuse_sockets(tree, task)
    with _obstacles(task), evalchemy.surroundings(task), contextlib.chdir(tree), nltk_resources(data):
        benchmark = evalchemy.load_benchmark(
            tree, task, seed=seed, n_repeat=1, max_tokens=max_tokens, system_instruction=system_instruction
        )
        for name in _REPETITIONS:
            if isinstance(getattr(benchmark, name, None), int):
                setattr(benchmark, name, 1)
        if limit is not None:
            evalchemy.choose_questions(benchmark, task, lambda read: list(islice(read(), limit)))
        answers = evalchemy.step(task, "asking its requests", benchmark.generate_responses, lm)
        if not isinstance(answers, dict):
            raise HarnessError(f"{task}: the benchmark returned {answers!r} for its answers; see the log of this child")
        evalchemy.refuse_empty_golds(task, [one for one in answers.get("examples") or () if isinstance(one, dict)])
        result = evalchemy.step(task, "grading", benchmark.evaluate_responses, answers) if grade else answers
        return {key: evalchemy.plain(value) for key, value in result.items()} if isinstance(result, dict) else {}


def results(
    task: str, raw: Mapping[str, Any], metric: str | None, samples: Sequence[int], texts: Sequence[str]
) -> dict[str, Any]:
    """The trial's results: `accuracy` is the reported number named `metric`, else the benchmark's own accuracy.

    Examples have their output; a verdict only where the benchmark stored booleans whose mean is that accuracy, which
    `verdict_per_example` tells. `reported` keeps every number, a dot between the keys of one inside another.
    """
    numbers = dict(_numbers(raw))
    key = metric or next((name for name in _OWN if name in numbers), None)
    if key is None or key not in numbers:
        wanted = "metric: is needed, as it reports no accuracy" if key is None else f"metric: {key}: is not reported"
        raise HarnessError(f"{task}: {wanted}; the numbers it reports are {', '.join(numbers) or 'none'}")
    value = float(numbers[key])
    if not 0 <= value <= 1:
        raise HarnessError(f"{task}: metric: {key}: is {value}, not a share in [0, 1]; no score is published")
    verdicts = _verdicts(raw.get("examples"), texts, value)
    examples = [
        {"id": str(sample), "model_answers": [], "model_outputs": [text]}
        | ({} if verdicts is None else {"correctness": verdicts[n]})
        for n, (sample, text) in enumerate(zip(samples, texts, strict=True))
    ]
    solved = {} if verdicts is None else {"num_solved": sum(verdicts)}
    told = {"metric": key, "reported": numbers, "verdict_per_example": verdicts is not None}
    return {"accuracy": value, **solved, **told, "examples": examples}


def _numbers(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    for key, inner in value.items():
        name = f"{path}{key}"
        if isinstance(inner, Mapping):
            yield from _numbers(inner, f"{name}.")
        elif isinstance(inner, int | float) and not isinstance(inner, bool):
            yield name, inner


def _verdicts(examples: object, texts: Sequence[str], accuracy: float) -> list[bool] | None:
    """The one stored column of booleans that gives the accuracy, from examples that hold these very outputs."""
    if not isinstance(examples, list) or len(examples) != len(texts) or not examples:
        return None
    if not all(isinstance(one, dict) and _holds(one, text) for one, text in zip(examples, texts, strict=True)):
        return None
    found = []
    for key in examples[0]:
        column = [one.get(key) for one in examples]
        if all(isinstance(cell, bool) for cell in column) and abs(sum(column) / len(column) - accuracy) <= _TOLERANCE:
            found.append(column)
    return found[0] if found and all(column == found[0] for column in found) else None


def _holds(example: Mapping[str, Any], text: str) -> bool:
    return any(value == text or value == [text] for value in example.values())


def _refuse_judge(tree: Path, task: str) -> None:
    """Read from its code: a judge's packages are not installed, so that importing it would tell of those instead."""
    file = tree / "eval/chat_benchmarks" / task / "eval_instruct.py"
    try:
        code = ast.parse(file.read_bytes())
    except (OSError, SyntaxError) as error:
        raise HarnessError(f"{task}: its eval_instruct.py can't be read: {error}") from error
    for node in ast.walk(code):
        asks = isinstance(node, ast.arg) and node.arg == "annotator_model"
        if asks or (isinstance(node, ast.Assign) and ast.unparse(node) == "REQUIRES_OPENAI_ANNOTATOR = True"):
            raise HarnessError(
                f"{task}: its answers are graded by a judge, a model behind a network that graders don't have; "
                "leave the task out"
            )


def _refuse_sockets(tree: Path, task: str) -> None:
    """A multiprocessing.Manager needs a socket: known now, and not when everything is generated."""
    for file in sorted((tree / "eval/chat_benchmarks" / task).rglob("*.py")):
        if b"Manager()" in file.read_bytes():
            raise HarnessError(
                f"{task}: its grader uses multiprocessing.Manager ({file.name}), which needs a socket; graders "
                "have none: leave the task out"
            )


@contextlib.contextmanager
def _obstacles(task: str) -> Iterator[None]:
    try:
        yield
    except EvalcrateError as error:
        known = obstacle(task, error)
        if known is None:
            raise
        raise known from error
