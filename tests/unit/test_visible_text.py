"""A benchmark sees of a generation what lm-eval's own vLLM model would hand it: no thinking, cut at the stop strings.

lm-eval 0.4.13 (`postprocess_generated_text`) takes the thinking away first: it often holds the task's stop strings,
such as the blank line between few-shot examples, and cutting there first would leave no answer at all.
"""

from __future__ import annotations

import pytest
from lm_eval.models.utils import postprocess_generated_text

from entrypoint.harness.grading import visible_text

END = "</think>"


def test_without_thinking_and_stops_the_text_is_left_alone() -> None:
    assert visible_text(" 42 \n\n", (), None) == " 42 \n\n"


def test_the_text_ends_before_the_first_stop_string() -> None:
    assert visible_text("42\n\nQ: 1\n\nQ: 2", ("\n\n", "<|im_end|>"), None) == "42"


@pytest.mark.parametrize("stops", [("\n\n", "Q:"), ("Q:", "\n\n")])
def test_the_earliest_of_several_stop_strings_counts(stops: tuple[str, ...]) -> None:
    assert visible_text("1 Q: 2\n\n3", stops, None) == "1 "
    assert visible_text("1\n\n2 Q: 3", stops, None) == "1"


def test_the_thinking_is_taken_away_with_the_blanks_after_it() -> None:
    assert visible_text(f"2 and 3 make 5{END}\n\n It is 5. ", (), END) == "It is 5. "


def test_only_what_follows_the_last_end_of_thinking_is_the_answer() -> None:
    assert visible_text(f"a{END}b{END}c", (), END) == "c"


def test_thinking_that_never_ends_is_all_there_is_to_see() -> None:
    assert visible_text("still thinking", (), END) == "still thinking"


def test_the_thinking_goes_first_and_then_the_stop_strings_count() -> None:
    text = f"First.\n\nThen.{END}\n\n42\n\nQ: 1"
    assert visible_text(text, ("\n\n", "<|im_end|>"), END) == "42"


def test_the_end_of_thinking_is_plain_text_where_the_job_names_none() -> None:
    assert visible_text(f"a{END}b", (), None) == f"a{END}b"


def test_an_empty_stop_string_stops_nothing() -> None:
    assert visible_text("42", ("",), None) == "42"


@pytest.mark.parametrize("end", [None, END])
@pytest.mark.parametrize("stops", [(), ("\n\n",), ("Q:", "\n\n"), ("<|im_end|>",), ("", "\n")])
@pytest.mark.parametrize(
    "text",
    ["", "42", "\n\n42", f"a\n\nQ: b{END}\n\n42\n\nQ: 1<|im_end|>", f"a{END}", f"a{END}b{END}\nc Q: d", "\n\nQ:"],
)
def test_it_is_what_lm_evals_own_model_would_show(text: str, stops: tuple[str, ...], end: str | None) -> None:
    assert visible_text(text, stops, end) == postprocess_generated_text(text, list(stops), end)
