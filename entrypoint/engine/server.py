"""Start, watch and end the vLLM server: a child on a private Unix socket, gone with all its processes
afterwards.

In: the plan's Engine and a log folder. Out: a running Server with its socket path. Nothing is decided here:
arguments and environment come from the plan.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from entrypoint.engine.client import Client
from entrypoint.errors import EngineError, MachineError, TransientError
from entrypoint.plan import Engine
from entrypoint.process import under_keeper

# What a child may inherit. Everything that could change a number or a device comes from the plan alone.
_INHERITED = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH",
    "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "CUDA_HOME", "CC",
)  # fmt: skip
# vLLM puts more sockets beside ours under TMPDIR, with names of 36 characters; a socket path holds 107 bytes.
_FOLDER_BYTES = 107 - 1 - 36
_POLL_S = 0.1
# An idle vLLM takes 12 s to end on a CPU (it waits twice for its workers); killing it is as good, see keeper.py.
_TIDY_S = 2.0
_KILL_GRACE_S = 15.0
_TAIL_LINES = 15
_NEIGHBOUR = re.compile(r"Error in memory profiling\. Initial free memory [^\n]*")
_PORT = re.compile(r"EADDRINUSE|[Aa]ddress already in use")


class PortTaken(TransientError):
    """The engine chose a port that another one took before it: vLLM looks for a free one and binds it only later
    (vllm#39015, #43206). Starting it again is all that it needs."""


class Server:
    """One running engine server; made by `Server.start` only."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path, log: Path, log_start: int) -> None:
        self.socket = folder / "engine.sock"
        self.log = log
        self._process, self._folder, self._log_start = process, folder, log_start

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, engine: Engine, logs: Path, *, number: int = 1) -> AsyncIterator[Self]:
        """Start the server, wait until it is healthy, and end it with its whole process group on the way out.

        `number`: which of a run's engines it is, from 1; each has a log of its own.

        The body closes its requests first, so the server has nothing to finish: it gets a moment to tidy up,
        and none when the body was cancelled. EngineError when it does not become healthy, TransientError when
        a neighbour on the card or on the node's ports was the cause.
        """
        server = await cls._spawn(engine, cls.log_of(logs, number))
        patience_s = _TIDY_S
        try:
            await server._become_healthy(engine.start_timeout_s)
            yield server
        except asyncio.CancelledError:
            patience_s = 0
            raise
        finally:
            await server._finish(patience_s)

    @staticmethod
    def log_of(logs: Path, number: int) -> Path:
        """Where engine `number` (from 1) of a run writes; every start is added at its end."""
        return logs / ("engine.log" if number == 1 else f"engine-{number}.log")

    @property
    def exit_status(self) -> int | None:
        """The server's exit status (128 + signal when killed by one), None while it runs."""
        code = self._process.returncode
        return None if code is None else _status(code)

    async def ended(self) -> int:
        """Wait until the server has ended; its exit status."""
        return _status(await self._process.wait())

    def tail(self) -> str:
        """The last log lines of this start."""
        with self.log.open("rb") as handle:
            handle.seek(self._log_start)
            lines = handle.read().decode("utf-8", "replace").splitlines()
        return "\n".join(line.rstrip() for line in lines if line.strip("\n \r"))[-20_000:]

    def failure(self, what: str) -> EngineError | TransientError:
        """`what` happened to the engine, as an error with its last log lines and where the log is."""
        text = self.tail()
        last = "\n".join(f"    {line[:300]}" for line in text.splitlines()[-_TAIL_LINES:])
        if neighbour := _NEIGHBOUR.search(text):
            return TransientError(
                f"the engine {what}: another process freed memory on the card while vLLM measured it "
                f"({neighbour[0][:200]}); nothing is wrong with the checkpoint: run the same command again, "
                f"one job per card. Log: {self.log}"
            )
        if _PORT.search(text):
            return PortTaken(
                f"the engine {what}: another engine took its port. Log: {self.log}, its last lines:\n{last}"
            )
        return EngineError(f"the engine {what}. Log: {self.log}, its last lines:\n{last or '    (empty)'}")

    @classmethod
    async def _spawn(cls, engine: Engine, log: Path) -> Self:
        log.parent.mkdir(parents=True, exist_ok=True)
        folder = _private_folder()
        argv = [*engine.argv, "--uds", str(folder / "engine.sock")]
        try:
            with log.open("ab") as handle:
                handle.write(f"==== {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {shlex.join(argv)}\n".encode())
                handle.flush()
                start = handle.tell()
                process = await asyncio.create_subprocess_exec(
                    *under_keeper(argv, remove=folder),
                    stdin=asyncio.subprocess.PIPE, stdout=handle, stderr=handle,
                    env=_environment(engine.env, folder), start_new_session=True,
                )  # fmt: skip
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return cls(process, folder, log, start)

    async def _become_healthy(self, timeout_s: float) -> None:
        end = asyncio.ensure_future(self.ended())
        deadline = time.monotonic() + timeout_s
        try:
            async with Client(socket=str(self.socket)) as client:
                while not (self.socket.exists() and await client.health()):
                    await asyncio.wait({end}, timeout=_POLL_S)
                    if end.done():
                        raise self.failure(f"ended with exit status {end.result()} before it was ready")
                    if time.monotonic() > deadline:
                        raise self.failure(f"was not ready after {timeout_s:g} s (engine.start_timeout_s)")
        finally:
            end.cancel()

    async def _finish(self, patience_s: float) -> None:
        """Stop, also when the waiting for it is cancelled: then at once, but never without having reaped."""
        stopping, cancelled = asyncio.ensure_future(self._stop(patience_s)), False
        while not stopping.done():
            try:
                await asyncio.shield(stopping)
            except asyncio.CancelledError:
                cancelled = True
                self._kill()
        stopping.result()
        if cancelled:
            raise asyncio.CancelledError

    async def _stop(self, patience_s: float) -> None:
        """SIGTERM to the server first; then the keeper's pipe closes and every process left is killed."""
        try:
            if patience_s > 0 and self.exit_status is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.send_signal(signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.ended(), patience_s)
            self._kill()
            await asyncio.wait_for(self.ended(), _KILL_GRACE_S)
        except TimeoutError as err:
            raise TransientError(
                f"the engine's processes can't be ended (a driver that hangs?): see the children of process "
                f"{self._process.pid} in `ps`. Log: {self.log}"
            ) from err
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _kill(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()


def _status(code: int) -> int:
    """As the shell and Kubernetes say it: 137 is known to be a lack of memory, -9 is not."""
    return code if code >= 0 else 128 - code


def _environment(planned: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The inherited few, temp files beside the socket (a long TMPDIR kills vLLM), the plan's on top."""
    kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {**kept, "TMPDIR": str(folder), **planned}


def _private_folder() -> Path:
    """A new 0700 folder whose name leaves room for socket names, wherever TMPDIR points."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    for base in (tempfile.gettempdir(), "/tmp", "/var/tmp", runtime, "/dev/shm"):
        if base and len(os.fsencode(base)) <= _FOLDER_BYTES - len("/evalcrate-12345678"):
            with contextlib.suppress(OSError):
                return Path(tempfile.mkdtemp(prefix="evalcrate-", dir=base))
    raise MachineError("no writable folder with a short name for the engine's socket: mount a writable /tmp")
