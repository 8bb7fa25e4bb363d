"""A benchmark meets two models only: what the first notes is what is sent, and the second never answers a guess.

marin-community/marin#8083: a fault of the harness scored every sample wrong. So a request that differs from the one
that was generated stops grading; it never gets another request's text or an empty one.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from lm_eval.api.instance import Instance

from entrypoint.errors import HarnessError
from entrypoint.harness.lm import Asked, Collected, RecordingLM, ReplayingLM, chat_digest

CHAT = [{"role": "user", "content": "2+3="}]


def instance(prompt: Any, doc_id: int | None = 0, **kwargs: Any) -> Instance:
    return Instance("generate_until", {}, (prompt, kwargs), 0, metadata=("sums", doc_id, 1))


def recording(*, stop_when_asked: bool = False) -> RecordingLM:
    def render(messages: list[dict[str, Any]], add_generation_prompt: bool) -> str:
        return f"{messages[-1]['content']}{'>' if add_generation_prompt else ''}"

    return RecordingLM("sums", render, "canned", stop_when_asked)


def replaying(prompts: list[str], texts: list[str], chats: dict[str, str] | None = None) -> ReplayingLM:
    return ReplayingLM("sums", prompts, texts, chats or {})


# ---- recording ----


def test_a_request_is_noted_as_the_benchmark_put_it() -> None:
    lm = recording()
    lm.generate_until([instance("2+3=", 7, until=["\n\n", "Q:"], seed=42, temperature=0.7)])
    (asked,) = lm.asked
    assert (asked.sample, asked.prompt, asked.until, asked.seed) == (7, "2+3=", ("\n\n", "Q:"), 42)
    assert isinstance(asked, Asked)


@pytest.mark.parametrize(
    ("kwargs", "until"),
    [
        ({"until": "Q:"}, ("Q:",)),
        ({"until": ["Q:"]}, ("Q:",)),
        ({"until": []}, ()),
        ({"until": None}, ()),
        ({}, ()),
    ],
)
def test_stop_strings_are_noted_whatever_form_they_have(kwargs: dict[str, Any], until: tuple[str, ...]) -> None:
    lm = recording()
    lm.generate_until([instance("2+3=", **kwargs)])
    assert lm.asked[0].until == until


@pytest.mark.parametrize("kwargs", [{}, {"seed": None}, {"seed": [42, 1234, 1234, 1234]}])
def test_only_an_integer_is_a_seed(kwargs: dict[str, Any]) -> None:
    lm = recording()
    lm.generate_until([instance("2+3=", **kwargs)])
    assert lm.asked[0].seed is None


def test_requests_without_a_sample_are_counted_across_calls() -> None:
    lm = recording()
    lm.generate_until([instance("a", None), instance("b", None)])
    lm.generate_until([instance("c", None)])
    assert [(asked.sample, asked.prompt) for asked in lm.asked] == [(0, "a"), (1, "b"), (2, "c")]


def test_every_request_gets_the_canned_answer() -> None:
    assert recording().generate_until([instance("a"), instance("b", 1)]) == ["canned", "canned"]


def test_collecting_ends_at_the_first_round_past_any_handler_of_the_benchmark() -> None:
    lm = recording(stop_when_asked=True)
    with pytest.raises(Collected):
        lm.generate_until([instance("a"), instance("b", 1)])
    assert [asked.prompt for asked in lm.asked] == ["a", "b"]
    assert not issubclass(Collected, Exception)


def test_a_prompt_that_is_no_text_is_refused_by_its_position() -> None:
    with pytest.raises(HarnessError, match=r"^sums: request 1 is no text but list"):
        recording().generate_until([instance("a"), instance(CHAT, 1)])


def test_rendered_chats_are_kept_under_their_digest() -> None:
    lm = recording()
    assert lm.apply_chat_template(CHAT) == "2+3=>"
    assert lm.apply_chat_template(CHAT, add_generation_prompt=False) == "2+3="
    assert lm.chats == {chat_digest(CHAT, True): "2+3=>", chat_digest(CHAT, False): "2+3="}


@pytest.mark.parametrize("kind", ["loglikelihood", "loglikelihood_rolling"])
def test_log_likelihoods_are_refused_by_name(kind: str) -> None:
    for lm in (recording(), replaying([], [])):
        with pytest.raises(HarnessError, match=rf"^sums: it asks for {kind};.*generate_until"):
            getattr(lm, kind)([instance("a")])


def test_both_models_take_a_seed_per_request_on_one_rank() -> None:
    for lm in (recording(), replaying([], [])):
        assert type(lm).per_request_seeds is True
        assert (lm.rank, lm.world_size) == (0, 1)


# ---- the name of a chat ----


def test_a_chat_is_named_by_the_sha256_of_its_canonical_json() -> None:
    written = '[[{"content":"2+3=","role":"user"}],true]'
    assert json.loads(written) == [CHAT, True]
    assert chat_digest(CHAT, True) == hashlib.sha256(written.encode()).hexdigest()


def test_a_chats_name_depends_on_what_is_said_and_not_on_key_order() -> None:
    swapped = [{"content": "2+3=", "role": "user"}]
    others = [[{"role": "user", "content": "2+3= "}], [{"role": "system", "content": "2+3="}], CHAT + CHAT]
    assert chat_digest(swapped, True) == chat_digest(CHAT, True)
    names = {chat_digest(CHAT, True), chat_digest(CHAT, False), *(chat_digest(chat, True) for chat in others)}
    assert len(names) == 5


# ---- replaying ----


def test_answers_come_by_position_across_calls() -> None:
    lm = replaying(["a", "b", "a"], ["first", "second", "third"])
    assert lm.generate_until([instance("a"), instance("b", 1)]) == ["first", "second"]
    assert lm.generate_until([instance("a", 2)]) == ["third"]
    lm.require_all_used()


@pytest.mark.parametrize("prompts", [["a", "c"], ["a", "a"], ["a", "b "]])
def test_another_prompt_is_not_repeatable(prompts: list[str]) -> None:
    lm = replaying(["a", "b"], ["first", "second"])
    with pytest.raises(HarnessError, match=r"^sums: request 1 in grading differs.*not repeatable"):
        lm.generate_until([instance(prompt, n) for n, prompt in enumerate(prompts)])


def test_requests_in_another_order_are_not_repeatable() -> None:
    with pytest.raises(HarnessError, match=r"^sums: request 0 in grading differs.*not repeatable"):
        replaying(["a", "b"], ["first", "second"]).generate_until([instance("b", 1), instance("a")])


def test_one_request_too_many_is_not_repeatable() -> None:
    lm = replaying(["a"], ["first"])
    lm.generate_until([instance("a")])
    with pytest.raises(HarnessError, match=r"^sums: request 1 in grading differs.*not repeatable"):
        lm.generate_until([instance("a")])


def test_one_request_too_few_is_found_at_the_end() -> None:
    lm = replaying(["a", "b"], ["first", "second"])
    lm.generate_until([instance("a")])
    with pytest.raises(HarnessError, match=r"^sums: grading asked 1 of 2 recorded requests"):
        lm.require_all_used()


def test_a_recorded_chat_gives_its_text() -> None:
    lm = replaying([], [], {chat_digest(CHAT, True): "2+3=>"})
    assert lm.apply_chat_template(CHAT) == "2+3=>"


@pytest.mark.parametrize(("chat", "opened"), [([{"role": "user", "content": "2+4="}], True), (CHAT, False)])
def test_an_unknown_chat_is_not_repeatable(chat: list[dict[str, Any]], opened: bool) -> None:
    lm = replaying([], [], {chat_digest(CHAT, True): "2+3=>"})
    with pytest.raises(HarnessError, match=r"^sums: grading asks for a chat.*not repeatable"):
        lm.apply_chat_template(chat, opened)


def test_what_was_recorded_can_be_replayed() -> None:
    asked = recording()
    prompts = [asked.apply_chat_template([{"role": "user", "content": text}]) for text in ("x", "y")]
    asked.generate_until([instance(prompt, n) for n, prompt in enumerate(prompts)])
    lm = replaying([one.prompt for one in asked.asked], ["first", "second"], asked.chats)
    again = [lm.apply_chat_template([{"role": "user", "content": text}]) for text in ("x", "y")]
    assert lm.generate_until([instance(prompt, n) for n, prompt in enumerate(again)]) == ["first", "second"]
    lm.require_all_used()
