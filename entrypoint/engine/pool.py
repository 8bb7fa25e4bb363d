"""All requests of all trials in flight against one server, bounded, in order, each journalled before it
counts.

In: trials with their missing requests. Out: rows in the journal, `on_trial` for each trial that became
complete, and a reason for each that failed. The pool outlives a server: `run` is called again after a restart
and goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
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


@dataclass(slots=True)
class Pool:
    """Bookkeeping of what is asked, answered and failed; times are seconds on the monotonic clock."""

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
    running: int = 0
    last_progress: float = field(default_factory=time.monotonic)
    _queue: deque[_Work] = field(default_factory=deque)
    _missing: dict[tuple[str, int], dict[tuple[int, str], _Work]] = field(default_factory=dict)
    _task_ends: dict[str, float] = field(default_factory=dict)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, trial: PendingTrial, missing: Sequence[Request]) -> None:
        """A trial with at least one request to send, after those added before."""
        self._missing[trial.key] = {(r.sample, r.id): _Work(r, trial) for r in missing}

    @property
    def unfinished(self) -> bool:
        return any(works and key not in self.failed for key, works in self._missing.items())

    def requests(self) -> Iterator[Request]:
        """What is still to be asked, in order."""
        return (work.request for work in self._works())

    def stop(self) -> None:
        """Send nothing more; what is open may finish."""
        self._stop.set()

    async def run(self, client: Client) -> None:
        """Send all that is missing, at most `max_open` at once; ServerGone when our server is not there."""
        self._queue = deque(self._works())
        self.last_progress = time.monotonic()
        count = min(self.max_open, len(self._queue))
        workers = [asyncio.create_task(self._worker(client)) for _ in range(count)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    def _works(self) -> Iterable[_Work]:
        return (w for key, works in self._missing.items() if key not in self.failed for w in works.values())

    async def _worker(self, client: Client) -> None:
        while self._queue and not self._stop.is_set():
            work = self._queue.popleft()
            if work.trial.key in self.failed:
                continue
            self.running += 1
            try:
                await self._answer(client, work)
            except RequestRefused as err:
                self._fail(work, f"the engine refused the request: {err}")
            except TaskTimeout:
                self._fail_task(work.trial.task)
            finally:
                self.running -= 1

    async def _answer(self, client: Client, work: _Work) -> None:
        """One request until it has an answer, has been lost too often, or the pool stops."""
        while True:
            work.attempt += 1
            try:
                await self._send_once(client, work)
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

    async def _send_once(self, client: Client, work: _Work) -> None:
        end = self._task_end(work.trial.task)
        started = _now()
        try:
            async with asyncio.timeout_at(end):
                answer = await client.complete(work.request.body, timeout_s=self.request_timeout_s)
        except TimeoutError as err:
            raise TaskTimeout from err
        self._store(work, answer, started)

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
        self.last_progress = time.monotonic()
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
