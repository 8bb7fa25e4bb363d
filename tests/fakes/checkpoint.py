"""Checkpoint folders small enough to write by hand: real safetensors headers, no trained weights."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


def safetensors(tensors: Mapping[str, bytes]) -> bytes:
    """A safetensors file with one-dimensional U8 tensors."""
    header, offset = {}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(tensors.values())


def make_checkpoint(folder: Path, **changes: Any) -> Path:
    """A whole checkpoint; `changes` replace files by name with a dot as `__` (None leaves the file out)."""
    files: dict[str, Any] = {
        "config__json": {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "max_position_embeddings": 40960,
            "eos_token_id": 1,
        },
        "generation_config__json": {"eos_token_id": [1, 2], "temperature": 0.1, "top_k": 1},
        "tokenizer__json": {"model": {"type": "BPE", "vocab": {}, "merges": []}},
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
    return folder
