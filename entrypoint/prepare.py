"""From a job file to a Plan: the one place that looks at files, the machine and the environment for it.

In: a JobSpec, the program's root folder, the environment. Out: a Prepared job, or the first thing that makes it
impossible; `plan` shows the rest of the picture before it says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from entrypoint import architecture, enforcement, host, source, task_plan
from entrypoint.card_lock import CardLocks
from entrypoint.catalog import Catalog, Profile, load_catalog, with_profile_file
from entrypoint.checkpoint import Checkpoint, inspect
from entrypoint.completion import early_conflicts
from entrypoint.data_folder import DataFolder, TaskData, look, refusal
from entrypoint.data_lock import FILE_NAME, read_lock
from entrypoint.errors import CheckpointError, EvalcrateError, JobError, MachineError
from entrypoint.gpu import Gpu
from entrypoint.job import JobSpec
from entrypoint.layout import Layout
from entrypoint.notice import machine_notices
from entrypoint.placement import cards_of, choose_profile, place
from entrypoint.plan import Plan, TaskPlan, max_model_len, resolve
from entrypoint.shortfall import shortfalls
from entrypoint.task_plan import TaskSources

_TEMPLATE_NAMES = {
    "add_generation_prompt",
    "chat_template",
    "continue_final_message",
    "conversation",
    "messages",
    "strftime_now",
    "tokenize",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """`tasks` are known as soon as the job is, the rest is None where it can't be; with refusals it is only shown.

    `data`: the state of each task's questions, by task; `data_path`: the data folder, there or not.
    """

    job: JobSpec
    tasks: tuple[TaskPlan, ...]
    data: Mapping[str, TaskData]
    data_path: Path
    checkpoint: Checkpoint | None
    machine: host.Host | None
    plan: Plan | None
    refusals: tuple[EvalcrateError, ...]


def root() -> Path:
    """The folder that holds profiles/, patches/, tasks/ and jobs/."""
    return Path(__file__).parent.parent


def lock_file(environ: Mapping[str, str]) -> Path:
    """The program's own data lock, or another one in its place (EVALCRATE_DATA_LOCK)."""
    return Path(environ.get("EVALCRATE_DATA_LOCK") or root() / FILE_NAME)


def prepare(
    job: JobSpec,
    environ: Mapping[str, str],
    *,
    force: bool = False,
    full_hash: bool = False,
    locks: CardLocks | None = None,
) -> Prepared:
    """Looks at everything that can be looked at; the refusals come in the order in which a run would meet them.

    With `locks` the engine's cards are held from before their memory is measured; without, a held one is only named.
    """
    home, refusals = root(), list[EvalcrateError]()
    catalog = with_profile_file(load_catalog(home), job.engine.profile)
    tasks, sources, data = _tasks(job, catalog, environ, refusals)
    checkpoint: Checkpoint | None = None
    machine: host.Host | None = None
    plan: Plan | None = None
    with _noting(refusals):
        models = architecture.load_models(home)
        checkpoint = inspect(
            job.checkpoint,
            models,
            dtype=job.engine.dtype,
            own_template=job.chat_template == "auto",
            full_hash=full_hash,
            cache=source.cache_root(environ),
        )
        refusals += _unusable(job, checkpoint, models, max_model_len(job, tasks))
    with _noting(refusals):
        machine = _look(job, environ)
    if checkpoint is not None and machine is not None:
        with _noting(refusals):
            machine = _held(job, catalog, tasks, checkpoint, machine, environ, locks)
        with _noting(refusals):
            plan = _plan(job, catalog, tasks, checkpoint, machine, sources, data)
            refusals += _later(plan, environ, force)
            refusals += shortfalls(plan.placement, machine, job.engine.dtype, checkpoint.weights_bytes)
    if machine is None:  # without its cards, to be shown only
        machine = host.look(home, environ, cache=source.cache_root(environ), gpus=False, home=False)
    return Prepared(
        job=job,
        tasks=tasks,
        data=data,
        data_path=data_folder(job.data, environ).path,
        checkpoint=checkpoint,
        machine=machine,
        plan=plan,
        refusals=tuple(refusals),
    )


