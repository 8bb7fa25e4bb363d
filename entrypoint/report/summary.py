"""TaskResults -> summary.md: the scores, what was asked and what took effect, how it was made, on one page.

Scores are percentages with one decimal; counts are over all trials of a task.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from entrypoint.plan import Plan
from entrypoint.report.results import TaskResult

_SCORE_COLUMNS = (
    "task",
    "metric",
    "mean",
    "sample sd",
    "seeds",
    "per seed",
    "truncated",
    "empty",
    "format fail",
    "status",
)
_SETTINGS = (
    "temperature",
    "top_p",
    "max_tokens",
    "seed_policy",
    "seed",
    "num_fewshot",
    "stop",
    "stop_token_ids",
    "bos",
    "prompt_tokens",
    "generation_config_ignored",
)


def summary_text(plan: Plan, tasks: Sequence[TaskResult]) -> str:
    what = plan.evaluation
    step = "" if what.step is None else f", step {what.step}"
    blocks = [
        f"# {what.experiment}{step}",
        *([f"Only {what.limit} samples per task: a test, not a result."] if what.limit is not None else []),
        _table(_SCORE_COLUMNS, [_score_cells(one) for one in tasks]),
        *([_failures(tasks)] if any(one.summary.reason for one in tasks) else []),
        "## What was asked and what took effect",
        _table(("task", *_SETTINGS), [_setting_cells(one) for one in tasks]),
        "## How it was made",
        "\n".join(f"- {name}: {value}" for name, value in _making(plan)),
        "Versions, machine and image: `_work/provenance.json`. The whole plan: `_work/plan.json`.",
    ]
    return "\n\n".join(blocks) + "\n"


def percent(score: float | None) -> str:
    """0.018 -> `1.8`; a score that is not there is a dash."""
    return "–" if score is None else f"{score * 100:.1f}"  # noqa: RUF001 (a dash is meant)


def _score_cells(one: TaskResult) -> list[str]:
    summary, validity = one.summary, one.row["validity"]
    counted = validity.get("graded") or 0
    return [
        summary.task,
        str(one.row["metric"]),
        percent(summary.mean),
        percent(summary.std if len(summary.seeds) > 1 else None),
        str(len(summary.seeds)),
        ", ".join(f"{seed}: {percent(value)}" for seed, value in summary.per_seed.items()),
        *(_count(validity.get(name), counted) for name in ("truncated", "empty", "format_fail")),
        summary.status + (", seeds unproven" if _seeds_unproven(one) else ""),
    ]


def _seeds_unproven(one: TaskResult) -> bool:
    """Whether for some trial nothing shows that the engine used the seeds it was sent."""
    proved = one.row["effective"].get("seeds_proved")
    return False in (proved.values() if isinstance(proved, dict) else (proved,))


def _count(value: int | None, out_of: int) -> str:
    if value is None:
        return "unknown"
    return f"{value} of {out_of} ({value / out_of * 100:.1f} %)" if out_of else str(value)


def _failures(tasks: Sequence[TaskResult]) -> str:
    return "\n".join(f"- {one.summary.task}: {one.summary.reason}" for one in tasks if one.summary.reason)


def _setting_cells(one: TaskResult) -> list[str]:
    """Per setting the value, or both where what took effect is not what was asked."""
    asked, effective = one.row["asked"], one.row["effective"]
    return [one.summary.task, *(_setting(asked.get(name), effective.get(name)) for name in _SETTINGS)]


def _setting(asked: Any, effective: Any) -> str:
    values = [_value(value) for value in (asked, effective) if value is not None]
    return values[0] if len(set(values)) == 1 else " asked, ".join(values) + (" effective" if values else "")


def _value(value: Any) -> str:
    if isinstance(value, dict):
        value = ", ".join(f"{name} {_value(inner)}" for name, inner in value.items())
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _making(plan: Plan) -> Iterable[tuple[str, Any]]:
    what, engine = plan.evaluation, plan.placement.engine
    yield "checkpoint identity", f"`{what.checkpoint_identity}`"
    yield "evaluation identity", f"`{plan.identity}`"
    yield "engine", f"{engine.kind} {engine.version}"
    yield "dtype", what.dtype
    yield "max_model_len", what.max_model_len
    yield "chat template", f"{what.chat_template} (`{what.chat_template_digest}`)"
    yield "numerics", ", ".join(f"{name} {value}" for name, value in plan.placement.numerics.items())
    for task in what.tasks:
        yield f"{task.name} from", f"{task.harness} (`{task.source}`)"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
