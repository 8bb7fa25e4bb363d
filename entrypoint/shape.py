"""A model's shape from its config: layers, heads, and what one token costs in the KV cache.

In: config.json as a mapping and the job's dtype. Out: a Shape; what the config leaves open is None, with the reason.
Pure: no file is read and nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
_MOST_LAYERS = 10_000
_BLOCK_TOKENS = 16  # the engine hands out KV memory in blocks of this many tokens

_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups")
_HIDDEN = ("hidden_size", "n_embd", "d_model")

# The engine caches one latent vector per token for these, and keys and values for any other model with kv_lora_rank.
_LATENT = {
    "axk1",
    "bailing_hybrid",
    "deepseek_v2",
    "deepseek_v3",
    "glm4_moe_lite",
    "kimi_k2",
    "kimi_linear",
    "longcat_flash",
    "pangu_ultra_moe",
}
# Words of `layer_types` and its like, by whether such a layer keeps every token; sliding layers reserve pages too.
_CACHING = {"full_attention", "attention", "sliding_attention", "chunked_attention", "hybrid"}
_NOT_CACHING = {"linear_attention", "mamba", "mamba2", "conv", "recurrent", "mlp", "moe"}
# Each of these changes what a layer caches in a way of its own.
_UNKNOWN_TO_US = (
    "block_configs",
    "compress_ratios",
    "cross_attention_layers",
    "global_head_dim",
    "index_topk",
    "loop_num",
    "num_global_key_value_heads",
    "swa_head_dim",
    "swa_num_key_value_heads",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Sizes of a decoder; each is None where the config does not tell.

    `kv_layers`: the layers that keep every token, out of `layers`. `latent`: one vector per token and layer in place of
    keys and values (MLA), which every card of a tensor-parallel group holds whole.
    `kv_bytes_per_token`: over all layers and cards; `reason` says why it is None.
    `sliding_window`: tokens, where some layers look back no further; they still reserve room for every token.
    """

    layers: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    hidden_size: int | None
    vocab_size: int | None
    kv_layers: int | None
    latent: bool
    kv_bytes_per_token: int | None
    reason: str | None
    sliding_window: int | None

    def kv_bytes_per_token_and_card(self, tensor_parallel_size: int) -> int | None:
        """Bytes on each card: KV heads are divided over the cards, each on several where there are more cards."""
        total, kv_heads = self.kv_bytes_per_token, self.kv_heads
        if total is None or self.latent or tensor_parallel_size <= 1:
            return total
        return total // min(tensor_parallel_size, kv_heads or 1)


class _Unknown(Exception):
    """The config does not say; the text is the reason."""


def shape_of(config: Mapping[str, Any], dtype: str = "bfloat16") -> Shape:
    """The shape of the model that `config` describes, its KV cache in `dtype` (bfloat16, float16, float32)."""
    text = text_part(config)
    layers, heads = _first(text, _LAYERS), _first(text, _HEADS)
    hidden, kv_heads = _first(text, _HIDDEN), _kv_heads(text)
    kv_layers: int | None = None
    total: int | None = None
    reason: str | None = None
    try:
        _refuse_what_is_not_understood(config, text)
        kv_layers = _kv_layers(text)
        total = kv_layers * _values_per_layer(text) * _bytes_per_value(config, text, dtype)
    except _Unknown as unknown:
        reason = str(unknown)
    return Shape(
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_head_dim(text),
        hidden_size=hidden,
        vocab_size=_count(text.get("vocab_size")),
        kv_layers=kv_layers,
        latent=_latent(text),
        kv_bytes_per_token=total,
        reason=reason,
        sliding_window=_sliding_window(text),
    )


