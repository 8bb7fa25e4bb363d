"""A checkpoint that is absent, cut or without a template must be named as such before anything starts.

Incidents: a local path that does not exist taken for a hub id (vllm#13724, #12867); a shard that the index names absent
(vllm#34930, sglang#32279); templates in other homes (text-generation-inference#3247, ms-swift#4358).
"""

from __future__ import annotations

import json
import struct
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entrypoint.architecture import load_models, notices, refusals
from entrypoint.checkpoint import inspect, step_of, steps_in
from entrypoint.errors import CheckpointError
from entrypoint.record import canonical
from entrypoint.template import end_token
from tests.fakes.checkpoint import QWEN3_8B, TEMPLATE, make_checkpoint, safetensors, settle, tokenizer, with_header

MODELS = load_models(Path(__file__).parents[2])


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


def test_a_nested_config_gives_its_limit_and_shape(tmp_path: Path) -> None:
    config = {"architectures": ["X"], "text_config": {**QWEN3_8B, "max_position_embeddings": 77}}
    found = inspect(str(make_checkpoint(tmp_path / "s", config__json=config, generation_config__json=None)))
    assert found.eos_token_ids == (1,)
    assert found.limit is not None
    assert found.limit.tokens == 77
    assert found.shape.kv_bytes_per_token == 147456


def test_steps_are_in_order_of_numbers(tmp_path: Path) -> None:
    """open-instruct#541: as text, step-9000 comes after step-10000 (B14)."""
    for name in ("step-200", "step-1000", "step-0900", "handpicked"):
        (tmp_path / name).mkdir()
    steps, other = steps_in(tmp_path)
    assert [path.name for path in steps] == ["step-200", "step-0900", "step-1000"]
    assert other == ("handpicked",)
    with pytest.raises(CheckpointError, match=r"handpicked: no step.*the latest, .*step-1000"):
        inspect(str(tmp_path))


HALF = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def sharded(folder: Path, **changes: Any) -> Path:
    index = {"weight_map": {"a": HALF[0], "b": HALF[1]}}
    make_checkpoint(folder, **{"model__safetensors": None, "model__safetensors__index__json": index, **changes})
    for name, tensor in zip(HALF, "ab", strict=True):
        (folder / name).write_bytes(safetensors({tensor: b"1"}))
    settle(folder)
    return folder


def test_weights_beside_the_shards_are_named(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "s", model__safetensors=safetensors({"a": b"2"}))
    assert "'model.safetensors': not among the model's weights" in inspect(str(folder)).warnings[0]


def test_without_an_index_a_second_file_would_be_loaded_too(tmp_path: Path) -> None:
    """vLLM 0.32.0 loads every *.safetensors of a folder that has no index."""
    folder = make_checkpoint(tmp_path / "s")
    (folder / "adapter_model.safetensors").write_bytes(safetensors({"a": b"2"}))
    with pytest.raises(CheckpointError, match=r"adapter_model\.safetensors lies beside model\.safetensors"):
        inspect(str(folder))


def test_the_engine_must_not_find_weights_in_another_format(tmp_path: Path) -> None:
    """vLLM 0.32.0 takes consolidated*.safetensors before any index."""
    folder = sharded(tmp_path / "s")
    (folder / "consolidated.safetensors").write_bytes(safetensors({"a": b"2"}))
    with pytest.raises(CheckpointError, match=r"consolidated\.safetensors lies beside .* would load it instead"):
        inspect(str(folder))


@pytest.mark.parametrize("end", [".tmp", ".incomplete"])
def test_an_unfinished_copy_of_a_weight_file_is_named(tmp_path: Path, end: str) -> None:
    folder = sharded(tmp_path / "s")
    (folder / (HALF[1] + end)).write_bytes(b"")
    with pytest.raises(CheckpointError, match=f"{HALF[1]}{end} lies beside"):
        inspect(str(folder))
    (folder / HALF[1]).unlink()
    with pytest.raises(CheckpointError, match=rf"1 of 2 shards are there, in its place {HALF[1]}{end}"):
        inspect(str(folder))


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"
UNWHOLE = with_header({"a": ("BF16", [3, 5], 30), "b": ("BF16", [2], 4)}, [b"\0" * 34])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model__safetensors": POINTER}, "Git LFS pointer"),
        ({"config__json": POINTER}, "Git LFS pointer"),
        ({"tokenizer__json": POINTER}, "Git LFS pointer"),
        ({"model__safetensors": b""}, "0 bytes, not a safetensors file"),
        ({"model__safetensors": with_header({})}, "hold no tensor"),
        ({"model__safetensors": with_header({"a": ("BF16", [3, 5], 31)}, [b"0" * 31])}, "does not fill its 31 bytes"),
        ({"model__safetensors": UNWHOLE.replace(b"[30, 34]", b"[31, 35]") + b"0"}, "the one before ends at 30"),
        ({"model__safetensors": UNWHOLE.replace(b"[3, 5]", b"[-3, 5]")[:-1]}, "not a safetensors file"),
        ({"model__safetensors": None, "adapter_config__json": {}}, "an adapter"),
        ({"model__safetensors": None, "model__safetensors__index__json": {}}, "empty weight_map"),
        (
            {"model__safetensors": None, "model__safetensors__index__json": {"weight_map": {"a": "../x"}}},
            "'../x' is not",
        ),
        ({"config__json": "[" * 100_000}, "can't be read as JSON"),
        ({"generation_config__json": '{"temperature": NaN}'}, "no JSON file can hold"),
        ({"tokenizer__json": {}}, "can't be loaded as a tokenizer"),
        ({"tokenizer__json": None, "tokenizer__model": b"x"}, "sentencepiece"),
        ({"tokenizer__json": None, "vocab__json": {"a": 0}}, "without merges.txt"),
        (
            {"tokenizer__json": tokenizer([f"w{n}" for n in range(99)]), "config__json": {"vocab_size": 50}},
            "reaches id 98",
        ),
        ({"config__json": {"vocab_size": 3}}, "<|im_start|> has id 3, the model has 3 tokens"),
    ],
)
def test_what_can_not_be_used_is_refused_with_its_cause(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError) as refused:
        inspect(str(make_checkpoint(tmp_path / "step-1", **changes)))
    assert words in str(refused.value)


