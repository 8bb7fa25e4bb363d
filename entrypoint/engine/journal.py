"""The generation journal: every answer is on disk before it is counted, and none is asked for twice.

In: Generation rows from this process. Out: one append-only `<writer>.jsonl` per writing process, and a merged
view of all of them by key. Whatever is torn, foreign or doubled is counted with its reason, never used.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import threading
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Self

from entrypoint.errors import TransientError
from entrypoint.layout import write_atomic
from entrypoint.record import Generation, Request, generation_from, to_line

Key = tuple[str, int, int, str, str]
_SYNC_PERIOD_S = 1.0


def key_of(request: Request, fingerprint: str) -> Key:
    """(task, seed, sample, request id, fingerprint): what makes a stored generation ours to use."""
    return (request.task, request.seed, request.sample, request.id, fingerprint)


def new_writer() -> str:
    """A file name that no other process on any host that shares the folder can have."""
    host = re.sub(r"[^A-Za-z0-9-]+", "-", socket.gethostname())[:60] or "host"
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"


class Journal:
    """Append-only file of one writer. Rows survive `kill -9` after `append`, and power loss about a second
    later.

    A failing disk raises TransientError naming the file; rows already appended stay whole.
    """

    def __init__(self, folder: Path, writer: str) -> None:
        self.path = folder / f"{writer}.jsonl"
        self._fd = -1
        self._size = 0
        self._dirty = threading.Event()
        self._closing = threading.Event()
        self._failure: OSError | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._open()
        except OSError as err:
            raise self._lost(err) from err
        self._syncer = threading.Thread(target=self._sync_loop, name="journal-sync", daemon=True)
        self._syncer.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def append(self, row: Generation) -> Place:
        """Write one row with a single system call; it is readable by others when this returns, at the place given."""
        if self._failure is not None:
            raise self._lost(self._failure) from self._failure
        line = memoryview(to_line(row))
        done = 0
        try:
            while done < len(line):
                done += os.write(self._fd, line[done:])
        except OSError as err:
            # Half a row in the middle of the file would swallow the row after it.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise self._lost(err) from err
        place = Place(
            finished_at=row.finished_at,
            file=self.path.name,
            offset=self._size,
            length=done,
            sampler_seed=row.sampler_seed,
            tokens=row.completion_tokens,
        )
        self._size += done
        self._dirty.set()
        return place

    def close(self) -> None:
        """Flush to the disk and end the writer; calling it twice is harmless."""
        if self._fd < 0:
            return
        self._closing.set()
        self._dirty.set()
        self._syncer.join()
        fd, self._fd = self._fd, -1
        try:
            os.fsync(fd)
        except OSError as err:
            self._failure = self._failure or err
        finally:
            os.close(fd)
        if self._failure is not None:
            raise self._lost(self._failure) from self._failure

    def _open(self) -> None:
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._size = _whole_bytes(self._fd)
        os.ftruncate(self._fd, self._size)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _sync_loop(self) -> None:
        """fsync once a period, and only when there is something new: cluster filesystems take long."""
        while not self._closing.is_set():
            self._dirty.wait()
            self._dirty.clear()
            try:
                os.fsync(self._fd)
            except OSError as err:
                self._failure = err
            self._closing.wait(_SYNC_PERIOD_S)

    def _lost(self, err: OSError) -> TransientError:
        return TransientError(
            f"{self.path}: the generation journal can't be written ({err.strerror or err}); what was "
            "written is kept: free some space or mend the disk and run the same command again"
        )


def _whole_bytes(fd: int) -> int:
    """Size of the file up to and including its last newline byte."""
    end, block = os.fstat(fd).st_size, 1 << 16
    while end > 0:
        start = max(0, end - block)
        at = os.pread(fd, end - start, start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a row is. Rows with one key are ordered by it, so that every reader picks the same one.

    `tokens`: how many were generated.
    """

    finished_at: str
    file: str
    offset: int
    length: int
    sampler_seed: int
    tokens: int

    @property
    def order(self) -> tuple[str, str, int]:
        return (self.finished_at, self.file, self.offset)


