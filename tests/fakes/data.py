"""A data folder and a lock of small synthetic data, in place of what `data fetch` would bring from the hub.

In: data files by task (tests/fakes/hub_data.py writes some). Out: a folder that the program takes for whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from entrypoint import prepare
from entrypoint.data_folder import DataFolder
from entrypoint.data_lock import HubData, LockedFile, Split, dumps, read_lock
from entrypoint.data_rows import count_rows
from entrypoint.plan import DataFiles
from tests.fakes import hub_data

REVISION = "5e" * 20


def with_synthetic_data(monkeypatch: pytest.MonkeyPatch, folder: Path, *tasks: str) -> Path:
    """The data folder below `folder` with synthetic data of hub tasks; the program's lock asks for just that."""
    written = {task: hub_data.write(folder / "written" / task, task) for task in tasks}
    return install(monkeypatch, folder, written)


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, written: Mapping[str, DataFiles]) -> Path:
    """As above, from files that are written already."""
    data = DataFolder(path=folder / "data")
    data.files.mkdir(parents=True)
    entries = [_entry(task, files, data) for task, files in written.items()]
    lock = read_lock(prepare.root() / "data.lock.yaml")
    lock = lock.model_copy(update={"hub": ()}).with_entries(entries)
    data.lock_file.write_text(dumps(lock.model_copy(update={"tree": ()})))
    (folder / "data.lock.yaml").write_text(dumps(lock))
    monkeypatch.setenv("EVALCRATE_DATA_LOCK", str(folder / "data.lock.yaml"))
    return data.path


def _entry(task: str, written: DataFiles, data: DataFolder) -> HubData:
    splits = {}
    for name, paths in written.splits.items():
        files = tuple(_locked(Path(path), written.format, data) for path in paths)
        splits[name] = Split(rows=sum(file.rows or 0 for file in files), files=files)
    return HubData.model_validate(
        {
            "id": written.id,
            "config": written.config,
            "format": written.format,
            "tasks": [task],
            "gated": False,
            "revision": REVISION,
            "splits": splits,
        }
    )


def _locked(path: Path, file_format: str, data: DataFolder) -> LockedFile:
    content = path.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    data.file(sha256).write_bytes(content)
    return LockedFile(path=path.name, sha256=sha256, bytes=len(content), rows=count_rows(path, file_format))
