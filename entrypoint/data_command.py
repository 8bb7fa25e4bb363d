"""`evalcrate data fetch` and `evalcrate data verify`: choose data sets, do the work, say how it went.

In: command line arguments and the environment. Out: text or JSON on stdout, progress on stderr, an exit code.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, TextIO

from entrypoint import prepare, source
from entrypoint.catalog import load_catalog
from entrypoint.data_folder import DataFolder, damaged, data_state, sha256_of
from entrypoint.data_lock import FILE_NAME, DataLock, HubData, TreeData, pinned, read_lock
from entrypoint.data_rows import count_rows
from entrypoint.errors import JobError, MachineError
from entrypoint.job import load_job
from entrypoint.layout import write_atomic

_LINE_PERIOD_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Choice:
    """The data folder and the part of the lock that the arguments ask for."""

    folder: DataFolder
    hub: tuple[HubData, ...]
    tree: tuple[TreeData, ...]


def _choice(arguments: argparse.Namespace, environ: Mapping[str, str]) -> _Choice:
    lock = read_lock(prepare.lock_file(environ))
    jobs = [load_job(path) for path in arguments.jobs]
    catalog = load_catalog(prepare.root())
    tasks = set(arguments.task)
    for suite in [*arguments.suite, *(name for job in jobs for name in job.suite_names)]:
        tasks |= {task.name for task in catalog.suite(suite).tasks}
    tasks |= {task.name for job in jobs for task in job.tasks}
    _refuse_unknown(arguments.task, lock)
    folders = {prepare.data_folder(job.data, environ).path for job in jobs}
    if arguments.data is None and len(folders) > 1:
        raise JobError(f"data: several data folders, {', '.join(map(str, sorted(folders)))}; choose one with --data")
    if arguments.data is not None or not folders:
        folders = {prepare.data_folder(arguments.data, environ).path}
    folder = DataFolder(path=folders.pop())
    if not tasks and not jobs:
        return _Choice(folder=folder, hub=lock.hub, tree=lock.tree)
    hub = tuple(one for one in lock.hub if tasks & set(one.tasks))
    return _Choice(folder=folder, hub=hub, tree=tuple(one for one in lock.tree if one.task in tasks))


def _refuse_unknown(tasks: Iterable[str], lock: DataLock) -> None:
    known = {task for one in lock.hub for task in one.tasks} | {one.task for one in lock.tree}
    for task in tasks:
        if task not in known:
            raise JobError(f"--task: {task}: is not in {FILE_NAME}; its tasks are {', '.join(sorted(known))}")


def fetch(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Fills the data folder; the first failure decides the exit code, the others are told before it."""
    from entrypoint.data_fetch import Hub
    from entrypoint.data_fill import fill

    choice = _choice(arguments, environ)
    if not choice.hub:
        print("nothing to fetch: the data of these tasks comes with the benchmark source")
        return 0
    filled = fill(choice.hub, choice.folder, lambda: Hub.of(environ), _Lines(quiet=arguments.log_level == "error"))
    for one in filled.pinned:
        print(f"newly pinned: {one.title} at {one.revision}")
    if arguments.pin and filled.entries:
        file = prepare.lock_file(environ)
        write_atomic(file, pinned(file.read_text(encoding="utf-8"), filled.entries).encode())
        print(f"written: {file}")
    elif filled.pinned:
        print(f"these revisions are known in {choice.folder.lock_file} only; --pin writes them into {FILE_NAME}")
    print(f"{choice.folder.path}: {len(filled.entries)} of {len(choice.hub)} data sets are whole")
    if filled.failures:
        for failure in filled.failures[1:]:
            print(f"evalcrate: {failure}", file=sys.stderr)
        raise filled.failures[0]
    return 0


