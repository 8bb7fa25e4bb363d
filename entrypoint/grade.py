"""grade: one child per trial, started as soon as the trial's generations are complete.

In: a trial's requests and generations. Out: `graded/<TASK>/seed<S>.json` with what the benchmark's own grader returned,
the validity block and both fingerprints. Whatever goes wrong here is our failure: a reason, never a score.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import Any

from entrypoint import fingerprint
from entrypoint.collect import CollectedTrial, task_source
from entrypoint.errors import EvalcrateError, HarnessError
from entrypoint.fingerprint import Fingerprint
from entrypoint.layout import Layout, write_json
from entrypoint.plan import Plan, TaskPlan
from entrypoint.record import Generation, Request, digest, to_line
from entrypoint.sandbox import ChildJob, ChildStopped, ask_child

_DEFAULT_TIMEOUT_S = 3600.0
_COUNTS = ("format_fail", "grader_timeout", "grader_error", "boxed_empty", "boxed_unclosed", "boxed_blank")
_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "max_tokens", "stop", "stop_token_ids",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationsOfTrial:
    """A trial whose generations are complete, in request order."""

    task: TaskPlan
    seed: int
    collected: CollectedTrial
    requests: Sequence[Request]
    rows: Sequence[Generation]
    fingerprint: Fingerprint


def runs_programs(task: TaskPlan) -> bool:
    """Whether grading the task runs programs that the model wrote, and so can keep all cores busy."""
    return "livecodebench" in task.options


def grade_trial(plan: Plan, layout: Layout, trial: GenerationsOfTrial, stop: threading.Event, *, cores: int) -> None:
    """Grades one trial with up to `cores` cores and writes its graded file; a failure is its reason there."""
    started, task, seed = monotonic(), trial.task, trial.seed
    try:
        answer = _run_grader(plan, layout, trial, stop, cores)
        counts = _usable(task, trial, answer)
        effective = _effective(plan, trial)
    except ChildStopped:
        return
    except EvalcrateError as err:
        fail_trial(layout, task, seed, str(err), expected=len(trial.requests), generated=len(trial.rows))
        return
    document = {
        "task": task.name,
        "seed": seed,
        "results": answer["results"],
        "native": answer.get("native") or {},
        "validity": _validity(trial, len(answer["results"]["examples"]), counts),
        "asked": {
            **asdict(task.sampling),
            "num_fewshot": task.num_fewshot,
            "chat_template": plan.evaluation.chat_template,
        },
        "effective": effective,
        "fingerprints": _fingerprints(plan, trial),
        "elapsed_seconds": round(_generation_seconds(trial.rows) + monotonic() - started, 3),
    }
    write_json(layout.graded(task.name, seed), document)


def fail_trial(layout: Layout, task: TaskPlan, seed: int, reason: str, *, expected: int, generated: int) -> None:
    """Writes a graded file without results: the trial has no score, for `reason`."""
    zero = dict.fromkeys(("truncated", "empty", "duplicate", *_COUNTS), 0)
    validity = {
        "expected": expected,
        "generated": generated,
        "graded": 0,
        **zero,
        "identical_across_seeds": None,
        "infra_failed": expected,
        "status": "failed",
        "reason": reason,
    }
    no_prints: dict[str, Any] = {"generation": {"fields": {}}, "grading": {"fields": {}}}
    blocks = {"native": {}, "validity": validity, "asked": {}, "effective": {}, "fingerprints": no_prints}
    write_json(layout.graded(task.name, seed), {"task": task.name, "seed": seed, "results": None, **blocks})


def _run_grader(
    plan: Plan, layout: Layout, trial: GenerationsOfTrial, stop: threading.Event, cores: int
) -> dict[str, Any]:
    layout.graded(trial.task.name, trial.seed).parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="evalcrate-grade-") as folder:
        private = Path(folder)
        generations = private / "generations.jsonl"
        with generations.open("wb") as handle:
            handle.writelines(to_line(row) for row in trial.rows)
        spec = {
            "task": task_source(plan, trial.task) | {"cores": cores},
            "seed": trial.seed,
            "metric": trial.task.metric,
            "max_tokens": trial.task.sampling.max_tokens,
            "think_end_token": plan.evaluation.think_end_token,
            "until": list(trial.collected.until),
            "requests": shutil.copyfile(layout.requests(trial.task.name, trial.seed), f"{folder}/requests.jsonl"),
            "chats": shutil.copyfile(layout.chats(trial.task.name), f"{folder}/chats.jsonl"),
            "generations": str(generations),
        }
        layout.logs.mkdir(parents=True, exist_ok=True)
        log = layout.logs / f"grade-{trial.task.name}-seed{trial.seed}.log"
        (answer,) = ask_child(
            "grade",
            [ChildJob(task=trial.task.name, spec=spec, log=log)],
            private=private,
            timeout_s=_time_left_s(plan, trial.rows),
            read=plan.placement.files_of(trial.task.name),
            log=log,
            command=plan.grader_command,
            stop=stop,
        )
        if isinstance(answer, EvalcrateError):
            raise answer
        return answer


def _usable(task: TaskPlan, trial: GenerationsOfTrial, answer: Mapping[str, Any]) -> dict[str, int]:
    """The answer's counts, after checking that there is one graded example per request; HarnessError otherwise."""
    results = answer.get("results")
    examples = results.get("examples") if isinstance(results, dict) else None
    if not isinstance(examples, list) or not examples:
        raise HarnessError(f"no results for {task.name} (seed {trial.seed}): its grader returned none")
    if len(examples) != len(trial.requests):
        raise HarnessError(
            f"{task.name} seed {trial.seed}: {len(examples)} of {len(trial.requests)} samples were graded; "
            "no score is published"
        )
    counts = answer.get("counts")
    counts = counts if isinstance(counts, dict) else {}
    if any(type(counts.get(name, 0)) is not int for name in _COUNTS):
        raise HarnessError(f"{task.name} seed {trial.seed}: its grader counted {counts}; counts are whole numbers")
    return {name: counts.get(name, 0) for name in _COUNTS}


