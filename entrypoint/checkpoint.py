"""A checkpoint folder, looked at once: is it there and whole, whose is it, which step, which chat template.

In: the path of a job. Out: a Checkpoint of plain facts; CheckpointError says what is missing and what to do.
Nothing is loaded: files are stat'ed, JSON read, and a few bytes of every tensor hashed.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entrypoint.errors import CheckpointError
from entrypoint.record import digest

_STEP = re.compile(r"(?:step|checkpoint)-(\d+)")
_SAMPLE_BYTES = 256
_MAX_HEADER_BYTES = 100_000_000  # the safetensors format's own limit
# Files that shape prompts or tokens; weights are sampled apart.
_IDENTITY_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "tekken.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """`path` is absolute with symlinks resolved; `step` comes from its last component only; `template` is the chat
    template's text (None: there is none); `identity` is the same for every copy of the same files."""

    path: Path
    identity: str
    step: int | None
    template: str | None
    architectures: tuple[str, ...]
    max_position_embeddings: int | None
    quantization: str | None
    generation_config: Mapping[str, Any]
    eos_token_ids: tuple[int, ...]
    weights_bytes: int


def step_of(path: Path) -> int | None:
    """`step-300` or `checkpoint-300` as the last component in full gives 300; anything else has no step."""
    found = _STEP.fullmatch(path.name)
    return int(found[1]) if found else None


def inspect(path: str) -> Checkpoint:
    """Facts of the checkpoint at `path` (relative: to the working directory)."""
    try:
        return _inspect(path)
    except OSError as err:
        raise CheckpointError(
            f"{err.filename or path}: can't be read ({err.strerror or err}); check its owner and mode"
        ) from err


def _inspect(path: str) -> Checkpoint:
    folder = _folder(path)
    config = _json(folder, "config.json", required=True)
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise CheckpointError(
            f"{folder}: no tokenizer ({', '.join(_TOKENIZERS)}); save the tokenizer beside the weights"
        )
    weights = _weights(folder)
    nested = config.get("text_config")
    text_config: dict[str, Any] = nested if isinstance(nested, dict) else config
    quantization = config.get("quantization_config")
    architectures = config.get("architectures")
    generation = _json(folder, "generation_config.json", required=False)
    return Checkpoint(
        path=folder,
        identity=_identity(folder, weights),
        step=step_of(folder),
        template=_template(folder),
        architectures=tuple(map(str, architectures if isinstance(architectures, list) else ())),
        max_position_embeddings=_positive_int(text_config.get("max_position_embeddings")),
        quantization=str(quantization.get("quant_method")) if isinstance(quantization, dict) else None,
        generation_config=generation,
        eos_token_ids=_eos_ids(generation.get("eos_token_id", config.get("eos_token_id"))),
        weights_bytes=sum(f.stat().st_size for f in weights),
    )


def _folder(path: str) -> Path:
    folder = Path(path)
    if not folder.is_dir():
        hint = (
            "; a hub id is not fetched: download the model and give its folder"
            if re.fullmatch(r"[\w.-]+/[\w.-]+", path)
            else "; give the folder that holds config.json and the weights"
        )
        raise CheckpointError(f"checkpoint: {path}: not a directory{hint}")
    return folder.resolve()


def _json(folder: Path, name: str, *, required: bool) -> dict[str, Any]:
    file = folder / name
    if not file.is_file():
        if required:
            raise CheckpointError(f"{folder}: no {name}; is this the folder that the trainer saved the model to?")
        return {}
    try:
        value = json.loads(file.read_bytes())
    except (OSError, ValueError) as err:
        raise CheckpointError(f"{file}: can't be read as JSON ({err}); save the checkpoint again") from err
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: holds {type(value).__name__}, not a JSON object; save the checkpoint again")
    return value


def _positive_int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _eos_ids(value: object) -> tuple[int, ...]:
    """generation_config.json names one end token or several; they end a generation whatever else that file says."""
    ids = value if isinstance(value, list) else [value]
    return tuple(i for i in ids if isinstance(i, int) and not isinstance(i, bool))