class JournalView:
    """All journals of one folder, merged by key. Holds positions, not texts.

    `problems` counts what was not used: `torn` (a cut last line), `corrupt`, `other` (not among the wanted
    keys), `duplicate` (the row that was finished first counts).
    """

    def __init__(self, folder: Path, places: dict[Key, Place], problems: Mapping[str, int]) -> None:
        self._folder = folder
        self._places = places
        self.problems = problems

    def __len__(self) -> int:
        return len(self._places)

    def add(self, row: Generation, place: Place) -> None:
        """Take in a row that was just appended, so that it need not be searched for."""
        self._places.setdefault((row.task, row.seed, row.sample, row.id, row.fingerprint), place)

    def has(self, request: Request, fingerprint: str) -> bool:
        place = self._places.get(key_of(request, fingerprint))
        return place is not None and place.sampler_seed == request.sampler_seed

    def tokens(self, request: Request, fingerprint: str) -> int | None:
        """How many tokens the stored generation has, None where there is none."""
        return self._places[key_of(request, fingerprint)].tokens if self.has(request, fingerprint) else None

    def load(self, request: Request, fingerprint: str) -> Generation:
        """The stored generation; KeyError when there is none, TransientError when its file went away."""
        if not self.has(request, fingerprint):
            raise KeyError(f"{request.task} seed {request.seed} sample {request.sample}: no stored generation")
        place = self._places[key_of(request, fingerprint)]
        path = self._folder / place.file
        try:
            with path.open("rb") as handle:
                handle.seek(place.offset)
                return _row(handle.read(place.length))
        except (OSError, ValueError) as err:
            raise TransientError(f"{path}: a stored generation can't be read back ({err}); run again") from err


def read(folder: Path, wanted: Collection[Key] | None = None) -> JournalView:
    """Merge every journal of `folder` (an absent folder is an empty journal); changes nothing on disk."""
    places: dict[Key, Place] = {}
    problems: Counter[str] = Counter()
    for path in sorted(folder.glob("*.jsonl")):
        try:
            _index(path, wanted, places, problems)
        except OSError as err:
            raise TransientError(f"{path}: a journal can't be read ({err.strerror or err}); run again") from err
    return JournalView(folder, places, dict(problems))


def _index(path: Path, wanted: Collection[Key] | None, places: dict[Key, Place], problems: Counter[str]) -> None:
    offset = 0
    with path.open("rb") as handle:
        for line in handle:  # a binary file: split on newline bytes only, never on U+2028 in an answer
            start, offset = offset, offset + len(line)
            if not line.endswith(b"\n"):
                problems["torn"] += 1
                continue
            try:
                row = _row(line)
            except ValueError:
                problems["corrupt"] += 1
                continue
            key = (row.task, row.seed, row.sample, row.id, row.fingerprint)
            if wanted is not None and key not in wanted:
                problems["other"] += 1
                continue
            place = Place(
                finished_at=row.finished_at,
                file=path.name,
                offset=start,
                length=len(line),
                sampler_seed=row.sampler_seed,
                tokens=row.completion_tokens,
            )
            held = places.setdefault(key, place)
            if held is not place:
                problems["duplicate"] += 1
                places[key] = min(held, place, key=lambda p: p.order)


def _row(line: bytes) -> Generation:
    """A whole, well-typed Generation, or ValueError with what is wrong."""
    try:
        row = generation_from(json.loads(line))
    except (KeyError, TypeError, RecursionError) as err:
        raise ValueError(f"not a generation: {err}") from err
    for name, kind in _FIELD_TYPES.items():
        if type(getattr(row, name)) is not kind:
            raise ValueError(f"{name} is not {kind.__name__}")
    if row.token_ids is not None and len(row.token_ids) != row.completion_tokens:
        raise ValueError(f"{len(row.token_ids)} token ids for {row.completion_tokens} tokens")
    return row


_FIELD_TYPES = {f.name: {"int": int, "str": str}[str(f.type)] for f in fields(Generation) if f.type in ("int", "str")}


def drop(folder: Path, tasks: Collection[str]) -> None:
    """Rewrite every journal without the rows of `tasks`; each file whole or not at all. No writer may be active."""
    for path in sorted(folder.glob("*.jsonl")):
        lines = path.read_bytes().split(b"\n")
        kept = [line for line in lines if line and _task_of(line) not in tasks]
        if not kept:
            path.unlink()
        elif len(kept) < sum(map(bool, lines)):
            write_atomic(path, b"".join(line + b"\n" for line in kept))


def _task_of(line: bytes) -> str | None:
    try:
        return _row(line).task
    except ValueError:
        return None