def verify(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Exit 0 when everything is whole, MachineError when something is not."""
    choice = _choice(arguments, environ)
    rows = [*_hub_rows(choice), *_tree_rows(choice, environ)]
    bad = [row for row in rows if not row["whole"]]
    if arguments.json:
        print(json.dumps({"folder": str(choice.folder.path), "data": rows}, indent=2))
    else:
        print(_table(rows))
    if not bad:
        return 0
    names = ", ".join(dict.fromkeys(task for row in bad for task in row["tasks"]))
    ways = {
        "hub": f"`evalcrate data fetch --data {choice.folder.path}`",
        "tree": "`evalcrate sources`",
    }
    needed = " and ".join(way for kind, way in ways.items() if any(row["kind"] == kind for row in bad))
    raise MachineError(f"data: {choice.folder.path}: not whole for {names}; run {needed}")


def _hub_rows(choice: _Choice) -> list[dict[str, Any]]:
    held = choice.folder.read()
    rows = []
    for one in choice.hub:
        state = data_state(one, choice.folder, held.entry(one.key))
        words = state.words
        wrong = [] if state.held is None else [file.path for _, file in damaged([state.held], choice.folder)]
        if wrong:
            words = f"altered: content differs: {', '.join(wrong)}"
        whole = state.held is not None and not wrong
        revision = one.revision if state.held is None else state.held.revision
        rows.append(_row("hub", one.tasks, one.title, whole, words) | {"revision": revision, "gated": one.gated})
    return rows


def _tree_rows(choice: _Choice, environ: Mapping[str, str]) -> list[dict[str, Any]]:
    tree = source.find_tree(prepare.root() / "patches/evalchemy", source.cache_root(environ)) if choice.tree else None
    rows = []
    for one in choice.tree:
        words = _tree_words(one, tree)
        rows.append(_row("tree", (one.task,), one.path, words == _in_tree(one), words))
    return rows


def _row(kind: str, tasks: Iterable[str], data: str, whole: bool, state: str) -> dict[str, Any]:
    return {"kind": kind, "tasks": list(tasks), "data": data, "whole": whole, "state": state}


def _tree_words(one: TreeData, tree: Path | None) -> str:
    if tree is None:
        return "absent: the benchmark source is not on this machine"
    file = tree / one.path
    if sha256_of(file) != one.sha256:
        return "altered: content differs" if file.exists() else "absent"
    rows = count_rows(file, "json")
    return _in_tree(one) if rows == one.rows else f"altered: {rows} rows, {one.rows} wanted"


def _in_tree(one: TreeData) -> str:
    return f"in the source tree ({one.rows:,} rows)"


def _table(rows: Iterable[Mapping[str, Any]]) -> str:
    cells = [("task", "data", "state"), *((", ".join(r["tasks"]), r["data"], r["state"]) for r in rows)]
    widths = [max(len(row[n]) for row in cells) for n in range(3)]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells)


@dataclass(slots=True)
class _Lines:
    """Progress on stderr: a live line on a terminal, a line every ten seconds and at each file's end elsewhere."""

    quiet: bool
    out: TextIO = field(default_factory=lambda: sys.stderr)
    name: str = ""
    size: int = 0
    done: int = 0
    resumed: int = 0
    started: float = 0.0
    last: float = 0.0

    def note(self, text: str) -> None:
        if not self.quiet:
            print(text, file=self.out, flush=True)

    def begin(self, name: str, size_bytes: int) -> None:
        self.name, self.size, self.done, self.resumed = name, size_bytes, 0, -1
        self.started = self.last = monotonic()

    def arrived(self, count_bytes: int) -> None:
        """The first call of a file tells what was there before."""
        self.done += count_bytes
        self.resumed = self.done if self.resumed < 0 else self.resumed
        period = 0.2 if self.out.isatty() else _LINE_PERIOD_S
        if not self.quiet and monotonic() - self.last >= period:
            self.last = monotonic()
            print(f"\r\x1b[2K{self._text()}" if self.out.isatty() else self._text(), file=self.out, flush=True, end="")
            print("" if self.out.isatty() else "\n", file=self.out, flush=True, end="")

    def end(self) -> None:
        clear = "\r\x1b[2K" if self.out.isatty() else ""
        self.note(f"{clear}{self._text()}")

    def _text(self) -> str:
        """`openai/gsm8k main/train.parquet: 1.2 of 2.3 MB, 1.1 MB/s, about 0:01 left`."""
        spent = monotonic() - self.started
        fresh = max(self.done - self.resumed, 0)
        text = f"{self.name}: {self.done / 1e6:,.1f} of {self.size / 1e6:,.1f} MB"
        if self.resumed > 0:
            text += f" ({self.resumed / 1e6:,.1f} from before)"
        if not fresh or spent <= 0:
            return text
        left = (self.size - self.done) / (fresh / spent)
        eta = f", about {int(left) // 60}:{int(left) % 60:02d} left" if self.done < self.size else ""
        return f"{text}, {fresh / spent / 1e6:,.1f} MB/s{eta}"
