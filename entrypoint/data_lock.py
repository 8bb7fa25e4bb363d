"""data.lock.yaml: which files of which revision a task's questions are.

In: the program's lock, or the one of a data folder (the same format, with everything fetched). Out: a DataLock; a
digest that is the same wherever the files lie; the text of a lock. Nothing here looks at the files themselves.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from entrypoint.field import Lax, Line, Lines, Name, RuleError, Section, checked
from entrypoint.record import digest
from entrypoint.yaml_file import read_file

FILE_NAME = "data.lock.yaml"
_HEAD = "# What this data folder holds; written by `evalcrate data fetch`.\n"

Revision = Annotated[str, Field(pattern="^[0-9a-f]{40}$")]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Amount = Annotated[int, Field(ge=0)]  # files of data sets pass the 2 GiB that other numbers keep to


class LockedFile(Section):
    """A file of a data set's repository, null until fetched but for its path; or one at a plain `url`, known in full.

    `rows` of an archive are its members.
    """

    path: Line
    url: Annotated[str, Field(pattern="^https?://")] | None = None
    sha256: Sha256 | None = None
    bytes: Amount | None = None
    rows: Amount | None = None


class Split(Section):
    """`files` in the order of their rows; null: those that the `datasets` library takes for the split."""

    rows: Amount | None
    files: Annotated[tuple[LockedFile, ...], Lax, Field(min_length=1)] | None


class HubData(Section):
    """One configuration of a hub data set, and the tasks that read it; or a resource of files with a `url` each."""

    id: Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$")]
    config: Name | None
    format: Literal["parquet", "csv", "json", "zip"]
    tasks: Lines
    gated: bool
    revision: Revision | None
    splits: Annotated[dict[Name, Split], Field(min_length=1)]

    @model_validator(mode="after")
    def _urls_are_pinned(self) -> HubData:
        for name, split in self.splits.items():
            for n, file in enumerate(split.files or ()):
                if file.url is not None and None in (self.revision, file.sha256, file.bytes):
                    raise RuleError("needs a revision, a sha256 and bytes beside it", "splits", name, "files", n, "url")
        return self

    @property
    def key(self) -> tuple[str, str | None]:
        return self.id, self.config

    @property
    def title(self) -> str:
        """`Idavidrein/gpqa gpqa_diamond`."""
        return self.id if self.config is None else f"{self.id} {self.config}"

    @property
    def licence_page(self) -> str:
        return f"https://huggingface.co/datasets/{self.id}"

    @property
    def files(self) -> tuple[LockedFile, ...]:
        """All files of all splits, as far as they are known."""
        return tuple(file for split in self.splits.values() for file in split.files or ())

    @property
    def is_fetched(self) -> bool:
        """Whether nothing is open any more: the revision and the sha256, size and rows of every file."""
        known = all(None not in (file.sha256, file.bytes, file.rows) for file in self.files)
        return self.revision is not None and known and all(split.files for split in self.splits.values())


class TreeData(Section):
    """A data file that comes with the pinned evalchemy tree; `path` from the tree's root."""

    task: Name
    path: Line
    sha256: Sha256
    rows: Amount


