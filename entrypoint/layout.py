"""Every path of a result folder, and the only way files are written: whole or not at all.

In: results root, experiment, step, limit, model name. Out: paths. The shape is read by other people's programs,
so nothing here may be "improved".
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_COMPONENT_BYTES = 255
_MAX_INT_DIGITS = 4300  # CPython's limit for int <-> str; other readers refuse such numbers as well
_ILLEGAL = re.compile(r'["<>:/\\|?*\[\]]+')  # the characters lm-eval replaces in model folder names


def component(name: str) -> str:
    """`name` as one path component of at most 255 bytes: a longer one becomes a readable head plus a digest."""
    raw = name.encode()
    if len(raw) <= _COMPONENT_BYTES:
        return name
    tail = "-" + hashlib.sha256(raw).hexdigest()[:16]
    return raw[: _COMPONENT_BYTES - len(tail)].decode(errors="ignore") + tail


def model_folder(name: str) -> str:
    """The `<model>` folder: every run of characters that lm-eval finds illegal becomes `__`."""
    return component(_ILLEGAL.sub("__", name))


def short_hash(*parts: str) -> str:
    """First 6 hex digits of md5 over the parts joined with NUL: stable, so that re-runs land in the same folder."""
    return hashlib.md5("\0".join(parts).encode(), usedforsecurity=False).hexdigest()[:6]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Paths of one evaluation (`<results>/<experiment>-step<N>[-limit<M>]/…`)."""

    results: Path
    experiment: str
    step: int | None
    limit: int | None
    model: str

    @property
    def root(self) -> Path:
        step = "" if self.step is None else f"-step{self.step}"
        limit = "" if self.limit is None else f"-limit{self.limit}"
        return self.results / component(f"{self.experiment}{step}{limit}")

    @property
    def work(self) -> Path:
        return self.root / "_work"

    def _hash(self, task: str, last: str) -> str:
        return short_hash(self.experiment, "" if self.step is None else str(self.step), task, last)

    def seed_dir(self, task: str, seed: int) -> Path:
        return self.root / component(f"{task}_seed{seed}-{self._hash(task, str(seed))}")

    def model_dir(self, task: str, seed: int, num_fewshot: int) -> Path:
        """Holds exactly one `results_<iso>.json`."""
        return self.seed_dir(task, seed) / component(f"{task}_{num_fewshot}shot") / model_folder(self.model)

    def compile_dir(self, task: str, num_seeds: int) -> Path:
        name = component(f"compile_{task}_avg{num_seeds}seeds-{self._hash(task, 'compile')}")
        return self.root / name / "compiled_results"

    def marker(self, task: str) -> Path:
        return self.root / "_markers" / f"{task}.complete.json"

    def requests_dir(self, task: str) -> Path:
        return self.work / "requests" / task

    def requests(self, task: str, seed: int) -> Path:
        return self.requests_dir(task) / f"seed{seed}.jsonl"

    def chats(self, task: str) -> Path:
        """How each chat of a task reads as text, so that grading needs no tokenizer."""
        return self.requests_dir(task) / "chats.jsonl"

    def collected(self, task: str) -> Path:
        """What collect found out about a task (template, counts) and under which inputs: written after the requests."""
        return self.requests_dir(task) / "collect.json"

    @property
    def generations(self) -> Path:
        return self.work / "generations"

    def graded(self, task: str, seed: int) -> Path:
        return self.work / "graded" / task / f"seed{seed}.json"

    @property
    def logs(self) -> Path:
        return self.work / "logs"

    @property
    def stale(self) -> Path:
        return self.work / "stale"

    @property
    def plan_file(self) -> Path:
        return self.work / "plan.json"

    @property
    def provenance(self) -> Path:
        return self.work / "provenance.json"

    @property
    def speed(self) -> Path:
        """How fast the last run that generated something was, for plans to come."""
        return self.work / "speed.json"

    @property
    def results_json(self) -> Path:
        return self.root / "results.json"

    @property
    def summary(self) -> Path:
        return self.root / "summary.md"


def printable(value: Any) -> Any:
    """`value` with every integer of more than 4300 digits as a string (such an integer kills json and its readers)."""
    if isinstance(value, dict):
        return {str(k): printable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [printable(v) for v in value]
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 14_000:
        return _long_decimal(value)
    return value


def _long_decimal(value: int) -> int | str:
    """Decimal text of a huge integer, made in chunks that stay below CPython's conversion limit."""
    if abs(value) < 10**_MAX_INT_DIGITS:
        return value
    chunk, rest, parts = 10**4000, abs(value), []
    while rest:
        rest, low = divmod(rest, chunk)
        parts.append(str(low) if not rest else str(low).zfill(4000))
    return ("-" if value < 0 else "") + "".join(reversed(parts))


def dumps(value: Any) -> bytes:
    """Strict JSON as all our files have it: UTF-8, two-space indent, one newline at the end; ValueError on NaN."""
    text = json.dumps(printable(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode("utf-8", "backslashreplace")


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: temp name in the same folder, fsync, rename, fsync of the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = path.with_name(f".{path.name[:40]}.{secrets.token_hex(6)}.tmp")
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(fd, "wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        temp.replace(path)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, dumps(value))


def read_json(path: Path) -> Any | None:
    """The file's value, or None when it is absent, cut in half or not JSON: such a file counts as not there."""
    try:
        return json.loads(path.read_bytes(), parse_constant=_refuse_constant)
    except (OSError, ValueError, RecursionError):
        return None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
