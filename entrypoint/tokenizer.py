"""The tokenizer files of a checkpoint: whether they can be loaded, and which ids they give.

In: the checkpoint folder. Out: a Tokenizer; CheckpointError says what is missing. Loading tokenizer.json takes most of
the time, 1.3 s for 128 000 tokens, so what a file gave is remembered by its sha256: the checkpoints of a training run
share theirs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from entrypoint.errors import CheckpointError
from entrypoint.json_file import read_object, refuse_pointer, whole_number
from entrypoint.layout import read_json, write_json

FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")
# What reads a tokenizer that has no tokenizer.json.
_READERS = {"tokenizer.model": "sentencepiece", "tekken.json": "mistral_common"}
_ADDED_BYTES = 4_000_000
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokenizer:
    """`added`: ids of tokens beside the vocabulary, by text, as prompts will have them; `written`: as the files say.

    `largest_id`: of the vocabulary alone, None: not known. `special`: the texts of bos_token, eos_token and the like
    that tokenizer_config.json gives; `known`: their ids. `warnings`: files that contradict each other.
    """

    config: Mapping[str, Any]
    added: Mapping[str, int]
    written: Mapping[str, int]
    largest_id: int | None
    special: Mapping[str, str]
    known: Mapping[str, int]
    warnings: tuple[str, ...]

    @property
    def eos(self) -> tuple[str, int | None] | None:
        """The end token and its id, as far as tokenizer_config.json names one."""
        text = self.special.get("eos_token")
        return None if text is None else (text, self.written.get(text, self.known.get(text)))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Loaded:
    """What the library makes of a tokenizer.json. `ids`: of the texts that were asked for, None: not a token."""

    added: Mapping[str, int]
    largest_id: int | None
    ids: Mapping[str, int | None]


def read_tokenizer(folder: Path, cache: Path | None = None) -> Tokenizer:
    """The facts of the tokenizer in `folder`; `cache`: the program's cache folder, None to load the file anew."""
    present = [name for name in FILES if (folder / name).is_file()]
    if not present:
        broken = [name for name in FILES if (folder / name).is_symlink()]
        what = f"{broken[0]} is a link to a file that is not there" if broken else f"no tokenizer ({', '.join(FILES)})"
        raise CheckpointError(f"{folder}: {what}; save the tokenizer beside the weights")
    config = read_object(folder, "tokenizer_config.json")
    listed = dict(_listed(config))
    if present[0] != "tokenizer.json":
        _refuse_unreadable(folder, present)
        vocabulary = read_object(folder, "vocab.json")
        ids = [n for n in vocabulary.values() if whole_number(n) is not None]
        return _facts(config, listed, listed, max(ids, default=None), vocabulary, ())
    data = (folder / "tokenizer.json").read_bytes()
    loaded = _loaded(folder / "tokenizer.json", data, set(_special(config).values()), cache)
    added, own = dict(loaded.added), dict(_written(data))
    warnings = (
        *_contradictions("tokenizer_config.json", listed, {**added, **loaded.ids}),
        *_contradictions("tokenizer.json", own, added),
    )
    return _facts(config, added, listed | added | own, loaded.largest_id, loaded.ids, warnings)


def _facts(
    config: Mapping[str, Any],
    added: Mapping[str, int],
    written: Mapping[str, int],
    largest: int | None,
    vocabulary: Mapping[str, Any],
    warnings: tuple[str, ...],
) -> Tokenizer:
    special = _special(config)
    ids = {text: added.get(text, vocabulary.get(text)) for text in special.values()}
    return Tokenizer(
        config=config,
        added=added,
        written=written,
        largest_id=largest,
        special=special,
        known={text: number for text, n in ids.items() if (number := whole_number(n)) is not None},
        warnings=warnings,
    )


def _contradictions(name: str, written: Mapping[str, int], loaded: Mapping[str, int | None]) -> Iterator[str]:
    """Ids that a file gives and the loaded tokenizer does not keep: it counts on from the vocabulary it has."""
    wrong = [text for text, number in written.items() if loaded.get(text) not in (None, number)]
    if wrong:
        text = wrong[0]
        yield (
            f"{name} gives {text!r} the id {written[text]}, the tokenizer as loaded gives it {loaded[text]} "
            f"({len(wrong)} such tokens): prompts may hold other tokens than the model was trained with"
        )


