"""Chats to text and text to token ids, once, with the checkpoint's own tokenizer.

In: checkpoint folder, template choice, fixed date. Out: the text and ids that are sent, and how BOS got there.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entrypoint.errors import CheckpointError


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """`bos`: `in_template` (the text starts with it), `added` (the tokenizer put it there) or `none`."""

    text: str
    ids: tuple[int, ...]
    bos: str


class PromptBuilder:
    """Renders and tokenizes as lm-eval's vLLM model does; CheckpointError when the tokenizer can't be loaded.

    `template`: the template's text, or None for no template (the messages' contents, a blank line between them).
    `date`: the day that a template's `strftime_now` sees.
    """

    def __init__(
        self,
        checkpoint: Path,
        *,
        template: str | None,
        template_kwargs: Mapping[str, Any],
        date: datetime.date,
        trust_remote_code: bool,
    ) -> None:
        self._tokenizer = _load_tokenizer(checkpoint, trust_remote_code)
        self._template = template
        self._kwargs = dict(template_kwargs)
        self._day = datetime.datetime.combine(date, datetime.time())
        self._known: dict[str, Prompt] = {}
        bos = self._tokenizer.bos_token_id
        prefix = self._tokenizer.eos_token_id if bos is None else bos
        self._prefix_id = prefix
        self._prefix = None if prefix is None else str(self._tokenizer.decode(prefix))

    def render(self, messages: list[dict[str, Any]], add_generation_prompt: bool = True) -> str:
        """The chat as text; where a template refuses system messages they are left out, as lm-eval does."""
        import jinja2

        if self._template is None:
            return "\n\n".join(str(m["content"]) for m in messages)
        rest = [m for m in messages if m["role"] != "system"]
        for attempt in (messages, rest):
            try:
                return self._apply(attempt, add_generation_prompt)
            except (jinja2.exceptions.TemplateError, TypeError, ValueError) as err:
                error = err
        raise CheckpointError(f"the chat template fails on this task's prompts: {error}; give chat_template: a file")

    def _apply(self, messages: list[dict[str, Any]], add_generation_prompt: bool) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                messages,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
                chat_template=self._template,
                strftime_now=self._day.strftime,
                **self._kwargs,
            )
        )

    def encode(self, text: str) -> Prompt:
        """Token ids of a prompt; the tokenizer may add special tokens only where the text does not start with BOS."""
        known = self._known.get(text)
        if known is None:
            in_template = self._prefix is not None and text.startswith(self._prefix)
            ids = self._tokenizer(text, add_special_tokens=not in_template, return_attention_mask=False).input_ids
            first = bool(ids) and ids[0] == self._prefix_id
            bos = "in_template" if in_template else "added" if first else "none"
            known = self._known[text] = Prompt(text=text, ids=tuple(ids), bos=bos)
        return known

    @property
    def end_of_text(self) -> str | None:
        """The end token as text: a stop string of every request, as in lm-eval's vLLM model."""
        eos = self._tokenizer.eos_token_id
        if eos is None:
            return None
        return str(self._tokenizer.decode(eos)) or self._tokenizer.eos_token


def _load_tokenizer(checkpoint: Path, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            str(checkpoint), local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as err:  # transformers raises many kinds; each means the same to the person who asked
        raise CheckpointError(
            f"{checkpoint}: its tokenizer can't be loaded ({type(err).__name__}: {str(err).partition(chr(10))[0]}); "
            "check tokenizer.json and tokenizer_config.json"
        ) from err
