"""A data folder: plain files named by their sha256, and the lock that says which data set each belongs to.

In: the program's data lock and a folder that `evalcrate data fetch` filled; reading is enough, it may be mounted
read-only. Out: for each task whether its data is whole here, and the DataFiles that a benchmark reads.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from entrypoint.data_lock import (
    FILE_NAME,
    DataLock,
    HubData,
    LockedFile,
    Split,
    TreeData,
    digest_of,
    empty_lock,
    read_lock,
)
from entrypoint.errors import JobError, MachineError
from entrypoint.layout import read_json, write_json
from entrypoint.plan import DataFiles


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFolder:
    """`path` is absolute; nothing has to be there yet."""

    path: Path

    @property
    def lock_file(self) -> Path:
        return self.path / FILE_NAME

    @property
    def files(self) -> Path:
        return self.path / "files"

    def file(self, sha256: str) -> Path:
        return self.files / sha256

    def read(self) -> DataLock:
        """What was fetched into it, without a file being looked at; MachineError when its lock can't be read."""
        if not self.lock_file.exists():
            return empty_lock()
        try:
            return read_lock(self.lock_file)
        except JobError as error:
            raise MachineError(
                f"{error}; move it away and run `evalcrate data fetch`, which keeps whole files"
            ) from None


@dataclass(frozen=True, kw_only=True, slots=True)
class DataState:
    """How one data set stands in a folder. `words` complete "its data is …"; `held` is the folder's entry if whole."""

    wanted: HubData
    words: str
    held: HubData | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskData:
    """A task's data here: its state in words, the digest for the plan and the files; None of both when not whole.

    `rows`: how many the task's only split or file has, as far as a lock tells.
    """

    task: str
    words: str
    states: tuple[DataState, ...]
    digest: str
    files: tuple[DataFiles, ...]
    rows: int | None

    @property
    def missing(self) -> tuple[DataState, ...]:
        return tuple(state for state in self.states if state.held is None)


def look(lock: DataLock, folder: DataFolder, tasks: Iterable[str]) -> dict[str, TaskData]:
    """The state of each task's data by existence and size of its files; contents are for `damaged` to check."""
    held = folder.read()
    return {task: _task_data(task, lock, folder, held) for task in tasks}


def _task_data(task: str, lock: DataLock, folder: DataFolder, held: DataLock) -> TaskData:
    name = task.removeprefix("evalchemy:")
    states = tuple(data_state(one, folder, held.entry(one.key)) for one in lock.of_task(name))
    entries = [state.held for state in states if state.held is not None]
    whole = len(entries) == len(states)
    if states:
        words = "; ".join(state.words for state in states)
    else:
        words = "in the source tree" if lock.in_tree(name) else "comes with the task"
    return TaskData(
        task=task,
        words=words,
        states=states,
        digest=digest_of(entries) if whole else "",
        files=tuple(_data_files(entry, folder) for entry in entries) if whole else (),
        rows=_rows(states, lock.in_tree(name)),
    )


def _rows(states: Sequence[DataState], in_tree: Sequence[TreeData]) -> int | None:
    splits = [split for state in states for split in (state.held or state.wanted).splits.values()]
    parts = splits or in_tree
    return parts[0].rows if len(parts) == 1 else None


def _data_files(entry: HubData, folder: DataFolder) -> DataFiles:
    splits = {
        name: tuple(str(folder.file(file.sha256 or "")) for file in split.files or ())
        for name, split in entry.splits.items()
    }
    return DataFiles(id=entry.id, config=entry.config, format=entry.format, splits=splits)


def data_state(wanted: HubData, folder: DataFolder, held: HubData | None) -> DataState:
    """One data set: `held` is what the folder's lock says of it."""
    if held is None:
        return DataState(wanted=wanted, words="absent", held=None)
    fault = _difference(wanted, held) or _unwhole(held, folder)
    if fault:
        return DataState(wanted=wanted, words=fault, held=None)
    rows = " + ".join(f"{split.rows:,}" for split in held.splits.values())
    kind = "members" if held.format == "zip" else "rows"
    return DataState(wanted=wanted, words=f"present ({rows} {kind}, rev {(held.revision or '')[:8]})", held=held)