class DataLock(Section):
    """All data sets; the entries of one id share one revision."""

    version: Literal[1] = Field(alias="schema")
    hub: Annotated[tuple[HubData, ...], Lax]
    tree: Annotated[tuple[TreeData, ...], Lax] = ()

    @model_validator(mode="after")
    def _agrees(self) -> DataLock:
        revisions: dict[str, str | None] = {}
        for n, one in enumerate(self.hub):
            if one.key in [other.key for other in self.hub[:n]]:
                raise RuleError(f"{one.title} is listed twice; keep one of the two", "hub", n, "id")
            if revisions.setdefault(one.id, one.revision) != one.revision:
                raise RuleError(f"{one.id} has another revision above; give both the same", "hub", n, "revision")
        return self

    def of_task(self, task: str) -> tuple[HubData, ...]:
        """The hub data sets that a task reads."""
        return tuple(one for one in self.hub if task in one.tasks)

    def in_tree(self, task: str) -> tuple[TreeData, ...]:
        """The files of the pinned tree that a task reads."""
        return tuple(one for one in self.tree if one.task == task)

    def entry(self, key: tuple[str, str | None]) -> HubData | None:
        return next((one for one in self.hub if one.key == key), None)

    def with_entries(self, entries: Iterable[HubData]) -> DataLock:
        """The lock with these in place of the ones of the same id and config, new ones at the end.

        An entry of the same id but another revision can't stay beside them, and is left out.
        """
        new = {one.key: one for one in entries}
        revisions = {one.id: one.revision for one in new.values()}
        kept = [new.pop(one.key, one) for one in self.hub]
        kept = [one for one in kept if revisions.get(one.id, one.revision) == one.revision]
        return DataLock(schema=1, hub=(*kept, *new.values()), tree=self.tree)


def empty_lock() -> DataLock:
    return DataLock(schema=1, hub=())


def read_lock(path: Path) -> DataLock:
    """The lock in `path`; JobError names the line and key that is wrong."""
    return checked(DataLock, read_file(path))


def digest_of(entries: Iterable[HubData]) -> str:
    """What a task's questions are, from contents alone: the same on every machine; "" for no data set."""
    values = [
        [one.id, one.config, {name: [f.sha256 for f in split.files or ()] for name, split in one.splits.items()}]
        for one in entries
    ]
    return digest(values) if values else ""


def dumps(lock: DataLock) -> str:
    """A lock as YAML text."""
    values = lock.model_dump(by_alias=True)
    for item, entry in zip(values["hub"], lock.hub, strict=True):
        for name, split in entry.splits.items():
            item["splits"][name]["files"] = None if split.files is None else [_values(file) for file in split.files]
    return _HEAD + _text(_quoted(values))


def pinned(text: str, entries: Iterable[HubData]) -> str:
    """The text of a lock with what was fetched written into it; its comments stay."""
    yaml = _yaml()
    document = yaml.load(text)
    new = {one.key: one for one in entries}
    for item in document["hub"]:
        entry = new.get((item["id"], item["config"]))
        if entry is None:
            continue
        item["revision"] = _quoted(entry.revision)
        for name, split in entry.splits.items():
            _write_split(item["splits"][name], split)
    return _text(document)


def _write_split(written: CommentedMap, split: Split) -> None:
    """The facts of a split in place; the comment that follows its files still follows them."""
    old = written["files"]
    last = old[-1] if isinstance(old, list) else written
    end = next(reversed(last)) if isinstance(old, list) else "files"
    comment = last.ca.items.pop(end, None)
    files = [CommentedMap(_quoted(_values(file))) for file in split.files or ()]
    if comment is not None:
        files[-1].ca.items[next(reversed(files[-1]))] = comment
    written["rows"], written["files"] = split.rows, files


def _values(file: LockedFile) -> dict[str, Any]:
    """A file's facts as the lock writes them: `url` where there is one."""
    return file.model_dump(exclude={"url"} if file.url is None else None)


def _text(values: Any) -> str:
    out = io.StringIO()
    _yaml().dump(values, out)
    return out.getvalue()


def _yaml() -> YAML:
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 10_000
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.representer.add_representer(type(None), _null)
    return yaml


def _null(representer: Any, _: None) -> Any:
    """`null` in words, as people write it in this file."""
    return representer.represent_scalar("tag:yaml.org,2002:null", "null")


def _quoted(value: Any) -> Any:
    """Text in quotes: forty digits and an `e` are a number to some YAML readers."""
    if isinstance(value, str):
        return DoubleQuotedScalarString(value)
    if isinstance(value, Mapping):
        return {name: _quoted(inner) for name, inner in value.items()}
    return [_quoted(inner) for inner in value] if isinstance(value, list | tuple) else value
