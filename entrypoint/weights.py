"""The safetensors files of a checkpoint: which they are, whether all are there, and what else lies beside them.

In: the checkpoint folder. Out: Weights, from headers alone; CheckpointError names the file and what to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from entrypoint.errors import CheckpointError
from entrypoint.json_file import read_object
from entrypoint.shard import AGAIN, Shard, Tensor, full_digest, read_shard, sampled_digest

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_READERS = 16  # files looked at side by side: a network file system answers slowly, not seldom
_SHARD = re.compile(r".+-\d+-of-\d+\.safetensors")
_UNFINISHED = (".tmp", ".incomplete", ".part", ".partial", ".crdownload", ".download")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """The files that the engine will load. `warnings`: what else lies beside them."""

    shards: tuple[Shard, ...]
    warnings: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        return sum(shard.size for shard in self.shards)

    def tensors(self) -> Iterator[Tensor]:
        for shard in self.shards:
            yield from shard.tensors


def read_weights(folder: Path) -> Weights:
    """Every header of the checkpoint's safetensors files; each file is there, whole and the index's own."""
    index = read_object(folder, INDEX)
    names = _indexed(folder, index) if (folder / INDEX).is_file() else _single(folder)
    _refuse_unfinished(folder, names)
    _refuse_other_format(folder, names)
    shards = tuple(_side_by_side(read_shard, [folder / name for name in names]))
    if index:
        _refuse_other_tensors(folder, index["weight_map"], shards)
    if not any(shard.tensors for shard in shards):
        raise CheckpointError(f"{folder}: its weights hold no tensor; save the checkpoint again")
    return Weights(shards=shards, warnings=tuple(_strays(folder, names)))


def sampled_digests(weights: Weights) -> list[str]:
    """For each shard a digest of size, header and bytes of every tensor."""
    return _side_by_side(sampled_digest, weights.shards)


def full_digests(weights: Weights) -> list[str]:
    """For each shard the sha256 of the whole file."""
    return _side_by_side(full_digest, weights.shards)


def _side_by_side(work: Callable[[Any], Result], items: Any) -> list[Result]:
    with ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(work, items))


def _indexed(folder: Path, index: Mapping[str, Any]) -> tuple[str, ...]:
    """The shards that the index names; every one must be there."""
    mapped = index.get("weight_map")
    if not isinstance(mapped, dict) or not mapped:
        raise CheckpointError(f"{folder / INDEX}: empty weight_map; save the checkpoint again")
    for tensor, name in mapped.items():
        if not _is_name(name):
            raise CheckpointError(
                f"{folder / INDEX}: weight_map: {tensor!r}: {name!r} is not a safetensors file of this folder; {AGAIN}"
            )
    names = sorted(set(mapped.values()))
    missing = [name for name in names if not _is_file(folder / name)]
    if missing:
        raise CheckpointError(
            f"{folder}: {missing[0]} is missing ({len(names) - len(missing)} of {len(names)} shards are there"
            f"{_instead(folder, missing[0])}); copy the checkpoint again or wait until it is written"
        )
    return tuple(names)


def _is_name(name: object) -> bool:
    """Whether it is the plain name of a safetensors file."""
    plain = isinstance(name, str) and name.isprintable() and Path(name).name == name
    return plain and str(name).endswith(".safetensors")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # such as a name that is too long for the file system
        return False


def _instead(folder: Path, name: str) -> str:
    """What is there in place of a missing shard."""
    if (folder / name).is_symlink():
        return ", in its place a link to a file that is not there"
    found = [name + end for end in _UNFINISHED if (folder / (name + end)).exists()]
    return f", in its place {found[0]}: it is still being written, or its copy was cut" if found else ""


def _single(folder: Path) -> tuple[str, ...]:
    """Without an index the engine loads every safetensors file of the folder, so there must be one."""
    found = sorted(file.name for file in folder.glob("*.safetensors") if file.is_file())
    if SINGLE in found:
        if len(found) > 1:
            other = next(name for name in found if name != SINGLE)
            raise CheckpointError(
                f"{folder}: {other} lies beside {SINGLE} and no {INDEX} says what belongs to the model: the engine "
                f"would load both; move {other} elsewhere"
            )
        return (SINGLE,)
    raise CheckpointError(f"{folder}: {_what_else(folder, found)}")


def _what_else(folder: Path, found: list[str]) -> str:
    """What a folder without loadable weights holds, and what to do about it."""
    if (folder / "adapter_config.json").is_file():
        return "an adapter, not a model (adapter_config.json); merge it into its base model first"
    for end in _UNFINISHED:
        if (folder / (SINGLE + end)).exists():
            return f"only {SINGLE + end}: it is still being written, or its copy was cut; wait or copy it again"
    if shards := [name for name in found if _SHARD.fullmatch(name)]:
        return f"{len(shards)} shards ({shards[0]}, …) without {INDEX}; copy the index too"
    if found:
        return f"{found[0]} but neither {SINGLE} nor {INDEX}; save the model with save_pretrained"
    other = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth", "*.gguf") for file in folder.glob(pattern))
    if other:
        return f"only {other[0]}; convert it to safetensors first"
    return f"no {SINGLE} and no index of shards; copy the weights too, or wait until they are written"


def _refuse_unfinished(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        for end in _UNFINISHED:
            if (folder / (name + end)).exists():
                raise CheckpointError(
                    f"{folder}: {name + end} lies beside {name}: it is still being written, or its copy was cut; "
                    f"wait, or delete {name + end}"
                )


def _refuse_other_format(folder: Path, names: tuple[str, ...]) -> None:
    """The engine prefers Mistral's own format to the index wherever it finds a file of it."""
    if other := sorted(file.name for file in folder.glob("consolidated*.safetensors") if file.name not in names):
        raise CheckpointError(
            f"{folder}: {other[0]} lies beside {names[0]}, and the engine would load it instead; move it elsewhere"
        )


def _strays(folder: Path, names: tuple[str, ...]) -> Iterator[str]:
    kept = set(names)
    stray = sorted(
        file.name
        for file in folder.iterdir()
        if file.name not in kept and any(f"{end}." in f"{file.name}." for end in (".safetensors", ".bin"))
    )
    stray = [name for name in stray if name != INDEX and not name.startswith(("training_args", "optimizer"))]
    if stray:
        more = f" and {len(stray) - 1} more" if len(stray) > 1 else ""
        yield f"{folder}: {stray[0]!r}{more}: not among the model's weights; not loaded and not part of the identity"


def _refuse_other_tensors(folder: Path, mapped: Mapping[str, str], shards: tuple[Shard, ...]) -> None:
    held = {shard.path.name: {tensor.name for tensor in shard.tensors} for shard in shards}
    for tensor, name in mapped.items():
        if tensor not in held[name]:
            raise CheckpointError(
                f"{folder}: {name} holds no tensor {tensor!r}, which {INDEX} says it does: shards of two savings are "
                f"mixed; {AGAIN}"
            )