def test_shards_of_two_savings_are_refused(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "s")
    (folder / HALF[0]).write_bytes(safetensors({"c": b"1"}))
    settle(folder)
    with pytest.raises(CheckpointError, match="two savings"):
        inspect(str(folder))


def test_an_embedding_of_another_size_than_the_config_is_refused(tmp_path: Path) -> None:
    entries = {"model.embed_tokens.weight": ("BF16", [100, 2], 400)}
    weights = with_header(entries, [b"0" * 400])
    config = {**QWEN3_8B, "vocab_size": 128}
    with pytest.raises(CheckpointError, match=r"100 rows where config\.json says vocab_size 128"):
        inspect(str(make_checkpoint(tmp_path / "s", config__json=config, model__safetensors=weights)))
    whole = {**QWEN3_8B, "vocab_size": 100}
    assert inspect(str(make_checkpoint(tmp_path / "t", config__json=whole, model__safetensors=weights))).warnings == ()


def test_an_unused_added_token_out_of_reach_is_a_warning(tmp_path: Path) -> None:
    """gemma-3-1b-it: 262144 rows, and a token for images with id 262144."""
    added = {"<|im_end|>": 2, "<|im_start|>": 3, "<image>": 4}
    folder = make_checkpoint(
        tmp_path / "s", config__json={**QWEN3_8B, "vocab_size": 4}, tokenizer__json=tokenizer(added=added)
    )
    assert "'<image>'" in inspect(str(folder)).warnings[0]


def test_an_end_token_that_is_not_in_the_list_is_named(tmp_path: Path) -> None:
    """vllm#15281, vllm#4180, lighteval#1279: every answer runs to the cap (B20)."""
    changes = {
        "generation_config__json": {"temperature": 0.1, "top_k": 1, "eos_token_id": 151643},
        "tokenizer__json": tokenizer(added={"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645}),
    }
    _, told = inspect(str(make_checkpoint(tmp_path / "s", **changes))).warnings
    assert told.startswith("eos_token_id [151643] lacks 151645 (<|im_end|>)")
    changes["generation_config__json"] = {"eos_token_id": [151643, 151645]}
    (told,) = inspect(str(make_checkpoint(tmp_path / "t", **changes))).warnings
    assert "tokenizer.json gives '<|endoftext|>' the id 151643, the tokenizer as loaded gives it 2" in told


def test_the_template_counts_only_where_it_is_used(tmp_path: Path) -> None:
    folder = make_checkpoint(
        tmp_path / "s", generation_config__json={"eos_token_id": 1}, tokenizer_config__json={"eos_token": "b"}
    )
    assert "lacks 2" in inspect(str(folder)).warnings[0]
    assert inspect(str(folder), own_template=False).warnings == ()


def test_the_full_hash_sees_what_samples_do_not(tmp_path: Path) -> None:
    plain = bytearray(safetensors({"a": b"x" * 4000}))
    one = make_checkpoint(tmp_path / "one", model__safetensors=bytes(plain))
    plain[-1000] += 1
    two = make_checkpoint(tmp_path / "two", model__safetensors=bytes(plain))
    assert inspect(str(one)).identity == inspect(str(two)).identity
    first, second = (inspect(str(folder), full_hash=True).identity for folder in (one, two))
    assert first != second
    assert first.startswith("full:")


def test_a_file_that_changes_while_it_is_looked_at_is_still_being_written(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "s", still=False)
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(0.05):
            (folder / "model.safetensors").write_bytes(safetensors({"a": b"x" * 2000, "b": b"y" * 10}))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with pytest.raises(CheckpointError, match="still being written"):
            inspect(str(folder))
    finally:
        stop.set()
        writer.join()


def test_only_a_young_checkpoint_is_waited_for(tmp_path: Path) -> None:
    old, young = make_checkpoint(tmp_path / "old"), make_checkpoint(tmp_path / "young", still=False)
    inspect(str(old))
    started = time.monotonic()
    inspect(str(old))
    between = time.monotonic()
    inspect(str(young))
    assert between - started < 0.4
    assert time.monotonic() - between > 0.5


@pytest.mark.parametrize(
    ("template", "tokens", "end"),
    [
        (TEMPLATE, ["<|im_start|>", "<|im_end|>"], "<|im_end|>"),
        ("{% for m in messages %}[INST]{{ m.content }}{{ eos_token }}{% endfor %}", ["[INST]", "</s>"], "</s>"),
        ("{{ messages[1].content }}<|end|><|endoftext|>", ["<|endoftext|>", "<|end|>"], "<|end|>"),
        ("{{ messages[1].content }}\n", ["<|end|>"], None),
        ("{{ raise_exception('no') }}", ["<|end|>"], None),
        ("{% if %}", ["<|end|>"], None),
    ],
)
def test_the_end_token_is_what_the_template_writes_after_an_answer(
    template: str, tokens: list[str], end: str | None
) -> None:
    assert end_token(template, tokens, {"eos_token": "</s>"}) == end


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
ENTRY = JSON | st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["BF16", "U8", "X"]) | JSON,
        "shape": st.lists(st.integers(-1, 5), max_size=2) | JSON,
        "data_offsets": st.lists(st.integers(-1, 30), min_size=2, max_size=2) | JSON,
    }
)
HEADER = JSON | st.dictionaries(st.sampled_from(["a", "b", "__metadata__", "\ud800"]), ENTRY, max_size=3)


