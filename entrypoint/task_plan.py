"""Which tasks a job asks for and with which seeds and sampling: suites and entries -> TaskPlans.

In: JobSpec, Catalog, and where each task's code lies. Out: TaskPlans in the order they were named; JobError or
MachineError when one can't be run, with the tasks there are or the command that helps.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from entrypoint import task_folder
from entrypoint.catalog import Catalog, TaskFacts
from entrypoint.errors import EvalcrateError, JobError, MachineError
from entrypoint.job import JobSpec, TaskSpec, seeds_from
from entrypoint.plan import Sampling, TaskPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSources:
    """Where tasks come from on this machine. `tree`: the patched evalchemy, None when it was never fetched."""

    root: Path
    tree: Path | None
    series: str

    def folder(self, task: TaskPlan) -> Path | None:
        return self.tree if task.harness == "evalchemy" else task_folder.find(self.root, task.name)


def resolve_tasks(job: JobSpec, catalog: Catalog, sources: TaskSources) -> tuple[TaskPlan, ...]:
    """Suites in their order, then the job's own entries; an entry of a suite's task only changes that task."""
    facts: dict[str, TaskFacts] = {}
    for suite in job.suite_names:
        facts |= {task.name: task for task in catalog.suite(suite).tasks}
    entries = {entry.name: entry for entry in job.tasks}
    for name in entries:
        if name not in facts:
            facts[name] = catalog.task(name) or _unlisted(name, catalog, sources)
    return tuple(_task_plan(job, fact, entries.get(name), sources) for name, fact in facts.items())


def _unlisted(name: str, catalog: Catalog, sources: TaskSources) -> TaskFacts:
    """A task that no suite names: one of ours or of lm-eval's own."""
    if task_folder.find(sources.root, name) is None:
        known = sorted({*catalog.task_names(), *task_folder.ours(sources.root)})
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise JobError(
            f"tasks: {name}: unknown task; {hint}Known: {', '.join(known)}, and the tasks of lm-eval by their names"
        )
    return TaskFacts(
        name=name,
        harness="lm_eval",
        seeds=1,
        num_fewshot=0,
        metric=None,
        max_tokens=None,
        data="folder",
        pending=None,
    )


def _task_plan(job: JobSpec, facts: TaskFacts, entry: TaskSpec | None, sources: TaskSources) -> TaskPlan:
    own = entry if entry is not None else TaskSpec(name=facts.name)
    if own.harness not in (None, facts.harness):
        raise JobError(f"tasks: {facts.name}: harness {own.harness}; this task belongs to {facts.harness}")
    if facts.harness == "evalchemy" and own.num_fewshot:
        raise JobError(f"tasks: {facts.name}: num_fewshot {own.num_fewshot}; this benchmark has no few-shot examples")
    if facts.harness == "evalchemy" and own.metric:
        raise JobError(f"tasks: {facts.name}: metric {own.metric}; this benchmark has the one metric accuracy")
    sampling = job.sampling
    return TaskPlan(
        name=facts.name,
        harness=facts.harness,
        num_fewshot=facts.num_fewshot if own.num_fewshot is None else own.num_fewshot,
        metric=_metric(facts, own),
        seeds=_seeds(job, facts, own),
        sampling=Sampling(
            temperature=sampling.temperature if own.temperature is None else own.temperature,
            top_p=sampling.top_p if own.top_p is None else own.top_p,
            max_tokens=own.max_tokens or facts.max_tokens or sampling.max_tokens,
            seed_policy=sampling.seed_policy,
        ),
        source=_source(facts, sources),
    )


def _metric(facts: TaskFacts, own: TaskSpec) -> str | None:
    """lm-eval tasks have several scores; which one is the task's is never guessed."""
    metric = own.metric or facts.metric
    if metric is None and facts.harness == "lm_eval":
        raise JobError(
            f"tasks: {facts.name}: metric: is needed for a task that no suite lists; name the score to report as "
            f'lm-eval does, for example {{name: {facts.name}, metric: "exact_match,strict-match"}}'
        )
    return metric


def _seeds(job: JobSpec, facts: TaskFacts, own: TaskSpec) -> tuple[int, ...]:
    """The task's own entry wins, then the job, then the suite; a 1-seed task stays so unless its entry says more."""
    if own.seeds is not None:
        return own.seeds
    if job.seeds is not None:
        return job.seeds[:1] if facts.seeds == 1 else job.seeds
    return seeds_from(facts.seeds)


def _source(facts: TaskFacts, sources: TaskSources) -> str:
    if facts.harness == "evalchemy":
        return sources.series
    folder = task_folder.find(sources.root, facts.name)
    return "" if folder is None else task_folder.source_digest(sources.root, folder)


def refusals(tasks: tuple[TaskPlan, ...], catalog: Catalog, sources: TaskSources) -> tuple[EvalcrateError, ...]:
    """Why some of the tasks can't be run here; empty when all can."""
    found: list[EvalcrateError] = []
    pending: dict[str, list[str]] = {}
    for task in tasks:
        facts = catalog.task(task.name)
        if facts is not None and facts.pending is not None:
            pending.setdefault(facts.pending, []).append(task.name)
    for why, names in pending.items():
        found.append(JobError(f"tasks: {', '.join(names)}: can't be run yet: {why}; leave them out"))
    needing = [t.name for t in tasks if t.harness == "evalchemy"]
    if needing and sources.tree is None:
        found.append(
            MachineError(
                f"tasks: {', '.join(needing)}: the evalchemy source is not on this machine; run `evalcrate sources` "
                "(EVALCHEMY_REPO names another repository or a local git directory)"
            )
        )
    return tuple(found)


def folders(tasks: tuple[TaskPlan, ...], sources: TaskSources) -> Mapping[str, str]:
    """Folder of each task's code; a task without one was refused before."""
    found = {task.name: sources.folder(task) for task in tasks}
    return {name: str(folder) for name, folder in found.items() if folder is not None}
