"""What contradicts the plan or is about to stop being true -> `_work/stale/<n>/`, never deleted.

In: a file or folder of the result folder, or a task's name. Out: the same below `stale`, with names that no reader
globs.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from pathlib import Path

from entrypoint.layout import Layout, component

STALE_PREFIX = "stale-"  # before file names, so that nothing under _work matches a reader's `results_*.json`


def retire(layout: Layout, path: Path) -> None:
    """Move a file or folder to `_work/stale/<n>/…`; a folder's files are renamed first, in the old place."""
    target = _slot(layout) / path.relative_to(layout.root)
    if path.is_dir():
        for file in [p for p in path.rglob("*") if p.is_file() and not p.name.startswith(STALE_PREFIX)]:
            file.rename(file.with_name(component(STALE_PREFIX + file.name)))
    elif not path.name.startswith(STALE_PREFIX):
        target = target.with_name(component(STALE_PREFIX + path.name))
    target.parent.mkdir(parents=True, exist_ok=True)
    path.rename(target)


def withdraw_claims(layout: Layout, task: str) -> None:
    """Take away the report, the marker, then every average of the task: what they say is about to stop being true.

    The report (of all tasks) is written anew at the end of a run; one that is killed before must not leave the old.
    """
    for path in (layout.results_json, layout.summary, layout.marker(task)):
        if path.exists():
            with contextlib.suppress(FileNotFoundError):  # tasks settle at the same time; one of them is first
                retire(layout, path)
    for entry, seed in task_folders(layout, task):
        if seed is None:
            retire(layout, entry)


def task_folders(layout: Layout, task: str) -> list[tuple[Path, int | None]]:
    """The seed folders (with their seed) and compile folders (with None) of a task, in name order."""
    name = re.escape(task)
    shape = re.compile(rf"{name}_seed(\d+)-[0-9a-f]{{6}}|compile_{name}_avg\d+seeds-[0-9a-f]{{6}}")
    found = [(path, shape.fullmatch(path.name)) for path in sorted(layout.root.glob("*"))]
    return [(path, int(match[1]) if match[1] else None) for path, match in found if match]


def _slot(layout: Layout) -> Path:
    """A new folder of its own: tasks settle at the same time, and nothing in `stale` is ever overwritten."""
    for number in itertools.count(1):
        slot = layout.stale / str(number)
        with contextlib.suppress(FileExistsError):
            slot.mkdir(parents=True)
            return slot
    raise AssertionError("itertools.count ended")
