"""Has model-written programs run in processes of their own, at most so many at a time, and says how each ended.

In: a program, its input, what is left of its limits. Out: an Outcome with what it wrote. What decides about a program
is the CPU time it used and the time it did nothing: how busy the machine is changes neither.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from types import TracebackType

from entrypoint import isolation
from entrypoint.harness.program_message import REQUEST, RESPONSE, Bounds, Ending, Kind, Request, Response

_KEPT = ("PATH", "LD_LIBRARY_PATH", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "TZ")
_ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
}
_RUNNER = Path(__file__).with_name("program_runner.py")
_END_GRACE_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Of all runs of one program together: CPU seconds, and as many of doing nothing; of each run: the rest.

    The CPU seconds are those of wall time in upstream's checker: (6 + 1) a test, and 5. A run that got no core for
    `starved_factor` times that and `starved_s` has no verdict.
    """

    cpu_per_test_s: float = 7.0
    cpu_fixed_s: float = 5.0
    memory_bytes: int = 4 << 30
    output_bytes: int = 64 << 20
    threads: int = 256
    starved_factor: float = 20.0
    starved_s: float = 60.0

    def budget_s(self, tests: int) -> float:
        return self.cpu_per_test_s * tests + self.cpu_fixed_s


@dataclass(slots=True)
class Budget:
    """What is left of a program's limits, in seconds."""

    cpu_s: float
    idle_s: float
    wall_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How one run ended: `code` is the exit status or the signal; `output` is what an exit with status 0 left."""

    ending: Ending
    code: int
    sure: bool
    peak_bytes: int
    output: bytes


class RunnerLost(Exception):
    """The process that runs the programs has ended, by no doing of the program as far as we know."""


class Runner:
    """One process that runs programs, one after the other."""

    def __init__(self, folder: str, bounds: Bounds) -> None:
        self.lost = False
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-s", str(_RUNNER), json.dumps(asdict(bounds))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env=_ENVIRONMENT | {name: os.environ[name] for name in _KEPT if name in os.environ},
            close_fds=True,
        )

    def run(self, kind: Kind, program: bytes, given: bytes, left: Budget) -> Outcome:
        """Runs the program on the input `given`; takes what it used off `left`. RunnerLost when there is no telling."""
        started = monotonic()
        try:
            response, output = self._ask(kind, program, given, left)
        except BaseException as err:
            self.end()
            if isinstance(err, OSError | EOFError):
                raise RunnerLost(
                    f"the process that runs model-written programs ended ({self._process.poll()})"
                ) from err
            raise
        left.cpu_s -= response.cpu_s
        left.idle_s -= response.idle_s
        left.wall_s -= monotonic() - started
        return Outcome(
            ending=Ending(response.ending),
            code=response.code,
            sure=response.sure,
            peak_bytes=response.peak_bytes,
            output=output,
        )

    def _ask(self, kind: Kind, program: bytes, given: bytes, left: Budget) -> tuple[Response, bytes]:
        to, back = self._process.stdin, self._process.stdout
        assert to is not None
        assert back is not None
        request = Request(kind, left.cpu_s, left.idle_s, left.wall_s, len(program), len(given))
        to.write(REQUEST.pack(*request) + program)
        to.write(given)
        to.flush()
        header = back.read(RESPONSE.size)
        if len(header) < RESPONSE.size:
            raise EOFError
        response = Response(*RESPONSE.unpack(header))
        output = back.read(response.output_bytes)
        if len(output) < response.output_bytes:
            raise EOFError
        return response, output

    def end(self) -> None:
        """Ends it, with a program that it may be running."""
        self.lost = True
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        try:
            self._process.wait(_END_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Runners:
    """As many runners as programs may run at once."""

    def __init__(self, cores: int, limits: Limits, *, landlock: bool = True) -> None:
        """`landlock`: use it where the kernel has it; without, programs may read what their user may."""
        self._cores = cores
        self._bounds = Bounds(
            memory_bytes=limits.memory_bytes,
            output_bytes=limits.output_bytes,
            threads=limits.threads,
            landlock=landlock,
            calls=_calls(),
        )
        self._free: queue.SimpleQueue[Runner] = queue.SimpleQueue()
        self._gate = threading.Lock()  # held while one waits to be alone: nobody else takes a runner meanwhile

    def __enter__(self) -> Runners:
        self._folder = TemporaryDirectory(prefix="programs-")  # empty, and stays so
        for _ in range(self._cores):
            self._free.put(self._new())
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, at: TracebackType | None) -> None:
        for _ in range(self._cores):
            self._free.get().end()
        self._folder.cleanup()

    @contextmanager
    def any(self) -> Iterator[Runner]:
        """A runner, as soon as one is free."""
        with self._gate:
            runner = self._free.get()
        try:
            runner = self._usable(runner)
            yield runner
        finally:
            self._free.put(runner)

    @contextmanager
    def alone(self) -> Iterator[Runner]:
        """A runner while no other is at work."""
        with self._gate:
            runners = [self._free.get() for _ in range(self._cores)]
            try:
                runners[0] = self._usable(runners[0])
                yield runners[0]
            finally:
                for runner in runners:
                    self._free.put(runner)

    def _usable(self, runner: Runner) -> Runner:
        return self._new() if runner.lost else runner

    def _new(self) -> Runner:
        return Runner(self._folder.name, self._bounds)


def _calls() -> str | None:
    code = isolation.program_code()
    return None if code is None else base64.b64encode(code).decode()