def _weights(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of the model; every shard that the index names must be there."""
    index = _json(folder, "model.safetensors.index.json", required=False)
    if index:
        shards = index.get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise CheckpointError(f"{folder}/model.safetensors.index.json: empty weight_map; save the checkpoint again")
        names = sorted({str(v) for v in shards.values()})
        missing = [n for n in names if not (folder / n).is_file()]
        if missing:
            raise CheckpointError(
                f"{folder}: {missing[0]} is missing ({len(names) - len(missing)} of {len(names)} shards are there); "
                "copy the checkpoint again or wait until it is written"
            )
        return tuple(folder / n for n in names)
    if (folder / "model.safetensors").is_file():
        return (folder / "model.safetensors",)
    found = sorted(f.name for f in folder.glob("*.bin"))
    what = (
        f"only {found[0]}; convert it to safetensors first" if found else "no model.safetensors and no index of shards"
    )
    raise CheckpointError(f"{folder}: {what}")


def _template(folder: Path) -> str | None:
    """The default chat template in any of its homes; an empty one counts as none."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8") or None
        except (OSError, ValueError) as err:
            raise CheckpointError(f"{file}: can't be read as UTF-8 text ({err}); save the template again") from err
    for name in ("chat_template.json", "tokenizer_config.json"):
        value = _json(folder, name, required=False).get("chat_template")
        if isinstance(value, list):
            named = {t.get("name"): t.get("template") for t in value if isinstance(t, dict)}
            value = named.get("default")
        if isinstance(value, str) and value:
            return value
    return None


def _identity(folder: Path, weights: tuple[Path, ...]) -> str:
    """sha256 over the small files and, for each weight file, its size, header and bytes of every tensor."""
    total = hashlib.sha256()
    code = sorted(file.name for file in folder.glob("*.py"))  # may run under trust_remote_code
    for name in (*_IDENTITY_FILES, *code):
        file = folder / name
        if file.is_file():
            total.update(f"{name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    for file in weights:
        total.update(f"{file.name}\0{digest(list(_weight_facts(file)))}\n".encode())
    return total.hexdigest()


def _weight_facts(file: Path) -> Iterator[object]:
    """Size, then per tensor its header entry and samples of its first, middle and last bytes."""
    size = file.stat().st_size
    yield size
    with file.open("rb") as handle:
        start, header = _header(file, handle.read(8), handle.read, size)
        for name in sorted(header):
            entry = header[name]
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            sampled = hashlib.sha256()
            for offset in (begin, begin + (end - begin) // 2, max(begin, end - _SAMPLE_BYTES)):
                handle.seek(start + offset)
                sampled.update(handle.read(min(_SAMPLE_BYTES, end - offset)))
            yield [name, entry["dtype"], entry["shape"], begin, end, sampled.hexdigest()]


def _header(file: Path, prefix: bytes, read: Any, size: int) -> tuple[int, dict[str, Any]]:
    """Offset of the data and the decoded safetensors header; the file must be as long as the header says."""
    try:
        (length,) = struct.unpack("<Q", prefix)
        if length > min(_MAX_HEADER_BYTES, size - 8):
            raise ValueError("header longer than the file")
        header = json.loads(read(length))
        tensors = [entry for name, entry in header.items() if name != "__metadata__"]
        ends = [int(entry["data_offsets"][1]) for entry in tensors if (entry["dtype"], entry["shape"])]
    except (struct.error, ValueError, KeyError, TypeError, IndexError, AttributeError) as err:
        raise CheckpointError(f"{file}: not a safetensors file ({err}); copy or save the checkpoint again") from err
    expected = 8 + length + max(ends, default=0)
    if expected != size:
        raise CheckpointError(
            f"{file}: {size} bytes where its header says {expected}; it is still being written or was cut: "
            "wait or copy it again"
        )
    return 8 + length, header
