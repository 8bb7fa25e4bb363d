"""One process at a time per folder: the second one is told who holds it.

The lock is the kernel's (flock), so that it ends with the process that holds it, however that ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from entrypoint.errors import MachineError, TransientError

_BUSY = "another run works on this folder; wait for it, or give the experiment another name"


@contextmanager
def held(path: Path, *, key: str = "results", busy: str = _BUSY) -> Iterator[None]:
    """Holds the lock file at `path` for the block; TransientError names the holder when another process has it.

    MachineError when the folder can't be written. `key` names the folder in a job; `busy` is what to say and to do.
    """
    with _opened(path, key) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what, _, advice = busy.partition("; ")
            raise TransientError(f"{path.parent.parent}: {what} ({_holder(path)}); {advice}") from None
        holder = {"host": socket.gethostname(), "pid": os.getpid(), "since": datetime.now(UTC).isoformat()}
        handle.truncate(0)
        handle.write(json.dumps(holder).encode())
        handle.flush()
        yield


def _opened(path: Path, key: str) -> IO[bytes]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+b")
    except OSError as err:
        raise MachineError(
            f"{key}: {path.parent.parent}: can't be written ({err.strerror or err}); make it writable for uid "
            f"{os.getuid()} or set {key}: to another folder"
        ) from err


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_bytes())
        return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "its name is not known"
