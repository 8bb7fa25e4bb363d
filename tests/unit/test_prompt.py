"""Every prompt is rendered and tokenized once, here; a wrong blank, date, switch or BOS changes each score in silence.

vllm-project/vllm: `/v1/completions` puts a second BOS before templated text, so token ids are sent and BOS follows one
rule. lm-eval 0.4.13 passes `enable_thinking=None`, which some templates read as "off"; others print today's date
(`strftime_now`) or refuse system messages (`raise_exception`).
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from entrypoint.errors import CheckpointError
from entrypoint.harness.prompt import Prompt, PromptBuilder

ADDER = Path(__file__).parents[2] / "examples/checkpoints/adder/hf/step-300"
CHATML = (ADDER / "chat_template.jinja").read_text(encoding="utf-8")
SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "2+3="}
REFUSES_SYSTEM = (
    "{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('no system messages') }}{% endif %}"
    "[{{ m.role }}: {{ m.content }}]"
    "{% endfor %}"
)


def builder(template: str | None = CHATML, *, checkpoint: Path = ADDER, day: str = "2026-01-01", **kwargs: Any) -> Any:
    return PromptBuilder(
        checkpoint,
        template=template,
        template_kwargs=kwargs,
        date=datetime.date.fromisoformat(day),
        trust_remote_code=False,
    )


def make_tokenizer(folder: Path, *, bos: str | None, adds_bos: bool, eos: str | None = "</s>") -> Path:
    """A tokenizer of four words, saved as checkpoints have it: `<s>` 0, `</s>` 1, `two` 3, `three` 4."""
    words = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "[UNK]": 2, "two": 3, "three": 4}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens(["<s>", "</s>"])
    if adds_bos:
        words.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    whole = PreTrainedTokenizerFast(tokenizer_object=words, bos_token=bos, eos_token=eos, unk_token="[UNK]")
    whole.save_pretrained(folder)
    return folder


# ---- chats to text ----


def test_chatml_is_rendered_exactly() -> None:
    answered = {"role": "assistant", "content": "5"}
    assert builder().render([SYSTEM, QUESTION, answered, QUESTION]) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\n2+3=<|im_end|>\n"
        "<|im_start|>assistant\n5<|im_end|>\n"
        "<|im_start|>user\n2+3=<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_begun_answer_is_left_open() -> None:
    begun = {"role": "assistant", "content": "The sum is"}
    rendered = builder().render([QUESTION, begun], False)
    assert rendered == "<|im_start|>user\n2+3=<|im_end|>\n<|im_start|>assistant\nThe sum is"


def test_without_a_template_the_contents_are_joined_by_a_blank_line() -> None:
    assert builder(None).render([SYSTEM, QUESTION]) == "Be brief.\n\n2+3="


def test_the_jobs_template_wins_over_the_checkpoints_own() -> None:
    assert builder("<{{ messages[0].content }}>").render([QUESTION]) == "<2+3=>"


def test_a_template_sees_the_fixed_day_and_midnight() -> None:
    clock = builder("{{ strftime_now('%d %b %Y %H:%M:%S') }}", day="2020-02-29")
    assert clock.render([QUESTION]) == "29 Feb 2020 00:00:00"


@pytest.mark.parametrize("name", ["enable_thinking", "reasoning_effort", "thinking", "date_string", "custom_tools"])
def test_nothing_is_passed_to_the_template_unless_named(name: str) -> None:
    assert builder(f"{{{{ {name} is defined }}}}").render([QUESTION]) == "False"


@pytest.mark.parametrize("value", [True, False, None, "low"])
def test_template_arguments_arrive_as_given(value: object) -> None:
    template = "{{ enable_thinking is defined }} {{ enable_thinking }}"
    assert builder(template, enable_thinking=value).render([QUESTION]) == f"True {value}"


def test_a_template_that_refuses_system_messages_gets_none() -> None:
    assert builder(REFUSES_SYSTEM).render([SYSTEM, QUESTION]) == "[user: 2+3=]"


def test_a_template_that_takes_system_messages_keeps_them() -> None:
    assert "Be brief." in builder().render([SYSTEM, QUESTION])


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for %}", "Expected an expression"),
        ("{{ messages[0].parts.text }}", "no attribute 'parts'"),
    ],
)
def test_a_template_that_fails_is_the_checkpoints_fault(template: str, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        builder(template).render([QUESTION])


def test_a_template_that_fails_with_and_without_system_messages_is_the_checkpoints_fault() -> None:
    with pytest.raises(CheckpointError, match="roles must alternate"):
        builder("{{ raise_exception('roles must alternate') }}").render([SYSTEM, QUESTION])


# ---- text to ids ----


def test_the_bundled_tokenizer_gives_one_id_per_marker_and_byte() -> None:
    found = builder().encode("<|im_start|>user\n2+3=<|im_end|>")
    assert found.ids[0] == 257
    assert found.ids[-1] == 258
    assert len(found.ids) == 2 + len("user\n2+3=")
    assert (found.text, found.bos) == ("<|im_start|>user\n2+3=<|im_end|>", "none")


@pytest.mark.parametrize("adds_bos", [True, False])
def test_a_bos_in_the_text_is_not_doubled(tmp_path: Path, adds_bos: bool) -> None:
    found = builder(checkpoint=make_tokenizer(tmp_path, bos="<s>", adds_bos=adds_bos)).encode("<s> two three")
    assert found == Prompt(text="<s> two three", ids=(0, 3, 4), bos="in_template")


def test_a_tokenizer_that_adds_bos_does_so_once_and_it_is_noted(tmp_path: Path) -> None:
    found = builder(checkpoint=make_tokenizer(tmp_path, bos="<s>", adds_bos=True)).encode("two three")
    assert found == Prompt(text="two three", ids=(0, 3, 4), bos="added")


def test_a_tokenizer_that_adds_none_leaves_the_text_without(tmp_path: Path) -> None:
    found = builder(checkpoint=make_tokenizer(tmp_path, bos="<s>", adds_bos=False)).encode("two three")
    assert found == Prompt(text="two three", ids=(3, 4), bos="none")


def test_a_bos_further_on_does_not_count(tmp_path: Path) -> None:
    found = builder(checkpoint=make_tokenizer(tmp_path, bos="<s>", adds_bos=True)).encode("two <s> three")
    assert (found.ids, found.bos) == ((0, 3, 0, 4), "added")


def test_without_a_bos_token_the_end_token_takes_its_place_as_in_lm_eval(tmp_path: Path) -> None:
    """lm-eval's prefix token: BOS, else EOS; a text that starts with it gets no special tokens."""
    found = builder(checkpoint=make_tokenizer(tmp_path, bos=None, adds_bos=True)).encode("</s> two")
    assert found.ids == (1, 3)


