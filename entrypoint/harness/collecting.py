"""collect, inside its child process: each trial's benchmark code runs against a recording model, twice.

In: a CollectSpec (JSON). Out: `seed<S>.jsonl` per trial, `chats.jsonl`, and per trial the counts that the plan is
checked against.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import multiprocessing
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from entrypoint.errors import EvalcrateError, HarnessError
from entrypoint.harness import adapter
from entrypoint.harness.lm import Asked, RecordingLM
from entrypoint.harness.prompt import Prompt, PromptBuilder
from entrypoint.layout import write_atomic
from entrypoint.plan import Sampling
from entrypoint.process import die_with_parent
from entrypoint.record import Request, digest, requests_digest, sampler_seed, to_line

# A benchmark whose requests differ between these two answers needs an earlier answer to ask the next question.
CANNED_ANSWERS = ("", "The answer is \\boxed{1}.")

Recording = tuple[list[Asked], dict[str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectSpec:
    """One task to collect; paths as text. `template`: the template's text, None for none."""

    task: adapter.TaskSource
    seeds: Sequence[int]
    sampling: Sampling
    checkpoint: str
    template: str | None
    template_kwargs: dict[str, Any]
    template_date: str
    think_end_token: str | None
    trust_remote_code: bool
    stop_token_ids: Sequence[int]
    max_model_len: int
    on_overlong: str
    out: str


def collect(spec: CollectSpec) -> dict[str, Any]:
    """Writes the request files of all seeds into `spec.out`; returns what is known about them, by seed."""
    builder = PromptBuilder(
        Path(spec.checkpoint),
        template=spec.template,
        template_kwargs=spec.template_kwargs,
        date=datetime.date.fromisoformat(spec.template_date),
        trust_remote_code=spec.trust_remote_code,
    )
    out, chats, trials = Path(spec.out), dict[str, str](), dict[str, Any]()
    for seed in spec.seeds:
        asked, rendered = _record_twice(spec, builder, seed)
        chats |= rendered
        trials[str(seed)] = _write_trial(spec, builder, seed, asked, out / f"seed{seed}.jsonl")
    lines = (json.dumps({"chat": k, "text": v}, ensure_ascii=False) + "\n" for k, v in sorted(chats.items()))
    (out / "chats.jsonl").write_text("".join(lines), encoding="utf-8")
    return trials


def _record_twice(spec: CollectSpec, builder: PromptBuilder, seed: int) -> Recording:
    first: Recording
    first, second = (in_fork(partial(_record, spec, builder, seed, answer)) for answer in CANNED_ANSWERS)
    if first != second:
        raise HarnessError(
            f"{spec.task.name}: its requests depend on the model's earlier answers (a multi-turn task), so they can't "
            "be known before generation; such tasks can't be run"
        )
    asked: list[Asked] = first[0]
    if not asked:
        raise HarnessError(f"{spec.task.name}: it asked nothing with seed {seed}; its data may be empty")
    if len({a.sample for a in asked}) != len(asked):
        raise HarnessError(f"{spec.task.name}: it asks a sample more than once in one trial; use seeds instead")
    return first


def _record(spec: CollectSpec, builder: PromptBuilder, seed: int, answer: str) -> Recording:
    lm = RecordingLM(spec.task.name, builder.render, answer, stop_when_asked=spec.task.harness == "lm_eval")
    adapter.run(spec.task, lm, seed=seed, max_tokens=spec.sampling.max_tokens, grade=False)
    return lm.asked, lm.chats


def in_fork(work: Callable[[], Any]) -> Any:
    """`work()` in a forked process, so that benchmark modules are loaded afresh each time while imports stay warm."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work_and_send, args=(work, sender))
    process.start()
    sender.close()
    try:
        ok, value = receiver.recv()
    except EOFError:
        process.join()
        raise HarnessError(f"benchmark code ended its process (exit code {process.exitcode})") from None
    process.join()
    if not ok:
        raise value
    return value


def _work_and_send(work: Callable[[], Any], sender: Connection) -> None:
    die_with_parent()
    try:
        sender.send((True, work()))
    except EvalcrateError as err:
        sender.send((False, err))
    except Exception as err:  # benchmark code: whatever it raises is reported under the task's name
        import traceback

        traceback.print_exc()
        sender.send((False, HarnessError(f"benchmark code failed: {type(err).__name__}: {err}")))


def _write_trial(
    spec: CollectSpec, builder: PromptBuilder, seed: int, asked: list[Asked], path: Path
) -> dict[str, Any]:
    rows, bos, lengths = [], Counter[str](), []
    budget = spec.max_model_len - spec.sampling.max_tokens
    for question in asked:
        prompt = builder.encode(question.prompt)
        bos[prompt.bos] += 1
        lengths.append(len(prompt.ids))
        rows.append(_request(spec, builder, seed, question, prompt, budget))
    data = b"".join(to_line(row) for row in rows)
    write_atomic(path, data)
    return {
        "requests": len(rows),
        "digest": requests_digest(rows),
        "prompt_tokens": {"min": min(lengths), "max": max(lengths), "total": sum(lengths)},
        "budget_tokens": budget,
        "overlong": sum(n > budget for n in lengths),
        "bos": dict(sorted(bos.items())),
        "stop": rows[0].body["stop"],
        "sha256": hashlib.sha256(data).hexdigest(),
        "until": sorted({stop for question in asked for stop in question.until}),
    }


def _request(
    spec: CollectSpec, builder: PromptBuilder, seed: int, asked: Asked, prompt: Prompt, budget: int
) -> Request:
    if spec.sampling.seed_policy == "shared" and asked.seed not in (None, seed):
        raise HarnessError(f"{spec.task.name}: it asks seed {asked.seed} in the trial of seed {seed}")
    ids = prompt.ids[-budget:] if spec.on_overlong == "truncate" else prompt.ids
    end = builder.end_of_text
    until = () if spec.think_end_token else asked.until
    body = {
        "prompt": list(ids),
        "max_tokens": spec.sampling.max_tokens,
        "temperature": spec.sampling.temperature,
        "top_p": spec.sampling.top_p,
        "top_k": 0,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "n": 1,
        "seed": sampler_seed(spec.sampling.seed_policy, seed, spec.task.name, asked.sample),
        "stop": [*until, *([end] if end and end not in until else [])],
        "stop_token_ids": list(spec.stop_token_ids),
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "return_token_ids": True,
    }
    return Request(id=digest(body), task=spec.task.name, seed=seed, sample=asked.sample, prompt=prompt.text, body=body)
