"""All requests of all trials in flight against the run's engines, bounded, in order, each journalled before it
counts.

In: trials with their missing requests, a lane for each engine. Out: rows in the journal, `on_trial` for each trial
that became complete, and a reason for each that failed. The pool outlives an engine: what a lane leaves unanswered
goes to the others, or waits for the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from entrypoint.engine.client import Client, Completion, RequestLost, RequestRefused
from entrypoint.engine.journal import Journal, JournalView
from entrypoint.record import Generation, Request

MAX_ATTEMPTS = 8
_BACKOFF_S, _MAX_BACKOFF_S = 0.5, 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingTrial:
    """One trial as collect wrote it, with the fingerprint that its generations must carry."""

    task: str
    seed: int
    requests: tuple[Request, ...]
    fingerprint: str

    @property
    def key(self) -> tuple[str, int]:
        return (self.task, self.seed)


@dataclass(slots=True)
class _Work:
    """A request that has no stored generation yet."""

    request: Request
    trial: PendingTrial
    attempt: int = 0


class TaskTimeout(Exception):
    """The task's time is over; its open requests are dropped."""


class ServerGone(Exception):
    """Nothing listens at a server that we started: it has to be started again."""


@dataclass(slots=True, eq=False)
class Lane:
    """One engine at work: its client and the requests that are open there.

    `answered_tokens` since the lane was opened; `last_progress` on the monotonic clock; `over` ends with the work, or
    with what took the engine away.
    """

    client: Client
    open: dict[asyncio.Task[None], _Work] = field(default_factory=dict)
    answered_tokens: int = 0
    last_progress: float = field(default_factory=time.monotonic)
    over: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def end(self, error: BaseException | None = None) -> None:
        if self.over.done():
            return
        if error is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(error)


