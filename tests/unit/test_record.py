"""Rows and digests decide what is stored, found again and proved; their bytes must not drift.

Incidents: one seed reused for every prompt of a repetition gives correlated draws (SkyRL#1015, vllm#7808); records
split on Unicode line separators lose answers.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrypoint.errors import EvalcrateError
from entrypoint.record import Generation, Request, digest, generation_from, read_requests, sampler_seed, to_line

ROW = Generation(
    id="a",
    task="AIME24",
    seed=42,
    sample=0,
    fingerprint="f",
    text="x",
    token_ids=(1, 2),
    finish_reason="stop",
    stop_reason=None,
    prompt_tokens=3,
    completion_tokens=2,
    sampler_seed=7,
    started_at="2026-01-01T00:00:00Z",
    finished_at="2026-01-01T00:00:01Z",
    attempt=1,
)


def test_per_sample_seeds_are_31_bits_of_sha256_over_seed_task_and_sample() -> None:
    raw = hashlib.sha256(b"42\0AIME24\x000").digest()
    assert sampler_seed("per_sample", 42, "AIME24", 0) == int.from_bytes(raw[:4], "big") >> 1


def test_shared_seeds_are_the_trials_own() -> None:
    assert [sampler_seed("shared", 42, "AIME24", n) for n in (0, 1)] == [42, 42]


def test_seeds_of_one_prompt_differ_between_trials_and_samples() -> None:
    seeds = {sampler_seed("per_sample", s, "AIME24", n) for s in range(42, 52) for n in range(30)}
    assert len(seeds) == 300
    assert all(0 <= s < 2**31 for s in seeds)


def test_key_order_on_disk_is_the_contracts() -> None:
    assert list(json.loads(to_line(ROW))) == [
        "id", "task", "seed", "sample", "fingerprint", "text", "token_ids", "finish_reason", "stop_reason",
        "prompt_tokens", "completion_tokens", "sampler_seed", "started_at", "finished_at", "attempt",
    ]  # fmt: skip


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_text_survives_as_one_line(text: str) -> None:
    line = to_line(replace(ROW, text=text))
    assert line.count(b"\n") == 1
    assert generation_from(json.loads(line)).text == text


@pytest.mark.parametrize("reason", ["abort", "error", "", None, "stop "])
def test_only_stop_and_length_are_ends(reason: str | None) -> None:
    with pytest.raises(ValueError, match="finish_reason"):
        generation_from({**json.loads(to_line(ROW)), "finish_reason": reason})


def test_a_digest_does_not_depend_on_key_order() -> None:
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})


def test_a_broken_request_file_is_named(tmp_path: Path) -> None:
    good = Request(id="1", task="T", seed=1, sample=0, prompt="p", body={"seed": 3})
    file = tmp_path / "seed1.jsonl"
    file.write_bytes(to_line(good))
    assert read_requests(file)[0].sampler_seed == 3
    file.write_bytes(to_line(good) + b'{"id": 1}\n')
    with pytest.raises(EvalcrateError, match="not a request file"):
        read_requests(file)
