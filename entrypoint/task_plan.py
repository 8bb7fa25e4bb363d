"""Which tasks a job asks for and with which seeds and sampling: suites and entries -> TaskPlans.

In: JobSpec, Catalog, and where each task's code lies. Out: TaskPlans in the order they were named; JobError or
MachineError when one can't be run, with the tasks there are or the command that helps.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from entrypoint import source, task_folder
from entrypoint.catalog import Catalog, TaskFacts
from entrypoint.errors import EvalcrateError, JobError, MachineError
from entrypoint.job import JobSpec, TaskSpec, seeds_from
from entrypoint.plan import Sampling, TaskPlan

_EVALCHEMY = "evalchemy:"
# The keys of `grader:` that can change a score of a task.
_BOXED = ("AIME24", "AIME25", "AIME26", "AMC23", "MATH500", "OlympiadBench", "JEEBench")
_CODE = ("LiveCodeBench", "LiveCodeBenchv5_official", "LiveCodeBenchv6_official")
_OPTIONS = {
    **dict.fromkeys(_BOXED, ("boxed_blank",)),
    **dict.fromkeys(_CODE, ("livecodebench",)),
    "GPQADiamond": ("gpqa_order",),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSources:
    """Where tasks come from on this machine. `tree`: the patched evalchemy, None when it was never fetched.

    `extras`: the benchmarks outside the suites, with the tree of each that was fetched.
    """

    root: Path
    tree: Path | None
    series: str
    extras: Mapping[str, Path | None] = field(default_factory=dict)

    def is_extra(self, task: TaskPlan | TaskFacts) -> bool:
        """Whether it is a benchmark of evalchemy that no suite has."""
        return task.harness == "evalchemy" and task.name in self.extras

    def folder(self, task: TaskPlan) -> Path | None:
        if self.is_extra(task):
            return self.extras[task.name]
        return self.tree if task.harness == "evalchemy" else task_folder.find(self.root, task.name)


def resolve_tasks(job: JobSpec, catalog: Catalog, sources: TaskSources) -> tuple[TaskPlan, ...]:
    """Suites in their order, then the job's own entries; an entry of a suite's task only changes that task."""
    facts: dict[str, TaskFacts] = {}
    for suite in job.suite_names:
        facts |= {task.name: task for task in catalog.suite(suite).tasks}
    _refuse_shared_folders(entry.name.removeprefix(_EVALCHEMY) for entry in job.tasks)
    entries = {entry.name.removeprefix(_EVALCHEMY): entry for entry in job.tasks}
    for name, entry in entries.items():
        if entry.name.startswith(_EVALCHEMY):
            facts[name] = _extra(name, catalog, sources)
        elif name not in facts:
            facts[name] = catalog.task(name) or _unlisted(name, catalog, sources)
    _refuse_shared_folders(facts)
    return tuple(_task_plan(job, fact, entries.get(name), sources) for name, fact in facts.items())


def _refuse_shared_folders(names: Iterable[str]) -> None:
    """Task names are folder names, on some file systems whatever their case; and names in tables are lower case."""
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.get(name.casefold())) is not None:
            raise JobError(f"tasks: {name}: its results would lie in the folders of {other}; use two jobs")
        seen[name.casefold()] = name


def _extra(name: str, catalog: Catalog, sources: TaskSources) -> TaskFacts:
    """A benchmark of the pinned evalchemy that no suite has; its results carry the bare name."""
    if catalog.task(name) is not None:
        raise JobError(f"tasks: {_EVALCHEMY}{name}: write {name}; a task of the suites has its plain name")
    if name not in sources.extras:
        near = difflib.get_close_matches(name, sources.extras, n=1)
        hint = f"did you mean {_EVALCHEMY}{near[0]}? " if near else ""
        listed = ", ".join(sources.extras) or "none"
        raise JobError(f"tasks: {_EVALCHEMY}{name}: the pinned evalchemy has no such benchmark; {hint}it has {listed}")
    return TaskFacts(name=name, harness="evalchemy", seeds=1, num_fewshot=0, metric=None, max_tokens=None, data="tree")


def _unlisted(name: str, catalog: Catalog, sources: TaskSources) -> TaskFacts:
    """A task that no suite names: one of ours or of lm-eval's own."""
    if task_folder.find(sources.root, name) is None:
        known = sorted({*catalog.task_names(), *task_folder.ours(sources.root)})
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        hint = f"write {_EVALCHEMY}{name}; " if name in sources.extras else hint
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
    )


def _task_plan(job: JobSpec, facts: TaskFacts, entry: TaskSpec | None, sources: TaskSources) -> TaskPlan:
    own = entry if entry is not None else TaskSpec(name=facts.name)
    if own.harness not in (None, facts.harness):
        raise JobError(f"tasks: {facts.name}: harness {own.harness}; this task belongs to {facts.harness}")
    if facts.harness == "evalchemy" and own.num_fewshot:
        raise JobError(f"tasks: {facts.name}: num_fewshot {own.num_fewshot}; this benchmark has no few-shot examples")
    if facts.harness == "evalchemy" and own.metric and not sources.is_extra(facts):
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
        data="",
        options={name: getattr(job.grader, name) for name in _OPTIONS.get(facts.name, ())},
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


def refusals(tasks: tuple[TaskPlan, ...], sources: TaskSources) -> tuple[EvalcrateError, ...]:
    """Why some of the tasks can't be run here; empty when all can."""
    found: list[EvalcrateError] = []
    for name in (t.name for t in tasks if sources.is_extra(t) and sources.folder(t) is None):
        why = f"{_EVALCHEMY}{name}: its source is not on this machine; {source.how_to_get(name)}"
        found.append(MachineError(f"tasks: {why}"))
    needing = [t.name for t in tasks if t.harness == "evalchemy" and not sources.is_extra(t)]
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
