"""One engine of ours per card: a second run is told who holds it, before it measures what is free.

In: cards, the cache folder, which containers share. The lock is the kernel's (flock) and ends with its holder, however
that ends. Two engines that start on one card at once size each other wrongly (vllm#10533, #55827).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from entrypoint.engine_home import can_write
from entrypoint.errors import MachineError, TransientError
from entrypoint.gpu import Gpu


class CardLocks:
    """Locks on cards, held until `close` or the end of the process."""

    def __init__(self, cache: Path) -> None:
        self._folder = _folder(cache)
        self._held = contextlib.ExitStack()

    def take(self, cards: Iterable[Gpu]) -> None:
        """All of the cards or none; TransientError names the run that has one, MachineError where none can be had."""
        with contextlib.ExitStack() as taking:
            for card in cards:
                handle = _open(self._path(card))
                taking.callback(os.close, handle)
                _lock(handle, self._path(card), card)
                _sign(handle)
            self._held.push(taking.pop_all())

    def refuse_held(self, cards: Iterable[Gpu]) -> None:
        """What `take` would say, without leaving a file behind."""
        for card in cards:
            with contextlib.suppress(FileNotFoundError, PermissionError):
                handle = os.open(self._path(card), os.O_RDONLY)
                try:
                    _lock(handle, self._path(card), card)
                finally:
                    os.close(handle)

    def close(self) -> None:
        """Lets the next run have the cards."""
        self._held.close()

    def _path(self, card: Gpu) -> Path:
        return self._folder / f"{card.uuid or f'{socket.gethostname()}-{card.index}'}.lock"


def _folder(cache: Path) -> Path:
    """In the cache; beside it, and so not seen by other containers, where the cache can only be read."""
    return cache / "cards" if can_write(cache / "cards") else Path(tempfile.gettempdir()) / "evalcrate-cards"


def _open(path: Path) -> int:
    """Another user's lock file can still be locked, though not written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:
        with contextlib.suppress(OSError):
            return os.open(path, os.O_RDONLY)
        raise _unlockable(path, "permission denied") from None
    except OSError as err:
        raise _unlockable(path, err.strerror or str(err)) from err


def _lock(handle: int, path: Path, card: Gpu) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise TransientError(
            f"card {card.index} ({card.name}): another run of this program has it ({_holder(path)}); two engines would "
            "size each other wrongly: wait for it, or choose another card with CUDA_VISIBLE_DEVICES"
        ) from None
    except OSError as err:
        raise _unlockable(path, err.strerror or str(err)) from err


def _sign(handle: int) -> None:
    holder = {"host": socket.gethostname(), "pid": os.getpid(), "since": datetime.now(UTC).isoformat()}
    with contextlib.suppress(OSError):
        os.truncate(handle, 0)
        os.pwrite(handle, json.dumps(holder).encode(), 0)


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_bytes())
        return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "its name is not known"


def _unlockable(path: Path, why: str) -> MachineError:
    return MachineError(
        f"{path}: can't be locked ({why}), so that two runs could start on one card; set EVALCRATE_CACHE to a folder "
        "on a disk that takes locks"
    )
