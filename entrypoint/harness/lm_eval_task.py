"""lm-eval tasks, its own and YAML folders of ours, run through lm-eval's own evaluator in a child process.

In: task name, the folder of its YAML, few-shot and chat settings, a recording or replaying LM. Out: lm-eval's result.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lm_eval.api.model import LM

from entrypoint.errors import HarnessError
from entrypoint.harness.lm import Collected


def run(
    folder: Path,
    task_name: str,
    lm: LM,
    *,
    num_fewshot: int,
    fewshot_seed: int,
    limit: int | None,
    system_instruction: str | None,
    chat: bool,
) -> dict[str, Any] | None:
    """lm-eval's result of the one task (`results`, `samples`, `configs` …), or None when `lm` only collected.

    `folder` holds the task's YAML. One few-shot seed serves all trials, so that prompts are the same.
    """
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    try:
        task = manager.load([task_name])["tasks"][task_name]
    except Exception as err:  # a task folder is other people's code: whatever it raises, the task can't be loaded
        raise HarnessError(f"{task_name}: lm-eval can't load it from {folder} ({type(err).__name__}: {err})") from err
    _refuse_unsupported(task_name, task)
    try:
        result: dict[str, Any] | None = simple_evaluate(
            model=lm,
            tasks=[task],
            task_manager=manager,
            num_fewshot=num_fewshot,
            limit=limit,
            bootstrap_iters=0,
            log_samples=True,
            system_instruction=system_instruction,
            apply_chat_template=chat,
            fewshot_random_seed=fewshot_seed,
        )
    except Collected:
        return None
    return result


def _refuse_unsupported(name: str, task: Any) -> None:
    kind = task.OUTPUT_TYPE
    if kind != "generate_until":
        raise HarnessError(f"{name}: it is of type {kind}; only generate_until tasks can be run")
    repeats = task.config.repeats or 1
    if repeats > 1:
        raise HarnessError(
            f"{name}: repeats: {repeats} would ask the same request again with the same seed; use seeds instead"
        )


def examples(result: Mapping[str, Any], task: str, metric: str) -> list[dict[str, Any]]:
    """One entry per sample in data set order, judged under `metric` (`<metric>,<filter>`).

    `correctness` is a bool where every value is 0 or 1, else the values stand in `score` (partial credit).
    """
    name, _, chosen = metric.partition(",")
    rows = [s for s in result["samples"][task] if s.get("filter", "none") == (chosen or "none")]
    if not rows or name not in rows[0]:
        known = sorted(k for k in result["results"][task] if "," in k and "stderr" not in k)
        raise HarnessError(f"{task}: it has no metric {metric!r}; it has {', '.join(known)}")
    verdicts = all(row[name] in (0, 1) for row in rows)
    return [_example(row, row[name], verdicts) for row in sorted(rows, key=lambda s: int(s["doc_id"]))]


def _example(row: Mapping[str, Any], value: Any, verdicts: bool) -> dict[str, Any]:
    answer = row["filtered_resps"][0]
    verdict: dict[str, Any] = {"correctness": bool(value)} if verdicts else {"score": [float(value)]}
    return {
        "id": str(row["doc_id"]),
        "doc": row["doc"],
        "target": row["target"],
        "model_answers": [answer],
        "model_outputs": [row["resps"][0][0]],
        **verdict,
    }
