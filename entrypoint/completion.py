"""What counts as done: a trial with one whole results file; a task whose marker, files and prints agree.

In: a result folder, the plan, what each trial is expected to be bound to. Out: a TaskState, or what a run would
contradict. A file that is cut, empty, doubled or not JSON counts as absent; neither names nor file times decide.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

from entrypoint import fingerprint
from entrypoint.fingerprint import Fingerprint, differing
from entrypoint.layout import Layout, read_json
from entrypoint.plan import Plan, TaskPlan
from entrypoint.record import digest

_MARKER = ".complete.json"
_COMPILE_FILES = ("averaged_results.json", "averaged_results.csv", "compiled_results.json", "compiled_results.csv")


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSummary:
    """How one task ended: status `ok`, `cached` (nothing was to do) or `failed` (mean and std are then None).

    `std` is the sample standard deviation over seeds, 0.0 with one seed; `per_seed` holds the trials with a
    score.
    """

    task: str
    status: str
    seeds: tuple[int, ...]
    mean: float | None
    std: float | None
    per_seed: Mapping[int, float]
    elapsed_seconds: float
    reason: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialPrints:
    """What a trial has to be bound to in order to count as done.

    `grading`: the fields of the grading fingerprint; without "generations" whatever was graded is accepted.
    `rows` is the number of samples.
    """

    generation: Fingerprint
    grading: Mapping[str, Any]
    rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskState:
    """`settled`: seeds whose results file is whole and bound to what is expected; the others are to be done.

    `conflicts`: `field: old -> new`, when a complete task was generated under something else (or a trial with
    another checkpoint), so that replacing it has to be asked for. `summary`: of a complete task, status
    `cached`.
    """

    complete: bool
    settled: tuple[int, ...]
    conflicts: tuple[str, ...]
    summary: TaskSummary | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SettledTrial:
    """A whole results file: `document` is all of it, `results` the task's entry, `about` its `_evalcrate`."""

    path: Path
    document: Mapping[str, Any]
    results: Mapping[str, Any]
    about: Mapping[str, Any]
    accuracy: float


def failure_file(layout: Layout, task: str) -> Path:
    """Why a task has no score; absent once it has one."""
    return layout.work / "failed" / f"{task}.json"


def is_number(value: object) -> TypeGuard[float]:
    """A finite int or float; a bool is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_share(value: object) -> TypeGuard[float]:
    """A finite number in [0, 1]."""
    return is_number(value) and 0 <= value <= 1


def is_about(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether `value` says of a trial what was asked, what took effect, how it went, what it is bound to."""
    if not isinstance(value, dict) or not _entry(value, "validity"):
        return False
    prints = _entry(value, "fingerprints")
    whole = all(_entry(prints.get(kind), "fields") for kind in ("generation", "grading"))
    return whole and all(isinstance(value.get(name), dict) for name in ("asked", "effective"))


def result_files(seed_folder: Path) -> tuple[Path, ...]:
    """The files a reader of the seed folder would count, in name order."""
    return tuple(sorted(seed_folder.glob("*/*/results_*.json")))


def read_settled(layout: Layout, task: TaskPlan, seed: int) -> SettledTrial | None:
    """The results file of a trial, or None unless there is exactly one and it is whole."""
    files = result_files(layout.seed_dir(task.name, seed))
    if len(files) != 1 or files[0].parent != layout.model_dir(task.name, seed, task.num_fewshot):
        return None
    document = read_json(files[0]) or {}
    results = _entry(_entry(document, "results"), task.name)
    about = _entry(document, "_evalcrate")
    if not is_about(about) or not is_share(results.get("accuracy")):
        return None
    examples = results.get("examples")
    if not isinstance(examples, list) or not examples or len(examples) != results.get("num_total"):
        return None
    return SettledTrial(
        path=files[0], document=document, results=results, about=about, accuracy=float(results["accuracy"])
    )


