"""Read a YAML file so that no value is silently something else than the person who wrote it meant.

In: a file or text that a person wrote. Out: plain values with the place of every key, or a JobError of
one paragraph that names file, line, key and value. It is YAML 1.2; what a YAML 1.1 reader takes for
something else is refused, and so are tags and aliases.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML, events
from ruamel.yaml.error import MarkedYAMLError

from entrypoint.errors import JobError

MAX_BYTES = 1_000_000
MAX_DEPTH = 20
MAX_VALUES = 20_000

Key = tuple[str | int, ...]

ABSENT: Any = object()
_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,39})|0x[0-9a-fA-F]{1,32}")
_FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+][0-9]{1,2})?")
_EXPONENT = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)[eE](?P<power>[-+]?[0-9]+)")
_QUOTE = "if it is text, put it in quotes"
# Where YAML 1.1 (https://yaml.org/type/) and the core schema of YAML 1.2.2 (chapter 10.3) disagree.
_SURPRISES = (
    (r"(?i)y|yes|on", f"some YAML readers take it for true; write true, or {_QUOTE}"),
    (r"(?i)n|no|off", f"some YAML readers take it for false; write false, or {_QUOTE}"),
    (r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?", f"some YAML readers count it in sixties; {_QUOTE}"),
    (r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt \t].*)?", "some YAML readers make a date of it; put it in quotes"),
    (r"[-+]?(?=[0-9.]*_)[0-9.][0-9_.]*([eE][-+]?[0-9]+)?",
     f"some YAML readers drop the underscores; write the digits alone, or {_QUOTE}"),
    (r"[-+]?(0[0-9]+|0o[0-7]+|0b[01]+)",
     f"some YAML readers take it for octal or binary; write a decimal number, or {_QUOTE}"),
    (r"(?i)[-+]?\.(inf|nan)", "not a finite number; write a finite one"),
    (r"[-+]?[0-9]{41,}|0x[0-9a-fA-F]{33,}", f"too long for a number; {_QUOTE}"),
    (r"=|<<", f"some YAML readers give it a special meaning; {_QUOTE}"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """Plain values and the place (`FILE:LINE`) of every key; key `()`, the file, is always there."""

    data: Any
    places: Mapping[Key, str]

    def refusal(self, key: Key, what: str, *, show_value: bool = True) -> JobError:
        """`FILE:LINE: key.path: VALUE: what`, with the place of the nearest key that has one."""
        place = next(self.places[key[:n]] for n in range(len(key), -1, -1) if key[:n] in self.places)
        value = value_at(self.data, key)
        what = f"{shown(value)}: {what}" if key and show_value and value is not ABSENT else what
        return refused(place, what, key)


def refused(place: str, what: str, key: Key = ()) -> JobError:
    """One paragraph, whatever characters a path or a quoted value holds."""
    text = ": ".join(filter(None, (place, dotted(key), what)))
    return JobError("".join(c if c.isprintable() else ascii(c)[1:-1] for c in text))


def read_file(path: Path) -> Document:
    """The one document in `path`; JobError unless it is a small UTF-8 file of `key: value` lines."""
    name = str(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise refused(name, "no such file; check the path") from None
    except IsADirectoryError:
        raise refused(name, "is a directory; give the path of a file in it") from None
    except (OSError, ValueError) as error:
        raise refused(name, f"can't be read ({getattr(error, 'strerror', error)}); check the path") from None
    if len(raw) > MAX_BYTES:
        raise refused(name, f"is larger than {MAX_BYTES} bytes, so not a file of this kind; check the path")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise refused(f"{name}:{line}", "is not UTF-8 text; save the file as UTF-8") from None
    document = read_text(text, name)
    if document.data is None:
        raise refused(name, "is empty; write at least one `key: value` line")
    if not isinstance(document.data, dict):
        raise refused(name, "has no `key: value` lines at its top level; start with one")
    return document


def read_text(text: str, name: str, *, with_lines: bool = True) -> Document:
    """The one document in `text` (None when there is none); `name` opens every error and every place."""
    parser = YAML(typ="safe", pure=True)
    parser.version = "1.2"
    reader = _Reader(name=name, with_lines=with_lines, stream=iter(parser.parse(text)))
    return Document(data=reader.document(), places=reader.places)


def dotted(key: Key) -> str:
    """A key as people write it: `tasks[1].seeds`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).removeprefix(".")


def value_at(data: Any, key: Key) -> Any:
    """What stands at `key`, or ABSENT."""
    for part in key:
        try:
            data = data[part]
        except (LookupError, TypeError):
            return ABSENT
    return data


