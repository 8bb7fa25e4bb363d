"""Watches a process that runs a model-written program, until its end or its limits, and leaves nothing of it running.

In: its pid, what it may use. Out: how it ended and what it used. What counts is the CPU time it used and the time it
did nothing; how long the machine let it wait for a core does not.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import time
from contextlib import suppress

from entrypoint.harness.program_message import Bounds, Ending, Request

_FIRST_LOOK_S, _LOOK_S = 0.05, 0.1


class JudgeGone(Exception):
    """Whoever sends the requests has ended."""


class Watch:
    """A program's process until its end: its CPU time, and the time in which it did nothing though it could have.

    Idle is what neither ran nor waited for a core; the kernel counts both per thread. Where it doesn't tell, all that
    did not run counts, and `sure` is false.
    """

    def __init__(self, pid: int, request: Request, bounds: Bounds, output: int, requests: int) -> None:
        self.pid, self.request, self.bounds, self.output, self.requests = pid, request, bounds, output, requests
        self.clock = (~pid << 3) | 2  # clock_getcpuclockid: the CPU time of that process
        self.idle_s, self.sure = 0.0, True
        self.started = self.seen = time.monotonic()
        self.used_s = 0.0
        self.queued_ns: dict[str, int] = {}

    def until_end(self) -> tuple[Ending | None, int, resource.struct_rusage]:
        """Why we ended it, or None; the wait status; what it used."""
        ending, pause = None, _FIRST_LOOK_S
        while True:
            signal.sigtimedwait([signal.SIGCHLD], pause)
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                return ending, status, usage
            if time.monotonic() - self.seen >= pause and (ending := ending or self._look()) is not None:
                kill(self.pid)
            pause = _LOOK_S

    def _look(self) -> Ending | None:
        if select.select([self.requests], [], [], 0)[0]:
            raise JudgeGone  # nothing is sent before the answer is there: this is the pipe's end
        threads = self._account()
        if self.used_s > self.request.cpu_s:
            return Ending.CPU
        if self.idle_s > self.request.idle_s:
            return Ending.WAITED
        if self.seen - self.started > self.request.wall_s:
            return Ending.STARVED
        if threads > self.bounds.threads:
            return Ending.THREADS
        return Ending.OUTPUT if os.fstat(self.output).st_size > self.bounds.output_bytes else None

    def _account(self) -> int:
        """Adds the time since the last look; returns the number of threads, 0 where it is not told."""
        queued_before_ns = sum(self.queued_ns.values())
        threads, runnable = self._threads()
        now, used_s = time.monotonic(), self._cpu_s()
        queued_s = (sum(self.queued_ns.values()) - queued_before_ns) / 1e9
        idle_s = (now - self.seen) - (used_s - self.used_s) - queued_s
        if idle_s > 0 and not runnable:
            self.idle_s += idle_s
        self.seen, self.used_s = now, used_s
        return threads

    def _cpu_s(self) -> float:
        try:
            return time.clock_gettime(self.clock)
        except OSError:  # it has just ended
            return self.used_s

    def _threads(self) -> tuple[int, bool]:
        """How many there are, and whether one of them runs, waits for a core or for the disk; notes time queued."""
        folder = f"/proc/{self.pid}/task"
        try:
            threads = os.listdir(folder)  # noqa: PTH208
        except OSError:
            self.sure = False
            return 0, False
        runnable = False
        for thread in threads[: self.bounds.threads]:
            with suppress(FileNotFoundError, ProcessLookupError):
                runnable |= _text(f"{folder}/{thread}/stat").rpartition(")")[2].split()[0] in "RD"
                try:
                    self.queued_ns[thread] = int(_text(f"{folder}/{thread}/schedstat").split()[1])
                except (FileNotFoundError, PermissionError):
                    self.sure = False
        return len(threads), runnable


def _text(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as handle:  # noqa: PTH123
        return handle.read()


def kill(pid: int) -> None:
    for send in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            send(pid, signal.SIGKILL)


def end_orphans() -> None:
    """Nothing is left of a program that could start processes: as a subreaper we inherit them, until there are none."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        for pid in _children():
            kill(pid)
        signal.sigtimedwait([signal.SIGCHLD], 0.01)


def _children() -> list[int]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        with suppress(OSError):
            if int(_text(f"/proc/{pid}/stat").rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(pid))
    return found
