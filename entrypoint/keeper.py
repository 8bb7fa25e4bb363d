"""Runs one command and ends every process of it, whatever happens to us: the engine and benchmark code run under it.

    python -I -S keeper.py FOLDER COMMAND...      (standard library only; stdin is a pipe that the starter holds open)

SIGTERM is passed on to COMMAND alone. When COMMAND ends, or the pipe closes (the starter wants an end now, or was
killed), all descendants, detached ones too, get SIGKILL and are reaped, FOLDER is removed unless it is empty, and we
end as COMMAND did: with its exit code, or by its signal. Few imports: a grader waits for our start.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys

_SEGMENTS = ("/dev/shm/psm_", "/dev/shm/sem.mp-")
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _children() -> list[int]:
    """Pids whose parent we are, orphans that we inherited included."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 (pathlib would slow the start)
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as handle:  # noqa: PTH123
            if int(handle.read().rpartition(b")")[2].split()[1]) == os.getpid():
                found.append(int(pid))
    return found


def _shared_memory(group: int) -> set[str]:
    """Segments of Python's multiprocessing that the group has mapped: who is killed can't remove them (400 MB each)."""
    found: set[str] = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        with contextlib.suppress(OSError):
            if os.getpgid(int(pid)) == group:
                with open(f"/proc/{pid}/maps", errors="replace") as handle:  # noqa: PTH123
                    paths = {line[line.find("/") :].rstrip("\n") for line in handle if "/dev/shm/" in line}
                found |= {path for path in paths if path.startswith(_SEGMENTS) and " " not in path}
    return found


def _end_descendants(child: int) -> int:
    """SIGKILL until no child is left: orphans of those killed become our children. Returns the first child's status."""
    status = 0
    segments = _shared_memory(child)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    while children := _children():
        for pid in children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for _ in children:
            ended, how = os.waitpid(-1, 0)
            status = how if ended == child else status
    for path in segments:
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108
    return status


def _become(command: list[str]) -> None:
    """The forked child's part: it is COMMAND from here on, or ends with 127."""
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execvp(command[0], command)
    except OSError as err:
        print(f"can't start {command[0]}: {err.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


def _wait(child: int, wakeup: int) -> None:
    """Until the child has ended (it is not reaped: its pid stays its own) or the starter's pipe is closed."""
    while True:
        ready, _, _ = select.select([0, wakeup], [], [])
        if wakeup in ready:
            os.read(wakeup, 512)
        if 0 in ready:
            return
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid == child:
                return
            os.waitpid(ended.si_pid, 0)


def main(folder: str, command: list[str]) -> int:
    """COMMAND's exit code, negative for the signal that ended it."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    wakeup, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)
    child = os.fork()
    if child == 0:
        _become(command)
    try:
        signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
        _wait(child, wakeup)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        status = _end_descendants(child)
        if folder:
            import shutil

            shutil.rmtree(folder, ignore_errors=True)
    return os.waitstatus_to_exitcode(status)


def _end_by(number: int) -> None:
    _prctl(_PR_SET_DUMPABLE, 0)  # whose core it would be is not us
    with contextlib.suppress(OSError):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    code = main(sys.argv[1], sys.argv[2:])
    if code < 0:
        _end_by(-code)
    os._exit(code)
