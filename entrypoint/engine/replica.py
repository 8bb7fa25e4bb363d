"""One engine of a run: starts, checks, its share of the pool's requests, and starts again when it dies or hangs.

In: the plan's Engine, the Pool that all engines share. Out: answers through the pool; the error that ended this engine
when it was given up, which is not yet the end of the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from entrypoint.engine.canary import SeedProof, check_tokens, prove_seeds
from entrypoint.engine.client import Client, RequestLost, RequestRefused
from entrypoint.engine.pool import Lane, Pool, ServerGone
from entrypoint.engine.server import PortTaken, Server
from entrypoint.errors import EngineError, TransientError
from entrypoint.plan import Engine

MAX_RESTARTS = 2
_WATCH_PERIOD_S = 2.0


@dataclass(slots=True)
class Replica:
    """`number` of `count`, from 1. `truncated`: prompts may have lost their beginning. `draining`: no new requests.

    `unanswered_tokens`: generated for requests that are still open, as the engine counts them; `metrics` are its
    counters, summed over its starts.
    """

    engine: Engine
    number: int
    count: int
    logs: Path
    pool: Pool
    truncated: bool
    draining: asyncio.Event
    starts: int = 0
    sending: bool = False
    seeds_proved: bool = True
    unanswered_tokens: int = 0
    notes: list[str] = field(default_factory=list)
    metrics: Counter[str] = field(default_factory=Counter)

    @property
    def ours(self) -> bool:
        """Whether we start it; an endpoint is there already."""
        return self.engine.kind == "vllm"

    @property
    def name(self) -> str:
        """For people: `engine 2 of 4 (GPU-…)`."""
        cards = self.engine.env.get("CUDA_VISIBLE_DEVICES")
        return f"engine {self.number} of {self.count}" + (f" ({cards})" if cards else "")

    async def carry(self) -> EngineError | TransientError | None:
        """Work until nothing is missing or the pool stops; the error with which this engine was given up.

        EngineError is raised, for the whole run, when its answers can't be trusted.
        """
        lost: EngineError | TransientError | None = None
        while lost is None and self.pool.unfinished and not self.draining.is_set():
            self.starts += 1
            if not self.ours:
                await self._with_endpoint()
                continue
            try:
                lost = await self._with_server()
            except TransientError as err:  # it could not be ended
                lost = err
        if lost is not None:
            self.pool.await_fewer()
        return lost

    async def _with_endpoint(self) -> None:
        async with Client.to(self.engine) as client:
            await self._check(client)
            await self._send(client, None)

    async def _with_server(self) -> EngineError | TransientError | None:
        """One load of the engine. An engine that does not get ready is given up at once, one that dies later after
        some starts more."""
        last = self.starts > MAX_RESTARTS
        async with contextlib.AsyncExitStack() as stack:
            try:
                server = await stack.enter_async_context(Server.start(self.engine, self.logs, number=self.number))
            except PortTaken as err:
                return err if last else None
            except (EngineError, TransientError) as err:
                return err
            client = await stack.enter_async_context(Client.to(self.engine, str(server.socket)))
            try:
                await self._check(client)
                finished = await self._send(client, server)
            except (RequestLost, ServerGone):
                finished = False
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(server.ended(), _WATCH_PERIOD_S)
            if finished or self.draining.is_set() or not last:
                return None
            how = "hung" if (status := server.exit_status) is None else f"exit status {status}"
            return server.failure(f"died or hung {self.starts} times (last: {how})")

    async def _check(self, client: Client) -> None:
        """Seeds and token ids, before any answer counts. An endpoint may fail on seeds: that is noted."""
        timeout_s = self.engine.request_timeout_s
        try:
            proof = await prove_seeds(client, timeout_s=timeout_s, ignore_eos=self.ours)
        except RequestLost as err:
            if self.ours:
                raise
            raise EngineError(f"engine.url: {err}; start the endpoint or correct its address") from err
        except RequestRefused as err:
            proof = SeedProof(proved=False, reason=f"the canary's requests were refused ({err})")
        if not proof.proved:
            if self.ours:
                raise EngineError(
                    f"the engine does not honour seeds: {proof.reason}; every seed would be the same run. "
                    f"Check the checkpoint's weights and the engine's arguments, which head its log: "
                    f"{Server.log_of(self.logs, self.number)}"
                )
            self._note(f"{client.address}: seeds are unproven: {proof.reason}")
        self.seeds_proved = self.seeds_proved and proof.proved
        for note in await check_tokens(client, self.pool.requests(), truncated=self.truncated):
            self._note(note)

    async def _send(self, client: Client, server: Server | None) -> bool:
        """Answer the lane's share, or drain it after a signal; False when the server ended or hung."""
        lane = Lane(client)
        sending = asyncio.create_task(self.pool.run(lane))
        watched = [sending, asyncio.create_task(self._watch(lane))]
        if server is not None:
            watched.append(asyncio.create_task(_until_ended(server)))
        self.sending = True
        try:
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                return False
            sending.result()
            self.metrics.update(await client.metrics())
            return True
        finally:
            self.sending, self.unanswered_tokens = False, 0
            for task in watched:
                task.cancel()
            await asyncio.gather(*watched, return_exceptions=True)

    async def _watch(self, lane: Lane) -> None:
        """Return when open requests made no progress for a whole request's time, or the drain time is over.

        `/health` says 200 for an engine that hangs; its token counter tells.
        """
        timeout_s = self.engine.request_timeout_s
        first, last = None, None
        while True:
            now = (await lane.client.metrics()).get("generation_tokens_total")
            if now is not None:
                first = now if first is None else first
                self.unanswered_tokens = max(0, int(now - first) - lane.answered_tokens)
            if not lane.open or now not in (None, last):
                last, lane.last_progress = now, time.monotonic()
            if self.ours and time.monotonic() - lane.last_progress > timeout_s:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.draining.wait(), min(_WATCH_PERIOD_S, timeout_s / 4))
            if self.draining.is_set():
                await asyncio.sleep(self.engine.shutdown_timeout_s)
                return

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


async def _until_ended(server: Server) -> None:
    await server.ended()
