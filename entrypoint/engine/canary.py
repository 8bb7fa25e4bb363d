"""Two questions asked at every engine start, before any answer counts: are seeds honoured, are our token ids
the engine's?

In: a connected Client and the requests about to be sent. Out: a SeedProof, and notes on what could not be
asked.
"""

from __future__ import annotations

import asyncio
import random
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from entrypoint.engine.client import Client, Completion, RequestLost, RequestRefused
from entrypoint.errors import EngineError
from entrypoint.record import Request

# The hottest temperature vLLM takes, over prompts no model has an opinion on: even a small, peaked model
# varies.
_TEMPERATURE = 2.0
_PROMPTS, _SEEDS, _TOKENS = 3, (42, 43, 44, 45), 32
_PAUSES_S = (0.5, 1.0, 2.0)
_ALPHABET = string.ascii_letters + string.digits + string.punctuation


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedProof:
    """`proved`, or the reason why the seeds of this engine prove nothing."""

    proved: bool
    reason: str


async def prove_seeds(client: Client, *, timeout_s: float, ignore_eos: bool) -> SeedProof:
    """Ask the same prompts under several seeds, twice; RequestLost and RequestRefused pass through.

    `ignore_eos` (vLLM's own parameter) keeps a model that would end at once talking.
    """
    prompts = _random_prompts()
    bodies = [_body(prompt, seed, ignore_eos) for prompt in prompts for seed in _SEEDS]
    rounds = []
    for _ in range(2):
        answers = await asyncio.gather(*(_ask(client, body, timeout_s) for body in bodies))
        rounds.append([(answer.text, answer.token_ids) for answer in answers])
    first, second = rounds
    same = [a == b for a, b in zip(first, second, strict=True)]
    width = len(_SEEDS)
    other = [a == b for i in range(_PROMPTS) for a, b in combinations(first[i * width : (i + 1) * width], 2)]
    return judge(same, other)


async def _ask(client: Client, body: Mapping[str, Any], timeout_s: float) -> Completion:
    """A busy endpoint may lose a request now and then; an address where nothing listens is lost at once."""
    for pause_s in _PAUSES_S:
        try:
            return await client.complete(body, timeout_s=timeout_s)
        except RequestLost as err:
            if err.unreachable:
                raise
        await asyncio.sleep(pause_s)
    return await client.complete(body, timeout_s=timeout_s)


def judge(same: list[bool], other: list[bool]) -> SeedProof:
    """`same`: did a repeated (prompt, seed) agree; `other`: did two seeds of one prompt agree.

    Low bits may flip a token on a GPU when the batch differs, so not every repetition has to agree: but then
    no two seeds may. A model may give two seeds the same answer by chance: but then every repetition has to
    agree.
    """
    if all(other):
        return SeedProof(
            proved=False,
            reason=f"{len(_SEEDS)} different seeds gave the same text for each of {_PROMPTS} prompts",
        )
    if all(same) or (2 * sum(same) >= len(same) and not any(other)):
        return SeedProof(proved=True, reason="")
    return SeedProof(
        proved=False,
        reason=f"the same seed gave another text in {same.count(False)} of {len(same)} repetitions",
    )


async def check_tokens(client: Client, requests: Iterable[Request], *, truncated: bool = False) -> tuple[str, ...]:
    """Compare one prompt per task with the server's tokenizer; EngineError names the first difference.

    The server may or may not add special tokens: the ids must be the text's under one of the two.
    `truncated`: the ids may be the end of them only. Gives a note when the server has no /tokenize.
    """
    first: dict[str, Request] = {}
    for request in requests:
        first.setdefault(request.task, request)
    for task, request in first.items():
        ids = request.body.get("prompt")
        if not isinstance(ids, list):
            continue
        try:
            plain, special = [await client.tokenize(request.prompt, add) for add in (False, True)]
        except RequestRefused as err:
            return (f"{client.address}: token ids were not compared with the server's ({err})",)
        if ids in (plain, special) or (truncated and ids in (plain[-len(ids) :], special[-len(ids) :])):
            continue
        raise EngineError(_difference(task, request, ids, min((plain, special), key=lambda t: -_common(ids, t))))
    return ()


def _difference(task: str, request: Request, ids: list[int], theirs: list[int]) -> str:
    at = _common(ids, theirs)
    where = f"{task} seed {request.seed} sample {request.sample}"
    ours, others = ids[at : at + 3], theirs[at : at + 3]
    return (
        f"{where}: the engine tokenizes the prompt differently from position {at} on: {len(ids)} ids here "
        f"({ours}), {len(theirs)} there ({others}). It is another checkpoint, or another tokenizers version: "
        "make both environments anew from the locks, or correct engine.url"
    )


def _common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _random_prompts() -> list[str]:
    draw = random.Random(0)
    return ["".join(draw.choices(_ALPHABET, k=16)) for _ in range(_PROMPTS)]


def _body(prompt: str, seed: int, ignore_eos: bool) -> Mapping[str, Any]:
    body = {
        "prompt": prompt,
        "seed": seed,
        "temperature": _TEMPERATURE,
        "top_p": 1.0,
        "max_tokens": _TOKENS,
        "n": 1,
    }
    return {**body, "ignore_eos": True} if ignore_eos else body
