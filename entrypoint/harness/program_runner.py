"""Runs model-written programs, one process each: `python program_runner.py BOUNDS`, started by program.py.

In, on stdin: requests, each a program, its input and what is left of its limits. Out, on stdout: how it ended, what it
used and what it wrote. No expected output is ever here, and programs, inputs and outputs pass through the kernel only:
nothing of one program is in the memory that the next one's process is forked with.
"""

from __future__ import annotations

import base64
import ctypes
import fcntl
import gc
import importlib
import json
import mmap
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, NoReturn

if __name__ == "__main__":  # our package by its place: a grader may not list the folder it is in, nor a program find it
    _package = ModuleType("entrypoint")
    _package.__path__ = [str(Path(__file__).parents[1])]
    sys.modules["entrypoint"] = _package

from entrypoint import isolation
from entrypoint.harness.program_message import REQUEST, RESPONSE, Bounds, Ending, Kind, Request, Response
from entrypoint.harness.program_process import ANSWER, limits, run_call, run_main, streams
from entrypoint.harness.program_watch import JudgeGone, Watch, end_orphans, kill

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36
_SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
_OWN_FROM = 10  # our own descriptors; a program's are below
_PRELOADED = (  # what programs import most; each costs them milliseconds otherwise
    "array", "bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq", "io",
    "itertools", "math", "operator", "queue", "random", "re", "statistics", "string", "time", "typing",
)  # fmt: skip


class Files(NamedTuple):
    """Anonymous files in memory."""

    program: int
    input: int
    output: int


class Runner:
    """Runs one program after the other, each in a forked process of its own."""

    def __init__(self, requests: int, responses: int, bounds: Bounds) -> None:
        self.requests, self.responses, self.bounds = requests, responses, bounds
        self.nowhere = _own(os.open(os.devnull, os.O_RDWR))
        self.ready = mmap.mmap(-1, 1)  # shared with the child, which sets it just before the program's first line
        calls = None if bounds.calls is None else base64.b64decode(bounds.calls)
        prepared = isolation.prepare_program(code=calls)
        self.confinement = prepared if bounds.landlock else isolation.Program(ruleset=None, code=prepared.code)
        self.pid = os.getpid()

    def serve(self) -> None:
        while header := _read(self.requests, REQUEST.size):
            request = Request(*REQUEST.unpack(header))
            with self._files(request) as files:
                response = self._run(request, files)
                _write(self.responses, RESPONSE.pack(*response))
                sent = 0
                while sent < response.output_bytes:
                    sent += os.sendfile(self.responses, files.output, sent, response.output_bytes - sent)

    @contextmanager
    def _files(self, request: Request) -> Iterator[Files]:
        """The program and its input, moved here from the pipe, sealed; and the output, empty."""
        files = []
        try:
            for size in (request.program_bytes, request.input_bytes, None):
                file = os.memfd_create("program", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
                files.append(file)
                if size is not None:
                    self._receive(file, size)
            yield Files(*files)
        finally:
            for file in files:
                os.close(file)

    def _receive(self, file: int, size: int) -> None:
        left = size
        while left:
            moved = os.splice(self.requests, file, left)
            if not moved:
                raise JudgeGone
            left -= moved
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
        os.lseek(file, 0, os.SEEK_SET)

    def _run(self, request: Request, files: Files) -> Response:
        self.ready[0] = 0
        child = os.fork()
        if child == 0:
            self._become(request, files)
        watch = Watch(child, request, self.bounds, files.output, self.requests)
        try:
            ending, status, usage = watch.until_end()
        except BaseException:
            kill(child)
            raise
        finally:
            end_orphans()
        code = os.waitstatus_to_exitcode(status)
        cpu_s = usage.ru_utime + usage.ru_stime
        size = os.fstat(files.output).st_size
        if not self.ready[0]:
            ending = Ending.UNREADY
        elif cpu_s > request.cpu_s:
            ending = Ending.CPU
        elif size > self.bounds.output_bytes:
            ending = Ending.OUTPUT
        elif ending is None:
            ending = Ending.EXITED if code >= 0 else Ending.SIGNALLED
        kept = size if ending is Ending.EXITED and code == 0 else 0
        return Response(ending, abs(code), watch.sure, cpu_s, watch.idle_s, usage.ru_maxrss * 1024, kept)

    def _become(self, request: Request, files: Files) -> NoReturn:
        """The forked child: confined, then the program until its end; never returns."""
        status = 1
        try:
            self._confine(request, files)
            program = os.pread(files.program, request.program_bytes, 0).decode("utf-8", "surrogatepass")
            run: Callable[[], int]
            if request.kind == Kind.CALL:
                call = json.loads(os.pread(files.input, request.input_bytes, 0).decode("utf-8", "surrogatepass"))
                os.dup2(files.output, ANSWER)
                run = lambda: run_call(program, call)  # noqa: E731
            else:
                run = lambda: run_main(program)  # noqa: E731
            os.closerange(ANSWER + (request.kind == Kind.CALL), 1024)
            self.ready[0] = 1
            self.ready.close()
            status = run()
        finally:
            os._exit(status)

    def _confine(self, request: Request, files: Files) -> None:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self.pid:
            raise JudgeGone
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        called = request.kind == Kind.CALL
        os.dup2(self.nowhere if called else files.input, 0)
        os.dup2(self.nowhere if called else files.output, 1)
        os.dup2(self.nowhere, 2)
        streams()
        limits(self.bounds, request.cpu_s)
        isolation.enter_program(prepared=self.confinement)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _own(descriptor: int) -> int:
    """The same file on a number that no program gets."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _OWN_FROM)
    os.close(descriptor)
    return moved


def _read(descriptor: int, size: int) -> bytes:
    """Exactly so many bytes, or none at the pipe's end."""
    data = b""
    while len(data) < size:
        got = os.read(descriptor, size - len(data))
        if not got:
            return b""
        data += got
    return data


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def main(bounds: Bounds) -> None:
    requests, responses = _own(0), _own(1)
    for number in (0, 1):  # taken, so that no other file gets them
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
    os.closerange(3, _OWN_FROM)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as handle:  # noqa: PTH123
        handle.write("1000")  # short of memory, the kernel ends a program rather than the judge
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_DUMPABLE, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    for name in _PRELOADED:
        importlib.import_module(name)
    runner = Runner(requests, responses, bounds)
    gc.collect()
    gc.freeze()
    with suppress(JudgeGone, BrokenPipeError):
        runner.serve()


if __name__ == "__main__":
    main(Bounds(**json.loads(sys.argv[1])))
