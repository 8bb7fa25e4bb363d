"""The two language models a benchmark ever meets: one that notes what it is asked, one that answers from the record.

Both are lm-eval `LM`s, so that benchmark code runs unchanged in collect and in grade.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from entrypoint.errors import HarnessError
from entrypoint.record import digest

Messages = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """One request as the benchmark put it. `seed` is the benchmark's own integer, None where it names none."""

    sample: int
    prompt: str
    until: tuple[str, ...]
    seed: int | None


class Collected(BaseException):
    """Ends a benchmark run that has nothing more to ask; a BaseException, so that benchmark code can't swallow it."""


def chat_digest(messages: Messages, add_generation_prompt: bool) -> str:
    """The name under which a rendered chat is recorded."""
    return digest([messages, add_generation_prompt])


class _HarnessLM(LM):  # type: ignore[misc]
    """What both share: one rank, no log-likelihoods, per-request integer seeds."""

    per_request_seeds = True  # the patched evalchemy keeps the trial's seed for models that say so
    tokenizer_name = "checkpoint"

    def __init__(self, task: str) -> None:
        super().__init__()
        self.task = task

    def chat_template(self, chat_template: bool | str = False) -> str:
        """lm-eval writes this into its own results; ours are recorded by hash in the plan."""
        return ""

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        raise self._refusal("loglikelihood")

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise self._refusal("loglikelihood_rolling")

    def _refusal(self, kind: str) -> HarnessError:
        return HarnessError(
            f"{self.task}: it asks for {kind}; only tasks of type generate_until can be run: "
            "choose a generative variant of the task"
        )


class RecordingLM(_HarnessLM):
    """Notes every request and answers each with the same canned text."""

    def __init__(self, task: str, render: Callable[[Messages, bool], str], answer: str, stop_when_asked: bool) -> None:
        super().__init__(task)
        self._render, self._answer, self._stop_when_asked = render, answer, stop_when_asked
        self.asked: list[Asked] = []
        self.chats: dict[str, str] = {}

    def apply_chat_template(self, chat_history: Messages, add_generation_prompt: bool = True) -> str:
        text = self._render(chat_history, add_generation_prompt)
        self.chats[chat_digest(chat_history, add_generation_prompt)] = text
        return text

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        for instance in requests:
            self.asked.append(self._note(instance, len(self.asked)))
        if self._stop_when_asked:
            raise Collected
        return [self._answer] * len(requests)

    def _note(self, instance: Instance, position: int) -> Asked:
        prompt, kwargs = instance.args
        if not isinstance(prompt, str):
            raise HarnessError(f"{self.task}: request {position} is no text but {type(prompt).__name__}")
        until = kwargs.get("until") or ()
        seed = kwargs.get("seed")
        return Asked(
            sample=position if instance.doc_id is None else int(instance.doc_id),
            prompt=prompt,
            until=(until,) if isinstance(until, str) else tuple(until),
            seed=seed if isinstance(seed, int) else None,
        )


class ReplayingLM(_HarnessLM):
    """Answers the n-th request with the n-th stored text, after checking that it is the very same request.

    `prompts` and `texts` are in the order of collect. A request that was not recorded is a fault of ours, never a
    wrong answer: HarnessError.
    """

    def __init__(self, task: str, prompts: Sequence[str], texts: Sequence[str], chats: Mapping[str, str]) -> None:
        super().__init__(task)
        self._prompts, self._texts, self._chats = prompts, texts, chats
        self._next = 0

    def apply_chat_template(self, chat_history: Messages, add_generation_prompt: bool = True) -> str:
        try:
            return self._chats[chat_digest(chat_history, add_generation_prompt)]
        except KeyError:
            raise HarnessError(
                f"{self.task}: grading asks for a chat that collect never saw; the task is not repeatable"
            ) from None

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        return [self._answer(instance) for instance in requests]

    def _answer(self, instance: Instance) -> str:
        position = self._next
        if position >= len(self._texts) or instance.args[0] != self._prompts[position]:
            raise HarnessError(
                f"{self.task}: request {position} in grading differs from the one that was generated; "
                "the task is not repeatable"
            )
        self._next += 1
        return self._texts[position]

    def require_all_used(self) -> None:
        """HarnessError unless every stored generation was asked for."""
        if self._next != len(self._texts):
            raise HarnessError(f"{self.task}: grading asked {self._next} of {len(self._texts)} recorded requests")
