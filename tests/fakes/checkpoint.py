"""Checkpoint folders small enough to write by hand: real safetensors headers and tokenizers, no trained weights."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 4096,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
    "eos_token_id": 1,
}
_LONG_AGO = 1_700_000_000


def safetensors(tensors: Mapping[str, bytes]) -> bytes:
    """A safetensors file with one-dimensional U8 tensors."""
    return with_header({name: ("U8", [len(data)], len(data)) for name, data in tensors.items()}, tensors.values())


def with_header(entries: Mapping[str, tuple[str, Sequence[int], int]], data: Any = ()) -> bytes:
    """A safetensors header for tensors of (dtype, shape, bytes), and what follows it."""
    header, offset = {}, 0
    for name, (dtype, shape, size) in entries.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(data)


def write_sparse(file: Path, entries: Mapping[str, tuple[str, Sequence[int], int]]) -> None:
    """A file as long as its header says that takes no room on the disk."""
    start = with_header(entries)
    with file.open("wb") as handle:
        handle.write(start)
        handle.truncate(len(start) + sum(size for _, _, size in entries.values()))


def tokenizer(words: Sequence[str] = ("a", "b"), added: Mapping[str, int] | None = None) -> dict[str, Any]:
    """A tokenizer.json that the tokenizers library loads; by default <|im_start|> is 3 and <|im_end|> 2."""
    added = {"<|im_end|>": len(words), "<|im_start|>": len(words) + 1} if added is None else added
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": number, "content": text, **flags} for text, number in added.items()],
        "model": {"type": "WordLevel", "vocab": {w: n for n, w in enumerate(words)}, "unk_token": words[0]},
    }


def make_checkpoint(folder: Path, *, still: bool = True, **changes: Any) -> Path:
    """A whole checkpoint; `changes` replace files by name with a dot as `__` (None leaves the file out).

    `still`: its files look as if they were written long ago.
    """
    files: dict[str, Any] = {
        "config__json": QWEN3_8B,
        "generation_config__json": {"eos_token_id": [1, 2], "temperature": 0.1, "top_k": 1},
        "tokenizer__json": tokenizer(),
        "tokenizer_config__json": {"eos_token": "<|im_end|>"},
        "chat_template__jinja": TEMPLATE,
        "model__safetensors": safetensors({"a": b"x" * 2000, "b": b"y" * 10}),
        **changes,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for key, value in files.items():
        if value is None:
            continue
        data = value if isinstance(value, bytes) else value if isinstance(value, str) else json.dumps(value)
        (folder / key.replace("__", ".")).write_bytes(data if isinstance(data, bytes) else data.encode())
    if still:
        settle(folder)
    return folder


def settle(folder: Path) -> None:
    for file in folder.iterdir():
        if not file.is_symlink():
            os.utime(file, (_LONG_AGO, _LONG_AGO))
