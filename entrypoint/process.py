"""Child processes that never outlive their reason to run: the keeper's command line, parent-death signal, log tail."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_KEEPER = Path(__file__).with_name("keeper.py")
_TAIL_BYTES = 8192


def under_keeper(command: Sequence[str], *, remove: Path | None = None) -> list[str]:
    """`command` run by the keeper, which removes the folder `remove` at the end; its stdin has to be a pipe of ours.

    Closing the pipe ends every process of `command`, and so does our death, whatever its kind.
    """
    return [sys.executable, "-I", "-S", str(_KEEPER), str(remove or ""), *command]


def die_with_parent() -> None:
    """The calling process gets SIGKILL when the thread that started it ends (Linux only, quiet elsewhere)."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def log_tail(log: Path, lines: int = 12) -> str:
    """The last lines of a log, for an error message; empty when there is none."""
    try:
        with log.open("rb") as handle:
            handle.seek(max(0, handle.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return "\n".join(handle.read().decode(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
