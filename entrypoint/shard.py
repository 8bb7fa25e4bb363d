"""One safetensors file: its tensors, whether it is whole, and what tells it from another.

In: a file. Out: a Shard, from its header alone; CheckpointError says what is wrong. A sampled digest reads a few bytes
of every tensor, a full one every byte.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from entrypoint.errors import CheckpointError
from entrypoint.json_file import refuse_pointer, whole_number
from entrypoint.record import digest

AGAIN = "copy or save the checkpoint again"
_SAMPLE_BYTES = 256
_MAX_HEADER_BYTES = 100_000_000  # the safetensors format's own limit
_CHUNK_BYTES = 1 << 22
# Bits of one number. A dtype that is not here is left to the engine.
_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    **dict.fromkeys(("U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensor:
    """`begin` and `end` count bytes from the start of the file's data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One safetensors file: `size` of the whole file and `start` of its data, in bytes; tensors in order of names."""

    path: Path
    size: int
    start: int
    tensors: tuple[Tensor, ...]


def read_shard(file: Path) -> Shard:
    """One file's header; the file must be as long as it says."""
    with file.open("rb") as handle:
        size = os.fstat(handle.fileno()).st_size
        prefix = handle.read(200)
        refuse_pointer(file, prefix)
        try:
            if len(prefix) < 8:
                raise ValueError("no header")
            (length,) = struct.unpack("<Q", prefix[:8])
            if length > min(_MAX_HEADER_BYTES, size - 8):
                raise ValueError("its header is longer than the file")
            handle.seek(8)
            tensors = tuple(sorted(_tensors(json.loads(handle.read(length))), key=lambda tensor: tensor.name))
        except (ValueError, RecursionError) as err:
            raise CheckpointError(f"{file}: {size} bytes, not a safetensors file ({err}); {AGAIN}") from err
    shard = Shard(path=file, size=size, start=8 + length, tensors=tensors)
    _refuse_wrong_length(shard)
    return shard


def _tensors(header: object) -> Iterator[Tensor]:
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    for name, entry in header.items():
        if name != "__metadata__":
            yield _tensor(name, entry)


def _tensor(name: str, entry: object) -> Tensor:
    if not isinstance(entry, dict):
        raise ValueError(f"tensor {name}: no entry")
    dtype, shape, place = entry.get("dtype"), _sizes(entry.get("shape")), _sizes(entry.get("data_offsets"))
    if not isinstance(dtype, str) or shape is None or place is None or len(place) != 2:
        raise ValueError(f"tensor {name}: no dtype, shape and two data_offsets")
    f"{name}{dtype}".encode()  # a lone surrogate can't be hashed, and no library writes one
    begin, end = place
    if begin > end:
        raise ValueError(f"tensor {name}: ends before it begins")
    bits = prod(shape) * _BITS[dtype] if dtype in _BITS else 8 * (end - begin)
    if bits != 8 * (end - begin):
        raise ValueError(f"tensor {name}: {dtype} {list(shape)} does not fill its {end - begin} bytes")
    return Tensor(name=name, dtype=dtype, shape=shape, begin=begin, end=end)


def _sizes(value: object) -> tuple[int, ...] | None:
    whole = isinstance(value, list) and all(whole_number(n) is not None for n in value)
    return tuple(value) if whole and isinstance(value, list) else None


def _refuse_wrong_length(shard: Shard) -> None:
    """Tensors follow each other without a gap up to the end of the file."""
    at = 0
    for tensor in sorted(shard.tensors, key=lambda t: (t.begin, t.end)):
        if tensor.begin != at:
            raise CheckpointError(
                f"{shard.path}: not a safetensors file (tensor {tensor.name} begins at {tensor.begin}, the one before "
                f"ends at {at}); {AGAIN}"
            )
        at = tensor.end
    if shard.start + at != shard.size:
        raise CheckpointError(
            f"{shard.path}: {shard.size} bytes where its header says {shard.start + at}; it is still being written or "
            "was cut: wait or copy it again"
        )


def sampled_digest(shard: Shard) -> str:
    """Digest of size, header and bytes of every tensor."""
    return digest([shard.size, *_samples(shard)])


def _samples(shard: Shard) -> Iterator[object]:
    """Per tensor its header entry and a hash of its first, middle and last bytes."""
    descriptor = os.open(shard.path, os.O_RDONLY)
    try:
        for tensor in shard.tensors:
            begin, end = tensor.begin, tensor.end
            sampled = hashlib.sha256()
            for offset in (begin, begin + (end - begin) // 2, max(begin, end - _SAMPLE_BYTES)):
                sampled.update(os.pread(descriptor, min(_SAMPLE_BYTES, end - offset), shard.start + offset))
            yield [tensor.name, tensor.dtype, list(tensor.shape), begin, end, sampled.hexdigest()]
    finally:
        os.close(descriptor)


def full_digest(shard: Shard) -> str:
    """sha256 of the whole file."""
    total = hashlib.sha256()
    with shard.path.open("rb") as handle:
        while chunk := handle.read(_CHUNK_BYTES):
            total.update(chunk)
    return total.hexdigest()
