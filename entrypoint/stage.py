"""What the commands do: all stages of one job in order, or one of them, which reads only what the one before wrote.

In: a Run. Out: how it ended, with the error that decides the exit code, None when all is well.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass

from entrypoint.completion import TaskSummary, read_marker
from entrypoint.engine import journal
from entrypoint.errors import EvalcrateError, HarnessError, TaskFailed, TransientError
from entrypoint.generate import Outcome
from entrypoint.layout import read_json
from entrypoint.run import Run


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """How the job ended: one summary per task of the plan, and the error that decides the exit code, if any."""

    summaries: tuple[TaskSummary, ...]
    outcome: Outcome | None
    error: EvalcrateError | None


def carry_out(run: Run) -> RunResult:
    """collect, decide, generate, grade and settle; Interrupted leaves everything written where it is."""
    run.say_isolation()
    with run.workers() as pool:
        run.collect()
        run.decide()
        outcome = run.generate(lambda trial: run.submit(pool, trial))
        run.finish()
    if not run.plan.keep_generations:
        _drop_generations(run)
    summaries = tuple(run.summaries[task.name] for task in run.plan.evaluation.tasks)
    return RunResult(summaries=summaries, outcome=outcome, error=error_of(run))


def _drop_generations(run: Run) -> None:
    """Generations and graded files of complete tasks; those of other tasks and jobs stay."""
    names = [task.name for task in run.plan.evaluation.tasks]
    complete = {name for name in names if read_marker(run.layout, name)}
    for name in complete:
        shutil.rmtree(run.layout.graded(name, 0).parent, ignore_errors=True)
    journal.drop(run.layout.generations, complete)


def error_of(run: Run) -> EvalcrateError | None:
    """The error that decides the exit code: none, one for failed tasks, another when nothing could finish."""
    failed = [s for s in run.summaries.values() if s.status == "failed"]
    if isinstance(run.engine_error, TransientError):
        return run.engine_error
    if not failed:
        return None
    told = "; ".join(f"{s.task}: {s.reason}" for s in failed)
    if len(failed) < len(run.summaries):
        return TaskFailed(told)
    return run.engine_error or HarnessError(told)


def collect_stage(run: Run) -> EvalcrateError | None:
    """Only `collect`; prompts that are too long are reported, not refused."""
    run.collect()
    for name, task in run.collected.items():
        for seed, trial in task.trials.items():
            if trial.overlong:
                run.reporter.note(f"{name} seed {seed}: {trial.overlong} prompts over {trial.budget_tokens} tokens")
    told = "; ".join(f"{name}: {reason}" for name, reason in run.uncollected.items())
    if not told:
        return None
    return TaskFailed(told) if run.collected else HarnessError(told)


def generate_stage(run: Run) -> EvalcrateError | None:
    """Only `generate`, for what an earlier collect wrote."""
    run.recall()
    run.decide()
    outcome = run.generate(lambda _: None)
    if outcome is None or len(outcome.failed) == len(run.todo):
        return run.engine_error
    return TaskFailed("; ".join(dict.fromkeys(outcome.failed.values()))) if outcome.failed else None


def grade_stage(run: Run) -> EvalcrateError | None:
    """Only `grade`, for every trial whose generations are complete; the others are named."""
    run.say_isolation()
    run.recall()
    incomplete: list[str] = []
    view = journal.read(run.layout.generations)
    with run.workers() as pool:
        grading = []
        for name, task in run.collected.items():
            for seed in task.trials:
                trial = run.pending(task, seed)
                if all(view.has(request, trial.fingerprint) for request in trial.requests):
                    grading.append(pool.submit(run.grade, trial, view))
                else:
                    incomplete.append(f"{name} seed {seed}")
        for future in grading:
            future.result()
    if incomplete:
        return TaskFailed(f"generations are not complete: {', '.join(incomplete)}")
    failed = [
        reason for name, task in run.collected.items() for seed in task.trials for reason in _why(run, name, seed)
    ]
    return TaskFailed("; ".join(failed)) if failed else None


def _why(run: Run, name: str, seed: int) -> Iterator[str]:
    """Why a trial has no score; nothing when it has one."""
    graded = read_json(run.layout.graded(name, seed))
    if not isinstance(graded, dict) or graded["validity"]["status"] != "ok":
        yield f"{name} seed {seed}: {graded['validity']['reason'] if graded else 'its graded file is not whole'}"


def settle_stage(run: Run) -> EvalcrateError | None:
    """Only `settle`, for every task of the plan."""
    for task in run.plan.evaluation.tasks:
        run.settle(task)
    return error_of(run)