def _tasks(
    job: JobSpec, catalog: Catalog, environ: Mapping[str, str], refusals: list[EvalcrateError]
) -> tuple[tuple[TaskPlan, ...], TaskSources, Mapping[str, TaskData]]:
    """The tasks, and where their code and their data are; what is not there is noted."""
    patches = root() / "patches/evalchemy"
    extras = dict.fromkeys(source.read_upstream(patches).extra_names)
    sources = TaskSources(root=root(), tree=None, series=source.series_digest(patches), extras=extras)
    tasks = task_plan.resolve_tasks(job, catalog, sources)
    with _noting(refusals):
        sources = replace(sources, tree=_tree(root(), tasks, environ), extras=_extras(root(), tasks, sources, environ))
    refusals += task_plan.refusals(tasks, sources)
    data: Mapping[str, TaskData] = {}
    with _noting(refusals):
        data = look(read_lock(lock_file(environ)), data_folder(job.data, environ), [task.name for task in tasks])
        tasks = tuple(replace(task, data=data[task.name].digest) for task in tasks)
        refusals += _without_data(job, catalog, data, environ)
    return tasks, sources, data


@contextmanager
def _noting(refusals: list[EvalcrateError]) -> Iterator[None]:
    """A refusal inside the block is noted, and the rest goes on with what is known."""
    try:
        yield
    except EvalcrateError as err:
        refusals.append(err)


def _unusable(
    job: JobSpec, checkpoint: Checkpoint, models: architecture.Models, length: int
) -> Iterator[CheckpointError]:
    """What our engine would refuse of the checkpoint; a server that is already there has its own rules."""
    if job.engine.kind != "vllm":
        return
    yield from architecture.refusals(
        checkpoint.path,
        checkpoint.config,
        checkpoint.tokenizer_config,
        models,
        trust_remote_code=job.engine.trust_remote_code,
    )
    if checkpoint.limit is not None and length > checkpoint.limit.tokens:
        yield CheckpointError(
            f"engine.max_model_len {length}: the engine refuses more than the checkpoint's {checkpoint.limit.tokens} "
            f"tokens (config.json: {checkpoint.limit.why}); lower sampling.max_tokens and engine.max_model_len, or "
            "give the checkpoint the rope scaling that it was made for"
        )


def _look(job: JobSpec, environ: Mapping[str, str]) -> host.Host:
    ours = job.engine.kind == "vllm"
    cache = source.cache_root(environ)
    return host.look(root(), environ, cache=cache, gpus=ours and job.engine.profile != "cpu", home=ours)


def _held(
    job: JobSpec,
    catalog: Catalog,
    tasks: tuple[TaskPlan, ...],
    checkpoint: Checkpoint,
    machine: host.Host,
    environ: Mapping[str, str],
    locks: CardLocks | None,
) -> host.Host:
    """The machine as it is once the engine's cards are held: what is free there changes until then."""
    cards: tuple[Gpu, ...] = ()
    if job.engine.kind == "vllm" and machine.gpus:
        with suppress(EvalcrateError):  # the plan says it
            profile = choose_profile(job, catalog, machine)
            cards = cards_of(job, profile, checkpoint, machine, max_model_len(job, tasks)).used
    if locks is None:
        CardLocks(source.cache_root(environ)).refuse_held(cards)
        return machine
    locks.take(cards)
    return _look(job, environ) if cards else machine


def data_folder(asked: str | Path | None, environ: Mapping[str, str]) -> DataFolder:
    """The folder that was asked for, else the one beside the caches; nothing has to be there."""
    return DataFolder(path=source.cache_root(environ) / "data" if asked is None else Path(asked).absolute())


def _without_data(
    job: JobSpec, catalog: Catalog, data: Mapping[str, TaskData], environ: Mapping[str, str]
) -> Iterator[EvalcrateError]:
    """The refusal of tasks whose data is not whole here, with the command that gets it."""
    missing = [task for task, found in data.items() if found.missing]
    members = {name: {task.name for task in catalog.suite(name).tasks} for name in job.suite_names}
    suites = [name for name, tasks in members.items() if tasks & set(missing)]
    alone = [task for task in missing if not any(task in members[name] for name in suites)]
    folder = data_folder(job.data, environ)
    options = [*(f"--suite {name}" for name in suites), *(f"--task {task}" for task in alone), f"--data {folder.path}"]
    found = refusal(data.values(), folder, " ".join(options))
    if found is not None:
        yield found


def _tree(home: Path, tasks: tuple[TaskPlan, ...], environ: Mapping[str, str]) -> Path | None:
    """The patched benchmark source, where a task needs it and it is there."""
    if not any(task.harness == "evalchemy" for task in tasks):
        return None
    return source.find_tree(home / "patches/evalchemy", source.cache_root(environ))


def _extras(
    home: Path, tasks: tuple[TaskPlan, ...], sources: TaskSources, environ: Mapping[str, str]
) -> Mapping[str, Path | None]:
    """The trees of the benchmarks outside the suites that the job names, where they are there."""
    patches, cache = home / "patches/evalchemy", source.cache_root(environ)
    found = {task.name: source.find_tree(patches, cache, task.name) for task in tasks if sources.is_extra(task)}
    return {**sources.extras, **found}


