"""The two kinds of row the stages hand to each other.

A Request goes from collect to generate, a Generation from generate to grade. Both are compact JSON lines; the key
order on disk is the field order here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entrypoint.errors import EvalcrateError

FINISH_REASONS = ("stop", "length")
# LiveCodeBench turns an exception of its own checker into a wrong answer; this text is all that tells
# (marin#8083).
GRADER_FAULTS = ("Evaluation error:", "Critical error:", "Future error:")


def canonical(value: object) -> bytes:
    """JSON with sorted keys and no blanks: the one byte form that digests are taken over."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest(value: object) -> str:
    """sha256 (64 hex digits) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical(value)).hexdigest()


def sampler_seed(policy: str, seed: int, task: str, sample: int) -> int:
    """The integer the sampler gets: the trial's own (`shared`), or 31 bits of sha256 over seed, task and sample."""
    if policy == "shared":
        return seed
    name = "\0".join((str(seed), task, str(sample)))
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") >> 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One question of one trial, as it will be sent.

    `body` is the whole `/v1/completions` body (token ids, explicit sampling values, integer seed); `id` is its digest.
    """

    id: str
    task: str
    seed: int
    sample: int
    prompt: str
    body: Mapping[str, Any]

    @property
    def sampler_seed(self) -> int:
        """The integer the sampler gets (differs from `seed` under `seed_policy: per_sample`)."""
        return int(self.body["seed"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """What the engine answered to one request; times are UTC ISO 8601, counts are tokens.

    `fingerprint` is the generation fingerprint of the trial; a row whose fingerprint is another one is not ours to use.
    """

    id: str
    task: str
    seed: int
    sample: int
    fingerprint: str
    text: str
    token_ids: tuple[int, ...] | None
    finish_reason: str
    stop_reason: int | str | None
    prompt_tokens: int
    completion_tokens: int
    sampler_seed: int
    started_at: str
    finished_at: str
    attempt: int


def to_line(row: Request | Generation) -> bytes:
    """One compact JSON line, newline included."""
    values = {name: getattr(row, name) for name in row.__dataclass_fields__}  # asdict would copy every token id
    text = json.dumps(values, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode("utf-8", "surrogatepass")


def generation_from(data: Mapping[str, Any]) -> Generation:
    """A Generation from a decoded journal line; KeyError, TypeError or ValueError when it is not one."""
    ids = data["token_ids"]
    row = Generation(**{**data, "token_ids": None if ids is None else tuple(ids)})
    if row.finish_reason not in FINISH_REASONS or not isinstance(row.text, str):
        raise ValueError(f"finish_reason {row.finish_reason!r}")
    return row


def read_requests(path: Path) -> tuple[Request, ...]:
    """All requests of one trial, in sample order; an unreadable file is a fault of ours (it is written whole)."""
    try:
        return tuple(Request(**json.loads(line)) for line in path.read_bytes().split(b"\n") if line)
    except (ValueError, TypeError) as err:
        raise EvalcrateError(f"{path}: not a request file ({err}); delete it and run again") from err


def requests_digest(requests: Iterable[Request]) -> str:
    """sha256 over the request ids of a trial in order: what the generation fingerprint holds of them."""
    return hashlib.sha256("\n".join(r.id for r in requests).encode()).hexdigest()
