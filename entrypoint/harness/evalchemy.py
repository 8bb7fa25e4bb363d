"""Run one evalchemy benchmark in a child process: collect with a recording LM, grade with a replaying one.

In: the patched tree (`entrypoint.source`), a task name, an LM, seed and limits. Out: what the benchmark's own
`generate_responses` or `evaluate_responses` returned, as plain values. Needs no torch and no working folder.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import locale
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from entrypoint.errors import EvalcrateError, HarnessError
from entrypoint.harness.answer import empty_gold

if TYPE_CHECKING:
    from lm_eval.api.model import LM

_N_REPEAT = "EVALCRATE_N_REPEAT"
_UPSTREAMS_WAYS: Mapping[str, str] = MappingProxyType({})


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
    data: Sequence[Mapping[str, Any]] = (),
    options: Mapping[str, str] = _UPSTREAMS_WAYS,
    cores: int = 1,
) -> dict[str, Any]:
    """Ask `lm` every request of `task` and, with `grade`, let the benchmark grade the answers.

    Repetition i asks with the integer seed + i; `limit` keeps the first samples; `data` are its locked data
    files, `options` the choices about its grader, which may use so many `cores`. What the benchmark prints goes to
    stderr. Raises HarnessError when the benchmark doesn't load or fails; errors of `lm` that are ours
    pass unchanged. To be called from the main thread: graders bound their time with signals.
    """
    with surroundings(task), _told(data, options):
        benchmark = _load(
            tree,
            task,
            seed=seed,
            n_repeat=n_repeat,
            max_tokens=max_tokens,
            system_instruction=system_instruction,
        )
        if limit is not None:
            choose_questions(benchmark, task, lambda read: list(islice(read(), limit)))
        with _checker(benchmark, options, cores) if grade else contextlib.nullcontext():
            return _ask(benchmark, task, lm, grade)


def run_on(
    tree: Path,
    task: str,
    lm: LM,
    questions: list[dict[str, Any]],
    *,
    options: Mapping[str, str] = _UPSTREAMS_WAYS,
    cores: int = 1,
) -> dict[str, Any]:
    """Ask and grade `questions`, in the form of the task's own data, in place of those."""
    with surroundings(task), _told((), options):
        benchmark = _load(tree, task, seed=0, n_repeat=1, max_tokens=1, system_instruction=None)
        choose_questions(benchmark, task, lambda _: questions)
        with _checker(benchmark, options, cores):
            return _ask(benchmark, task, lm, grade=True)


@contextlib.contextmanager
def _told(data: Sequence[Mapping[str, Any]], options: Mapping[str, str]) -> Iterator[None]:
    """The variables in which patched benchmarks find their data files and the choices about their grader."""
    told = {"EVALCRATE_DATA": json.dumps(list(data)), "EVALCRATE_GPQA_ORDER": options.get("gpqa_order", "upstream")}
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def _checker(benchmark: Any, options: Mapping[str, str], cores: int) -> Iterator[None]:
    """With `livecodebench: isolated` the model's programs run in processes of their own, `cores` at once."""
    if options.get("livecodebench") != "isolated":
        yield
        return
    from entrypoint.harness.livecodebench import Judge

    read_apart = importlib.import_module("eval.locked_data").read_apart
    gate = threading.BoundedSemaphore(cores)
    with Judge(cores=cores) as judge:

        def check(*, problem: Mapping[str, Any], completion: str, **limits: object) -> bool:
            with gate:  # so that no more than `cores` samples' test cases are held at once
                return judge.verdict({**problem, "test": read_apart(problem["test"])}, completion).passed

        benchmark.check_correctness = check
        yield


def _ask(benchmark: Any, task: str, lm: LM, grade: bool) -> dict[str, Any]:
    answers = step(task, "asking its requests", benchmark.generate_responses, lm)
    refuse_empty_golds(task, answers["examples"])
    result = step(task, "grading", benchmark.evaluate_responses, answers) if grade else answers
    if not result.get("examples"):
        raise HarnessError(f"{task}: the benchmark returned no examples; see the log of this child")
    result["examples"] = _with_outputs(answers["examples"], result["examples"])
    return {key: plain(value) for key, value in result.items()}


def refuse_empty_golds(task: str, examples: Sequence[Mapping[str, Any]]) -> None:
    """HarnessError where an example has no expected answer."""
    for number, example in enumerate(examples):
        if empty_gold(example):
            raise HarnessError(f"{task}: sample {number} has no expected answer, which an empty one would equal")


def _with_outputs(asked: list[dict[str, Any]], graded: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """LiveCodeBench's graded examples lack id, answers and outputs: taken from those it asked, without the tests."""
    if len(asked) != len(graded) or "task_id" not in asked[0] or "model_outputs" in graded[0]:
        return graded
    return [
        {"id": before["task_id"], **after, **{key: before[key] for key in ("model_answers", "model_outputs")}}
        for before, after in zip(asked, graded, strict=True)
    ]


def _load(tree: Path, task: str, *, seed: int, n_repeat: int, max_tokens: int, system_instruction: str | None) -> Any:
    """The benchmark object, with `n_repeat` repetitions."""
    benchmark = load_benchmark(
        tree, task, seed=seed, n_repeat=n_repeat, max_tokens=max_tokens, system_instruction=system_instruction
    )
    repeats = getattr(benchmark, "n_repeat", None)
    if repeats is None and n_repeat != 1:
        raise HarnessError(f"{task}: has no repetitions of its own; ask {n_repeat} trials instead")
    if repeats not in (None, n_repeat):
        raise HarnessError(f"{task}: asks {repeats} repetitions where {n_repeat} were wanted")
    return benchmark


def load_benchmark(
    tree: Path, task: str, *, seed: int, n_repeat: int, max_tokens: int, system_instruction: str | None
) -> Any:
    """The benchmark object, from modules executed anew.

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
    return benchmark


def choose_questions(benchmark: Any, task: str, choose: Callable[[Callable[[], Any]], list[Any]]) -> None:
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


def step(task: str, doing: str, call: Callable[[Any], Any], argument: Any) -> Any:
    try:
        return call(argument)
    except EvalcrateError:
        raise
    except Exception as error:
        raise HarnessError(f"{task}: {doing} failed: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def surroundings(task: str) -> Iterator[None]:
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


def plain(value: Any) -> Any:
    """Numpy scalars and arrays as Python's own, so that what leaves here can be written as strict JSON."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value
