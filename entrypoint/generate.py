"""generate: every missing generation of every trial, from engines that start together, into the journal.

In: the Plan, the trials that collect wrote. Out: journal rows and an Outcome; `on_trial` is called as soon as
a trial's generations are all on disk. Nothing missing, no engine started.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from entrypoint.engine import journal
from entrypoint.engine.journal import JournalView, key_of
from entrypoint.engine.pool import PendingTrial, Pool
from entrypoint.engine.replica import Replica
from entrypoint.engine.stop import Stop
from entrypoint.errors import EngineError, Interrupted, TransientError
from entrypoint.layout import Layout
from entrypoint.plan import Engine, Plan

__all__ = ["Outcome", "PendingTrial", "Progress", "generate"]

_PROGRESS_PERIOD_S = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Requests `done` of `total` (of which `reused` from earlier runs) and `running` now, at all engines together.

    `elapsed_s` counts from the first request sent; it is 0 while the engines start, which has taken `start_s` so far.
    """

    done: int
    total: int
    running: int
    generated_tokens: int
    elapsed_s: float
    start_s: float
    reused: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What generate did. `failed` gives a reason per (task, seed); those trials have no complete generations.

    `seeds_proved` is False for an endpoint that failed the canary (then `notes` says why) and True when
    nothing was asked. `wall_s` is the time with an engine, start included; `resent` counts requests that were
    sent again; `metrics` are the engines' own counters, summed over all their starts.
    """

    failed: Mapping[tuple[str, int], str] = field(default_factory=dict)
    generated: int = 0
    reused: int
    generated_tokens: int = 0
    wall_s: float = 0.0
    seeds_proved: bool = True
    engine_starts: int = 0
    resent: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...]


def generate(
    plan: Plan,
    layout: Layout,
    trials: Sequence[PendingTrial],
    *,
    stored: JournalView | None = None,
    on_trial: Callable[[PendingTrial], None],
    on_progress: Callable[[Progress], None],
) -> Outcome:
    """Make every trial's generations complete; both callbacks run in the event loop and must return quickly.

    `stored` is a view of the journal that is made already; new rows are added to it.

    A trial that can't be completed is named in the Outcome, and the others go on. EngineError or
    TransientError when no engine starts, one is refused, or each died too often; Interrupted on SIGTERM and
    SIGINT. Whatever was answered until then is stored.
    """
    if stored is None:
        stored = journal.read(layout.generations, {key_of(r, t.fingerprint) for t in trials for r in t.requests})
    missing = {t.key: [r for r in t.requests if not stored.has(r, t.fingerprint)] for t in trials}
    for trial in trials:
        if not missing[trial.key]:
            on_trial(trial)
    total, left = sum(len(t.requests) for t in trials), sum(map(len, missing.values()))
    notes = tuple(f"journal: {n} lines not used: {why}" for why, n in stored.problems.items() if why != "other")
    if not left:
        on_progress(
            Progress(done=total, total=total, running=0, generated_tokens=0, elapsed_s=0, start_s=0, reused=total)
        )
        return Outcome(reused=total, notes=notes)
    engines = plan.placement.engines[:left]  # none is started that could get no request
    with journal.Journal(layout.generations, journal.new_writer()) as rows:
        pool = Pool(
            journal=rows,
            stored=stored,
            on_trial=on_trial,
            request_timeout_s=plan.placement.engine.request_timeout_s,
            task_timeout_s=plan.task_timeout_s,
            max_open=plan.placement.engine.max_open_requests,
            ours=plan.placement.engine.kind == "vllm",
            awaited=len(engines),
        )
        for trial in trials:
            if missing[trial.key]:
                pool.add(trial, missing[trial.key])
        run = _Run(layout, pool, on_progress, total=total, reused=total - left, notes=list(notes))
        run.replicas = _replicas(plan, engines, run)
        return run.carry_out()


def _replicas(plan: Plan, engines: Sequence[Engine], run: _Run) -> list[Replica]:
    return [
        Replica(
            engine=engine,
            number=number,
            count=len(engines),
            logs=run.layout.logs,
            pool=run.pool,
            truncated=plan.evaluation.on_overlong == "truncate",
            draining=run.draining,
        )
        for number, engine in enumerate(engines, start=1)
    ]


@dataclass(slots=True)
class _Run:
    """One generation phase: engines side by side, the pool's work, signals, progress."""

    layout: Layout
    pool: Pool
    on_progress: Callable[[Progress], None]
    total: int
    reused: int
    notes: list[str]
    replicas: list[Replica] = field(default_factory=list)
    working: dict[asyncio.Task[EngineError | TransientError | None], Replica] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    stop: Stop = field(default_factory=Stop)

    def carry_out(self) -> Outcome:
        try:
            asyncio.run(self._main())
        except asyncio.CancelledError:
            if self.stop.number is None:
                raise
        if self.stop.number is not None:
            raise self._interrupted(self.stop.number)
        notes = dict.fromkeys([*self.notes, *(note for replica in self.replicas for note in replica.notes)])
        metrics = Counter[str]()
        for replica in self.replicas:
            metrics.update(replica.metrics)
        return Outcome(
            failed=dict(self.pool.failed),
            generated=self.pool.generated,
            reused=self.reused,
            generated_tokens=self.pool.generated_tokens,
            wall_s=time.monotonic() - self.began,
            seeds_proved=all(replica.seeds_proved for replica in self.replicas),
            engine_starts=sum(replica.starts for replica in self.replicas),
            resent=self.pool.resent,
            metrics=dict(metrics),
            notes=tuple(notes),
        )

    async def _main(self) -> None:
        main = asyncio.current_task()
        assert main is not None
        ticker = asyncio.create_task(self._report_progress())
        try:
            with self.stop.listening(main, self._drain):
                await self._side_by_side()
        finally:
            ticker.cancel()
            self._report()

    async def _side_by_side(self) -> None:
        """All engines until nothing is missing; the first one's error when each was given up before that."""
        self.working = {asyncio.create_task(replica.carry()): replica for replica in self.replicas}
        tasks, lost = list(self.working), list[EngineError | TransientError]()
        try:
            while self.working:
                done, _ = await asyncio.wait(self.working, return_when=asyncio.FIRST_COMPLETED)
                for task in done & self.working.keys():
                    replica, error = self.working.pop(task), task.result()
                    if error is not None:
                        lost.append(error)
                        self.notes.append(f"{replica.name} was given up: {str(error).splitlines()[0]}")
                if not self.pool.unfinished:
                    self._leave_idle()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if lost and self.pool.unfinished and self.stop.number is None:
            raise lost[0]

    def _leave_idle(self) -> None:
        """End the engines that answer nothing: they start, for work that is done or will not be sent."""
        for task, replica in list(self.working.items()):
            if not replica.sending:
                self.working.pop(task)
                task.cancel()

    async def _report_progress(self) -> None:
        while True:
            self._report()
            await asyncio.sleep(_PROGRESS_PERIOD_S)

    def _report(self) -> None:
        pool, now = self.pool, time.monotonic()
        self.on_progress(
            Progress(
                done=self.reused + pool.generated,
                total=self.total,
                running=pool.running,
                generated_tokens=pool.generated_tokens + sum(replica.unanswered_tokens for replica in self.replicas),
                elapsed_s=now - pool.began if pool.began is not None else 0.0,
                start_s=(pool.began or now) - self.began,
                reused=self.reused,
            )
        )

    def _drain(self) -> bool:
        """Send nothing more and let open requests finish; False when there is nothing to wait for."""
        sending = any(replica.sending for replica in self.working.values())
        if sending:
            self.draining.set()
            self._leave_idle()
            self.pool.stop()
        return sending

    def _interrupted(self, number: int) -> Interrupted:
        stored = self.reused + self.pool.generated
        return Interrupted(
            number,
            f"{signal.Signals(number).name}: stopped with {stored} of {self.total} generations stored in "
            f"{self.layout.generations}; the same command goes on from there",
        )
