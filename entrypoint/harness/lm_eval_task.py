"""lm-eval tasks, its own and YAML folders of ours, run through lm-eval's own evaluator in a child process.

In: task name, the folder of its YAML, its locked data files, few-shot and chat settings, a recording or replaying LM.
Out: lm-eval's result.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lm_eval.api.model import LM

from entrypoint.errors import EvalcrateError, HarnessError
from entrypoint.harness.lm import Collected
from entrypoint.harness.nltk_data import nltk_resources
from entrypoint.harness.obstacle import obstacle

_TABLES = ("parquet", "csv", "json")


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
    data: Sequence[Mapping[str, Any]],
) -> dict[str, Any] | None:
    """lm-eval's result of the one task (`results`, `samples`, `configs` …), or None when `lm` only collected.

    `folder` holds the task's YAML, `data` are its locked data files as `plan.DataFiles` in JSON. One few-shot seed
    serves all trials, so that prompts are the same.
    """
    from lm_eval.evaluator import simple_evaluate

    with nltk_resources(data):
        manager, task = _load(folder, task_name, data)
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
        except EvalcrateError:
            raise
        except Exception as err:
            known = obstacle(task_name, err)
            if known is not None:
                raise known from err
            raise
        return result


def _load(folder: Path, name: str, data: Sequence[Mapping[str, Any]]) -> tuple[Any, Any]:
    """lm-eval's manager and the task, which reads its locked files in place of the data set its YAML names."""
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    try:
        task = _task(manager, name, _local(name, data))
    except HarnessError:
        raise
    except Exception as err:  # a task folder is other people's code: whatever it raises, the task can't be loaded
        known = obstacle(name, err)
        if known is not None:
            raise known from err
        raise HarnessError(f"{name}: lm-eval can't load it from {folder} ({type(err).__name__}: {err})") from err
    _refuse_unsupported(name, task)
    return manager, task


def _task(manager: Any, name: str, changes: Mapping[str, Any]) -> Any:
    """The task with some keys of its YAML replaced: a YAML that includes it, since dicts are no overrides."""
    if not changes:
        return manager.load([name])["tasks"][name]
    with tempfile.TemporaryDirectory(prefix="task-") as folder:
        file = Path(folder) / f"{name}.yaml"
        whole = {"include": str(manager.task_index[name].yaml_path), "task": name, **changes}
        file.write_text(json.dumps(whole), encoding="utf-8")
        return manager.load([str(file)])["tasks"][name]


def _local(name: str, data: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What replaces the data set in the task's YAML; prompts, splits and metrics stay the YAML's."""
    tables = [files for files in data if files["format"] in _TABLES]
    if not tables:
        return {}
    if len(tables) > 1:
        listed = ", ".join(str(files["id"]) for files in tables)
        raise HarnessError(f"{name}: has {len(tables)} locked data sets ({listed}); an lm-eval task reads one")
    splits = {split: list(files) for split, files in tables[0]["splits"].items()}
    return {"dataset_path": tables[0]["format"], "dataset_name": None, "dataset_kwargs": {"data_files": splits}}


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
