"""A checkpoint that is absent, cut or without a template must be named as such before anything starts.

Incidents: a local path that does not exist taken for a hub id (vllm#13724, #12867); a shard that the index names absent
(vllm#34930, sglang#32279); templates in other homes (text-generation-inference#3247, ms-swift#4358).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from entrypoint.checkpoint import inspect, step_of
from entrypoint.errors import CheckpointError
from tests.fakes.checkpoint import TEMPLATE, make_checkpoint, safetensors


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-300", 300),
        ("checkpoint-300", 300),
        ("step-0900", 900),
        ("final", None),
        ("step-300-sft", None),
        ("my-step-300", None),
        ("step300", None),
    ],
)
def test_the_step_is_the_last_component_in_full(name: str, step: int | None) -> None:
    assert step_of(Path("/r/step-7/hf") / name) == step


def test_a_symlink_gives_the_step_of_what_it_points_to(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "step-20")
    (tmp_path / "latest").symlink_to(tmp_path / "step-20")
    found = inspect(str(tmp_path / "latest"))
    assert (found.step, found.path) == (20, (tmp_path / "step-20").resolve())


@pytest.mark.parametrize("path", ["ckpts/step-300", "/data/nope/step-300", "Qwen/Qwen3-8B"])
def test_a_path_that_is_no_folder_is_refused(path: str) -> None:
    with pytest.raises(CheckpointError, match="not a directory"):
        inspect(path)


def test_a_hub_id_is_not_fetched() -> None:
    with pytest.raises(CheckpointError, match="a hub id is not fetched"):
        inspect("Qwen/Qwen3-8B")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"config__json": None}, "no config.json"),
        ({"config__json": "{"}, "can't be read as JSON"),
        ({"config__json": "[]"}, "not a JSON object"),
        ({"tokenizer__json": None}, "no tokenizer"),
        ({"model__safetensors": None}, "no model.safetensors"),
        ({"model__safetensors": None, "pytorch_model__bin": b"x"}, "only pytorch_model.bin; convert"),
        ({"model__safetensors": b"junk"}, "not a safetensors file"),
        ({"model__safetensors": safetensors({"a": b"x" * 99})[:-5]}, "its header says"),
        ({"model__safetensors": None, "model__safetensors__index__json": {"weight_map": {}}}, "empty weight_map"),
    ],
)
def test_what_is_not_whole_is_refused_by_name(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        inspect(str(make_checkpoint(tmp_path / "step-1", **changes)))


def test_the_first_missing_shard_is_named_with_the_count(tmp_path: Path) -> None:
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    index = {"weight_map": {"a": names[0], "b": names[1]}}
    folder = make_checkpoint(tmp_path / "s", model__safetensors=None, model__safetensors__index__json=index)
    (folder / names[0]).write_bytes(safetensors({"a": b"1"}))
    (folder / f"{names[1]}.tmp").write_bytes(b"")
    with pytest.raises(CheckpointError, match=rf"{names[1]} is missing \(1 of 2"):
        inspect(str(folder))


def test_the_identity_is_that_of_the_files_not_of_their_place(tmp_path: Path) -> None:
    first, second = make_checkpoint(tmp_path / "a/step-1"), make_checkpoint(tmp_path / "b/step-2")
    assert inspect(str(first)).identity == inspect(str(second)).identity


@pytest.mark.parametrize(
    "change",
    [
        {"model__safetensors": safetensors({"a": b"x" * 1999 + b"z", "b": b"y" * 10})},
        {"model__safetensors": safetensors({"a": b"x" * 2000, "c": b"y" * 10})},
        {"chat_template__jinja": TEMPLATE + " "},
        {"generation_config__json": {"eos_token_id": [1]}},
        {"config__json": {"architectures": ["X"]}},
    ],
)
def test_any_change_of_weights_template_or_config_changes_the_identity(
    tmp_path: Path, change: dict[str, object]
) -> None:
    plain, changed = make_checkpoint(tmp_path / "a"), make_checkpoint(tmp_path / "b", **change)
    assert inspect(str(plain)).identity != inspect(str(changed)).identity


@pytest.mark.parametrize(
    ("changes", "template"),
    [
        ({}, TEMPLATE),
        ({"chat_template__jinja": None, "tokenizer_config__json": {"chat_template": "T"}}, "T"),
        (
            {
                "chat_template__jinja": None,
                "tokenizer_config__json": {"chat_template": [{"name": "default", "template": "D"}]},
            },
            "D",
        ),
        ({"chat_template__jinja": None}, None),
        ({"chat_template__jinja": ""}, None),
    ],
)
def test_the_template_is_found_in_each_of_its_homes(
    tmp_path: Path, changes: dict[str, object], template: str | None
) -> None:
    assert inspect(str(make_checkpoint(tmp_path / "s", **changes))).template == template


def test_every_end_token_of_the_generation_config_is_kept(tmp_path: Path) -> None:
    found = inspect(str(make_checkpoint(tmp_path / "s")))
    assert found.eos_token_ids == (1, 2)
    assert found.generation_config["top_k"] == 1


def test_without_a_generation_config_the_end_token_is_the_configs(tmp_path: Path) -> None:
    assert inspect(str(make_checkpoint(tmp_path / "s", generation_config__json=None))).eos_token_ids == (1,)


def test_a_nested_config_gives_its_length(tmp_path: Path) -> None:
    config = {"architectures": ["X"], "text_config": {"max_position_embeddings": 77}}
    assert inspect(str(make_checkpoint(tmp_path / "s", config__json=json.dumps(config)))).max_position_embeddings == 77
