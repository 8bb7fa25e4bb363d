"""Settled files -> what is known of every task of the plan, and results.json.

In: results files, markers, failure records. Out: one TaskResult per task. Holds no path, time or image name,
so that two runs of one evaluation give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from entrypoint.average import mean_and_std
from entrypoint.completion import (
    TaskSummary,
    failure_file,
    is_number,
    read_marker,
    read_settled,
    settings_mismatch,
)
from entrypoint.layout import Layout, read_json
from entrypoint.plan import Plan, TaskPlan

SCHEMA = 1
_SHARED_COUNT = "identical_across_seeds"  # one number for the task, repeated in every trial's block


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskResult:
    """`row` is the task's entry of results.json; its counts are sums over the trials."""

    plan: TaskPlan
    summary: TaskSummary
    row: Mapping[str, Any]


def read_tasks(plan: Plan, layout: Layout) -> tuple[TaskResult, ...]:
    return tuple(_read_task(plan, layout, task) for task in plan.evaluation.tasks)


def results_document(plan: Plan, tasks: Sequence[TaskResult]) -> dict[str, Any]:
    """results.json, in the plan's order of tasks."""
    return {
        "schema": SCHEMA,
        "experiment": plan.evaluation.experiment,
        "step": plan.evaluation.step,
        "checkpoint_identity": plan.evaluation.checkpoint_identity,
        "tasks": {one.plan.name: one.row for one in tasks},
    }


def _read_task(plan: Plan, layout: Layout, task: TaskPlan) -> TaskResult:
    accuracies: dict[int, float] = {}
    about: dict[int, Mapping[str, Any]] = {}
    misfits: dict[int, str] = {}
    for seed in sorted(task.seeds):
        settled = read_settled(layout, task, seed)
        if settled and (mismatch := settings_mismatch(plan, task, settled.about)):
            misfits[seed] = mismatch
        elif settled:
            accuracies[seed], about[seed] = settled.accuracy, settled.about
    failure = read_json(failure_file(layout, task.name))
    recorded = failure if isinstance(failure, dict) else {}
    reason = _why_no_score(plan, layout, task, accuracies, misfits, recorded)
    mean, std = mean_and_std(accuracies.values()) if reason is None else (None, None)
    elapsed = [one.get("elapsed_seconds") for one in about.values()]
    summary = TaskSummary(
        task=task.name,
        status="ok" if reason is None else "failed",
        seeds=tuple(sorted(task.seeds)),
        mean=mean,
        std=std,
        per_seed=accuracies,
        elapsed_seconds=float(sum(e for e in elapsed if is_number(e))),
        reason=reason,
    )
    return TaskResult(plan=task, summary=summary, row=_row(task, summary, about, recorded))


def _why_no_score(
    plan: Plan,
    layout: Layout,
    task: TaskPlan,
    accuracies: Mapping[int, float],
    misfits: Mapping[int, str],
    recorded: Mapping[str, Any],
) -> str | None:
    if recorded:
        return str(recorded.get("reason") or f"no results for {task.name}")
    if misfits:
        seeds, reasons = ", ".join(map(str, misfits)), "; ".join(dict.fromkeys(misfits.values()))
        return f"no results for {task.name}: seed {seeds} is not of this plan: {reasons}"
    marker = read_marker(layout, task.name)
    claimed = plan.evaluation.limit is not None or (marker and set(marker["seeds"]) == set(task.seeds))
    if claimed and len(accuracies) == len(task.seeds):
        return None
    done = f"{len(accuracies)} of {len(task.seeds)} seeds are settled"
    return f"no results for {task.name}: {done}; run it again"


def _row(
    task: TaskPlan, summary: TaskSummary, about: Mapping[int, Mapping[str, Any]], recorded: Mapping[str, Any]
) -> dict[str, Any]:
    failed = recorded.get("validity") if isinstance(recorded.get("validity"), dict) else {}
    blocks = {str(seed): one["validity"] for seed, one in about.items()} | (failed or {})
    row = {
        "status": summary.status,
        "metric": task.metric or "accuracy",
        "mean": summary.mean,
        "std": summary.std,
        "n_seeds": len(task.seeds),
        "per_seed": {str(seed): value for seed, value in summary.per_seed.items()},
        "validity": _total(summary, blocks),
        "asked": _merged({s: one["asked"] for s, one in about.items()}) or _planned(task),
        "effective": _merged({s: one["effective"] for s, one in about.items()}),
        "fingerprints": {
            str(seed): {kind: one["fingerprints"][kind]["digest"] for kind in ("generation", "grading")}
            for seed, one in about.items()
        },
    }
    return row if summary.reason is None else {**row, "reason": summary.reason}


def _planned(task: TaskPlan) -> dict[str, Any]:
    sampling = task.sampling
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "seed_policy": sampling.seed_policy,
        "num_fewshot": task.num_fewshot,
    }


def _total(summary: TaskSummary, blocks: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The validity block of the task: counts summed over its trials, then each trial's own in `per_seed`."""
    total: dict[str, Any] = {}
    for block in blocks.values():
        for name, value in block.items():
            if name == _SHARED_COUNT:
                total[name] = value
            elif is_number(value):
                total[name] = (total.get(name) or 0) + value
    trials = dict(sorted(blocks.items(), key=lambda item: int(item[0])))
    return {**total, "status": summary.status, "reason": summary.reason, "per_seed": trials}


def _merged(blocks: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """One block for all trials: a value that is the same everywhere stands once, another one by seed."""
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for block in blocks.values() for name in block):
        by_seed = {str(seed): block.get(name) for seed, block in blocks.items()}
        first, *others = by_seed.values()
        merged[name] = first if all(other == first for other in others) else by_seed
    return merged
