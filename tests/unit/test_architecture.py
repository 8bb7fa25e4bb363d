"""A config that the pinned engine can't read must be refused here, and one that it can must not.

Incidents: rope_theta saved in rope_parameters only, so that an older reader takes 10000 and every score is low, with
no error (vllm#42624, #44158, #28542, #50428: B21); a model type that the engine's transformers does not know.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from entrypoint.architecture import completed, load_models, notices, refusals
from entrypoint.context import limit_of
from entrypoint.shape import shape_of
from tests.fakes.checkpoint import QWEN3_8B

MODELS = load_models(Path(__file__).parents[2])
OLD = replace(MODELS, transformers="4.57.1")
NEWER_ROPE = {key: value for key, value in QWEN3_8B.items() if key != "rope_theta"} | {
    "dtype": "bfloat16",
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
}
OWN = {"architectures": ["OwnForCausalLM"], "model_type": "own"}
OWN_MAP = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}


def told(config: dict[str, Any], tokenizer: dict[str, Any] | None = None, models: Any = MODELS, **keys: Any) -> str:
    found = refusals(Path("/c"), config, tokenizer or {}, models, trust_remote_code=keys.get("trust", False))
    return "\n".join(map(str, found))


def test_rope_fields_of_newer_savers_need_a_reader_that_knows_them() -> None:
    assert told(NEWER_ROPE) == ""
    assert "transformers 4.57.1, which would take 10000" in told(NEWER_ROPE, models=OLD)
    assert told({"model_type": "gemma3", **QWEN3_8B, "text_config": QWEN3_8B}, models=OLD) == ""


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"},
        {"architectures": ["ApertusForCausalLM"], "model_type": "apertus"},
        {"architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3"},
        {"architectures": ["HeliumForCausalLM"], "model_type": "helium"},
        {"architectures": ["LongcatFlashForCausalLM"], "model_type": None},
        {"auto_map": OWN_MAP},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
        {"rope_parameters": {"full_attention": {"rope_type": "linear"}, "sliding_attention": {"rope_type": "default"}}},
    ],
)
def test_what_the_engine_knows_is_taken(changes: dict[str, Any]) -> None:
    assert told({**QWEN3_8B, **changes}) == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": None}, "no model_type"),
        ({"model_type": ["qwen3"]}, "is unknown to transformers"),
        ({"architectures": []}, "names none"),
        ({"architectures": ["QWenLMHeadModel"]}, "which had it up to 0.23.0"),
        ({"architectures": ["Qwen2ForRewardModel"]}, "for reward only"),
        ({"rope_parameters": {"full_attention": {"rope_type": "warp"}}}, "rope type 'warp'"),
        (OWN, "unknown to vLLM 0.32.0"),
        ({**OWN, "auto_map": OWN_MAP}, "it brings its own code (modeling_own.OwnForCausalLM): set engine.trust"),
    ],
)
def test_what_the_engine_does_not_know_is_refused_with_its_name(changes: dict[str, Any], words: str) -> None:
    assert words in told({**QWEN3_8B, **changes})


def test_trusted_code_is_enough_where_it_is_in_the_folder(tmp_path: Path) -> None:
    config = {**QWEN3_8B, **OWN, "auto_map": OWN_MAP}
    assert "configuration_own.py is not in the folder" in told(config, trust=True)
    for name in ("configuration_own.py", "modeling_own.py"):
        (tmp_path / name).write_text("")
    assert list(refusals(tmp_path, config, {}, MODELS, trust_remote_code=True)) == []
    elsewhere = {**config, "auto_map": {"AutoConfig": "org/repo--configuration_own.OwnConfig"}}
    assert list(refusals(tmp_path, elsewhere, {}, MODELS, trust_remote_code=True)) != []


@pytest.mark.parametrize(
    ("name", "taken"), [("OwnTokenizer", False), ("Qwen2TokenizerFast", True), ("PreTrainedTokenizerFast", True)]
)
def test_a_tokenizer_of_the_checkpoint_itself_needs_trust(name: str, taken: bool) -> None:
    tokenizer = {"tokenizer_class": name, "auto_map": {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]}}
    assert (told(QWEN3_8B, tokenizer) == "") == taken


def test_what_the_config_leaves_out_is_what_its_class_takes() -> None:
    """google/gemma-3-4b-it gives neither heads nor KV heads nor a length."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024}
    config = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    whole = completed(config, MODELS)
    assert whole["model_type"] == "gemma3"
    assert shape_of(whole).kv_bytes_per_token == 34 * 4 * 256 * 2 * 2
    limit = limit_of(whole)
    assert limit is not None
    assert limit.tokens == 131072
    assert shape_of(config).kv_bytes_per_token is None


def test_what_is_odd_but_works_is_a_notice() -> None:
    config = {
        **QWEN3_8B,
        "architectures": ["HeliumForCausalLM"],
        "transformers_version": "9.1.0",
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
    }
    own, newer, twice = notices(config, MODELS)
    assert "no code of its own" in own
    assert "'9.1.0'" in newer
    assert "1000000.0 and 500000.0" in twice


@pytest.mark.parametrize(
    ("scaling", "tokens"),
    [
        (None, 4096),
        ({"type": "linear", "factor": 2.0}, 8192),
        ({"rope_type": "dynamic", "factor": 2.5}, 10240),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
        ({"rope_type": "llama3", "factor": 8.0}, 4096),
        ({"rope_type": "longrope"}, 4096),
        ({"rope_type": "linear", "factor": None}, 4096),
    ],
)
def test_the_context_is_scaled_only_where_the_engine_scales_it(scaling: Any, tokens: int) -> None:
    """tests/engine/test_models.py asks the engine the same."""
    limit = limit_of({"max_position_embeddings": 4096, "rope_scaling": scaling})
    assert limit is not None
    assert limit.tokens == tokens


def test_without_a_length_in_the_config_there_is_no_limit() -> None:
    assert limit_of({"model_type": "x", "max_position_embeddings": float("inf")}) is None
