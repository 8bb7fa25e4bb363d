"""Does the patch series hold together: every patch applies, says what it must of itself, and is needed.

In: the patches folder, the program's root (whose tests the patches name), the pristine source or None. Out: a Verdict
per patch and what is wrong with the folder. Nothing is mended, and the source is not changed.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from entrypoint import source
from entrypoint.errors import EvalcrateError

MAX_CHANGED_LINES = 60
FIELDS = ("Origin", "Forwarded", "Test", "Drop-When", "Last-Update", "Scores")
_OPENING = "From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n"
_MAY_CHANGE = "can change scores"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """One patch: `changed` counts its added and removed lines, `scores` is its header's word on them."""

    name: str
    changed: int
    scores: str
    faults: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """`faults`: of the folder as a whole. `unchecked`: what could not be looked at here, and why."""

    verdicts: tuple[Verdict, ...]
    faults: tuple[str, ...]
    unchecked: tuple[str, ...]

    @property
    def all_faults(self) -> tuple[str, ...]:
        return (*self.faults, *(f"{one.name}: {fault}" for one in self.verdicts for fault in one.faults))


def check(patches_dir: Path, root: Path, pristine: Path | None) -> Check:
    """Everything that can be checked with what is there."""
    names = source.read_series(patches_dir)
    there = [name for name in dict.fromkeys(names) if (patches_dir / name).is_file()]
    texts = {name: (patches_dir / name).read_text(encoding="utf-8") for name in there}
    upstream = source.read_upstream(patches_dir)
    applied = {} if pristine is None else _applied(patches_dir, there, pristine)
    tests = root / "tests" if (root / "tests").is_dir() else None
    added: set[str] = set()
    verdicts = []
    for name, text in texts.items():
        faults = [*_header_faults(text), *_test_faults(text, tests), *_size_faults(text)]
        faults += _path_faults(text, upstream, added)
        faults += [applied[name]] if applied.get(name) else []
        added |= set(re.findall(r"^--- /dev/null\n\+\+\+ b/(\S+)$", text, re.MULTILINE))
        scores = (_field(text, "Scores") or "").partition(" (")[0]
        verdicts.append(Verdict(name=name, changed=_changed(text), scores=scores, faults=tuple(faults)))
    unchecked = []
    if pristine is None:
        unchecked.append(f"that the patches apply: the source is not on this machine; {source.HOW_TO_GET}")
    if tests is None:
        unchecked.append(f"that the tests which the patches name exist: {root} has no tests folder")
    return Check(verdicts=tuple(verdicts), faults=tuple(_folder_faults(patches_dir, names)), unchecked=tuple(unchecked))


def _folder_faults(patches_dir: Path, names: Sequence[str]) -> Iterator[str]:
    """series and folder name the same files, each once, numbered in their order."""
    files = {file.name for file in patches_dir.glob("*.patch")}
    for name in sorted(files - set(names)):
        yield f"{name}: is not in series; add it there, or delete it"
    for number, name in enumerate(names, start=1):
        if name not in files:
            yield f"{name}: is in series, but there is no such file"
        if name in names[: number - 1]:
            yield f"{name}: is in series twice"
        if not name.startswith(f"{number:04}-"):
            yield f"{name}: is patch {number} of series; its name opens with another number"


def _applied(patches_dir: Path, names: Sequence[str], pristine: Path) -> dict[str, str]:
    """Why a patch does not apply after those before it, by name; what follows the first such is not tried."""
    with tempfile.TemporaryDirectory(prefix="evalcrate-patches-") as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(pristine, tree, ignore=shutil.ignore_patterns("__pycache__"))
        for number, name in enumerate(names):
            try:
                source.apply_patch(patches_dir / name, tree)
            except EvalcrateError as error:
                why = str(error).partition(f"{name}: ")[2]
                return {name: why, **dict.fromkeys(names[number + 1 :], "not tried, a patch before it fails")}
    return {}