def read_marker(layout: Layout, task: str) -> dict[str, Any] | None:
    """The marker of a complete task, or None when it is absent or says less than a marker has to."""
    marker = read_json(layout.marker(task))
    if not isinstance(marker, dict) or marker.get("status") != "complete" or not is_share(marker.get("mean")):
        return None
    seeds, per_seed = marker.get("seeds"), marker.get("per_seed")
    if not isinstance(seeds, list) or not seeds or not all(type(s) is int for s in seeds):
        return None
    if not isinstance(per_seed, dict) or set(per_seed) != {str(s) for s in seeds}:
        return None
    whole = is_number(marker.get("std")) and all(is_share(v) for v in per_seed.values())
    return marker if whole and all(_prints_in(marker, seed) for seed in seeds) else None


def task_state(layout: Layout, task: TaskPlan, expected: Mapping[int, TrialPrints]) -> TaskState:
    """What of a task is there; `expected` has one entry per seed of the plan."""
    marker = read_marker(layout, task.name)
    named = tuple(marker["seeds"]) if marker else ()
    trials = {seed: read_settled(layout, task, seed) for seed in sorted({*expected, *named})}
    settled = tuple(s for s in expected if _bound(trials[s], expected[s]))
    claimed = marker is not None and _claim_holds(layout, task, marker, trials)
    complete = (
        claimed
        and marker is not None
        and set(named) == set(expected)
        and len(settled) == len(expected)
        and all(_same_prints(_prints_in(marker, seed), expected[seed]) for seed in expected)
    )
    return TaskState(
        complete=complete,
        settled=settled,
        conflicts=tuple(dict.fromkeys(_conflicts(marker if claimed else None, trials, expected))),
        summary=summary_of(marker) if complete and marker is not None else None,
    )


def expected_prints(plan: Plan, task: TaskPlan, trials: Mapping[int, tuple[str, int]]) -> dict[int, TrialPrints]:
    """What the trials of a task have to be bound to; `trials`: digest and number of the requests of each seed."""
    fields = fingerprint.grading(plan, task, "", fingerprint.grader_versions()).fields
    grading = {name: value for name, value in fields.items() if name != "generations"}
    return {
        seed: TrialPrints(generation=fingerprint.generation(plan, task, requests), grading=grading, rows=rows)
        for seed, (requests, rows) in trials.items()
    }


def settings_mismatch(plan: Plan, task: TaskPlan, about: Mapping[str, Any]) -> str | None:
    """Why a trial is none of this plan: made under something else than it says, or than it asked for itself.

    `about` is as `is_about` has it. What depends on the machine, as the engine's version, is left out.
    """
    made, judged = (about["fingerprints"][kind]["fields"] for kind in ("generation", "grading"))
    planned = fingerprint.generation(plan, task, made.get("requests")).fields
    wanted = {name: value for name, value in planned.items() if name not in plan.placement.numerics}
    grading = fingerprint.grading(plan, task, "", {}).fields
    wanted |= {name: grading[name] for name in ("benchmark", "metric", "think_end_token")}
    if differences := differing({name: {**judged, **made}.get(name) for name in wanted}, wanted):
        return f"made under other settings than the plan's: {'; '.join(differences)}"
    for name in ("temperature", "top_p", "max_tokens"):
        asked, effective = about["asked"].get(name), about["effective"].get(name)
        if effective is not None and asked != effective:
            return f"{name} {asked} was asked for, {effective} took effect"
    return None


def early_conflicts(plan: Plan, layout: Layout) -> tuple[str, ...]:
    """What in the folder a run of the plan would have to replace, as far as that shows before a task is asked.

    `<task>: field: old -> new` for complete tasks of the plan. Of anything else (its unfinished trials, other
    markers, results.json) only another checkpoint counts.
    """
    found = [f"{t.name}: {told}" for t in plan.evaluation.tasks for told in _task_conflicts(plan, layout, t)]
    new = plan.evaluation.checkpoint_identity
    found += [f"{name}: checkpoint: {old} -> {new}" for name, old in named_checkpoints(layout).items() if old != new]
    return tuple(dict.fromkeys(found))


def named_checkpoints(layout: Layout) -> dict[str, str]:
    """The checkpoint identities in the folder's markers, by task, and in results.json, by that name."""
    named = {layout.results_json.name: _object(read_json(layout.results_json)).get("checkpoint_identity")}
    for path in sorted(layout.marker("").parent.glob(f"*{_MARKER}")):
        named[path.name.removesuffix(_MARKER)] = _object(read_json(path)).get("checkpoint")
    return {name: identity for name, identity in named.items() if isinstance(identity, str)}


