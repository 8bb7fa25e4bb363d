"""Filling a data folder: every file of the data sets that are asked for, checked and named by its sha256.

In: entries of the data lock, a hub and a folder. Out: the folder's lock, extended entry by entry, and a Filled. What
was fetched before is not fetched again, and what broke off goes on.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from entrypoint import lock
from entrypoint.data_fetch import Hub, Listing, RemoteFile, gated
from entrypoint.data_folder import DataFolder, damaged, data_state
from entrypoint.data_lock import DataLock, HubData, LockedFile, Split, dumps
from entrypoint.data_rows import count_rows
from entrypoint.data_split import files_by_split
from entrypoint.errors import EvalcrateError, MachineError, TransientError
from entrypoint.layout import write_atomic

_UNKNOWN = LockedFile(path="unknown")
_Pair = tuple[LockedFile, RemoteFile]  # what the lock says of a file, what the hub says of it


class Reporter(Protocol):
    """What a person sees of a fetch; `begin` gives the bytes of one file, `arrived` adds to them."""

    def note(self, text: str) -> None: ...
    def begin(self, name: str, size_bytes: int) -> None: ...
    def arrived(self, count_bytes: int) -> None: ...
    def end(self) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Filled:
    """`entries`: everything asked for that is whole now; `pinned`: those of now that had no revision before."""

    entries: tuple[HubData, ...]
    pinned: tuple[HubData, ...]
    failures: tuple[EvalcrateError, ...]


@contextmanager
def _held(folder: DataFolder) -> Iterator[None]:
    """One fetch at a time per folder, which must be writable."""
    with lock.held(
        folder.path / ".fetch" / "lock",
        key="data",
        busy="another fetch fills this folder; wait for it, it may fetch what you need",
    ):
        yield


def fill(wanted: Sequence[HubData], folder: DataFolder, connect: Callable[[], Hub], reporter: Reporter) -> Filled:
    """Fetches what is missing; one data set's failure does not stop the others, a lost network does.

    `connect` is called when something is missing, so that a whole folder needs neither network nor token.
    """
    entries: list[HubData] = []
    pinned: list[HubData] = []
    failures: list[EvalcrateError] = []
    with _held(folder):
        for one in wanted:
            try:
                entry, is_new = _Set(wanted=one, folder=folder, connect=connect, reporter=reporter).fill()
            except TransientError as error:
                failures.append(error)
                break
            except MachineError as error:
                failures.append(error)
                continue
            entries.append(entry)
            if is_new and one.revision is None:
                pinned.append(entry)
    return Filled(entries=tuple(entries), pinned=tuple(pinned), failures=tuple(failures))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Set:
    """One data set on its way into the folder."""

    wanted: HubData
    folder: DataFolder
    connect: Callable[[], Hub]
    reporter: Reporter

    def fill(self) -> tuple[HubData, bool]:
        """The folder's entry, and whether something had to be fetched for it."""
        held = self.folder.read()
        state = data_state(self.wanted, self.folder, held.entry(self.wanted.key))
        if state.held is not None:
            broken = [file for _, file in damaged([state.held], self.folder)]
            if not broken:
                self.reporter.note(f"{self.wanted.title}: {state.words}")
                return state.held, False
            for file in broken:
                self.folder.file(file.sha256 or "").unlink(missing_ok=True)
        entry = self._fetched(held)
        text = dumps(held.with_entries([entry]))
        write_atomic(self.folder.lock_file, text.encode())
        self.reporter.note(f"{self.wanted.title}: {data_state(self.wanted, self.folder, entry).words}")
        return entry, True

    def _fetched(self, held: DataLock) -> HubData:
        hub = self._hub()
        if all(file.url for split in self.wanted.splits.values() for file in split.files or (_UNKNOWN,)):
            return self._taken(_elsewhere(self.wanted), hub)
        same = [one.revision for one in held.hub if one.id == self.wanted.id]
        listing = hub.listing(self.wanted, self.wanted.revision or (same[0] if same else None))
        return self._taken(listing, hub)

    def _taken(self, listing: Listing, hub: Hub) -> HubData:
        chosen = self._chosen(listing)
        self._require_space(file for files in chosen.values() for _, file in files)
        splits = {name: self._split(name, listing, files, hub) for name, files in chosen.items()}
        values = self.wanted.model_dump() | {"revision": listing.revision, "splits": splits}
        return HubData.model_validate(values)

    def _hub(self) -> Hub:
        hub = self.connect()
        if self.wanted.gated and hub.token is None:
            raise gated(self.wanted, "HF_TOKEN is not set")
        return hub

    def _chosen(self, listing: Listing) -> dict[str, list[_Pair]]:
        """What the lock says of each file of each split, beside what the hub says of it."""
        ruled: dict[str, tuple[str, ...]] = {}
        try:
            if any(split.files is None for split in self.wanted.splits.values()):
                ruled = files_by_split(listing.files, listing.configs, self.wanted.config, self.wanted.format)
            return {
                name: [self._pair(file, listing) for file in split.files or _named(ruled.get(name, ()), name)]
                for name, split in self.wanted.splits.items()
            }
        except ValueError as error:
            raise MachineError(f"{self.wanted.title} at revision {listing.revision}: {error}") from None

    def _pair(self, file: LockedFile, listing: Listing) -> _Pair:
        remote = listing.files.get(file.path)
        if remote is None:
            raise ValueError(f"holds no {file.path}; correct data.lock.yaml")
        if None not in (file.sha256, remote.sha256) and file.sha256 != remote.sha256:
            raise ValueError(f"{file.path} has sha256 {remote.sha256}, data.lock.yaml says {file.sha256}")
        return file, remote

    def _require_space(self, files: Iterator[RemoteFile]) -> None:
        needed = sum(file.bytes for file in files if not (file.sha256 and self.folder.file(file.sha256).exists()))
        free = shutil.disk_usage(self.folder.path).free
        if needed > free:
            raise MachineError(
                f"{self.folder.path}: {needed / 1e9:,.1f} GB are to come and {free / 1e9:,.1f} GB are free; make room "
                "or choose another folder with --data"
            )

    def _split(self, name: str, listing: Listing, files: Sequence[_Pair], hub: Hub) -> Split:
        done = tuple(self._file(locked, remote, listing, hub) for locked, remote in files)
        rows = sum(file.rows or 0 for file in done)
        expected = self.wanted.splits[name].rows
        if expected not in (None, rows):
            raise MachineError(
                f"{', '.join(self.wanted.tasks)}: {self.wanted.title} {name} has {rows} rows at revision "
                f"{listing.revision}, {expected} are expected; name a revision that has them in data.lock.yaml"
            )
        return Split(rows=rows, files=done)

    def _file(self, locked: LockedFile, remote: RemoteFile, listing: Listing, hub: Hub) -> LockedFile:
        known = locked.sha256 or remote.sha256
        if known is None or _size(self.folder.file(known)) != remote.bytes:
            known = self._download(locked, remote, listing, hub)
        path = self.folder.file(known)
        try:
            rows = count_rows(path, self.wanted.format)
        except ValueError as error:
            raise MachineError(f"{self.wanted.title}: {locked.path}: {error}; correct data.lock.yaml") from None
        return LockedFile(path=locked.path, url=locked.url, sha256=known, bytes=remote.bytes, rows=rows)

    def _download(self, locked: LockedFile, remote: RemoteFile, listing: Listing, hub: Hub) -> str:
        """The sha256 of the file, which lies in the folder by that name afterwards."""
        part = self.folder.path / ".fetch" / f"{remote.sha256 or remote.git_id}.part"
        if _size(part) > remote.bytes:
            part.unlink()
        self.reporter.begin(f"{self.wanted.id} {locked.path}", remote.bytes)
        part.touch()
        hub.download(self.wanted, listing.revision, remote, part, self.reporter.arrived)
        self.reporter.end()
        sha256, git_id = _digests(part)
        wrong = remote.sha256 not in (None, sha256) or (remote.sha256 is None and remote.git_id != git_id)
        if wrong or locked.sha256 not in (None, sha256):
            part.unlink()
            raise TransientError(
                f"{self.wanted.title}: {locked.path}: what arrived has sha256 {sha256}, not that of the file; run the "
                "same command again, and another mirror (HF_ENDPOINT) if it stays so"
            )
        _publish(part, self.folder.file(sha256))
        return sha256


def _elsewhere(wanted: HubData) -> Listing:
    """What the lock itself says of files with a URL, in the form in which the hub lists its own."""
    files = {
        file.path: RemoteFile(path=file.path, bytes=file.bytes or 0, sha256=file.sha256, git_id=None, url=file.url)
        for file in wanted.files
    }
    return Listing(revision=wanted.revision or "", files=files, configs={})


def _named(paths: Sequence[str], split: str) -> tuple[LockedFile, ...]:
    if not paths:
        raise ValueError(f"has no files for split {split} by the rules of `datasets`")
    return tuple(LockedFile(path=path) for path in paths)


def _digests(path: Path) -> tuple[str, str]:
    """sha256, and the id that git gives a file of this content."""
    sha256 = hashlib.sha256()
    git = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            sha256.update(chunk)
            git.update(chunk)
    return sha256.hexdigest(), git.hexdigest()


def _publish(part: Path, target: Path) -> None:
    """On disk first, then under its name; read-only, since nothing may change it."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.chmod(0o444)
    target.parent.mkdir(exist_ok=True)
    part.replace(target)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else -1
