"""A tokenizer.json is loaded once by each version of the library: the checkpoints of a run share it, and it is slow.

What was remembered may never stand in for another file, another library or a token that was not asked for then.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from entrypoint import tokenizer
from entrypoint.errors import CheckpointError
from tests.fakes.checkpoint import make_checkpoint
from tests.fakes.checkpoint import tokenizer as tokenizer_json


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that the library loaded."""
    files: list[Path] = []
    load = tokenizer._load

    def counted(file: Path, data: bytes) -> Any:
        files.append(file)
        return load(file, data)

    monkeypatch.setattr(tokenizer, "_load", counted)
    return files


def test_the_same_file_is_loaded_once_and_gives_the_same_facts(tmp_path: Path, loads: list[Path]) -> None:
    first, second = (make_checkpoint(tmp_path / name) for name in ("step-1", "step-2"))
    cache = tmp_path / "cache"
    facts = tokenizer.read_tokenizer(first, cache)
    assert tokenizer.read_tokenizer(second, cache) == facts == tokenizer.read_tokenizer(second)
    assert loads == [first / "tokenizer.json", second / "tokenizer.json"], "once with the cache, once without"


def test_another_file_library_or_special_token_is_loaded(
    tmp_path: Path, loads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    tokenizer.read_tokenizer(make_checkpoint(tmp_path / "a"), cache)
    more = tokenizer.read_tokenizer(
        make_checkpoint(tmp_path / "b", tokenizer__json=tokenizer_json(["a", "b", "c"])), cache
    )
    assert (more.largest_id, len(loads)) == (2, 2)
    other = make_checkpoint(tmp_path / "c", tokenizer_config__json={"eos_token": "a"})
    assert tokenizer.read_tokenizer(other, cache).eos == ("a", 0)
    assert len(loads) == 3
    monkeypatch.setattr(tokenizer, "version", lambda _: "99")
    tokenizer.read_tokenizer(other, cache)
    assert len(loads) == 4


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"added": [], "largest_id": 1, "ids": {}}'])
def test_a_memory_that_is_no_memory_is_made_anew(tmp_path: Path, loads: list[Path], text: str) -> None:
    folder, cache = make_checkpoint(tmp_path / "a"), tmp_path / "cache"
    facts = tokenizer.read_tokenizer(folder, cache)
    (memory,) = (cache / "tokenizers").iterdir()
    memory.write_text(text)
    assert tokenizer.read_tokenizer(folder, cache) == facts
    assert len(loads) == 2
    assert json.loads(memory.read_text())["largest_id"] == 1


def test_a_cache_that_cannot_be_written_and_a_file_that_cannot_be_loaded(tmp_path: Path, loads: list[Path]) -> None:
    (tmp_path / "file").write_text("")
    assert tokenizer.read_tokenizer(make_checkpoint(tmp_path / "a"), tmp_path / "file").largest_id == 1
    broken = make_checkpoint(tmp_path / "b", tokenizer__json=b"{")
    for _ in range(2):
        with pytest.raises(CheckpointError, match="can't be loaded as a tokenizer"):
            tokenizer.read_tokenizer(broken, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
