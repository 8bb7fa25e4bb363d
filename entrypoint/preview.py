"""What `plan` prints: everything that is decided, how much there is to do, and what a run would refuse.

In: a Prepared job. Out: a Preview, as text for a person (one screen for a suite) or as plain values for a program.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from entrypoint.capacity import Capacity, capacity
from entrypoint.checkpoint import Checkpoint
from entrypoint.data_folder import as_values as data_values
from entrypoint.doctor import card_lines
from entrypoint.errors import EvalcrateError
from entrypoint.estimate import Estimate, estimate
from entrypoint.fingerprint import grader_versions
from entrypoint.outlook import Outlook, look_ahead, most_tokens, refusals
from entrypoint.placement import need_of
from entrypoint.plan import Placement, TaskPlan, max_model_len
from entrypoint.prepare import Prepared, layout_of
from entrypoint.record import sampler_seed
from entrypoint.shortfall import disk_room, used_cards
from entrypoint.speed import read_speeds

_SHOWN_SEEDS = 10
_INDENT = " " * 13
_WIDTH = 120


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """A prepared job with what is to be expected of its run. `refusals`: the job's own, then the known requests'.

    `room`: of the KV cache at full length; `usual_room`: at the expected one. `disk`: free bytes and most bytes needed
    for answers. Each is None where nothing is known. `journal`: answers are stored that no whole trial may have yet.
    """

    prepared: Prepared
    outlooks: tuple[Outlook, ...]
    room: Capacity | None
    usual_room: Capacity | None
    estimate: Estimate | None
    disk: tuple[int, int] | None
    journal: bool
    refusals: tuple[EvalcrateError, ...]


def preview(prepared: Prepared, *, force: bool = False) -> Preview:
    """Looks at the result folder and at earlier runs beside it, and changes nothing there."""
    job, plan, checkpoint = prepared.job, prepared.plan, prepared.checkpoint
    layout = None if plan is None else layout_of(plan)
    outlooks = look_ahead(prepared.tasks, prepared.data, job.limit, plan, layout, force=force)
    room, usual, expected, disk, found = None, None, None, None, prepared.refusals
    if plan is not None and layout is not None and checkpoint is not None:
        cards = used_cards(plan.placement, prepared.machine) if prepared.machine is not None else ()
        need = need_of(job, checkpoint, plan.evaluation.max_model_len)
        room = capacity(plan.placement, cards, need)
        speeds = read_speeds(layout.results)
        expected = estimate(outlooks, speeds, plan.placement, checkpoint.weights_bytes, room)
        if expected.length is not None:
            usual = capacity(plan.placement, cards, replace(need, length=expected.length))
        disk = disk_room(layout.root, most_tokens(outlooks))
        found = (*found, *refusals(plan, layout, outlooks))
    return Preview(
        prepared=prepared,
        outlooks=outlooks,
        room=room,
        usual_room=usual,
        estimate=expected,
        disk=disk,
        journal=layout is not None and any(layout.generations.glob("*.jsonl")),
        refusals=found,
    )


def as_values(shown: Preview) -> dict[str, Any]:
    """The plan (None when it is refused), the tasks, what is to be expected, and the refusals."""
    prepared = shown.prepared
    return {
        "plan": None if prepared.plan is None else prepared.plan.to_json(),
        "checkpoint": None if prepared.checkpoint is None else _facts(prepared.checkpoint),
        "tasks": [asdict(task) for task in prepared.tasks],
        "cards": [asdict(gpu) for gpu in (prepared.machine.gpus if prepared.machine is not None else ())],
        "kv_cache": [asdict(room) for room in (shown.room, shown.usual_room) if room is not None],
        "data": data_values(prepared.data),
        "requests": {one.task.name: _request_values(one) for one in shown.outlooks},
        "expected": None if shown.estimate is None else {**asdict(shown.estimate), "at_most": shown.journal},
        "disk": None if shown.disk is None else dict(zip(("free_bytes", "needed_bytes"), shown.disk, strict=True)),
        "pins": _pins(prepared),
        "refusals": [{"exit_code": r.exit_code, "message": str(r)} for r in shown.refusals],
    }


def _facts(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "path": str(checkpoint.path),
        "identity": checkpoint.identity,
        "step": checkpoint.step,
        "architectures": checkpoint.architectures,
        "weights_bytes": checkpoint.weights_bytes,
        "shape": asdict(checkpoint.shape),
        "max_model_len": None if checkpoint.limit is None else checkpoint.limit.tokens,
    }


def _request_values(one: Outlook) -> dict[str, Any]:
    return {
        "per_seed": one.samples,
        "at_most": one.at_most,
        "to_do": one.open_requests,
        "prompt_tokens": one.prompt_tokens,
        "seeds_done": one.done,
        "state": one.state,
    }


def _pins(prepared: Prepared) -> dict[str, str]:
    """What the scores depend on beside the checkpoint; digests shortened to 12 digits."""
    sources = dict.fromkeys(task.source[:12] for task in prepared.tasks if task.harness == "evalchemy")
    pins = {name: version[:12] for name, version in grader_versions().items()}
    return {**pins, **({"evalchemy patches": ", ".join(sources)} if sources else {})}


def as_text(shown: Preview) -> str:
    """From the checkpoint to the warnings; refusals are printed by the command itself."""
    prepared = shown.prepared
    parts = (_head(prepared), _cards(shown), _engine(prepared), _tasks(shown), _expected(shown), _warnings(prepared))
    return "\n".join(line for part in parts for line in part)


def _line(head: str, text: str) -> str:
    """`text` in the second column, wrapped there."""
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=f"{head:<12} ",
        subsequent_indent=_INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _head(prepared: Prepared) -> Iterator[str]:
    job, checkpoint, plan = prepared.job, prepared.checkpoint, prepared.plan
    yield f"experiment   {job.experiment}{'' if plan is None else f', identity {plan.identity[:16]}'}"
    if plan is not None:
        yield f"results      {layout_of(plan).root}"
    if checkpoint is None:
        yield f"checkpoint   {job.checkpoint} (not usable, see below)"
    else:
        step = "no step in its name" if checkpoint.step is None else f"step {checkpoint.step}"
        yield f"checkpoint   {checkpoint.path}"
        yield (
            f"             {step}, {', '.join(checkpoint.architectures) or 'unknown architecture'}, "
            f"{checkpoint.weights_bytes / 1e6:,.1f} MB of weights, identity {checkpoint.identity[:16]}"
        )
        yield f"shape        {_shape(checkpoint)}"
    if plan is not None:
        template = plan.evaluation.chat_template_digest
        yield f"template     {plan.evaluation.chat_template}{'' if template is None else ' ' + template[:16]}"
        if ignored := plan.evaluation.generation_config_ignored:
            told = ", ".join(f"{name} {value!r}" for name, value in ignored.items())
            yield f"ignored      {told} (generation_config.json)"


def _shape(checkpoint: Checkpoint) -> str:
    """Layers and heads, the cost of a token, the longest context; ? where the config does not tell."""
    shape, limit = checkpoint.shape, checkpoint.limit
    sizes = (shape.layers, shape.heads, shape.kv_heads, shape.head_dim)
    layers, heads, kv_heads, head_dim = ("?" if n is None else n for n in sizes)
    cost = "unknown" if shape.kv_bytes_per_token is None else f"{shape.kv_bytes_per_token:,} bytes"
    return (
        f"{layers} layers, {heads} heads, {kv_heads} KV heads of {head_dim}; KV cache {cost} per token; "
        f"context {'not limited' if limit is None else f'up to {limit.tokens}'}"
    )


def _cards(shown: Preview) -> Iterator[str]:
    """Every visible card, the engines' own marked, and how far the KV cache reaches."""
    host, plan, room = shown.prepared.machine, shown.prepared.plan, shown.room
    used = used_cards(plan.placement, host) if plan is not None and host is not None else ()
    for line in card_lines(host.gpus if host is not None else (), used):
        yield f"card         {line}"
    if room is not None:
        where = "on each card" if used else "of memory"
        usual = shown.usual_room
        more = "" if usual is None else f" ({usual.sequences} of {usual.length}, the expected length)"
        yield (
            f"KV cache     about {room.kv_cache_gib:.1f} GiB {where}, {room.sequences} sequences of {room.length} "
            f"tokens at once{more}"
        )


