"""The longest context of a checkpoint, as the engine derives it from the config.

In: config.json as a mapping, completed with what the config's class takes by itself. Out: a Limit.
Source: vLLM 0.32.0, `_get_and_verify_max_len` and `derive_max_model_len_and_key`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from entrypoint.shape import text_part

_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
# With these, max_position_embeddings is the length after scaling already.
_SCALED_ALREADY = {"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """`tokens` of prompt and generation together; `why` names the key of the config and a scaling that counts."""

    tokens: int
    why: str


def limit_of(config: Mapping[str, Any]) -> Limit | None:
    """The engine refuses a max_model_len above this; None where the config sets no limit."""
    text = text_part(config)
    found = {key: n for key in _KEYS if (n := _number(text.get(key))) is not None}
    if not found:
        return None
    key = min(found, key=lambda k: found[k])
    if "model_max_length" in found:
        key = "model_max_length"
    factor, kind = 1.0, ""
    if "gemma3" not in str(text.get("model_type")):
        for rope in rope_parameters(text):
            name = str(rope.get("rope_type", rope.get("type", "default")))
            if name not in _SCALED_ALREADY:
                factor, kind = _number(rope.get("factor")) or factor, name
    scaled = f" x {factor:g} ({kind} rope scaling)" if factor != 1.0 else ""
    return Limit(tokens=int(found[key] * factor), why=f"{key} {found[key]:g}{scaled}")


def rope_parameters(text: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The rope settings of a text config, under their name in either generation of savers; one per kind of layer."""
    rope = text.get("rope_parameters") or text.get("rope_scaling")
    if not isinstance(rope, Mapping) or not rope:
        return
    if all(isinstance(value, Mapping) or value is None for value in rope.values()):
        yield from (value for value in rope.values() if value)
    else:
        yield rope


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e15 or not isfinite(value):
        return None
    return value
