"""Run one evalchemy benchmark in a child process: collect with a recording LM, grade with a replaying one.

In: the patched tree (`entrypoint.source`), a task name, an LM, seed and limits. Out: what the benchmark's own
`generate_responses` or `evaluate_responses` returned, as plain values. Needs no torch and no working folder.
"""

from __future__ import annotations

import contextlib
import importlib
import locale
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from entrypoint.errors import EvalcrateError, HarnessError
from entrypoint.harness.answer import empty_gold

if TYPE_CHECKING:
    from lm_eval.api.model import LM

_N_REPEAT = "EVALCRATE_N_REPEAT"


def run(
    tree: Path,
    task: str,
    lm: LM,
    *,
    seed: int,
    n_repeat: int,
    max_tokens: int,
    limit: int | None,
    system_instruction: str | None,
    grade: bool,
) -> dict[str, Any]:
    """Ask `lm` every request of `task` and, with `grade`, let the benchmark grade the answers.

    Repetition i asks with the integer seed + i; `limit` keeps the first samples. What the benchmark prints
    goes to stderr. Raises HarnessError when the benchmark doesn't load or fails; errors of `lm` that are ours
    pass unchanged. To be called from the main thread: graders bound their time with signals.
    """
    with _surroundings(task):
        benchmark = _load(
            tree,
            task,
            seed=seed,
            n_repeat=n_repeat,
            max_tokens=max_tokens,
            system_instruction=system_instruction,
        )
        if limit is not None:
            _choose_questions(benchmark, task, lambda read: list(islice(read(), limit)))
        return _ask(benchmark, task, lm, grade)


def run_on(tree: Path, task: str, lm: LM, questions: list[dict[str, Any]]) -> dict[str, Any]:
    """Ask and grade `questions`, in the form of the task's own data, in place of those."""
    with _surroundings(task):
        benchmark = _load(tree, task, seed=0, n_repeat=1, max_tokens=1, system_instruction=None)
        _choose_questions(benchmark, task, lambda _: questions)
        return _ask(benchmark, task, lm, grade=True)


def _ask(benchmark: Any, task: str, lm: LM, grade: bool) -> dict[str, Any]:
    answers = _step(task, "asking its requests", benchmark.generate_responses, lm)
    for number, example in enumerate(answers["examples"]):
        if empty_gold(example):
            raise HarnessError(f"{task}: sample {number} has no expected answer, which an empty one would equal")
    result = _step(task, "grading", benchmark.evaluate_responses, answers) if grade else answers
    if not result.get("examples"):
        raise HarnessError(f"{task}: the benchmark returned no examples; see the log of this child")
    return {key: _plain(value) for key, value in result.items()}


def _load(tree: Path, task: str, *, seed: int, n_repeat: int, max_tokens: int, system_instruction: str | None) -> Any:
    """The benchmark object, from modules executed anew, with `n_repeat` repetitions.

    Upstream only logs what goes wrong here, so that its words are taken from the log.
    """
    manager_class = _import_task_manager(tree)
    failures = _Failures()
    logger = logging.getLogger("TaskManager")
    logger.addHandler(failures)
    before = os.environ.get(_N_REPEAT)
    os.environ[_N_REPEAT] = str(n_repeat)
    try:
        manager = manager_class(
            task_list=[task],
            max_tokens=max_tokens,
            seed=[seed] * 4,
            system_instruction=system_instruction,
        )
    finally:
        logger.removeHandler(failures)
        del os.environ[_N_REPEAT]
        if before is not None:
            os.environ[_N_REPEAT] = before
    benchmark = manager.get_benchmark(task)
    if benchmark is None:
        why = "; ".join(failures.messages) or f"no benchmark of this name under {tree}"
        raise HarnessError(f"{task}: evalchemy did not load this benchmark: {why}")
    repeats = getattr(benchmark, "n_repeat", None)
    if repeats is None and n_repeat != 1:
        raise HarnessError(f"{task}: has no repetitions of its own; ask {n_repeat} trials instead")
    if repeats not in (None, n_repeat):
        raise HarnessError(f"{task}: asks {repeats} repetitions where {n_repeat} were wanted")
    return benchmark


def _choose_questions(benchmark: Any, task: str, choose: Callable[[Callable[[], Any]], list[Any]]) -> None:
    """Let the benchmark see what `choose` makes of its own way to read its questions."""
    read = getattr(benchmark, "load_questions", None)
    if read is None:
        raise HarnessError(f"{task}: has no load_questions, so that its samples can't be chosen; drop `limit`")
    benchmark.load_questions = lambda: choose(read)


def _import_task_manager(tree: Path) -> Any:
    """Upstream's package is called `eval`: make sure that it is the one in `tree`."""
    sys.dont_write_bytecode = True  # the tree may be read-only and is shared between runs
    if str(tree) not in sys.path:
        sys.path.insert(0, str(tree))
    try:
        module = importlib.import_module("eval.task")
    except Exception as error:
        raise HarnessError(f"{tree}: eval/task.py can't be imported: {type(error).__name__}: {error}") from error
    if not Path(str(module.__file__)).resolve().is_relative_to(tree.resolve()):
        raise HarnessError(f"{module.__file__}: another `eval` package hides the one in {tree}; remove it")
    return module.TaskManager


class _Failures(logging.Handler):
    """What upstream's loader has to say, but for its remark on a key that none of our tasks needs."""

    def __init__(self) -> None:
        super().__init__(level=logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not record.getMessage().startswith("OPENAI_API_KEY"):
            self.messages.append(record.getMessage())


def _step(task: str, doing: str, call: Callable[[Any], Any], argument: Any) -> Any:
    try:
        return call(argument)
    except EvalcrateError:
        raise
    except Exception as error:
        raise HarnessError(f"{task}: {doing} failed: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _surroundings(task: str) -> Iterator[None]:
    """UTF-8, the main thread, and a stdout that upstream's prints and children can't mix into ours."""
    encoding = locale.getpreferredencoding(False)
    if encoding.replace("-", "").lower() != "utf8":
        raise HarnessError(f"{task}: its data would be read in the locale's {encoding}; set PYTHONUTF8=1")
    if threading.current_thread() is not threading.main_thread():
        raise HarnessError(f"{task}: graders bound their time with signals, which only a main thread gets")
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _plain(value: Any) -> Any:
    """Numpy scalars and arrays as Python's own, so that what leaves here can be written as strict JSON."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value