def _difference(wanted: HubData, held: HubData) -> str:
    """How the folder's entry contradicts the program's lock; "" when it does not."""
    if wanted.revision not in (None, held.revision):
        return f"another revision: {(held.revision or 'none')[:8]} in the folder, {(wanted.revision or '')[:8]} wanted"
    if not held.is_fetched or set(held.splits) != set(wanted.splits):
        return "incomplete: its entry in the folder's lock is not finished"
    for name, split in wanted.splits.items():
        there = held.splits[name]
        if split.rows not in (None, there.rows):
            return f"altered: {there.rows} rows in {name}, {split.rows} wanted"
        if split.files is not None and not _same_files(split, there):
            return f"altered: the files of {name} are not the locked ones"
    return ""


def _same_files(split: Split, there: Split) -> bool:
    def facts(file: LockedFile, like: LockedFile) -> tuple[str, str | None]:
        return file.path, file.sha256 if like.sha256 is not None else None

    wanted, held = split.files or (), there.files or ()
    return len(wanted) == len(held) and all(facts(a, a) == facts(b, a) for a, b in zip(wanted, held, strict=True))


def _unwhole(held: HubData, folder: DataFolder) -> str:
    """What is missing or has another size of the files in the folder; "" when nothing is."""
    sizes = {file.path: _size(folder.file(file.sha256 or "")) for file in held.files}
    missing = [path for path, size in sizes.items() if size is None]
    if missing:
        return f"incomplete: {len(sizes) - len(missing)} of {len(sizes)} files"
    for file in held.files:
        if sizes[file.path] != file.bytes:
            return f"altered: size differs: {file.path} has {sizes[file.path]} bytes, {file.bytes} wanted"
    return ""


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size if path.is_file() and os.access(path, os.R_OK) else None
    except OSError:
        return None


def damaged(held: Iterable[HubData], folder: DataFolder) -> Iterator[tuple[HubData, LockedFile]]:
    """The files whose content is not what their name says; every byte is read."""
    seen: dict[str, bool] = {}
    for entry in held:
        for file in entry.files:
            name = file.sha256 or ""
            if name not in seen:
                seen[name] = sha256_of(folder.file(name)) == name
            if not seen[name]:
                yield entry, file


def sha256_of(path: Path) -> str:
    """sha256 (64 hex digits) of a file, "" when it can't be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def check_contents(data: Mapping[str, Iterable[DataFiles]], cache: Path) -> None:
    """MachineError when a file that a run is about to read is not what its name says.

    What was hashed before is remembered in `cache` by size and time of change, so that gigabytes are read once.
    """
    known = read_json(cache)
    known = dict(known) if isinstance(known, dict) else {}
    before = dict(known)
    for task, files in data.items():
        for path in (path for one in files for paths in one.splits.values() for path in paths):
            mark = _mark(Path(path))
            if known.get(path) == mark:
                continue
            if sha256_of(Path(path)) != Path(path).name:
                raise MachineError(
                    f"{task}: {path}: its content is not what its name says; run `evalcrate data verify`, then "
                    "`evalcrate data fetch` to replace it"
                )
            known[path] = mark
    if known != before:
        _remember(cache, known)


def _mark(path: Path) -> list[int]:
    try:
        status = path.stat()
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _remember(cache: Path, known: Mapping[str, list[int]]) -> None:
    """Best effort: without the cache the next run reads the files again."""
    try:
        write_json(cache, {path: mark for path, mark in known.items() if Path(path).exists()})
    except OSError:
        return


def refusal(found: Iterable[TaskData], folder: DataFolder, how: str) -> MachineError | None:
    """Why tasks can't be run on the data that is here, each by name with the way out; None when all is whole.

    `how` is what to add to `evalcrate data fetch` to get what the job needs.
    """
    missing = [(one.task, state) for one in found for state in one.missing]
    if not missing:
        return None
    told = "; ".join(f"{task}: {state.wanted.title} is {state.words}" for task, state in missing)
    gated = sorted({state.wanted.licence_page for _, state in missing if state.wanted.gated})
    licences = (
        f" ({' and '.join(gated)}: accept the licence there, then set HF_TOKEN to a token of that account)"
        if gated
        else ""
    )
    return MachineError(f"data: {folder.path}: {told}; run `evalcrate data fetch {how}`{licences}")


def as_values(found: Mapping[str, TaskData]) -> dict[str, dict[str, object]]:
    """State per task for `--json`."""
    return {task: {"state": one.words, "whole": not one.missing} for task, one in found.items()}