def _validity(trial: GenerationsOfTrial, graded: int, counts: Mapping[str, int]) -> dict[str, Any]:
    prompts = Counter(request.prompt for request in trial.requests)
    return {
        "expected": len(trial.requests),
        "generated": len(trial.rows),
        "graded": graded,
        "truncated": sum(row.finish_reason == "length" for row in trial.rows),
        "empty": sum(not row.text.strip() for row in trial.rows),
        "duplicate": sum(n - 1 for n in prompts.values()),
        **counts,
        "identical_across_seeds": None,
        "infra_failed": 0,
        "status": "ok",
        "reason": None,
    }


def _effective(plan: Plan, trial: GenerationsOfTrial) -> dict[str, Any]:
    """What the bodies that were sent really say; HarnessError unless all of a trial say the same."""
    bodies = [{name: r.body[name] for name in _SAMPLING if name in r.body} for r in trial.requests]
    if any(body != bodies[0] for body in bodies):
        raise HarnessError(f"{trial.task.name} seed {trial.seed}: its requests differ in their sampling values")
    seeds = [row.sampler_seed for row in trial.rows]
    return {
        **bodies[0],
        "seed": {"policy": trial.task.sampling.seed_policy, "first": seeds[0], "distinct": len(set(seeds))},
        "seeds_proved": plan.placement.engine.kind == "vllm",
        "generation_config_ignored": dict(plan.evaluation.generation_config_ignored),
        "bos": dict(trial.collected.bos),
        "prompt_tokens": dict(trial.collected.prompt_tokens),
        "overlong": trial.collected.overlong,
    }


def _time_left_s(plan: Plan, rows: Sequence[Generation]) -> float:
    """What generating left of the task's time, at least a second; without a limit, an hour."""
    if plan.task_timeout_s is None:
        return _DEFAULT_TIMEOUT_S
    return max(1.0, plan.task_timeout_s - _generation_seconds(rows))


def _fingerprints(plan: Plan, trial: GenerationsOfTrial) -> dict[str, Any]:
    rows = digest([[r.id, r.text, r.finish_reason, r.completion_tokens] for r in trial.rows])
    grading = fingerprint.grading(plan, trial.task, rows, fingerprint.grader_versions())
    return {"generation": asdict(trial.fingerprint), "grading": asdict(grading)}


def _generation_seconds(rows: Sequence[Generation]) -> float:
    """From the first request sent to the last answer received."""
    started = min(datetime.fromisoformat(row.started_at) for row in rows)
    return (max(datetime.fromisoformat(row.finished_at) for row in rows) - started).total_seconds()
