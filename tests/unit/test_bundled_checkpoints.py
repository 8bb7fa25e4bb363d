"""The checkpoints in the repository must be those that were trained, whole, and read alike by every reader.

Incidents: a fast tokenizer rebuilt as another class that normalises or cleans up text on the way, so that what comes
out is not what went in; an end token missing from generation_config.json, so that every answer runs to the cap
(vllm#15281).
"""

from __future__ import annotations

import ast
import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from entrypoint.checkpoint import inspect

ROOT = Path(__file__).parents[2]
ADDER = ROOT / "examples/checkpoints/adder"
STEPS = (100, 300)
TOKENIZER = AutoTokenizer.from_pretrained(ADDER / "hf/step-300")


def checkpoint(step: int) -> Path:
    return ADDER / f"hf/step-{step}"


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def tensors(path: Path) -> dict[str, Any]:
    """Header of a safetensors file: dtype and shape of each tensor."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    return {name: value for name, value in header.items() if name != "__metadata__"}


def test_the_listed_sums_are_those_of_the_files_and_no_file_is_unlisted() -> None:
    lines = (ADDER / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    listed = {name: digest for digest, name in (line.split("  ") for line in lines)}
    there = {
        path.relative_to(ADDER).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (ADDER / "hf").rglob("*")
        if path.is_file()
    }
    assert listed == there


@pytest.mark.parametrize("step", STEPS)
def test_a_checkpoint_is_small_and_in_bfloat16(step: int) -> None:
    assert sum(path.stat().st_size for path in checkpoint(step).iterdir()) < 3_000_000
    weights = tensors(checkpoint(step) / "model.safetensors")
    assert {value["dtype"] for value in weights.values()} == {"BF16"}
    parameters = (checkpoint(step) / "model.safetensors").stat().st_size // 2
    assert 100_000 < parameters < 500_000


def test_only_the_weights_differ_between_the_steps() -> None:
    earlier, later = ({path.name: path.read_bytes() for path in checkpoint(step).iterdir()} for step in STEPS)
    assert {name for name in earlier | later if earlier.get(name) != later.get(name)} == {"model.safetensors"}


@pytest.mark.parametrize("step", STEPS)
def test_a_checkpoint_is_accepted_under_its_step(step: int) -> None:
    assert inspect(str(checkpoint(step))).step == step


@pytest.mark.parametrize("step", STEPS)
def test_generation_ends_at_the_end_of_a_chat_turn(step: int) -> None:
    end = TOKENIZER.convert_tokens_to_ids("<|im_end|>")
    assert read_json(checkpoint(step) / "generation_config.json")["eos_token_id"] == end
    assert read_json(checkpoint(step) / "config.json")["eos_token_id"] == end
    assert TOKENIZER.eos_token_id == end


@pytest.mark.parametrize("step", STEPS)
def test_the_shape_can_be_split_over_two_and_four_cards(step: int) -> None:
    config = read_json(checkpoint(step) / "config.json")
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    for cards in (1, 2, 4):
        assert heads % cards == 0
        assert kv_heads % cards == 0 or cards % kv_heads == 0
    assert config["vocab_size"] == len(TOKENIZER)
    assert config["max_position_embeddings"] == 40960
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 10000.0}


@given(st.text())
@example("e\u0301 \u00e9 \ufb01")
@example("  do n't , please \r\n\t ")
@example("<|im_start|>user\n2 + 2<|im_end|>\n<|endoftext|>")
@example("\x00\u2028\U0001f9ee 二十七")
def test_any_text_comes_back_from_its_tokens(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    assert TOKENIZER.decode(ids, skip_special_tokens=False, spaces_between_special_tokens=False) == text


def test_each_byte_is_one_token_and_nothing_is_added() -> None:
    assert len(TOKENIZER.encode("27 + 58 = ü")) == len("27 + 58 = ü".encode())
    assert len(TOKENIZER.encode("<|im_start|>a<|im_end|>")) == 3


def test_the_tokenizer_names_a_class_that_old_and_new_readers_know() -> None:
    for step in STEPS:
        assert read_json(checkpoint(step) / "tokenizer_config.json")["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_the_chat_template_is_chatml() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 27 + 58? Put the answer in \\boxed{}."},
    ]
    assert TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nWhat is 27 + 58? Put the answer in \\boxed{}.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_training_asks_as_the_task_asks() -> None:
    constants = {
        target.id: ast.literal_eval(node.value)
        for node in ast.parse((ADDER / "train.py").read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for line in (ROOT / "tasks/arithmetic/problems.jsonl").read_text(encoding="utf-8").splitlines():
        problem = json.loads(line)
        assert constants["QUESTION"].format(a=problem["a"], b=problem["b"]) == problem["question"]