def _engine(prepared: Prepared) -> Iterator[str]:
    """The engine and its profile, then every value with the place it came from."""
    plan = prepared.plan
    if plan is None:
        return
    where, address = plan.placement, plan.placement.engine.url or plan.placement.engine.socket
    profile = f", profile {where.profile}" if where.profile else ""
    yield f"engine       {where.engine.version}{f' at {address}' if address else ''} on {where.device}{profile}"
    for name, value in where.values.items():
        yield f"             {name:<24} {value}  ({where.origins[name]})"
    yield from _masks(where)


def _masks(where: Placement) -> Iterator[str]:
    """The cards that each engine gets; its whole environment is in `--json`."""
    for number, engine in enumerate(where.engines, start=1):
        mask = engine.env.get("CUDA_VISIBLE_DEVICES")
        if mask is not None:
            whose = f"engine {number}: " if len(where.engines) > 1 else ""
            yield f"             {whose + 'CUDA_VISIBLE_DEVICES':<24} {mask}"


def _tasks(shown: Preview) -> Iterator[str]:
    """A row for each task: seeds, requests, prompt tokens, where its questions are, what is done already."""
    prepared = shown.prepared
    rows = [("tasks", "seeds", "requests", "prompt tokens", "questions", "state")]
    for one in shown.outlooks:
        data = prepared.data.get(one.task.name)
        prompt = "-" if one.prompt_tokens is None else f"{one.prompt_tokens:,}"
        cells = (_seeds(one.task.seeds), one.requests, prompt, "" if data is None else data.words, one.state)
        rows.append((f"  {one.task.name}", *cells))
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    yield from ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    yield from _sampling(prepared.tasks)
    if any(one.data for one in prepared.tasks) or any(state.missing for state in prepared.data.values()):
        yield f"data         {prepared.data_path}"
    yield f"context      {max_model_len(prepared.job, prepared.tasks)} tokens of prompt and generation together"
    yield _line("pins", ", ".join(f"{name} {version}" for name, version in _pins(prepared).items()))


