"""What `plan` prints: everything that is decided, and what a run would refuse, without starting anything.

In: a Prepared job. Out: text for a person, or plain values for a program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from entrypoint.data_folder import as_values as data_values
from entrypoint.fingerprint import grader_versions
from entrypoint.plan import TaskPlan, max_model_len
from entrypoint.prepare import Prepared, layout_of
from entrypoint.record import sampler_seed

_SHOWN_SEEDS = 12


def as_values(prepared: Prepared) -> dict[str, Any]:
    """The plan (None when it is refused), the tasks and the refusals."""
    return {
        "plan": None if prepared.plan is None else prepared.plan.to_json(),
        "tasks": [asdict(task) for task in prepared.tasks],
        "data": data_values(prepared.data),
        "refusals": [{"exit_code": r.exit_code, "message": str(r)} for r in prepared.refusals],
    }


def as_text(prepared: Prepared) -> str:
    """One screen: experiment, checkpoint, engine, tasks, warnings; refusals are printed by the command itself."""
    head, engine, warnings = _head(prepared), _engine(prepared), _warnings(prepared)
    return "\n".join([*head, *engine, *_tasks(prepared.tasks), *_data(prepared), *_pins(prepared), *warnings])


def _head(prepared: Prepared) -> Iterator[str]:
    job, checkpoint, plan = prepared.job, prepared.checkpoint, prepared.plan
    yield f"experiment   {job.experiment}"
    if checkpoint is None:
        yield f"checkpoint   {job.checkpoint} (not usable, see below)"
    else:
        step = "no step in its name" if checkpoint.step is None else f"step {checkpoint.step}"
        yield f"checkpoint   {checkpoint.path}"
        yield (
            f"             {step}, {', '.join(checkpoint.architectures) or 'unknown architecture'}, "
            f"{checkpoint.weights_bytes / 1e6:,.1f} MB of weights, identity {checkpoint.identity[:16]}"
        )
    if plan is not None:
        template = plan.evaluation.chat_template_digest
        yield f"results      {layout_of(plan).root}"
        yield f"template     {plan.evaluation.chat_template}{'' if template is None else ' ' + template[:16]}"
        yield f"evaluation   {plan.identity[:16]}"


def _engine(prepared: Prepared) -> Iterator[str]:
    plan = prepared.plan
    if plan is None:
        return
    where = plan.placement
    engine = where.engine
    address = engine.url or engine.socket
    yield f"engine       {engine.version}{f' at {address}' if address else ''} on {where.device}"
    if where.profile:
        yield f"profile      {where.profile}"
    for name, value in where.values.items():
        yield f"             {name:<24} {value}  ({where.origins[name]})"
    for name, value in engine.env.items():
        yield f"             {name:<24} {value}"


def _tasks(tasks: Sequence[TaskPlan]) -> Iterator[str]:
    yield "tasks"
    width = max(len(task.name) for task in tasks)
    for task in tasks:
        sampling = task.sampling
        shots = f", {task.num_fewshot}-shot" if task.num_fewshot else ""
        metric = f", {task.metric}" if task.metric else ""
        yield (
            f"  {task.name:<{width}}  {len(task.seeds):>2} trials, seeds {_seeds(task.seeds)}; "
            f"temperature {sampling.temperature}, top_p {sampling.top_p}, max_tokens {sampling.max_tokens}"
            f"{shots}{metric} ({task.harness})"
        )
    most = max(tasks, key=lambda task: len(task.seeds))
    policy = most.sampling.seed_policy
    shown = ", ".join(str(sampler_seed(policy, seed, most.name, 0)) for seed in most.seeds[:_SHOWN_SEEDS])
    yield f"  seed policy {policy}: the sampler gets, for sample 0 of {most.name}: {shown}"


def _data(prepared: Prepared) -> Iterator[str]:
    """Where each task's questions are, or what is wrong with them."""
    found = prepared.data
    if found:
        yield f"data         {prepared.data_path}"
        width = max(map(len, found))
        yield from (f"  {task:<{width}}  {one.words}" for task, one in found.items())


def _pins(prepared: Prepared) -> Iterator[str]:
    """What the scores depend on beside the checkpoint."""
    yield f"context      {max_model_len(prepared.job, prepared.tasks)} tokens of prompt and generation together"
    for name, harness_version in grader_versions().items():
        yield f"pin          {name} {harness_version[:12]}"
    for source in dict.fromkeys(task.source for task in prepared.tasks if task.harness == "evalchemy"):
        yield f"pin          evalchemy with patches, digest {source[:12]}"


def _seeds(seeds: Sequence[int]) -> str:
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds))):
        return f"{seeds[0]}…{seeds[-1]}"
    return ", ".join(map(str, seeds))


def _warnings(prepared: Prepared) -> Iterator[str]:
    for warning in prepared.plan.warnings if prepared.plan is not None else ():
        yield f"warning      {warning}"