def _header_faults(text: str) -> Iterator[str]:
    if not text.startswith(_OPENING):
        yield "opens with a commit's id; export it with git format-patch --zero-commit"
    if not re.search(r"^Date: \w{3}, \d{1,2} \w{3} \d{4} 12:00:00 \+0000$", text, re.MULTILINE):
        yield "Date: is not noon UTC of a day, so that it tells when and where somebody worked"
    if not re.search(r"^From: evalcrate <evalcrate@localhost>$", text, re.MULTILINE):
        yield "From: is not evalcrate <evalcrate@localhost>"
    for name in FIELDS:
        if _field(text, name) is None:
            yield f"{name}: is missing or empty"
    if not _reason(text):
        yield "says neither what it does nor why, between Subject and Origin"
    if (day := _field(text, "Last-Update")) is not None and not _is_day(day):
        yield f"Last-Update: {day}: is not a day, as 2026-01-31"
    yield from _scores_faults(text)


def _scores_faults(text: str) -> Iterator[str]:
    told, subject = _field(text, "Scores") or "", _subject(text)
    if told and told != "unchanged" and not re.fullmatch(r"may change \(.+\)", told):
        yield f"Scores: {told}: is neither `unchanged` nor `may change (why)`"
    if told.startswith("may change") != (_MAY_CHANGE in subject):
        yield f"Subject and Scores disagree: a subject says `({_MAY_CHANGE})` just when Scores says `may change`"


def _test_faults(text: str, tests: Path | None) -> Iterator[str]:
    """Test names a test file, or a test in one, from the program's root."""
    told = _field(text, "Test")
    if told is None or tests is None:
        return
    for one in re.split(r"[,\s]+", told):
        file, _, function = one.partition("::")
        path = tests.parent / file
        if not path.is_file() or not path.is_relative_to(tests) or ".." in path.parts:
            yield f"Test: {one}: there is no such file under tests/"
        elif function and not re.search(
            rf"^(?:async )?def {re.escape(function)}\(", path.read_text("utf-8"), re.MULTILINE
        ):
            yield f"Test: {one}: the file has no such test"


def _size_faults(text: str) -> Iterator[str]:
    changed = _changed(text)
    if changed > MAX_CHANGED_LINES:
        yield f"changes {changed} lines, more than {MAX_CHANGED_LINES}; split it by purpose"
    if not changed:
        yield "changes nothing"


def _path_faults(text: str, upstream: source.Upstream, added: set[str]) -> Iterator[str]:
    """A patch changes pinned paths, or files that it or one before it adds."""
    pinned = [path for path, _ in upstream.paths]
    for old, new in re.findall(r"^--- (\S+)\n\+\+\+ (\S+)$", text, re.MULTILINE):
        path = (new if old == "/dev/null" else old).partition("/")[2]
        known = path in added or any(path == one or path.startswith(f"{one}/") for one in pinned)
        if not known and (old != "/dev/null" or not path.startswith("eval/")):
            yield f"{path}: is a path that UPSTREAM does not list, so that it is never fetched"


def _changed(text: str) -> int:
    """Added and removed lines, those of the hunks only."""
    lines = re.sub(r"^--- \S+\n\+\+\+ \S+\n", "", _diff(text), flags=re.MULTILINE).split("\n")
    return sum(line[:1] in ("+", "-") for line in lines if line != "-- ")


def _diff(text: str) -> str:
    start = text.find("\ndiff --git ")
    return text[start + 1 :] if start >= 0 else ""


def _head(text: str) -> str:
    return text.partition("\ndiff --git ")[0]


def _field(text: str, name: str) -> str | None:
    """A field's value, its continuation lines joined; None when absent, empty or given twice."""
    found = re.findall(rf"^{re.escape(name)}:[ \t]*(.*(?:\n[ \t]+\S.*)*)", _head(text), re.MULTILINE)
    value = " ".join(found[0].split()) if len(found) == 1 else ""
    return value or None


def _subject(text: str) -> str:
    return _field(text, "Subject") or ""


def _reason(text: str) -> str:
    """What stands between the header lines and the first field."""
    return re.split(r"^Origin:", _head(text).partition("\n\n")[2], maxsplit=1, flags=re.MULTILINE)[0].strip()


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False