def _seeds(seeds: Sequence[int]) -> str:
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds))):
        return f"{seeds[0]}…{seeds[-1]} ({len(seeds)})"
    return ", ".join(map(str, seeds))


def _sampling(tasks: Sequence[TaskPlan]) -> Iterator[str]:
    """What is asked of the sampler, once for all tasks that ask for the same."""
    asked: dict[str, list[str]] = {}
    for task in tasks:
        sampling = task.sampling
        shots = f", {task.num_fewshot}-shot" if task.num_fewshot else ""
        metric = f", {task.metric}" if task.metric else ""
        told = f"temperature {sampling.temperature}, top_p {sampling.top_p}, max_tokens {sampling.max_tokens}"
        asked.setdefault(f"{told}{shots}{metric}", []).append(task.name)
    for told, names in asked.items():
        yield _line("sampling", told if len(asked) == 1 else f"{told}: {', '.join(names)}")
    most = max(tasks, key=lambda task: len(task.seeds))
    policy = most.sampling.seed_policy
    shown = ", ".join(str(sampler_seed(policy, seed, most.name, 0)) for seed in most.seeds[:_SHOWN_SEEDS])
    yield _line("", f"seed policy {policy}: the sampler gets, for sample 0 of {most.name}: {shown}")


def _expected(shown: Preview) -> Iterator[str]:
    """What is left to generate, how long that may take, and what both numbers rest on."""
    expected = shown.estimate
    if expected is None:
        return
    rest = f"the requests of {', '.join(expected.unknown)} (known after collect)" if expected.unknown else ""
    if expected.tokens is None or expected.seconds is None:
        yield _line("expected", rest or "nothing is left to generate")
        return
    rest = f" and {rest}" if rest else ""
    tokens = _span(*(_amount(n) for n in expected.tokens))
    most = " at most, some may be in the journal" if shown.journal else ""
    yield _line("expected", f"{expected.answers:,} answers{most}{rest}; {tokens} tokens ({expected.lengths_from})")
    start = "" if expected.start_included else " and the engine's start"
    yield _line("time", f"about {_span(*(_time(s) for s in expected.seconds))}{start} ({expected.speed_from})")
    if shown.disk is not None:
        free, needed = shown.disk
        yield f"disk         up to {needed / 1e9:,.1f} GB for answers, {free / 1e9:,.1f} GB free"


def _span(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _amount(number: float) -> str:
    """`950`, `12,300`, `4.5 million`."""
    return f"{number / 1e6:,.1f} million" if number >= 1e6 else f"{number:,.0f}"


def _time(seconds: float) -> str:
    """`40 s`, `12 min`, `8.5 h`, `12 days`: no more digits than an estimate is worth."""
    if seconds < 99.5:
        return f"{max(1, round(seconds))} s"
    if seconds < 5970:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:,.0f} days"


def _warnings(prepared: Prepared) -> Iterator[str]:
    for warning in prepared.plan.warnings if prepared.plan is not None else ():
        yield f"warning      {warning}"  # on one line, to be searched for