@dataclass(slots=True)
class Pool:
    """Bookkeeping of what is asked, answered and failed; times are seconds on the monotonic clock.

    `max_open` is for each engine. Nothing is sent before `awaited` lanes are open, so that the first requests are
    shared as well; `began` is the moment when the first one was sent.
    """

    journal: Journal
    stored: JournalView
    on_trial: Callable[[PendingTrial], None]
    request_timeout_s: float
    task_timeout_s: float | None
    max_open: int
    ours: bool
    failed: dict[tuple[str, int], str] = field(default_factory=dict)
    generated: int = 0
    generated_tokens: int = 0
    resent: int = 0
    awaited: int = 1
    began: float | None = None
    _lanes: list[Lane] = field(default_factory=list)
    _queue: deque[_Work] = field(default_factory=deque)
    _missing: dict[tuple[str, int], dict[tuple[int, str], _Work]] = field(default_factory=dict)
    _task_ends: dict[str, float] = field(default_factory=dict)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, trial: PendingTrial, missing: Sequence[Request]) -> None:
        """A trial with at least one request to send, after those added before."""
        works = self._missing[trial.key] = {(r.sample, r.id): _Work(r, trial) for r in missing}
        self._queue.extend(works.values())

    @property
    def unfinished(self) -> bool:
        return any(works and key not in self.failed for key, works in self._missing.items())

    @property
    def running(self) -> int:
        """Requests that are open, at all engines together."""
        return sum(len(lane.open) for lane in self._lanes)

    def requests(self) -> Iterator[Request]:
        """What is still to be asked, in order."""
        return (w.request for key, works in self._missing.items() if key not in self.failed for w in works.values())

    def stop(self) -> None:
        """Send nothing more; what is open may finish."""
        self._stop.set()
        self._deal()

    def await_fewer(self) -> None:
        """An engine that was waited for will not come."""
        self.awaited -= 1
        self._deal()

    async def run(self, lane: Lane) -> None:
        """Give the lane its share until nothing is missing; ServerGone when our server is not there.

        What it has open when it ends goes back to the head of the queue.
        """
        lane.last_progress = time.monotonic()
        self._lanes.append(lane)
        self._deal()
        try:
            await lane.over
        finally:
            lane.end()
            opened = list(lane.open)
            for task in reversed(opened):
                task.cancel()
            await asyncio.gather(*opened, return_exceptions=True)
            self._lanes.remove(lane)
            self._deal()

    def _deal(self) -> None:
        """Each request to the engine with the fewest open ones, in order; ends the lanes when nothing is left."""
        lanes = [lane for lane in self._lanes if not lane.over.done()]
        if len(lanes) >= self.awaited:
            self.awaited = 0
        while lanes and not self.awaited and not self._stop.is_set():
            lane = min(lanes, key=lambda lane: len(lane.open))
            work = self._next() if len(lane.open) < self.max_open else None
            if work is None:
                break
            self._open(lane, work)
        done = not self.running and not self.unfinished
        for lane in lanes:
            if done or (self._stop.is_set() and not lane.open):
                lane.end()

    def _next(self) -> _Work | None:
        while self._queue:
            work = self._queue.popleft()
            if work.trial.key not in self.failed:
                return work
        return None

    def _open(self, lane: Lane, work: _Work) -> None:
        self.began = self.began or time.monotonic()
        task = asyncio.create_task(self._carry(lane, work))
        lane.open[task] = work
        task.add_done_callback(lambda task: self._closed(lane, task))

    def _closed(self, lane: Lane, task: asyncio.Task[None]) -> None:
        """What the engine took with it is asked elsewhere, before what was never asked."""
        work = lane.open.pop(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            lane.end(error)
        unanswered = (work.request.sample, work.request.id) in self._missing[work.trial.key]
        if unanswered and (task.cancelled() or error is not None):
            self._queue.appendleft(work)
        self._deal()

    async def _carry(self, lane: Lane, work: _Work) -> None:
        try:
            await self._answer(lane, work)
        except RequestRefused as err:
            self._fail(work, f"the engine refused the request: {err}")
        except TaskTimeout:
            self._fail_task(work.trial.task)

    async def _answer(self, lane: Lane, work: _Work) -> None:
        """One request until it has an answer, has been lost too often, or the pool stops."""
        while True:
            work.attempt += 1
            try:
                await self._send_once(lane, work)
                return
            except RequestLost as err:
                if err.unreachable and self.ours:
                    raise ServerGone(str(err)) from err
                if work.attempt >= MAX_ATTEMPTS:
                    self._fail(work, f"sent {work.attempt} times, no answer; the last time: {err}")
                    return
            self.resent += 1
            pause_s = min(_MAX_BACKOFF_S, _BACKOFF_S * 2 ** (work.attempt - 1))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pause_s)
            if self._stop.is_set() or work.trial.key in self.failed:
                return

    async def _send_once(self, lane: Lane, work: _Work) -> None:
        end = self._task_end(work.trial.task)
        started = _now()
        try:
            async with asyncio.timeout_at(end):
                answer = await lane.client.complete(work.request.body, timeout_s=self.request_timeout_s)
        except TimeoutError as err:
            raise TaskTimeout from err
        self._store(work, answer, started)
        lane.answered_tokens += answer.completion_tokens
        lane.last_progress = time.monotonic()

    def _task_end(self, task: str) -> float | None:
        """When the task's time is over, on the loop's clock; it starts with the task's first request."""
        if self.task_timeout_s is None:
            return None
        return self._task_ends.setdefault(task, asyncio.get_running_loop().time() + self.task_timeout_s)

    def _store(self, work: _Work, answer: Completion, started: str) -> None:
        request, trial = work.request, work.trial
        row = Generation(
            id=request.id,
            task=request.task,
            seed=request.seed,
            sample=request.sample,
            fingerprint=trial.fingerprint,
            text=answer.text,
            token_ids=answer.token_ids,
            finish_reason=answer.finish_reason,
            stop_reason=answer.stop_reason,
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
            sampler_seed=request.sampler_seed,
            started_at=started,
            finished_at=_now(),
            attempt=work.attempt,
        )
        self.stored.add(row, self.journal.append(row))
        self.generated += 1
        self.generated_tokens += answer.completion_tokens
        missing = self._missing[trial.key]
        del missing[request.sample, request.id]
        if not missing and trial.key not in self.failed:
            self.on_trial(trial)

    def _fail(self, work: _Work, reason: str) -> None:
        request = work.request
        named = f"{request.task} seed {request.seed} sample {request.sample}: {reason}"
        self.failed.setdefault(work.trial.key, named)

    def _fail_task(self, task: str) -> None:
        for key, works in self._missing.items():
            if key[0] == task and works:
                reason = f"{task} seed {key[1]}: {len(works)} generations are missing after task_timeout_s"
                self.failed.setdefault(key, f"{reason} ({self.task_timeout_s:g} s)")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
