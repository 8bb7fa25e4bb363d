"""What a finished trial is bound to: two fingerprints, each a digest over named fields.

generation: everything that can change a generated token. grading: everything that can change a verdict. In neither:
seeds of other trials, memory fraction, batch limits, paths; they may change without a trial being done again.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from entrypoint.plan import Plan, TaskPlan
from entrypoint.record import digest

_GRADER_PACKAGES = ("lm_eval", "sympy", "mpmath", "antlr4-python3-runtime", "lark", "math-verify", "numpy")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fingerprint:
    """`digest` is 64 hex digits over `fields`."""

    digest: str
    fields: Mapping[str, Any]


def of(fields: Mapping[str, Any]) -> Fingerprint:
    return Fingerprint(digest=digest(fields), fields=fields)


def generation(plan: Plan, task: TaskPlan, requests_digest: str) -> Fingerprint:
    """Bound to the request bytes; sampling and template stand beside them only so that a difference has a name."""
    what = plan.evaluation
    return of(
        {
            "checkpoint": what.checkpoint_identity,
            "requests": requests_digest,
            "limit": what.limit,
            "num_fewshot": task.num_fewshot,
            "fewshot_seed": what.fewshot_seed,
            "temperature": task.sampling.temperature,
            "top_p": task.sampling.top_p,
            "max_tokens": task.sampling.max_tokens,
            "seed_policy": task.sampling.seed_policy,
            "chat_template": what.chat_template_digest,
            "chat_template_kwargs": dict(what.chat_template_kwargs),
            "template_date": what.template_date,
            "system_instruction": what.system_instruction,
            "on_overlong": what.on_overlong,
            "max_model_len": what.max_model_len,
            "dtype": what.dtype,
            **plan.placement.numerics,
        }
    )


def grading(plan: Plan, task: TaskPlan, generations_digest: str, versions: Mapping[str, str]) -> Fingerprint:
    """`versions`: of the grader and what it depends on, "absent" where not installed (absence changes scores)."""
    return of(
        {
            "generations": generations_digest,
            "benchmark": task.source,
            "metric": task.metric,
            "data": task.data,
            **task.options,
            **_checker(task.options),
            "grader_command": list(plan.grader_command),
            "think_end_token": plan.evaluation.think_end_token,
            **versions,
        }
    )


def _checker(options: Mapping[str, str]) -> dict[str, str]:
    """The name and limits of our own checker of programs, for a task that uses it."""
    if options.get("livecodebench") != "isolated":
        return {}
    from entrypoint.harness.livecodebench import VERSION  # late: the harness imports this module

    return {"livecodebench_checker": VERSION}


def differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, ...]:
    """`name: old -> new` for every field that differs, in the order of `new`; a digest alone comes last."""
    names = [n for n in [*new, *(k for k in old if k not in new)] if old.get(n) != new.get(n)]
    named = [n for n in names if n not in ("requests", "generations")]
    return tuple(f"{n}: {old.get(n)} -> {new.get(n)}" for n in (named or names))


def grader_versions() -> dict[str, str]:
    """Versions of everything that a verdict can depend on; "absent" where a package is not installed.

    Absence counts: without antlr4 OlympiadBench_Physics scores 0.0 with no error, with lark other verdicts flip.
    """
    found = {name: _installed(name) for name in _GRADER_PACKAGES}
    return {"python": ".".join(map(str, sys.version_info[:2])), **found, "harness": harness_digest()}


def harness_digest() -> str:
    """Hash of our own code that runs in the harness children: a change of it collects and grades anew."""
    folder = Path(__file__).parent / "harness"
    return digest([[f.name, f.read_text(encoding="utf-8")] for f in sorted(folder.glob("*.py"))])


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"
