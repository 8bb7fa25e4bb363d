"""What profiles/ offers: suites (tasks with their seed counts) and engine settings for kinds of GPU.

In: the folders profiles/suites and profiles/gpu, one file for each name. Out: a Catalog, or a JobError that
says which file and key is wrong. Nothing here looks at a machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field, model_validator

from entrypoint.errors import JobError
from entrypoint.field import Count, Lax, Line, Lines, Name, RuleError, Section, Size, Text, checked, nearest
from entrypoint.yaml_file import Document, read_file, refused

Harness = Literal["evalchemy", "lm_eval"]
Data = Literal["tree", "folder", "hub"]
Entry = TypeVar("Entry")


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskFacts:
    """What a suite says of a task.

    `metric` is the lm-eval key of the score to report (None: evalchemy's own accuracy). `data` is where its
    questions are: in the pinned source tree, in tasks/, or in a hub data set that data.lock.yaml names.
    """

    name: str
    harness: Harness
    seeds: int
    num_fewshot: int
    metric: str | None
    max_tokens: int | None
    data: Data


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite:
    """A named set of tasks, in the order of its file."""

    name: str
    description: str
    tasks: tuple[TaskFacts, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Engine settings for one kind of GPU.

    `gpu_names` are product names as nvidia-smi prints them, a `*` standing for any rest; the memory bounds
    (MiB, inclusive) tell apart cards of one name. `max_num_batched_tokens` None means max_model_len.
    `tested` is whether somebody ran this version of the program with it.
    """

    name: str
    gpu_names: tuple[str, ...]
    min_total_mib: int
    max_total_mib: int
    gpu_memory_utilization: float | None
    max_num_seqs: int
    max_num_batched_tokens: int | None
    min_gib_per_gpu: float | None
    max_tensor_parallel_size: int | None
    tested: bool
    note: str

    def matches(self, gpu_name: str, total_mib: int) -> bool:
        """Whether a card of this whole product name and this much memory is of this kind."""
        product = gpu_name.removeprefix("NVIDIA ")
        named = any(fnmatchcase(product, name.removeprefix("NVIDIA ")) for name in self.gpu_names)
        return named and self.min_total_mib <= total_mib <= self.max_total_mib


@dataclass(frozen=True, kw_only=True, slots=True)
class Catalog:
    """All suites and profiles by name, in alphabetical order."""

    suites: Mapping[str, Suite]
    profiles: Mapping[str, Profile]

    def suite(self, name: str) -> Suite:
        """JobError with the known names when there is none of this name."""
        return _known(self.suites, name, "suite")

    def profile(self, name: str) -> Profile:
        """JobError with the known names when there is none of this name."""
        return _known(self.profiles, name, "engine.profile")

    def task(self, name: str) -> TaskFacts | None:
        """The facts of a task, its seed count being that of the first suite that has it."""
        tasks = (task for suite in self.suites.values() for task in suite.tasks)
        return next((task for task in tasks if task.name == name), None)

    def task_names(self) -> tuple[str, ...]:
        """Every task that some suite has, each once, in alphabetical order."""
        return tuple(sorted({task.name for suite in self.suites.values() for task in suite.tasks}))

    def profile_for(self, gpu_name: str, total_mib: int) -> Profile | None:
        """The profile of this very kind of card, None when there is none; never the nearest one.

        A MIG slice (`<card> MIG 3g.40gb`) goes by its card's name and its own memory.
        """
        product = gpu_name.partition(" MIG ")[0]
        found = [each for each in self.profiles.values() if each.matches(product, total_mib)]
        if len(found) > 1:
            both = " and ".join(f"profiles/gpu/{each.name}.yaml" for each in found)
            raise JobError(f"{both}: gpu_names: both match {gpu_name}, {total_mib} MiB; tell them apart")
        return found[0] if found else None


class _TaskEntry(Section):
    name: Name
    harness: Harness
    seeds: Annotated[int, Field(ge=1, le=1000)]
    num_fewshot: Size = 0
    metric: Line | None = None
    max_tokens: Count | None = None
    data: Data

    @model_validator(mode="after")
    def _has_metric(self) -> _TaskEntry:
        if self.harness == "lm_eval" and self.metric is None:
            raise RuleError("is missing; an lm_eval task names the score to report", "metric")
        return self


class _SuiteFile(Section):
    description: Line
    tasks: Annotated[tuple[_TaskEntry, ...], Lax, Field(min_length=1)]

    @model_validator(mode="after")
    def _names_once(self) -> _SuiteFile:
        names = [task.name for task in self.tasks]
        for n, name in enumerate(names):
            if name in names[:n]:
                raise RuleError(f"{name} is named twice; name it once", "tasks", n, "name")
        return self


class _ProfileFile(Section):
    gpu_names: Lines = ()
    min_total_mib: Size = 0
    max_total_mib: Size = 2**31 - 1
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    max_num_seqs: Count
    max_num_batched_tokens: Count | None = None
    min_gib_per_gpu: Annotated[float, Field(gt=0)] | None = None
    max_tensor_parallel_size: Count | None = None
    tested: bool
    note: Text


def load_catalog(root: Path) -> Catalog:
    """The catalog under `root`, which holds profiles/; a task means the same in all suites, seeds aside."""
    suites = {}
    facts: dict[str, tuple[TaskFacts, Path]] = {}
    for path in _files(root / "profiles" / "suites"):
        document = read_file(path)
        suites[path.stem] = suite = _suite(path.stem, checked(_SuiteFile, document))
        for n, task in enumerate(suite.tasks):
            first, where = facts.setdefault(task.name, (task, path))
            if replace(task, seeds=first.seeds) != first:
                what = f"differs from {where} in more than its seeds; make the two agree"
                raise document.refusal(("tasks", n, "name"), what)
    profiles = {path.stem: _profile(path.stem, read_file(path)) for path in _files(root / "profiles" / "gpu")}
    return Catalog(suites=suites, profiles=profiles)


def with_profile_file(catalog: Catalog, profile: str) -> Catalog:
    """The catalog and, where `profile` is a file's path and no name, that file's profile under its path."""
    if profile in catalog.profiles or not (profile.endswith((".yaml", ".yml")) or "/" in profile):
        return catalog
    own = _profile(profile, read_file(Path(profile)))
    return replace(catalog, profiles={**catalog.profiles, profile: own})


def _files(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*.yaml"))
    if not found:
        raise refused(str(folder), "holds no .yaml file; the program is not whole, install it again")
    return found


def _suite(name: str, file: _SuiteFile) -> Suite:
    tasks = tuple(TaskFacts(**entry.model_dump()) for entry in file.tasks)
    return Suite(name=name, description=file.description, tasks=tasks)


def _profile(name: str, document: Document) -> Profile:
    return Profile(name=name, **checked(_ProfileFile, document).model_dump())


def _known(entries: Mapping[str, Entry], name: str, key: str) -> Entry:
    if name in entries:
        return entries[name]
    close = nearest(name, entries)
    guess = f"did you mean {close}? " if close else ""
    raise refused(key, f"{name}: unknown; {guess}the known ones are {', '.join(sorted(entries))}")