def _written(data: bytes) -> Iterator[tuple[str, int]]:
    """The added tokens of a tokenizer.json with the ids it gives them, without reading its vocabulary."""
    start = re.search(rb'"added_tokens"\s*:\s*(?=\[)', data)
    if start is None:
        return
    try:  # the list is short beside the vocabulary that follows it
        text = data[start.end() : start.end() + _ADDED_BYTES].decode(errors="ignore")
        tokens = json.JSONDecoder().raw_decode(text)[0]
    except (ValueError, RecursionError):
        return
    for token in tokens:
        number = whole_number(token.get("id")) if isinstance(token, dict) else None
        if number is not None and isinstance(token.get("content"), str) and token["content"].isprintable():
            yield token["content"], number


def _loaded(file: Path, data: bytes, texts: set[str], cache: Path | None) -> _Loaded:
    """What the file gives, from memory when this version of the library has loaded these very bytes before."""
    refuse_pointer(file, data[:200])
    name = f"{hashlib.sha256(data).hexdigest()}-{version('tokenizers')}.json"
    memory = None if cache is None else cache / "tokenizers" / name
    known = None if memory is None else _remembered(memory)
    if known is not None and texts <= set(known.ids):
        return known
    tokenizer = _load(file, data)
    found = _Loaded(
        added={token.content: number for number, token in tokenizer.get_added_tokens_decoder().items()},
        largest_id=_largest(tokenizer),
        ids={text: tokenizer.token_to_id(text) for text in sorted(texts)},
    )
    if memory is not None:
        with suppress(OSError):  # a cache that can't be written costs time and nothing else
            write_json(memory, asdict(found))
    return found


def _remembered(memory: Path) -> _Loaded | None:
    said = read_json(memory)
    if not isinstance(said, dict) or set(said) != set(_Loaded.__dataclass_fields__):
        return None
    return _Loaded(**said) if isinstance(said["added"], dict) and isinstance(said["ids"], dict) else None


def _load(file: Path, data: bytes) -> Any:
    from tokenizers import Tokenizer as Library

    try:
        return Library.from_buffer(data)
    except Exception as err:  # the library raises Exception itself
        raise CheckpointError(
            f"{file}: can't be loaded as a tokenizer ({str(err)[:200]}); save the tokenizer again, with "
            "transformers 5 or later"
        ) from err


def _largest(loaded: Any) -> int | None:
    """Largest id of the vocabulary itself; ids mostly have no holes, and listing them all takes 0.2 s."""
    count = int(loaded.get_vocab_size(with_added_tokens=False))
    if all(loaded.id_to_token(n) is not None for n in range(count)):
        return count - 1 if count else None
    return max(loaded.get_vocab(with_added_tokens=False).values(), default=None)


def _refuse_unreadable(folder: Path, present: list[str]) -> None:
    """Without tokenizer.json the files must be whole, and what reads them installed."""
    name = present[0]
    with (folder / name).open("rb") as handle:
        start = handle.read(200)
    refuse_pointer(folder / name, start)
    if not start:
        raise CheckpointError(f"{folder / name}: is empty; save the tokenizer again")
    if name == "vocab.json" and not (folder / "merges.txt").is_file():
        raise CheckpointError(f"{folder}: vocab.json without merges.txt; save the tokenizer again")
    reader = _READERS.get(name)
    if reader is not None and importlib.util.find_spec(reader) is None:
        raise CheckpointError(
            f"{folder}: {name} without tokenizer.json, and what reads it ({reader}) is not part of this program; load "
            "the tokenizer with transformers where it was trained and save it again, which writes tokenizer.json"
        )


def _listed(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The tokens that tokenizer_config.json adds, with their ids."""
    decoder = config.get("added_tokens_decoder")
    for number, token in decoder.items() if isinstance(decoder, dict) else ():
        text = token.get("content") if isinstance(token, dict) else None
        if isinstance(text, str) and text.isprintable() and number.isascii() and number.isdigit() and len(number) < 19:
            yield text, int(number)


def _special(config: Mapping[str, Any]) -> dict[str, str]:
    """Texts of the special tokens; each is text, or an object with it as `content`."""
    found = {}
    for name in _SPECIAL:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str) and text and text.isprintable():
            found[name] = text
    return found