@dataclass(kw_only=True, slots=True)
class _Reader:
    """Turns parser events into plain values; its recursion is bounded by MAX_DEPTH."""

    name: str
    with_lines: bool
    stream: Iterator[Any]
    line: int = 0
    count: int = 0
    places: dict[Key, str] = field(default_factory=dict)

    def place(self) -> str:
        return f"{self.name}:{self.line + 1}" if self.with_lines else self.name

    def next(self) -> Any:
        try:
            event = next(self.stream)
        except Exception as error:
            # Not only YAMLError: on some malformed texts the parser itself trips, as over a "\UFFFFFFFF".
            mark = error.problem_mark or error.context_mark if isinstance(error, MarkedYAMLError) else None
            self.line = mark.line if mark else self.line
            reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "it can't be parsed"
            what = f"is not YAML ({' '.join(str(reason).split())}); look on and above this line"
            raise refused(self.place(), what) from None
        self.line = event.start_mark.line
        return event

    def document(self) -> Any:
        """The value of the one document; None when there is none."""
        self.places[()] = self.name
        found, value = False, None
        while not isinstance(event := self.next(), events.StreamEndEvent):
            if not isinstance(event, events.DocumentStartEvent):
                continue
            if found:
                raise refused(self.place(), "a second document starts here; keep to one document")
            if event.tags or event.version not in (None, (1, 2)):
                raise refused(self.place(), "a % directive; delete it, the file is read as YAML 1.2")
            found, value = True, self.value(self.next(), ())
        return value

    def value(self, event: Any, key: Key) -> Any:
        """The value that begins with `event` and stands at `key`."""
        self.count += 1
        if getattr(event, "anchor", None):
            raise refused(self.place(), "anchors (&) and aliases (*) are not read; write the value out", key)
        if getattr(event, "tag", None):
            raise refused(self.place(), "tags (!) are not read; write the value without one", key)
        if self.count > MAX_VALUES or len(key) > MAX_DEPTH:
            what = f"more than {MAX_VALUES} values or {MAX_DEPTH} levels; write less, or check the path"
            raise refused(self.place(), what)
        if isinstance(event, events.ScalarEvent):
            return self.quoted(event.value, key) if event.style else self.plain(event.value, key)
        return self.sequence(key) if isinstance(event, events.SequenceStartEvent) else self.mapping(key)

    def sequence(self, key: Key) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := self.next(), events.SequenceEndEvent):
            at = (*key, len(items))
            self.places[at] = self.place()
            items.append(self.value(event, at))
        return items

    def mapping(self, key: Key) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        while not isinstance(event := self.next(), events.MappingEndEvent):
            name = self.value(event, key) if isinstance(event, events.ScalarEvent) else None
            if not isinstance(name, str):
                given = f"{cut(event.value)}: " if isinstance(event, events.ScalarEvent) else ""
                raise refused(self.place(), f"{given}a key must be text; put it in quotes", key)
            at = (*key, name)
            if at in self.places:
                raise refused(self.place(), f"duplicate key, first at {self.places[at]}; keep one of them", at)
            self.places[at] = self.place()
            entries[name] = self.value(self.next(), at)
        return entries

    def quoted(self, text: str, key: Key) -> str:
        """The text of a quoted or block scalar; JSON writes characters beyond U+FFFF as two escapes."""
        try:
            whole = text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            whole = "\0"
        if "\0" in whole:
            raise refused(self.place(), "holds a character that no file can; delete it", key)
        return whole

    def plain(self, text: str, key: Key) -> Any:
        """The value of an unquoted scalar; refused when YAML readers differ on what it is."""
        if text in _WORDS:
            return _WORDS[text]
        for pattern, what in _SURPRISES:
            if re.fullmatch(pattern, text):
                raise refused(self.place(), f"{cut(text)}: {what}", key)
        if _INT.fullmatch(text):
            return int(text, 0)
        if _FLOAT.fullmatch(text):
            return float(text)
        exponent = _EXPONENT.fullmatch(text)
        if exponent:
            short = abs(int(exponent["power"][:9])) < 20
            number = format(Decimal(text[:40]), "f") if short else "a number of ordinary size"
            what = f"some YAML readers take it for text; write {number}, or {_QUOTE}"
            raise refused(self.place(), f"{cut(text)}: {what}", key)
        return text


def cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"


def shown(value: Any) -> str:
    """A value as an error quotes it: text in quotes, so that "3" and 3 differ."""
    if isinstance(value, (str, int, float, bool, list, dict)) or value is None:
        return cut(json.dumps(value, ensure_ascii=False, default=repr, skipkeys=True))
    return cut(repr(value))
