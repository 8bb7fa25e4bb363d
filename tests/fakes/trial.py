"""One trial through the real harness children, from collect to grade, answered by a function of the prompt.

In: a task source and the answers. Out: the request rows, and what the grade child returned or refused.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from entrypoint.errors import EvalcrateError
from entrypoint.record import Generation, Request, read_requests, to_line
from entrypoint.sandbox import ChildJob, ask_child

ROOT = Path(__file__).parents[2]
ADDER = ROOT / "examples/checkpoints/adder/hf/step-300"
MOMENT = "2026-11-30T12:00:00Z"


def source(name: str, harness: str, folder: Path, **changes: Any) -> dict[str, Any]:
    """A TaskSource in JSON, with `changes` to its fields."""
    return {
        "name": name,
        "harness": harness,
        "folder": str(folder),
        "num_fewshot": 0,
        "fewshot_seed": 1234,
        "limit": None,
        "system_instruction": None,
        "chat": True,
        "data": [],
        "options": {},
        "cores": 1,
        **changes,
    }


def collect(folder: Path, task: dict[str, Any], seeds: tuple[int, ...] = (42,)) -> dict[str, Any] | EvalcrateError:
    """What the collect child says; the request files are `folder/seed<S>.jsonl`."""
    spec = {
        "task": task,
        "seeds": list(seeds),
        "sampling": {"temperature": 0.7, "top_p": 1.0, "max_tokens": 16, "seed_policy": "per_sample"},
        "checkpoint": str(ADDER),
        "template": (ADDER / "chat_template.jinja").read_text(encoding="utf-8"),
        "template_kwargs": {},
        "template_date": "2026-01-01",
        "think_end_token": None,
        "trust_remote_code": False,
        "stop_token_ids": [],
        "max_model_len": 65536,
        "on_overlong": "refuse",
        "out": str(_private(folder, "collect")),
    }
    found = _ask("collect", folder, task, spec)
    for file in _private(folder, "collect").glob("*.jsonl"):
        file.replace(folder / file.name)
    return found


def requests(folder: Path, seed: int = 42) -> tuple[Request, ...]:
    return read_requests(folder / f"seed{seed}.jsonl")


def grade(
    folder: Path, task: dict[str, Any], answer: Callable[[Request], str], *, metric: str | None = None, seed: int = 42
) -> dict[str, Any] | EvalcrateError:
    """What the grade child says of a collected trial."""
    private = _private(folder, "grade")
    generations = private / "generations.jsonl"
    generations.write_bytes(b"".join(to_line(_generation(row, answer(row))) for row in requests(folder, seed)))
    spec = {
        "task": task,
        "seed": seed,
        "metric": metric,
        "max_tokens": 16,
        "think_end_token": None,
        "until": [],
        "requests": shutil.copyfile(folder / f"seed{seed}.jsonl", f"{private}/requests.jsonl"),
        "chats": shutil.copyfile(folder / "chats.jsonl", f"{private}/chats.jsonl"),
        "generations": str(generations),
    }
    return _ask("grade", folder, task, spec)


def graded(answer: dict[str, Any] | EvalcrateError) -> dict[str, Any]:
    """The answer, or the refusal as a failure of the test."""
    assert isinstance(answer, dict), answer
    return answer


def _private(folder: Path, mode: str) -> Path:
    """The one folder that a child may write."""
    private = folder / f"private-{mode}"
    private.mkdir(parents=True, exist_ok=True)
    return private


def _ask(mode: str, folder: Path, task: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any] | EvalcrateError:
    files = [file for one in task["data"] for split in one["splits"].values() for file in split]
    (found,) = ask_child(
        mode,
        [ChildJob(task=task["name"], spec=json.loads(json.dumps(spec)), log=folder / f"{mode}.log")],
        private=_private(folder, mode),
        log=folder / f"{mode}-child.log",
        timeout_s=300,
        read=[str(ADDER), task["folder"], *files],
    )
    return found


def _generation(row: Request, text: str) -> Generation:
    return Generation(
        id=row.id,
        task=row.task,
        seed=row.seed,
        sample=row.sample,
        fingerprint="",
        text=text,
        token_ids=None,
        finish_reason="stop",
        stop_reason=None,
        prompt_tokens=1,
        completion_tokens=1,
        sampler_seed=row.sampler_seed,
        started_at=MOMENT,
        finished_at=MOMENT,
        attempt=1,
    )
