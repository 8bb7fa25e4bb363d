"""How much there is to do before a run starts: requests of each task, and what is done already.

In: the tasks, their data, the plan and its result folder, where there are. Out: an Outlook for each task, and what the
requests that are known would make the run refuse. Only shown: nothing here gets into the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from entrypoint.collect import CollectedTask, CollectedTrial, known_trials, refuse_overlong
from entrypoint.completion import expected_prints, read_marker, task_state
from entrypoint.data_folder import TaskData
from entrypoint.errors import EvalcrateError
from entrypoint.layout import Layout
from entrypoint.plan import Plan, TaskPlan
from entrypoint.shortfall import disk_error

# They ask some of their rows only: HLE its multiple-choice questions without an image, the others those of some months.
_SELECTIVE = ("HLE", "LiveCodeBenchv5_official", "LiveCodeBenchv6_official")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlook:
    """`samples` of each trial, None where only collect will tell; `at_most`: it may be fewer.

    `collected`: what an earlier collect wrote for this very plan, by seed. `done`: seeds with a whole result of this
    plan. `claimed`: a marker says that the task is complete, which is held against its requests once they are known.
    """

    task: TaskPlan
    samples: int | None
    at_most: bool = False
    collected: Mapping[int, CollectedTrial] = field(default_factory=dict)
    done: tuple[int, ...] = ()
    complete: bool = False
    claimed: bool = False

    @property
    def open_seeds(self) -> int:
        """Trials that the run would still have to do."""
        return 0 if self.complete or self.claimed else len(self.task.seeds) - len(self.done)

    @property
    def open_requests(self) -> int | None:
        return 0 if not self.open_seeds else None if self.samples is None else self.samples * self.open_seeds

    @property
    def requests(self) -> str:
        """Of all trials, in words."""
        if self.samples is None:
            return "known after collect"
        trials = len(self.task.seeds)
        each = f"{trials} x {self.samples} = " if trials > 1 else ""
        return f"{'at most ' if self.at_most else ''}{each}{self.samples * trials:,}"

    @property
    def state(self) -> str:
        """What is done already, in words; "" for nothing."""
        if self.complete:
            return "complete, skipped"
        if self.claimed:
            return "complete before, checked after collect"
        return f"{len(self.done)} of {len(self.task.seeds)} seeds done" if self.done else ""

    @property
    def prompt_tokens(self) -> int | None:
        """Of all trials; None until each of them is collected."""
        whole = len(self.collected) == len(self.task.seeds)
        return sum(trial.prompt_tokens["total"] for trial in self.collected.values()) if whole else None


def look_ahead(
    tasks: Sequence[TaskPlan],
    data: Mapping[str, TaskData],
    limit: int | None,
    plan: Plan | None,
    layout: Layout | None,
    *,
    force: bool,
) -> tuple[Outlook, ...]:
    """One for each task, in order; without a plan only what the data tells. With `force` nothing counts as done."""
    found = []
    for task in tasks:
        rows = data[task.name].rows if task.name in data else None
        if plan is None or layout is None:
            found.append(_by_rows(task, rows, limit))
            continue
        collected = known_trials(plan, layout, task)
        if not collected:
            claimed = not force and _claims(layout, task)
            found.append(_by_rows(task, rows, limit, claimed=claimed))
        else:
            found.append(_by_requests(plan, layout, task, collected, force))
    return tuple(found)


def _by_rows(task: TaskPlan, rows: int | None, limit: int | None, *, claimed: bool = False) -> Outlook:
    """lm-eval's tasks choose from their rows themselves, so their number is not known from them."""
    sure = task.harness == "evalchemy" and rows is not None and task.name not in _SELECTIVE
    most = [n for n in (rows if task.harness == "evalchemy" else None, limit) if n is not None]
    return Outlook(task=task, samples=min(most, default=None), at_most=not sure, claimed=claimed)


def _by_requests(
    plan: Plan, layout: Layout, task: TaskPlan, collected: Mapping[int, CollectedTrial], force: bool
) -> Outlook:
    samples = max(trial.requests for trial in collected.values())
    if force:
        return Outlook(task=task, samples=samples, collected=collected)
    known = {seed: (trial.digest, trial.requests) for seed, trial in collected.items()}
    state = task_state(layout, task, expected_prints(plan, task, known))
    whole = len(collected) == len(task.seeds)
    return Outlook(
        task=task, samples=samples, collected=collected, done=state.settled, complete=whole and state.complete
    )


def _claims(layout: Layout, task: TaskPlan) -> bool:
    marker = read_marker(layout, task.name)
    return marker is not None and set(marker["seeds"]) == set(task.seeds)


def refusals(plan: Plan, layout: Layout, outlooks: Sequence[Outlook]) -> Iterator[EvalcrateError]:
    """What generate would refuse of the requests that are known: prompts that are too long, a disk that is too small.

    The disk counts only before the first answer: after it, less than everything may be left to write.
    """
    try:
        refuse_overlong(plan, {o.task.name: CollectedTask(task=o.task, trials=o.collected) for o in outlooks})
    except EvalcrateError as error:
        yield error
    if not any(layout.generations.glob("*.jsonl")):
        sure = [one for one in outlooks if not one.at_most]
        error_of_disk = disk_error(layout.root, most_tokens(sure))
        if error_of_disk is not None:
            yield error_of_disk


def most_tokens(outlooks: Sequence[Outlook]) -> int:
    """As many tokens as the answers that are still to be made can have, of tasks whose number of requests is known."""
    return sum((one.open_requests or 0) * one.task.sampling.max_tokens for one in outlooks)
