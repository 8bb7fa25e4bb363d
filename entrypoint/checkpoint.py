"""A checkpoint folder, looked at once: is it there and whole, whose is it, which step, what shape, which template.

In: the path of a job. Out: a Checkpoint of plain facts; CheckpointError says what is missing and what to do.
Nothing is loaded: files are stat'ed, JSON and headers read, and a few bytes of every tensor hashed.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from entrypoint.architecture import Models, architectures_of, completed
from entrypoint.context import Limit, limit_of
from entrypoint.errors import CheckpointError
from entrypoint.json_file import read_object
from entrypoint.record import canonical
from entrypoint.shape import Shape, shape_of, text_part
from entrypoint.template import read_template
from entrypoint.tokenizer import Tokenizer, read_tokenizer
from entrypoint.vocabulary import refuse_outside, vocabulary_notices
from entrypoint.weights import Weights, full_digests, read_weights, sampled_digests

_STEP = re.compile(r"(?:step|checkpoint)-(\d+)")
_YOUNG_S = 5.0  # a file that changed this recently may still be changing
_WATCH_S = 0.5
_LOOK_EVERY_S = 0.05
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
    "hf_quant_config.json",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """`path` is absolute with symlinks resolved; `step` comes from its last component only; `template` is the chat
    template's text (None: there is none); `identity` is the same for every copy of the same files, and opens with
    `full:` where every byte was hashed. `config` and `shape` include what the config's class takes by itself.
    `limit`: the longest context the engine allows. `warnings`: what is odd about the files."""

    path: Path
    identity: str
    step: int | None
    template: str | None
    architectures: tuple[str, ...]
    config: Mapping[str, Any]
    shape: Shape
    limit: Limit | None
    quantization: str | None
    generation_config: Mapping[str, Any]
    eos_token_ids: tuple[int, ...]
    tokenizer_config: Mapping[str, Any]
    weights_bytes: int
    warnings: tuple[str, ...]


def step_of(path: Path) -> int | None:
    """`step-300` or `checkpoint-300` as the last component in full gives 300; anything else has no step."""
    found = _STEP.fullmatch(path.name)
    return int(found[1]) if found else None


def inspect(
    path: str,
    models: Models | None = None,
    *,
    dtype: str = "bfloat16",
    own_template: bool = True,
    full_hash: bool = False,
    cache: Path | None = None,
) -> Checkpoint:
    """Facts of the checkpoint at `path` (relative: to the working directory).

    `models`: the engine's own list, for values that config.json leaves out. `dtype`: of the KV cache.
    `own_template`: the checkpoint's template will be used, so what it writes is held against the end tokens.
    `full_hash`: the identity covers every byte of the weights rather than samples; minutes for a large checkpoint.
    `cache`: where what a tokenizer.json gave is remembered.
    """
    try:
        return _inspect(path, models, dtype, own_template, full_hash, cache)
    except RecursionError as err:
        raise CheckpointError(f"{path}: a JSON file is nested too deeply; save the checkpoint again") from err
    except OSError as err:
        raise CheckpointError(
            f"{err.filename or path}: can't be read ({err.strerror or err}); check its owner and mode"
        ) from err


def _inspect(
    path: str, models: Models | None, dtype: str, own_template: bool, full_hash: bool, cache: Path | None
) -> Checkpoint:
    folder = _folder(path)
    started, before = time.monotonic(), _look(folder)
    raw = _config(folder)
    config = raw if models is None else completed(raw, models)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_tokenizer, folder, cache)
        weights = read_weights(folder)
        identity = _identity(folder, weights, full_hash)
        tokenizer = reading.result()
    generation = _generation_config(folder)
    eos = _eos_ids(generation.get("eos_token_id", config.get("eos_token_id", text_part(config).get("eos_token_id"))))
    template, shape = read_template(folder), shape_of(config, dtype)
    written = template if own_template else None
    refuse_outside(folder, tokenizer, written, weights, shape.vocab_size)
    _refuse_changing(folder, before, started)
    return Checkpoint(
        path=folder,
        identity=identity,
        step=step_of(folder),
        template=template,
        architectures=architectures_of(config),
        config=config,
        shape=shape,
        limit=limit_of(config),
        quantization=_quantization(config),
        generation_config=generation,
        eos_token_ids=eos,
        tokenizer_config=tokenizer.config,
        weights_bytes=weights.size_bytes,
        warnings=tuple(_warnings(weights, tokenizer, written, eos, shape)),
    )


def _warnings(
    weights: Weights, tokenizer: Tokenizer, template: str | None, eos: tuple[int, ...], shape: Shape
) -> Iterator[str]:
    yield from weights.warnings
    yield from vocabulary_notices(tokenizer, template, eos, shape.vocab_size)
    if shape.reason is not None:
        yield f"KV cache per token is not known: {shape.reason}; whether max_num_seqs fits can't be said"


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


def steps_in(folder: Path) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """The checkpoints of a run folder in order of their steps (as numbers, not as text), and the other folders."""
    folders = [child for child in folder.iterdir() if child.is_dir() and not child.name.startswith(".")]
    steps = [(step, child.name, child) for child in folders if (step := step_of(child)) is not None]
    return tuple(child for *_, child in sorted(steps)), tuple(sorted(c.name for c in folders if step_of(c) is None))


def _config(folder: Path) -> dict[str, Any]:
    if not (folder / "config.json").is_file() and (found := steps_in(folder))[0]:
        steps, other = found
        names = ", ".join(child.name for child in steps[-5:])
        ignored = f" ({', '.join(other[:5])}: no step in the name, ignored)" if other else ""
        raise CheckpointError(
            f"checkpoint: {folder}: holds {len(steps)} checkpoints, not one: {'… ' if len(steps) > 5 else ''}{names}"
            f"{ignored}; give one of them, such as the latest, {steps[-1]}"
        )
    return read_object(folder, "config.json", required=True)


def _generation_config(folder: Path) -> dict[str, Any]:
    generation = read_object(folder, "generation_config.json")
    try:
        canonical(generation)
    except ValueError as err:
        raise CheckpointError(
            f"{folder}/generation_config.json: holds a value that no JSON file can hold ({err}); save it again"
        ) from err
    return generation


def _quantization(config: Mapping[str, Any]) -> str | None:
    quantization = config.get("quantization_config")
    return ascii(quantization.get("quant_method")).strip("'") if isinstance(quantization, Mapping) else None


def _eos_ids(value: object) -> tuple[int, ...]:
    """generation_config.json names one end token or several; they end a generation whatever else that file says."""
    ids = value if isinstance(value, list) else [value]
    return tuple(i for i in ids if isinstance(i, int) and not isinstance(i, bool))


def _identity(folder: Path, weights: Weights, full_hash: bool) -> str:
    """sha256 over the small files and, for each weight file, its size, header and bytes of every tensor (or all)."""
    total = hashlib.sha256()
    code = sorted(file.name for file in folder.glob("*.py"))  # may run under trust_remote_code
    for name in (*_IDENTITY_FILES, *code):
        file = folder / name
        if file.is_file():
            total.update(f"{name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    digests = full_digests(weights) if full_hash else sampled_digests(weights)
    for shard, digest in zip(weights.shards, digests, strict=True):
        total.update(f"{shard.path.name}\0{digest}\n".encode())
    return f"full:{total.hexdigest()}" if full_hash else total.hexdigest()


def _look(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and mtime (ns) of every file that belongs to the checkpoint."""
    found = {}
    for file in sorted(folder.iterdir()):
        if file.suffix in (".json", ".jinja", ".safetensors", ".model", ".txt", ".py") and file.is_file():
            status = file.stat()
            found[file.name] = (status.st_size, status.st_mtime_ns)
    return found


def _refuse_changing(folder: Path, before: Mapping[str, tuple[int, int]], started: float) -> None:
    """Two looks must agree; between them lies half a second where a file changed in the last few seconds."""
    newest = max((mtime for _, mtime in before.values()), default=0) / 1e9
    young = time.time() - newest < _YOUNG_S
    while True:
        after = _look(folder)
        changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        if changed:
            raise CheckpointError(
                f"{folder}: {changed[0]} is still being written (it changed while it was looked at); wait until the "
                "checkpoint is whole"
            )
        if not young or time.monotonic() - started > _WATCH_S:
            return
        Event().wait(_LOOK_EVERY_S)
