"""How fast a run generated and how long its answers were, so that plans to come can tell their time.

In: what a run did. Out: `_work/speed.json`, and the records of all runs under one results folder. No score and no
decision depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from entrypoint.layout import Layout, read_json, write_json
from entrypoint.plan import Placement

SCHEMA = 1
_SAME_SIZE = 0.01  # checkpoints of one training run differ in their headers only


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """How long the answers of a task were: `tokens` of `answers` together, each of `max_tokens` at most."""

    answers: int
    tokens: int
    max_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """What one run generated: `tokens` of `answers` in `seconds` from the first request on, after `start_seconds`.

    `setting` and `weights_bytes` are what its speed depends on. `tasks`: also with answers of runs before it.
    """

    setting: Mapping[str, Any]
    weights_bytes: int
    answers: int
    tokens: int
    seconds: float
    start_seconds: float
    tasks: Mapping[str, Lengths]

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    def is_of(self, placement: Placement, weights_bytes: int) -> bool:
        """Whether a run of this placement should be as fast: the same device, engine and batch, weights of one size."""
        near = abs(self.weights_bytes - weights_bytes) <= _SAME_SIZE * weights_bytes
        return near and self.setting == setting_of(placement)


def setting_of(placement: Placement) -> dict[str, Any]:
    """What decides the speed of an engine beside the checkpoint; the same on equal machines."""
    values = placement.values
    return {
        "device": placement.device,
        "engine": placement.engine.version,
        "engines": len(placement.engines),
        "tensor_parallel_size": values.get("tensor_parallel_size"),
        "max_open_requests": placement.engine.max_open_requests,
    }


def write_speed(layout: Layout, speed: Speed) -> None:
    write_json(layout.speed, {"schema": SCHEMA, **asdict(speed)})


def read_speeds(results: Path) -> tuple[Speed, ...]:
    """The records of the runs right under a results folder, in order of their names; what is no record is left out."""
    try:
        folders = sorted(folder for folder in results.iterdir() if not folder.name.startswith("."))
    except OSError:
        return ()
    return tuple(speed for folder in folders for speed in _read(folder / "_work/speed.json"))


def _read(file: Path) -> Iterator[Speed]:
    said = read_json(file)
    if not isinstance(said, dict) or said.pop("schema", None) != SCHEMA:
        return
    try:
        tasks = {str(name): Lengths(**lengths) for name, lengths in said.pop("tasks").items()}
        speed = Speed(**said, tasks=tasks)
    except (TypeError, KeyError, AttributeError):
        return
    counts = [speed.weights_bytes, speed.answers, speed.tokens, speed.start_seconds, speed.seconds]
    counts += [n for lengths in tasks.values() for n in (lengths.answers, lengths.tokens, lengths.max_tokens)]
    if all(isinstance(n, int | float) and n >= 0 for n in counts) and speed.seconds and speed.tokens:
        yield speed
