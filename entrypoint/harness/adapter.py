"""One way to run a task, whichever harness it belongs to; the only place that tells the two apart.

In: where the task comes from and a recording or replaying LM. Out: the harness' raw result (None when only collecting).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm_eval.api.model import LM

from entrypoint.harness import lm_eval_task


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSource:
    """A task and what shapes its prompts and verdicts.

    `folder`: the lm-eval YAML folder, or the patched evalchemy tree. `data`: its locked data files, as
    `plan.DataFiles` in JSON. `options`: what the job chose of its grader's ways. `cores`: how many it may use.
    """

    name: str
    harness: str
    folder: str
    num_fewshot: int
    fewshot_seed: int
    limit: int | None
    system_instruction: str | None
    chat: bool
    data: Sequence[Mapping[str, Any]]
    options: Mapping[str, str]
    cores: int


def run(task: TaskSource, lm: LM, *, seed: int, max_tokens: int, grade: bool) -> dict[str, Any] | None:
    """Runs the task's own code against `lm`; HarnessError names the task when it can't be loaded or run."""
    if task.harness == "evalchemy":
        from entrypoint.harness import evalchemy, generic

        if generic.is_generic(task.name):
            return generic.run(
                Path(task.folder),
                task.name,
                lm,
                seed=seed,
                max_tokens=max_tokens,
                limit=task.limit,
                system_instruction=task.system_instruction,
                grade=grade,
                data=task.data,
            )
        return evalchemy.run(
            Path(task.folder),
            task.name,
            lm,
            seed=seed,
            n_repeat=1,
            max_tokens=max_tokens,
            limit=task.limit,
            system_instruction=task.system_instruction,
            grade=grade,
            data=task.data,
            options=task.options,
            cores=task.cores,
        )
    return lm_eval_task.run(
        Path(task.folder),
        task.name,
        lm,
        num_fewshot=task.num_fewshot,
        fewshot_seed=task.fewshot_seed,
        limit=task.limit,
        system_instruction=task.system_instruction,
        chat=task.chat,
        data=task.data,
    )