def sequences_that_fit(memory_bytes: int, shape: Shape, length: int, *, tensor_parallel_size: int = 1) -> int | None:
    """How many sequences of `length` tokens have room at once in `memory_bytes` of KV cache on each card.

    None where the shape does not tell. The engine's blocks hold 16 tokens, so a length is rounded up to that.
    """
    per_token = shape.kv_bytes_per_token_and_card(tensor_parallel_size)
    if not per_token:
        return None
    blocks = -(-max(length, 1) // _BLOCK_TOKENS)
    return max(memory_bytes, 0) // (blocks * _BLOCK_TOKENS * per_token)


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that describes the language model: `config` itself, or what a multimodal one nests."""
    for name in _TEXT_PARTS:
        part = config.get(name)
        if isinstance(part, Mapping) and part:
            return text_part(part)
    return config


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _first(text: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    return next((found for name in names if (found := _count(text.get(name))) is not None), None)


def _kv_heads(text: Mapping[str, Any]) -> int | None:
    """A config without a count of KV heads means one per query head; falcon's older ones share a single one."""
    if text.get("multi_query") is True and not text.get("new_decoder_architecture"):
        return 1
    if all(text.get(name) is None for name in _KV_HEADS):
        return _first(text, _HEADS)
    return _first(text, _KV_HEADS)


def _head_dim(text: Mapping[str, Any]) -> int | None:
    """Explicit where it is set; null and 0 fall back to hidden size over heads."""
    if explicit := _count(text.get("head_dim")):
        return explicit
    hidden, heads = _first(text, _HIDDEN), _first(text, _HEADS)
    return None if hidden is None or heads is None or hidden < heads else hidden // heads


def _latent(text: Mapping[str, Any]) -> bool:
    return text.get("kv_lora_rank") is not None and str(text.get("model_type", "deepseek_v2")) in _LATENT


def _refuse_what_is_not_understood(config: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    for name in _UNKNOWN_TO_US:
        if text.get(name) not in (None, [], {}):
            raise _Unknown(f"its config has {name}, and what such a model caches is not known here")
    if config.get("is_encoder_decoder"):
        raise _Unknown("it has an encoder, and what such a model caches is not known here")
    if text.get("kv_lora_rank") is not None and not _latent(text):
        raise _Unknown(f"its config has kv_lora_rank, and how {text.get('model_type')!r} caches is not known here")


def _values_per_layer(text: Mapping[str, Any]) -> int:
    """Numbers cached per token by one layer: keys and values of every KV head, or one latent vector."""
    if _latent(text):
        rank, rope = _count(text.get("kv_lora_rank")), _count(text.get("qk_rope_head_dim"))
        if rank is None or rope is None:
            raise _Unknown("kv_lora_rank or qk_rope_head_dim is not a count")
        return rank + rope
    kv_heads, head_dim = _kv_heads(text), _head_dim(text)
    if kv_heads is None:
        raise _Unknown("its config gives no one number of KV heads")
    if head_dim is None:
        raise _Unknown("its config gives no head_dim, and no hidden_size and num_attention_heads to derive it from")
    if text.get("v_head_dim") not in (None, 0, head_dim):
        raise _Unknown("its values have another size than its keys")
    return 2 * kv_heads * head_dim


def _kv_layers(text: Mapping[str, Any]) -> int:
    """How many layers keep every token; the rest keep a state of fixed size (linear attention, mamba)."""
    layers = _first(text, _LAYERS)
    if layers is None:
        raise _Unknown("its config gives no number of layers")
    if layers > _MOST_LAYERS:
        raise _Unknown(f"its config says {layers} layers")
    layers *= 2 if text.get("model_type") == "longcat_flash" and "num_hidden_layers" not in text else 1
    caching = _listed_layers(text, layers)
    shared = text.get("num_kv_shared_layers")
    if not shared:
        return sum(caching)
    if _count(shared) is None or shared >= layers:
        raise _Unknown("num_kv_shared_layers is not a count below the number of layers")
    return sum(caching[: layers - shared])


def _listed_layers(text: Mapping[str, Any], layers: int) -> list[bool]:
    """For each layer, whether it keeps every token."""
    for name in ("layer_types", "layers_block_type"):
        if isinstance(words := text.get(name), list) and words:
            return _from_words(name, words, layers)
    if isinstance(kinds := text.get("attn_type_list"), list) and kinds:
        return [kind == 1 for kind in kinds[:layers]]
    if isinstance(pattern := text.get("hybrid_override_pattern"), str) and pattern:
        return [letter == "*" for letter in pattern]
    if isinstance(linear := text.get("linear_attn_config"), Mapping):
        full = linear.get("full_attn_layers")
        if not isinstance(full, list):
            raise _Unknown("linear_attn_config does not list full_attn_layers")
        return [n + 1 in full for n in range(layers)]
    if (period := _count(text.get("attn_layer_period"))) is not None:
        offset = text.get("attn_layer_offset")
        return [n % period == (offset if isinstance(offset, int) else 0) for n in range(layers)]
    if (interval := text.get("full_attention_interval")) is not None:
        if _count(interval) is None:
            raise _Unknown("full_attention_interval is not a count")
        return [(n + 1) % interval == 0 for n in range(layers)]
    return [True] * layers


def _from_words(name: str, words: list[Any], layers: int) -> list[bool]:
    if len(words) != layers:
        raise _Unknown(f"{name} lists {len(words)} layers of {layers}")
    for word in words:
        if not isinstance(word, str) or word not in _CACHING | _NOT_CACHING:
            raise _Unknown(f"{name} has {word!r}, and what such a layer caches is not known here")
    return [word in _CACHING for word in words]


def _bytes_per_value(config: Mapping[str, Any], text: Mapping[str, Any], dtype: str) -> int:
    """The job's dtype, except where the checkpoint brings scales for an 8-bit cache, which the engine then uses."""
    quantization = config.get("quantization_config") or text.get("quantization_config")
    if isinstance(quantization, Mapping):
        scheme, algorithm = quantization.get("kv_cache_scheme"), quantization.get("kv_cache_quant_algo")
        if scheme is not None or algorithm is not None:
            eight = isinstance(scheme, Mapping) and scheme.get("num_bits") == 8
            if eight or algorithm == "FP8":
                return 1
            raise _Unknown("its config quantises the KV cache in a way that is not known here")
    if dtype not in _BYTES:
        raise _Unknown(f"the size of dtype {dtype} is not known here")
    return _BYTES[dtype]


def _sliding_window(text: Mapping[str, Any]) -> int | None:
    return None if text.get("use_sliding_window") is False else _count(text.get("sliding_window"))
