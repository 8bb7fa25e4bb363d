"""Paths and bytes that other people's programs read must never change, and no write may leave half a file.

Incidents: a path with `:` and `[` in a model folder, names over 255 bytes (lm-eval#1454, #3830); an integer
of over 4300 digits that killed the save, with exit 0 (marin#3690); half a JSON counted (verifiers#1376).
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrypoint.layout import Layout, component, dumps, model_folder, printable, read_json, write_atomic

TEXT = st.text(st.characters(exclude_categories=()), max_size=200)  # lone surrogates included
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=20)


def layout(tmp_path: Path, **changes: Any) -> Layout:
    known: dict[str, Any] = {"experiment": "exp", "step": 300, "limit": None, "model": "/r/x/hf/step-300"}
    return Layout(results=tmp_path, **{**known, **changes})


def md5_head(*parts: str) -> str:
    return hashlib.md5(b"\0".join(part.encode() for part in parts)).hexdigest()[:6]


def test_every_path_of_the_contract_is_where_readers_look(tmp_path: Path) -> None:
    there = layout(tmp_path)
    root = tmp_path / "exp-step300"
    assert there.root == root
    seed = root / f"AIME24_seed42-{md5_head('exp', '300', 'AIME24', '42')}"
    assert there.seed_dir("AIME24", 42) == seed
    assert there.model_dir("AIME24", 42, 0) == seed / "AIME24_0shot" / "__r__x__hf__step-300"
    average = root / f"compile_AIME24_avg10seeds-{md5_head('exp', '300', 'AIME24', 'compile')}"
    assert there.compile_dir("AIME24", 10) == average / "compiled_results"
    assert there.marker("AIME24") == root / "_markers" / "AIME24.complete.json"


def test_a_checkpoint_without_a_step_and_a_limit_show_in_the_folder_name(tmp_path: Path) -> None:
    assert layout(tmp_path, step=None).root == tmp_path / "exp"
    assert layout(tmp_path, step=None, limit=5).root == tmp_path / "exp-limit5"
    assert layout(tmp_path, limit=5).root == tmp_path / "exp-step300-limit5"
    assert layout(tmp_path, step=None).seed_dir("T", 1).name == f"T_seed1-{md5_head('exp', '', 'T', '1')}"


def test_runs_of_illegal_characters_become_one_double_underscore() -> None:
    resolved = str(Path("/r/a:b//c [x]/hf/step-300"))
    assert model_folder(resolved) == "__r__a__b__c __x__hf__step-300"


@given(TEXT.map(lambda text: text.encode("utf-8", "replace").decode()))
def test_any_name_is_one_short_component(name: str) -> None:
    folder = model_folder(name)
    assert len(folder.encode()) <= 255
    assert not set(folder) & set('"<>:/\\|?*[]')


def test_long_names_keep_their_head_and_stay_different() -> None:
    first, second = component("ü" * 200 + "a"), component("ü" * 200 + "b")
    assert first != second
    assert len(first.encode()) <= 255
    assert first.startswith("üüü")
    assert component("x" * 255) == "x" * 255


@given(VALUES)
def test_what_is_written_is_strict_json_and_reads_back(value: Any) -> None:
    assert json.loads(dumps(value)) == json.loads(json.dumps(printable(value)))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("power", "more"), [(4299, 9), (4300, -1), (4300, 0), (4300, 7), (20_000, 3)])
def test_integers_beyond_4300_digits_become_their_exact_text(sign: int, power: int, more: int) -> None:
    number = sign * (10**power + more)
    written = json.loads(dumps({"answer": number}))["answer"]
    assert isinstance(written, int if abs(number) < 10**4300 else str)
    assert (written if isinstance(written, int) else number_of(written)) == number


def number_of(text: str) -> int:
    """The integer of a decimal text of any length, read in pieces that CPython allows."""
    digits = text.removeprefix("-")
    assert digits[0] != "0"
    value = 0
    for start in range(0, len(digits), 1000):
        piece = digits[start : start + 1000]
        value = value * 10 ** len(piece) + int(piece)
    return -value if text.startswith("-") else value


def test_nan_is_refused_rather_than_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps({"accuracy": float("nan")})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": NaN}', b"\xff\xfe", b'{"a": 1} x'])
def test_a_file_that_is_not_whole_counts_as_absent(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "results_x.json"
    path.write_bytes(content)
    assert read_json(path) is None
    assert read_json(tmp_path / "absent.json") is None


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    write_atomic(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
