"""KV bytes per token decide how many sequences fit, and whether a card is refused: wrong by 2 to 25 times elsewhere.

Sources: jranaraki/vllm-fit#31, LMCache/LMCache#688 and #694, NVIDIA/TensorRT-LLM#16707, CambrianTech/continuum#4156,
alvarobartt/hf-mem#60 (B22).
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entrypoint.shape import sequences_that_fit, shape_of

QWEN3_8B = {
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 4096,
}
GPT_OSS = {
    **QWEN3_8B,
    "num_attention_heads": 64,
    "head_dim": 64,
    "hidden_size": 2880,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
}
MLA = {
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "hidden_size": 2048,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
HYBRID = {"num_hidden_layers": 64, "num_key_value_heads": 4, "head_dim": 256, "full_attention_interval": 4}


@pytest.mark.parametrize(
    ("config", "per_token"),
    [
        (QWEN3_8B, 147456),
        ({**QWEN3_8B, "hidden_size": 2560}, 147456),
        ({"text_config": QWEN3_8B, "vision_config": {"num_hidden_layers": 24}}, 147456),
        ({"thinker_config": {"text_config": QWEN3_8B}}, 147456),
        (MLA, 31104),
        ({**MLA, "model_type": "deepseek_v2"}, 31104),
        (HYBRID, 65536),
        (GPT_OSS, 73728),
        ({**QWEN3_8B, "head_dim": None}, 147456),
        ({**QWEN3_8B, "head_dim": None, "hidden_size": 2560}, 36 * 8 * 80 * 4),
        ({**QWEN3_8B, "num_key_value_heads": None}, 36 * 32 * 128 * 4),
        ({**HYBRID, "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 16}, 65536),
        ({**QWEN3_8B, "num_hidden_layers": 32, "attn_layer_period": 8, "attn_layer_offset": 4}, 4 * 8 * 128 * 4),
        ({**QWEN3_8B, "num_hidden_layers": 5, "hybrid_override_pattern": "M-*M*"}, 2 * 8 * 128 * 4),
        ({**QWEN3_8B, "num_kv_shared_layers": 16}, 20 * 8 * 128 * 4),
        ({"n_layer": 12, "n_head": 12, "n_embd": 768}, 12 * 12 * 64 * 4),
        ({**QWEN3_8B, "multi_query": True}, 36 * 1 * 128 * 4),
        ({**QWEN3_8B, "quantization_config": {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}}, 73728),
    ],
)
def test_kv_bytes_per_token_are_those_of_the_engine(config: dict[str, Any], per_token: int) -> None:
    shape = shape_of(config, "bfloat16")
    assert (shape.kv_bytes_per_token, shape.reason) == (per_token, None)


def test_a_wider_dtype_doubles_the_cache() -> None:
    assert shape_of(QWEN3_8B, "float32").kv_bytes_per_token == 2 * 147456


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "number of layers"),
        ({"num_hidden_layers": 4}, "KV heads"),
        ({"num_hidden_layers": 4, "num_key_value_heads": 2}, "head_dim"),
        ({**QWEN3_8B, "num_key_value_heads": [8, 4]}, "KV heads"),
        ({**QWEN3_8B, "layer_types": ["full_attention"] * 35}, "lists 35 layers of 36"),
        ({**QWEN3_8B, "layer_types": ["quantum"] * 36}, "'quantum'"),
        ({**MLA, "model_type": "minicpm3"}, "kv_lora_rank"),
        ({**QWEN3_8B, "index_topk": 2048}, "index_topk"),
        ({**QWEN3_8B, "v_head_dim": 64}, "another size"),
        ({**QWEN3_8B, "is_encoder_decoder": True}, "encoder"),
        ({**QWEN3_8B, "num_hidden_layers": 10**18}, "layers"),
        ({**QWEN3_8B, "quantization_config": {"kv_cache_quant_algo": "NVFP4"}}, "quantises"),
    ],
)
def test_what_the_config_leaves_open_is_not_guessed(config: dict[str, Any], words: str) -> None:
    shape = shape_of(config, "bfloat16")
    assert shape.kv_bytes_per_token is None
    assert words in str(shape.reason)


def test_sequences_are_counted_per_card_and_in_whole_blocks() -> None:
    shape = shape_of(QWEN3_8B)
    gib = 1 << 30
    assert 5.0625 * gib == 36864 * 147456
    assert sequences_that_fit(60 * gib, shape, 36864) == 11
    assert sequences_that_fit(60 * gib, shape, 36864, tensor_parallel_size=2) == 23
    assert sequences_that_fit(16 * 147456, shape, 1) == 1
    assert sequences_that_fit(16 * 147456, shape, 17) == 0
    assert sequences_that_fit(60 * gib, shape_of({}), 36864) is None


def test_cards_beyond_the_kv_heads_and_latent_vectors_save_nothing() -> None:
    dense, latent = shape_of({**QWEN3_8B, "num_key_value_heads": 2}), shape_of(MLA)
    assert dense.kv_bytes_per_token_and_card(8) == dense.kv_bytes_per_token_and_card(2) == 36 * 128 * 4
    assert latent.kv_bytes_per_token_and_card(8) == 31104


KEYS = (*QWEN3_8B, *MLA, *HYBRID, *GPT_OSS, "text_config", "num_kv_shared_layers", "attn_layer_period", "model_type")
KEYS += ("attn_layer_offset", "linear_attn_config", "attn_type_list", "hybrid_override_pattern", "quantization_config")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([1, 8, 36, 128]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=20,
)


@settings(max_examples=1500, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=12), st.sampled_from(["bfloat16", "float32", "int3"]))
def test_any_config_gives_a_number_or_a_reason(config: dict[str, Any], dtype: str) -> None:
    shape = shape_of(config, dtype)
    assert (shape.kv_bytes_per_token is None) == (shape.reason is not None)
    assert shape.kv_bytes_per_token is None or shape.kv_bytes_per_token >= 0
    for size in (1, 3, 8):
        sequences_that_fit(1 << 36, shape, 4096, tensor_parallel_size=size)