def test_the_same_text_gives_the_same_prompt_again(tmp_path: Path) -> None:
    one = builder(checkpoint=make_tokenizer(tmp_path, bos="<s>", adds_bos=True))
    texts = ("two", "<s> two", "two three")
    first = [one.encode(text) for text in texts]
    assert [one.encode(text) for text in texts] == first
    assert [prompt.ids for prompt in first] == [(0, 3), (0, 3), (0, 3, 4)]


# ---- the end token ----


def test_the_end_token_of_the_bundled_checkpoint() -> None:
    assert builder().end_of_text == "<|im_end|>"


def test_a_tokenizer_may_have_another_end_token_or_none(tmp_path: Path) -> None:
    some = make_tokenizer(tmp_path / "some", bos="<s>", adds_bos=False)
    none = make_tokenizer(tmp_path / "none", bos="<s>", adds_bos=False, eos=None)
    assert builder(checkpoint=some).end_of_text == "</s>"
    assert builder(checkpoint=none).end_of_text is None


# ---- a checkpoint whose tokenizer can't be loaded ----


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"tokenizer.json": "{", "tokenizer_config.json": '{"tokenizer_class": "PreTrainedTokenizerFast"}'},
        {"tokenizer.json": "{}", "tokenizer_config.json": '{"tokenizer_class": "PreTrainedTokenizerFast"}'},
    ],
)
def test_an_unloadable_tokenizer_is_named_in_one_line(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(CheckpointError) as caught:
        builder(checkpoint=tmp_path)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path}: its tokenizer can't be loaded (")
    assert said.endswith("check tokenizer.json and tokenizer_config.json")
    assert "\n" not in said
