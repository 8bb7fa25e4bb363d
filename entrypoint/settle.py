"""Graded trials -> the canonical layout: per-seed files, compile files, and last of all the marker.

In: `graded/<TASK>/seed<S>.json` (a trial without one keeps the results file it has). Out: files that appear
whole, in an order in which nothing claims more than is there; what contradicts the plan moves to
`_work/stale/`. A trial is published when its own grader's answer holds together, an average only over all the
seeds that it names.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from entrypoint import fingerprint
from entrypoint.average import mean_and_std, write_average
from entrypoint.completion import (
    SettledTrial,
    TaskSummary,
    failure_file,
    is_about,
    is_number,
    named_checkpoints,
    read_settled,
    result_files,
    settings_mismatch,
    summary_of,
)
from entrypoint.errors import TaskFailed
from entrypoint.layout import Layout, read_json, write_json
from entrypoint.plan import Plan, TaskPlan
from entrypoint.score import trial_document
from entrypoint.stale import STALE_PREFIX, retire, task_folders, withdraw_claims

_COPY_TOKENS, _COPY_SAMPLES, _COPY_SHARE = 32, 20, 0.99

Document = dict[str, Any]


def settle_task(
    plan: Plan, layout: Layout, task: TaskPlan, *, image: Mapping[str, Any], now: Callable[[], datetime]
) -> TaskSummary:
    """Publish what the graded files of a task hold; `now` gives an aware time, once per file written."""
    trials: dict[int, Document] = {}
    faults: dict[int, str] = {}
    for seed in sorted(task.seeds):
        try:
            trials[seed] = _trial(plan, layout, task, seed, image)
        except TaskFailed as err:
            faults[seed] = str(err)
    if copied := _count_copies(task, trials):
        faults |= dict.fromkeys(trials, copied)
        trials.clear()
    reason = _why_no_average(task, trials, faults)
    marker = None if reason else _marker(plan, task, trials)
    changed = {seed: doc for seed, doc in trials.items() if not _is_there(layout, task, seed, doc)}
    if reason or changed or read_json(layout.marker(task.name)) not in (None, marker):
        withdraw_claims(layout, task.name)
    _clear(layout, task, keep=trials)
    for seed, document in changed.items():
        _write_trial(layout, task, seed, document, now())
    if reason or marker is None:
        return _write_failure(layout, task, trials, faults, reason or "")
    if len(task.seeds) > 1:
        write_average(layout, task, trials)
    failure_file(layout, task.name).unlink(missing_ok=True)
    if plan.evaluation.limit is None:
        write_json(layout.marker(task.name), marker)
    return replace(summary_of(marker), status="ok")


def record_failure(layout: Layout, task: TaskPlan, reason: str) -> TaskSummary:
    """A task that could not even be asked: say so, and leave alone whatever it published before."""
    return _write_failure(layout, task, {}, {}, reason)


def forget_task(layout: Layout, task: TaskPlan) -> None:
    """Move everything that says the task is done to `_work/stale/`, claims first, so that it is done anew."""
    withdraw_claims(layout, task.name)
    _clear(layout, task, keep=())
    shutil.rmtree(layout.graded(task.name, 0).parent, ignore_errors=True)


def retire_foreign(layout: Layout, checkpoint_identity: str) -> None:
    """Move marker, compile and seed folders of every task of another checkpoint to `_work/stale/`, claims first.

    A trial of another checkpoint tells as well as a marker, so that a call that was killed is completed by the next.
    """
    named = [name for name, identity in named_checkpoints(layout).items() if identity != checkpoint_identity]
    for name in dict.fromkeys((*named, *_foreign_trials(layout, checkpoint_identity))):
        withdraw_claims(layout, name)
        for entry, _ in task_folders(layout, name):
            retire(layout, entry)


def _foreign_trials(layout: Layout, checkpoint_identity: str) -> Iterator[str]:
    """The tasks of which a seed folder holds results of another checkpoint."""
    for folder in sorted(layout.root.glob("*_seed*-*")):
        for path in result_files(folder):
            document = read_json(path)
            about = document.get("_evalcrate") if isinstance(document, dict) else None
            made = about["fingerprints"]["generation"]["fields"] if is_about(about) else {}
            if made.get("checkpoint") not in (None, checkpoint_identity):
                yield folder.name.rpartition("_seed")[0]


def _trial(plan: Plan, layout: Layout, task: TaskPlan, seed: int, image: Mapping[str, Any]) -> Document:
    """The document of one trial, from its graded file or else from the results file that is already there."""
    path = layout.graded(task.name, seed)
    graded = read_json(path)
    if fault := _recorded_fault(graded):
        raise TaskFailed(fault)
    if not path.exists() and (settled := read_settled(layout, task, seed)):
        graded, image = _graded_again(settled), settled.about.get("image") or {}
    elif not is_about(graded) or (graded.get("task"), graded.get("seed")) != (task.name, seed):
        state = "is not whole" if path.exists() else "is missing"
        raise TaskFailed(f"the graded file {path} {state}; the logs are in _work/logs")
    if mismatch := settings_mismatch(plan, task, graded):
        raise TaskFailed(mismatch)
    return trial_document(plan, task, seed, graded, image)


def _recorded_fault(graded: object) -> str | None:
    """What the grade stage says went wrong; such a trial has little else to say."""
    validity = graded.get("validity") if isinstance(graded, dict) else None
    if not isinstance(validity, dict) or validity.get("status") != "failed":
        return None
    return str(validity.get("reason") or "the trial failed, the reason was not recorded; see _work/logs")


def _graded_again(settled: SettledTrial) -> dict[str, Any]:
    """A settled trial in the form of its graded file, which `keep_generations: false` has deleted."""
    native = {key: value for key, value in settled.document.items() if key not in ("results", "_evalcrate")}
    return {**settled.about, "results": dict(settled.results), "native": native}


def _count_copies(task: TaskPlan, trials: Mapping[int, Document]) -> str | None:
    """Put `identical_across_seeds` into the validity blocks: samples whose output is one text in all seeds.

    None where a seed is missing or there is only one. The answer is a reason to fail: temperature > 0, and of
    the samples with at least 32 generated tokens in every seed (at least 20 such) 99 % or more are copies.
    """
    if len(task.seeds) < 2 or len(trials) < len(task.seeds):
        return None
    columns = [doc["results"][task.name]["examples"] for doc in trials.values()]
    if len({len(column) for column in columns}) > 1:
        return None
    rows = list(zip(*columns, strict=True))
    copies = [len({example["model_outputs"][0] for example in row}) == 1 for row in rows]
    for document in trials.values():
        document["_evalcrate"]["validity"]["identical_across_seeds"] = sum(copies)
    long = [c for c, row in zip(copies, rows, strict=True) if min(e["tokens"] for e in row) >= _COPY_TOKENS]
    if task.sampling.temperature > 0 and len(long) >= _COPY_SAMPLES and sum(long) >= _COPY_SHARE * len(long):
        return f"{sum(long)} of {len(long)} long outputs are the same in all seeds, so no seed took effect"
    return None


def _why_no_average(task: TaskPlan, trials: Mapping[int, Document], faults: Mapping[int, str]) -> str | None:
    if faults:
        alike: dict[str, list[str]] = {}
        for seed, reason in faults.items():
            alike.setdefault(reason, []).append(str(seed))
        told = "; ".join(f"seed {', '.join(seeds)}: {reason}" for reason, seeds in list(alike.items())[:3])
        return f"no results for {task.name} ({len(faults)} of {len(task.seeds)} seeds failed): {told}"
    totals = {seed: doc["results"][task.name]["num_total"] for seed, doc in trials.items()}
    if len(set(totals.values())) > 1:
        told = ", ".join(f"seed {seed}: {total}" for seed, total in totals.items())
        return f"no results for {task.name}: its seeds have different numbers of samples ({told})"
    return _why_unlike(task, trials)


def _why_unlike(task: TaskPlan, trials: Mapping[int, Document]) -> str | None:
    """Seeds made by different engines or graders have no common average, even where each of them is fine."""
    first, *others = trials.items()
    for seed, document in others:
        for kind, own in (("generation", "requests"), ("grading", "generations")):
            old, new = (d["_evalcrate"]["fingerprints"][kind]["fields"] for d in (first[1], document))
            if unlike := fingerprint.differing({**old, own: new.get(own)}, new):
                told = f"seeds {first[0]} and {seed} were not made alike: {'; '.join(unlike)}"
                return f"no results for {task.name}: {told}"
    return None


def _marker(plan: Plan, task: TaskPlan, trials: Mapping[int, Document]) -> dict[str, Any]:
    per_seed = {str(seed): doc["results"][task.name]["accuracy"] for seed, doc in trials.items()}
    mean, std = mean_and_std(per_seed.values())
    about = {str(seed): doc["_evalcrate"] for seed, doc in trials.items()}
    elapsed = [one.get("elapsed_seconds") for one in about.values()]
    return {
        "task": task.name,
        "status": "complete",
        "seeds": list(trials),
        "mean": mean,
        "std": std,
        "per_seed": per_seed,
        "elapsed_seconds": float(sum(e for e in elapsed if is_number(e))),
        "checkpoint": plan.evaluation.checkpoint_identity,
        "fingerprints": {seed: one["fingerprints"] for seed, one in about.items()},
    }


def _is_there(layout: Layout, task: TaskPlan, seed: int, document: Document) -> bool:
    settled = read_settled(layout, task, seed)
    return settled is not None and {**settled.document, "date": None} == {**document, "date": None}


def _write_trial(layout: Layout, task: TaskPlan, seed: int, document: Document, moment: datetime) -> None:
    """One atomic replacement under the name the trial already has."""
    folder = layout.model_dir(task.name, seed, task.num_fewshot)
    kept = _kept(layout, task, seed)
    path = kept or folder / f"results_{moment.astimezone(UTC):%Y-%m-%dT%H-%M-%S.%fZ}.json"
    write_json(path, {**document, "date": moment.timestamp()})


def _kept(layout: Layout, task: TaskPlan, seed: int) -> Path | None:
    """The results file whose name stays: the newest by the time inside the files, never by file time."""
    folder = layout.model_dir(task.name, seed, task.num_fewshot)
    files = [path for path in result_files(layout.seed_dir(task.name, seed)) if path.parent == folder]

    if len(files) < 2:
        return files[0] if files else None

    def recorded(path: Path) -> tuple[float, str]:
        document = read_json(path)
        date = document.get("date") if isinstance(document, dict) else None
        return (float(date) if is_number(date) else float("-inf"), path.name)

    return max(files, key=recorded)


def _write_failure(
    layout: Layout, task: TaskPlan, trials: Mapping[int, Document], faults: Mapping[int, str], reason: str
) -> TaskSummary:
    """Record why there is no score, with what is known of the trials that failed.

    It is published in results.json, which has to be the same in every folder.
    """
    reason, *faults_told = (_without_root(layout, text) for text in (reason, *faults.values()))
    validity = {}
    for seed, fault in zip(faults, faults_told, strict=True):
        graded = read_json(layout.graded(task.name, seed))
        known = graded.get("validity") if isinstance(graded, dict) else None
        counts = known if isinstance(known, dict) else {}
        validity[str(seed)] = {**counts, "status": "failed", "reason": fault}
    record = {"task": task.name, "status": "failed", "reason": reason, "validity": validity}
    write_json(failure_file(layout, task.name), record)
    elapsed = [doc["_evalcrate"].get("elapsed_seconds") for doc in trials.values()]
    return TaskSummary(
        task=task.name,
        status="failed",
        seeds=task.seeds,
        mean=None,
        std=None,
        per_seed={seed: doc["results"][task.name]["accuracy"] for seed, doc in trials.items()},
        elapsed_seconds=float(sum(e for e in elapsed if is_number(e))),
        reason=reason,
    )


def _without_root(layout: Layout, text: str) -> str:
    return text.replace(f"{layout.root}/", "").replace(str(layout.root), layout.root.name)


def _clear(layout: Layout, task: TaskPlan, keep: Iterable[int]) -> None:
    """Move away folders of the task outside the plan, and in those that stay all but the one results file."""
    wanted = {layout.seed_dir(task.name, seed): seed for seed in keep}
    wanted_average = layout.compile_dir(task.name, len(task.seeds)).parent
    for entry, seed in task_folders(layout, task.name):
        if entry not in wanted and (seed is not None or len(task.seeds) == 1 or entry != wanted_average):
            retire(layout, entry)
    for folder, seed in wanted.items():
        model = layout.model_dir(task.name, seed, task.num_fewshot)
        kept = _kept(layout, task, seed)
        others = [p for p in (*folder.glob("*"), *model.parent.glob("*")) if p not in (model.parent, model)]
        results = [
            p for p in model.glob("*") if p.name.startswith(("results_", ".results_", STALE_PREFIX)) and p != kept
        ]
        for path in (*others, *results):
            retire(layout, path)
