"""The stages of one job in order, with grading and settling overlapping generation.

In: a Plan. Out: the result folder and a RunResult. Every stage reads only files of the stage before, so that a run that
died anywhere is continued by the same command. One task's failure never stops the others.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from entrypoint import enforcement, fingerprint
from entrypoint.collect import CollectedTask, collect, recall, refuse_overlong
from entrypoint.completion import (
    TaskState,
    TaskSummary,
    early_conflicts,
    expected_prints,
    failure_file,
    task_state,
)
from entrypoint.cores import Cores
from entrypoint.engine import journal
from entrypoint.errors import (
    EngineError,
    EvalcrateError,
    TransientError,
)
from entrypoint.generate import Outcome, PendingTrial, Progress, generate
from entrypoint.grade import GenerationsOfTrial, fail_trial, grade_trial, runs_programs
from entrypoint.host import Host
from entrypoint.layout import Layout, write_json
from entrypoint.plan import Plan, TaskPlan
from entrypoint.prepare import conflict
from entrypoint.provenance import collect_provenance
from entrypoint.record import read_requests
from entrypoint.settle import forget_task, record_failure, retire_foreign, settle_task
from entrypoint.shortfall import disk_error
from entrypoint.speed import Lengths, Speed, setting_of, write_speed


class Reporter(Protocol):
    """What a person sees while a run goes on."""

    def stage(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...
    def progress(self, progress: Progress) -> None: ...
    def task(self, summary: TaskSummary) -> None: ...


@dataclass(slots=True)
class Run:
    """One job on its way; each method is a stage and can be called alone, reading what the ones before it wrote."""

    plan: Plan
    layout: Layout
    reporter: Reporter
    force: bool
    overlap: bool
    image: Mapping[str, Any]
    host: Host
    weights_bytes: int
    cores: int
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    stop: threading.Event = field(default_factory=threading.Event)
    collected: dict[str, CollectedTask] = field(default_factory=dict)
    uncollected: dict[str, str] = field(default_factory=dict)
    summaries: dict[str, TaskSummary] = field(default_factory=dict)
    todo: list[PendingTrial] = field(default_factory=list)
    stored: journal.JournalView | None = None
    engine_error: EvalcrateError | None = None
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    release_cards: Callable[[], None] = lambda: None
    _seen: Progress | None = None
    _remaining: Counter[str] = field(default_factory=Counter)
    _grading: list[Future[None]] = field(default_factory=list)
    _graded: set[tuple[str, int]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _grading_cores: Cores = field(init=False)

    def __post_init__(self) -> None:
        self._grading_cores = Cores(self.cores)

    def write_provenance(self, *, finished: bool) -> None:
        """What this run is made of; written at its start too, so that a run that was killed left it all the same."""
        document = collect_provenance(
            self.plan,
            self.host,
            root=Path(__file__).parent.parent,
            image=self.image,
            isolation=enforcement.as_values(self._isolation()),
            started=self.started,
            finished=self.now() if finished else None,
        )
        write_json(self.layout.provenance, document)

    def _isolation(self) -> tuple[enforcement.Measure, ...]:
        return enforcement.describe(self.plan.placement.files, command=bool(self.plan.grader_command))

    def say_isolation(self) -> None:
        """What does not hold for this run's graders, if anything."""
        said = enforcement.statement(self._isolation())
        if said is not None:
            self.reporter.note(said)

    @contextmanager
    def workers(self) -> Iterator[ThreadPoolExecutor]:
        """Threads that wait for children, one per core; when the block fails, running children are ended."""
        pool = ThreadPoolExecutor(max_workers=self.cores)
        try:
            yield pool
        except BaseException:
            self.stop.set()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def begin(self) -> None:
        """Refuses what a complete result speaks against; then says what this run will do, and is made of."""
        conflicts = early_conflicts(self.plan, self.layout)
        if conflicts and not self.force:
            raise conflict(self.layout, "; ".join(conflicts))
        if conflicts:
            retire_foreign(self.layout, self.plan.evaluation.checkpoint_identity)
        write_json(self.layout.plan_file, self.plan.to_json())
        self.write_provenance(finished=False)

    def collect(self) -> None:
        """Request files of every task; a task that can't be asked is remembered with its reason."""
        self.reporter.stage(f"collect: {len(self.plan.evaluation.tasks)} tasks")
        self.collected, self.uncollected = collect(
            self.plan, self.layout, cores=self.cores, on_task=self._say_collected
        )

    def recall(self) -> None:
        """What an earlier `collect` found, in place of collecting."""
        self.collected = recall(self.plan, self.layout)

    def decide(self) -> None:
        """What is done already, what is to do; JobError when a complete result would have to be replaced."""
        refuse_overlong(self.plan, self.collected)
        states = {name: self._state(task) for name, task in self.collected.items()}
        conflicts = {name: state.conflicts for name, state in states.items() if state.conflicts}
        if conflicts and not self.force:
            told = "; ".join(f"{name} ({', '.join(differences)})" for name, differences in conflicts.items())
            raise conflict(self.layout, told)
        for name, state in states.items():
            self._decide_task(self.collected[name], state)

    def _decide_task(self, collected: CollectedTask, state: TaskState) -> None:
        task = collected.task
        if state.complete and state.summary is not None and not self.force:
            failure_file(self.layout, task.name).unlink(missing_ok=True)
            self.summaries[task.name] = state.summary
            self.reporter.task(state.summary)
            return
        if self.force and state.complete:
            forget_task(self.layout, task)
            journal.drop(self.layout.generations, {task.name})
        settled = () if self.force else state.settled
        seeds = [seed for seed in task.seeds if seed not in settled]
        self._remaining[task.name] = len(seeds)
        self.todo += [self.pending(collected, seed) for seed in seeds]
        if not seeds and self.overlap:
            self.settle(task)

    def generate(self, on_trial: Callable[[PendingTrial], None]) -> Outcome | None:
        """All missing generations of all trials from one engine load; `on_trial` gets each trial as it is complete."""
        if not self.todo:
            return None
        requests = sum(len(trial.requests) for trial in self.todo)
        self.reporter.stage(f"generate: {len(self.todo)} trials, {requests} requests")
        wanted = {journal.key_of(r, trial.fingerprint) for trial in self.todo for r in trial.requests}
        self.stored = journal.read(self.layout.generations, wanted)
        self._require_disk(self.stored)
        try:
            outcome = generate(
                self.plan,
                self.layout,
                self.todo,
                stored=self.stored,
                on_trial=on_trial,
                on_progress=self._see,
            )
        except (EngineError, TransientError) as err:
            self.engine_error = err
            return None
        finally:
            self.release_cards()
        self._record_speed(outcome)
        for note in outcome.notes:
            self.reporter.note(note)
        if outcome.failed:
            self.engine_error = EngineError("; ".join(dict.fromkeys(outcome.failed.values())))
        for (name, seed), reason in outcome.failed.items():
            if self.overlap:
                self._fail(name, seed, reason)
                self._trial_done(self.collected[name].task)
        return outcome

    def _see(self, progress: Progress) -> None:
        """Shows it, and keeps when the last answer came: the engine ends only after it."""
        if self._seen is None or progress.done > self._seen.done:
            self._seen = progress
        self.reporter.progress(progress)

    def _record_speed(self, outcome: Outcome) -> None:
        """Kept beside the results for the plans to come; nothing when no answer was asked for."""
        seen, stored = self._seen, self.stored
        if not outcome.generated or seen is None or stored is None or not seen.elapsed_s:
            return
        lengths: dict[str, Lengths] = {}
        for name, trials in groupby(self.todo, key=lambda trial: trial.task):
            known = [stored.tokens(r, trial.fingerprint) for trial in trials for r in trial.requests]
            counts = [tokens for tokens in known if tokens is not None]
            max_tokens = self.collected[name].task.sampling.max_tokens
            lengths[name] = Lengths(answers=len(counts), tokens=sum(counts), max_tokens=max_tokens)
        speed = Speed(
            setting=setting_of(self.plan.placement),
            weights_bytes=self.weights_bytes,
            answers=outcome.generated,
            tokens=outcome.generated_tokens,
            seconds=round(seen.elapsed_s, 3),
            start_seconds=round(seen.start_s, 3),
            tasks=lengths,
        )
        write_speed(self.layout, speed)

    def _require_disk(self, stored: journal.JournalView) -> None:
        missing = (r for trial in self.todo for r in trial.requests if not stored.has(r, trial.fingerprint))
        error = disk_error(self.layout.root, sum(int(request.body["max_tokens"]) for request in missing))
        if error is not None:
            raise error

    def finish(self) -> None:
        """Waits for grading; every task that still has no summary is settled as it stands."""
        for future in list(self._grading):
            future.result()
        for task in self.plan.evaluation.tasks:
            if task.name in self.uncollected:
                summary = record_failure(self.layout, task, self.uncollected[task.name])
                self.summaries[task.name] = summary
                self.reporter.task(summary)
            if task.name not in self.summaries:
                self._fail_ungenerated(task)
                self.settle(task)

    def _fail_ungenerated(self, task: TaskPlan) -> None:
        if self.engine_error is None:
            return
        reason = f"the engine failed: {str(self.engine_error).splitlines()[0]}"
        for trial in self.todo:
            if trial.task == task.name and trial.key not in self._graded:
                self._fail(trial.task, trial.seed, reason)

    def _fail(self, name: str, seed: int, reason: str) -> None:
        """A trial without a score, with what is known of its generations."""
        (trial,) = (t for t in self.todo if t.key == (name, seed))
        generated = sum(self.stored.has(r, trial.fingerprint) for r in trial.requests) if self.stored else 0
        task, expected = self.collected[name].task, len(trial.requests)
        fail_trial(self.layout, task, seed, reason, expected=expected, generated=generated)

    def submit(self, pool: ThreadPoolExecutor, trial: PendingTrial) -> None:
        """Hands a trial whose generations are complete to a grader."""
        self._graded.add((trial.task, trial.seed))
        self._grading.append(pool.submit(self._grade_and_settle, trial))

    def _grade_and_settle(self, trial: PendingTrial) -> None:
        assert self.stored is not None
        try:
            self.grade(trial, self.stored)
        except (EvalcrateError, ValueError) as err:  # one trial's trouble is not the others'
            self._fail(trial.task, trial.seed, f"grading could not be done: {err}")
        if not self.stop.is_set():
            self._trial_done(self.collected[trial.task].task)

    def grade(self, trial: PendingTrial, view: journal.JournalView) -> None:
        """Grades one trial from its stored generations, once the cores it keeps busy are free."""
        collected = self.collected[trial.task]
        with self._grading_cores.taken(self.cores if runs_programs(collected.task) else 1) as cores:
            complete = GenerationsOfTrial(
                task=collected.task,
                seed=trial.seed,
                collected=collected.trials[trial.seed],
                requests=trial.requests,
                rows=[view.load(request, trial.fingerprint) for request in trial.requests],
                fingerprint=self._print(collected, trial.seed),
            )
            grade_trial(self.plan, self.layout, complete, self.stop, cores=cores)

    def _trial_done(self, task: TaskPlan) -> None:
        with self._lock:
            self._remaining[task.name] -= 1
            last = self._remaining[task.name] == 0
        if last:
            self.settle(task)

    def settle(self, task: TaskPlan) -> None:
        summary = settle_task(self.plan, self.layout, task, image=self.image, now=self.now)
        self.summaries[task.name] = summary
        self.reporter.task(summary)

    def _print(self, collected: CollectedTask, seed: int) -> fingerprint.Fingerprint:
        return fingerprint.generation(self.plan, collected.task, collected.trials[seed].digest)

    def pending(self, collected: CollectedTask, seed: int) -> PendingTrial:
        name = collected.task.name
        return PendingTrial(
            task=name,
            seed=seed,
            requests=read_requests(self.layout.requests(name, seed)),
            fingerprint=self._print(collected, seed).digest,
        )

    def _state(self, collected: CollectedTask) -> TaskState:
        trials = {seed: (trial.digest, trial.requests) for seed, trial in collected.trials.items()}
        return task_state(self.layout, collected.task, expected_prints(self.plan, collected.task, trials))

    def _say_collected(self, name: str, outcome: CollectedTask | EvalcrateError) -> None:
        if isinstance(outcome, EvalcrateError):
            self.reporter.note(f"{name}: {outcome}")
            return
        trials = outcome.trials.values()
        tokens = sum(t.prompt_tokens["total"] for t in trials)
        self.reporter.note(f"{name}: {sum(t.requests for t in trials)} requests, {tokens} prompt tokens")