def summary_of(marker: Mapping[str, Any]) -> TaskSummary:
    elapsed = marker.get("elapsed_seconds")
    return TaskSummary(
        task=str(marker["task"]),
        status="cached",
        seeds=tuple(marker["seeds"]),
        mean=marker["mean"],
        std=marker["std"],
        per_seed={int(seed): value for seed, value in marker["per_seed"].items()},
        elapsed_seconds=float(elapsed) if is_number(elapsed) else 0.0,
        reason=None,
    )


def _object(value: object) -> dict[str, Any]:
    """`value` when it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def _entry(value: object, key: str) -> dict[str, Any]:
    return _object(_object(value).get(key))


def _prints_in(marker: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The fingerprints a marker holds for a seed; empty when one of the two is missing."""
    prints = _entry(marker.get("fingerprints"), str(seed))
    return prints if _entry(prints, "generation") and _entry(prints, "grading") else {}


def _same_prints(prints: Mapping[str, Any], expected: TrialPrints) -> bool:
    grading = _entry(_entry(prints, "grading"), "fields")
    wanted = {"generations": grading.get("generations"), **expected.grading}
    same = _entry(prints, "generation").get("digest") == expected.generation.digest
    return same and digest(grading) == digest(wanted)


def _bound(trial: SettledTrial | None, expected: TrialPrints) -> bool:
    if trial is None or trial.results["num_total"] != expected.rows:
        return False
    return _same_prints(_entry(trial.about, "fingerprints"), expected)


def _claim_holds(
    layout: Layout, task: TaskPlan, marker: Mapping[str, Any], trials: Mapping[int, SettledTrial | None]
) -> bool:
    """Whether the files are what the marker says, whatever the plan of today wants."""
    seeds = marker["seeds"]
    told = marker["per_seed"]
    agree = all((trial := trials[s]) is not None and trial.accuracy == told[str(s)] for s in seeds)
    if not agree or len(seeds) == 1:
        return agree
    folder = layout.compile_dir(task.name, len(seeds))
    if not all((folder / name).is_file() and (folder / name).stat().st_size for name in _COMPILE_FILES):
        return False
    averaged = read_json(folder / "averaged_results.json")
    first = averaged[0] if isinstance(averaged, list) and len(averaged) == 1 else None
    return isinstance(first, dict) and first.get("num_seeds") == len(seeds) and first.get("seeds") == seeds


def _conflicts(
    claim: Mapping[str, Any] | None,
    trials: Mapping[int, SettledTrial | None],
    expected: Mapping[int, TrialPrints],
) -> Iterator[str]:
    """Differences in what was generated: all for a complete task, the checkpoint alone for anything less."""
    some = next(iter(expected.values()), None)
    for seed, trial in trials.items():
        wanted = expected.get(seed, some)
        if wanted is None:
            continue
        new = dict(wanted.generation.fields)
        if claim is not None and _prints_in(claim, seed):
            old = _entry(_prints_in(claim, seed)["generation"], "fields")
        elif trial is not None:
            old = {**new, "checkpoint": _entry(trial.about, "checkpoint").get("identity")}
        else:
            continue
        if seed not in expected or claim is None:
            old = {**old, "requests": new.get("requests")}
        yield from differing(old, new)


def _task_conflicts(plan: Plan, layout: Layout, task: TaskPlan) -> Iterator[str]:
    marker = read_marker(layout, task.name)
    prints = {seed: _prints_in(marker, seed)["generation"] for seed in marker["seeds"]} if marker else {}
    made = [_entry(one, "fields") for one in prints.values()]
    shots = made[0].get("num_fewshot") if made else None
    as_made = replace(task, num_fewshot=shots) if type(shots) is int else task  # its folder's name holds the number
    trials = {seed: read_settled(layout, as_made, seed) for seed in prints or task.seeds}
    if marker and _claim_holds(layout, task, marker, trials):
        for old in made:
            yield from differing(old, fingerprint.generation(plan, task, old.get("requests", "")).fields)
        return
    new = plan.evaluation.checkpoint_identity
    for trial in trials.values():
        if trial and (old_checkpoint := _entry(trial.about, "checkpoint").get("identity")) != new:
            yield f"checkpoint: {old_checkpoint} -> {new}"