def named(*keys: str) -> st.SearchStrategy[Any]:
    """An object with some of these keys, whose values are anything."""
    return JSON | st.dictionaries(st.sampled_from(keys), JSON, max_size=5)


CONFIG = named(*QWEN3_8B, "text_config", "quantization_config", "rope_scaling", "rope_parameters", "auto_map")
TOKENIZER_CONFIG = named("eos_token", "bos_token", "chat_template", "added_tokens_decoder", "auto_map")
GENERATION = named("eos_token_id", "temperature", "top_k")
INDEX = JSON | st.builds(lambda value: {"weight_map": value}, JSON | st.dictionaries(st.sampled_from("ab"), JSON))


def refused_or_right(folder: Path) -> None:
    """A clean refusal, or facts that a plan and its output can hold."""
    try:
        found = inspect(str(folder), MODELS)
    except CheckpointError:
        return
    canonical([found.generation_config, found.warnings, found.quantization, found.architectures, found.template])
    list(refusals(folder, found.config, found.tokenizer_config, MODELS, trust_remote_code=False))
    list(refusals(folder, found.config, found.tokenizer_config, MODELS, trust_remote_code=True))
    list(notices(found.config, MODELS))


MANY = settings(max_examples=600, deadline=None)
PIECES = ("{{ messages", "[1]", ".content", " }}", "{% for m in messages %}", "{% endfor %}", "{{ '{}{}'.format(1) }}")
PIECES += (
    "<|end|>",
    "{% if",
    "%}",
    "{{ 1 / 0 }}",
    "{{ none.x.y }}",
    "{% generation %}",
    "{{ 'a'.index('b') }}",
    "{{",
    "}}",
)


@MANY
@given(st.lists(st.sampled_from(PIECES), max_size=8))
def test_any_template_has_an_end_token_or_none(pieces: list[str]) -> None:
    assert end_token("".join(pieces), ["<|end|>"], {}) in ("<|end|>", None)


@MANY
@given(st.data())
def test_any_json_files_are_refused_or_read_right(data: st.DataObject) -> None:
    files = {
        "config__json": data.draw(CONFIG),
        "tokenizer_config__json": data.draw(TOKENIZER_CONFIG),
        "generation_config__json": data.draw(GENERATION),
        "chat_template__jinja": None,
    }
    with tempfile.TemporaryDirectory() as place:
        refused_or_right(make_checkpoint(Path(place) / "s", **files))


@MANY
@given(header=HEADER, length=st.none() | st.integers(0, 2**64 - 1), size=st.integers(0, 40))
def test_any_safetensors_header_is_refused_or_read_right(header: Any, length: int | None, size: int) -> None:
    text = json.dumps(header).encode()
    file = struct.pack("<Q", len(text) if length is None else length) + text + b"0" * size
    with tempfile.TemporaryDirectory() as place:
        refused_or_right(make_checkpoint(Path(place) / "s", model__safetensors=file))


@MANY
@given(index=INDEX)
def test_any_index_is_refused_or_read_right(index: Any) -> None:
    with tempfile.TemporaryDirectory() as place:
        refused_or_right(make_checkpoint(Path(place) / "s", model__safetensors__index__json=json.dumps(index)))
