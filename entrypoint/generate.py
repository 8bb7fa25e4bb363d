"""generate: every missing generation of every trial, from one engine load, into the journal.

In: the Plan, the trials that collect wrote. Out: journal rows and an Outcome; `on_trial` is called as soon as
a trial's generations are all on disk. Nothing missing, no engine started.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from entrypoint.engine import journal
from entrypoint.engine.canary import SeedProof, check_tokens, prove_seeds
from entrypoint.engine.client import Client, RequestLost, RequestRefused
from entrypoint.engine.journal import JournalView, key_of
from entrypoint.engine.pool import PendingTrial, Pool, ServerGone
from entrypoint.engine.server import Server
from entrypoint.engine.stop import Stop
from entrypoint.errors import EngineError, Interrupted
from entrypoint.layout import Layout
from entrypoint.plan import Plan

__all__ = ["Outcome", "PendingTrial", "Progress", "generate"]

MAX_RESTARTS = 2
_PROGRESS_PERIOD_S, _WATCH_PERIOD_S = 1.0, 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Requests `done` of `total` (of which `reused` from earlier runs) and `running` now.

    `elapsed_s` counts from the first request sent; it is 0 while the engine starts, which has taken `start_s` so far.
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
    sent again; `metrics` are the engine's own counters, summed over its starts.
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
    TransientError when the engine does not start, is refused, or died too often; Interrupted on SIGTERM and
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
    engine = plan.placement.engine
    with journal.Journal(layout.generations, journal.new_writer()) as rows:
        pool = Pool(
            journal=rows,
            stored=stored,
            on_trial=on_trial,
            request_timeout_s=engine.request_timeout_s,
            task_timeout_s=plan.task_timeout_s,
            max_open=engine.max_open_requests,
            ours=engine.kind == "vllm",
        )
        for trial in trials:
            if missing[trial.key]:
                pool.add(trial, missing[trial.key])
        run = _Run(plan, layout, pool, on_progress, total=total, reused=total - left, notes=list(notes))
        return run.carry_out()


@dataclass(slots=True)
class _Run:
    """One generation phase: engine starts, checks, the pool's work, restarts, signals."""

    plan: Plan
    layout: Layout
    pool: Pool
    on_progress: Callable[[Progress], None]
    total: int
    reused: int
    notes: list[str]
    starts: int = 0
    seeds_proved: bool = True
    sending: bool = False
    sent: float | None = None
    live_tokens: int = 0
    metrics: Counter[str] = field(default_factory=Counter)
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
        return Outcome(
            failed=dict(self.pool.failed),
            generated=self.pool.generated,
            reused=self.reused,
            generated_tokens=self.pool.generated_tokens,
            wall_s=time.monotonic() - self.began,
            seeds_proved=self.seeds_proved,
            engine_starts=self.starts,
            resent=self.pool.resent,
            metrics=dict(self.metrics),
            notes=tuple(self.notes),
        )

    async def _main(self) -> None:
        main = asyncio.current_task()
        assert main is not None
        ticker = asyncio.create_task(self._report_progress())
        try:
            with self.stop.listening(main, self._drain):
                while self.pool.unfinished and self.stop.number is None:
                    await self._with_engine()
        finally:
            ticker.cancel()
            self._report()

    async def _with_engine(self) -> None:
        """One engine load: checks, then everything that is missing. Comes back early when the engine died."""
        engine = self.plan.placement.engine
        self.starts += 1
        if engine.kind == "endpoint":
            async with Client.to(engine) as client:
                await self._check(client)
                await self._send(client, None)
            return
        async with (
            Server.start(engine, self.layout.logs) as server,
            Client.to(engine, str(server.socket)) as client,
        ):
            try:
                await self._check(client)
                finished = await self._send(client, server)
            except (RequestLost, ServerGone):
                finished = False
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(server.ended(), _WATCH_PERIOD_S)
            if not finished and not self.stop.number and self.starts > MAX_RESTARTS:
                how = "hung" if (status := server.exit_status) is None else f"exit status {status}"
                raise server.failure(f"died or hung {self.starts} times (last: {how})")

    async def _check(self, client: Client) -> None:
        """Seeds and token ids, before any answer counts. An endpoint may fail on seeds: that is noted."""
        engine = self.plan.placement.engine
        ours = engine.kind == "vllm"
        try:
            proof = await prove_seeds(client, timeout_s=engine.request_timeout_s, ignore_eos=ours)
        except RequestLost as err:
            if ours:
                raise
            raise EngineError(f"engine.url: {err}; start the endpoint or correct its address") from err
        except RequestRefused as err:
            proof = SeedProof(proved=False, reason=f"the canary's requests were refused ({err})")
        if not proof.proved:
            if ours:
                raise EngineError(
                    f"the engine does not honour seeds: {proof.reason}; every seed would be the same run. "
                    f"Check the checkpoint's weights and the engine's arguments, which head its log: "
                    f"{self.layout.logs / 'engine.log'}"
                )
            self._note(f"{client.address}: seeds are unproven: {proof.reason}")
        self.seeds_proved = self.seeds_proved and proof.proved
        truncated = self.plan.evaluation.on_overlong == "truncate"
        for note in await check_tokens(client, self.pool.requests(), truncated=truncated):
            self._note(note)

    async def _send(self, client: Client, server: Server | None) -> bool:
        """Send what is missing, or drain what is open after a signal; False when the server ended or hung."""
        sending = asyncio.create_task(self.pool.run(client))
        watched = [sending, asyncio.create_task(self._watch(client))]
        if server is not None:
            watched.append(asyncio.create_task(_until_ended(server)))
        self.sending = True
        self.sent = self.sent or time.monotonic()
        try:
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                return False
            sending.result()
            self.metrics.update(await client.metrics())
            return True
        finally:
            self.sending = False
            for task in watched:
                task.cancel()
            await asyncio.gather(*watched, return_exceptions=True)

    async def _watch(self, client: Client) -> None:
        """Return when open requests made no progress for a whole request's time, or the drain time is over.

        `/health` says 200 for an engine that hangs; its token counter tells.
        """
        engine, pool = self.plan.placement.engine, self.pool
        period_s = min(_WATCH_PERIOD_S, engine.request_timeout_s / 4)
        base, first, last = pool.generated_tokens, None, None
        while True:
            now = (await client.metrics()).get("generation_tokens_total")
            if now is not None:
                first = now if first is None else first
                self.live_tokens = base + int(now - first)
            if not pool.running or now not in (None, last):
                last, pool.last_progress = now, time.monotonic()
            if pool.ours and time.monotonic() - pool.last_progress > engine.request_timeout_s:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.draining.wait(), period_s)
            if self.draining.is_set():
                await asyncio.sleep(engine.shutdown_timeout_s)
                return

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
                generated_tokens=max(pool.generated_tokens, self.live_tokens),
                elapsed_s=now - self.sent if self.sent is not None else 0.0,
                start_s=(self.sent or now) - self.began,
                reused=self.reused,
            )
        )

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def _drain(self) -> bool:
        """Send nothing more and let open requests finish; False when there is nothing to wait for."""
        if self.sending:
            self.pool.stop()
            self.draining.set()
        return self.sending

    def _interrupted(self, number: int) -> Interrupted:
        stored = self.reused + self.pool.generated
        return Interrupted(
            number,
            f"{signal.Signals(number).name}: stopped with {stored} of {self.total} generations stored in "
            f"{self.layout.generations}; the same command goes on from there",
        )


async def _until_ended(server: Server) -> None:
    await server.ended()