def _later(plan: Plan, environ: Mapping[str, str], force: bool) -> Iterator[EvalcrateError]:
    """What would stop the run after its plan is made, as far as it can be known now."""
    layout = layout_of(plan)
    place = next(p for p in (layout.root, *layout.root.parents) if p.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        yield MachineError(
            f"results: {layout.root}: can't be written at {place}; make it a folder that uid {os.getuid()} can write, "
            "or set results: to another one"
        )
    key = plan.placement.engine.api_key_env
    if key is not None and not environ.get(key):
        yield JobError(f"engine.api_key_env: {key}: is not set; export it, or leave the key out")
    if plan.require_isolation:
        said = enforcement.statement(enforcement.describe(plan.placement.files, command=bool(plan.grader_command)))
        if said is not None:
            yield MachineError(f"grader.require_isolation: {said}; see `evalcrate doctor`")
    conflicts = () if force else early_conflicts(plan, layout)
    if conflicts:
        yield conflict(layout, "; ".join(conflicts))


def _plan(
    job: JobSpec,
    catalog: Catalog,
    tasks: tuple[TaskPlan, ...],
    checkpoint: Checkpoint,
    machine: host.Host,
    sources: TaskSources,
    data: Mapping[str, TaskData],
) -> Plan:
    template = _template(job, checkpoint)
    length = max_model_len(job, tasks)
    for task in tasks:
        if task.sampling.max_tokens >= length:
            raise JobError(
                f"sampling.max_tokens: {task.sampling.max_tokens} ({task.name}): leaves no room for a prompt in "
                f"engine.max_model_len {length}; lower it or raise engine.max_model_len"
            )
    placement = place(
        job,
        catalog,
        checkpoint,
        machine,
        template=template,
        folders=task_plan.folders(tasks, sources),
        data={name: found.files for name, found in data.items() if found.files},
        max_model_len=length,
    )
    profile = None if placement.profile is None else catalog.profile(placement.profile)
    notices = machine_notices(job, profile, checkpoint, machine, placement, length, datetime.now(UTC))
    warnings = (*_warnings(job, checkpoint, length, profile), *notices)
    return resolve(job, tasks, checkpoint, template, placement, warnings)


def _template(job: JobSpec, checkpoint: Checkpoint) -> str | None:
    """The chat template's text; a checkpoint without one is refused, since scores without it would mean nothing."""
    if taken := sorted(_TEMPLATE_NAMES & set(job.chat_template_kwargs)):
        raise JobError(f"chat_template_kwargs: {taken[0]}: is given by the program itself; leave it out")
    if job.chat_template == "none":
        return None
    if job.chat_template == "auto":
        if checkpoint.template is None:
            raise CheckpointError(
                f"{checkpoint.path}: no chat template (chat_template.jinja or tokenizer_config.json); give a file in "
                "chat_template:, or chat_template: none for a base model"
            )
        return checkpoint.template
    try:
        return Path(job.chat_template).read_text(encoding="utf-8")
    except (OSError, ValueError) as err:
        raise JobError(f"chat_template: {job.chat_template}: can't be read ({err}); give auto, none or a file") from err


def _warnings(job: JobSpec, checkpoint: Checkpoint, length: int, profile: Profile | None) -> tuple[str, ...]:
    found = []
    limit = checkpoint.limit
    if job.engine.kind == "endpoint" and limit is not None and length > limit.tokens:
        found.append(
            f"engine.max_model_len {length} is more than the checkpoint's {limit.tokens} ({limit.why}); the server may "
            "refuse it"
        )
    found += [*checkpoint.warnings, *architecture.notices(checkpoint.config, architecture.load_models(root()))]
    if not job.engine.vram_clamp:
        found.append("engine.vram_clamp is off: the profile's memory fraction is trusted whatever else uses the card")
    if job.engine.kind == "endpoint":
        found.append("engine.kind endpoint: what the server does with seeds and sampling can't be proved from here")
    if profile is not None and not profile.tested:
        found.append(f"engine.profile {profile.name} was not run by the authors of this version")
    return tuple(found)


def conflict(layout: Layout, told: str) -> JobError:
    """The refusal of a run that would replace complete results."""
    return JobError(
        f"{layout.root}: holds results that were made differently: {told}; give the experiment another name, or "
        "replace them with --force"
    )


def layout_of(plan: Plan) -> Layout:
    what, where = plan.evaluation, plan.placement
    return Layout(
        results=Path(where.results),
        experiment=what.experiment,
        step=what.step,
        limit=what.limit,
        model=where.model_name,
    )
