"""One graded trial -> its per-seed results document, or the reason why it has no score.

In: what the benchmark's own grader returned, with the validity block. Out: the document as evalchemy writes
it, plus `_evalcrate`. Nothing is mended: a number that is missing, out of range or contradicted by its
examples fails.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from entrypoint.completion import is_number, is_share
from entrypoint.errors import TaskFailed
from entrypoint.layout import model_folder, printable
from entrypoint.plan import Plan, TaskPlan
from entrypoint.record import FINISH_REASONS, GRADER_FAULTS

_TOLERANCE, _PARTIAL_TOLERANCE = 1e-9, 1e-6
_OURS = ("results", "config", "date", "total_evaluation_time_seconds", "_evalcrate")


def trial_document(
    plan: Plan, task: TaskPlan, seed: int, graded: Mapping[str, Any], image: Mapping[str, Any]
) -> dict[str, Any]:
    """The results file of one trial; TaskFailed when the trial has no score.

    `date` is None until the file is written. Outside `date` and `_evalcrate` nothing depends on time or load,
    so that two runs can be compared byte for byte.
    """
    results = _canonical_results(task, graded)
    native = graded.get("native") or {}
    return {
        "results": {task.name: printable(results)},
        "config": {**_config(plan, task, seed), **(native.get("config") or {})},
        "git_hash": None,
        "date": None,
        **_model_fields(plan),
        **{key: value for key, value in native.items() if key not in _OURS},
        "total_evaluation_time_seconds": None,
        "_evalcrate": {
            "trial": f"{task.name}_seed{seed}",
            "seed": seed,
            "seed_policy": task.sampling.seed_policy,
            "fingerprints": graded["fingerprints"],
            "validity": {**graded["validity"], "identical_across_seeds": None},
            "asked": graded["asked"],
            "effective": graded["effective"],
            "checkpoint": {
                "identity": plan.evaluation.checkpoint_identity,
                "step": plan.evaluation.step,
                "model": plan.placement.model_name,
            },
            "image": dict(image),
            "elapsed_seconds": graded.get("elapsed_seconds", 0.0),
        },
    }


def _config(plan: Plan, task: TaskPlan, seed: int) -> dict[str, Any]:
    what, name = plan.evaluation, plan.placement.model_name
    arguments = {"pretrained": name, "dtype": what.dtype, "max_model_len": what.max_model_len}
    # A comma or "=" in the path cuts `k=v,k=v` text silently (lm-eval#1454): such a name stays an object.
    told = arguments if set(",=") & set(name) else ",".join(f"{k}={v}" for k, v in arguments.items())
    return {
        "model": plan.placement.engine.kind,
        "model_args": told,
        "tasks": [task.name],
        "batch_sizes": ["auto"],
        "device": plan.placement.device,
        "use_cache": None,
        "limit": what.limit,
        "annotator_model": None,
        "max_tokens": task.sampling.max_tokens,
        "gen_kwargs": {
            "temperature": task.sampling.temperature,
            "top_p": task.sampling.top_p,
            "max_gen_toks": task.sampling.max_tokens,
        },
        "random_seed": seed,
        "numpy_seed": seed,
        "torch_seed": seed,
        "fewshot_seed": what.fewshot_seed,
    }


def _model_fields(plan: Plan) -> dict[str, Any]:
    what, name = plan.evaluation, plan.placement.model_name
    told = what.system_instruction
    return {
        "pretty_env_info": None,
        "transformers_version": _version("transformers"),
        "lm_eval_version": _version("lm_eval"),
        "upper_git_hash": None,
        "task_hashes": {},
        "model_source": plan.placement.engine.kind,
        "model_name": name,
        "model_name_sanitized": model_folder(name),
        "system_instruction": told,
        "system_instruction_sha": hashlib.sha256(told.encode()).hexdigest() if told else None,
        "fewshot_as_multiturn": None,
        "chat_template": plan.placement.template,
        "chat_template_sha": what.chat_template_digest,
    }


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _canonical_results(task: TaskPlan, graded: Mapping[str, Any]) -> dict[str, Any]:
    """`results.<TASK>` in the shape of one repetition, from either of evalchemy's shapes or lm-eval's."""
    results = _whole_answer(graded)
    examples = results["examples"]
    if results.get("verdict_per_example") is False:
        return _reported_results(graded["validity"], results)
    partial = _check_examples(examples)
    _check_grader(examples)
    _check_counts(graded["validity"], results, len(examples))
    solved = sum(e["score"][0] for e in examples) if partial else sum(e["correctness"] for e in examples)
    if task.harness == "lm_eval":
        accuracy = _native_metric(task, results, solved, len(examples), partial)
    else:
        accuracy = _evalchemy_accuracy(results, solved, len(examples), partial)
    run = {"repetition": 1, "num_total": len(examples), "num_solved": solved, "accuracy": accuracy}
    canonical = {
        "num_total": len(examples),
        "num_solved": solved,
        "accuracy": accuracy,
        "accuracy_avg": accuracy,
        "accuracy_std_err": 0.0,
        "num_repeat": 1,
        "solved_avg": float(solved),
        "run_stats": [run],
    }
    return {**canonical, **_extra(results, canonical), "examples": examples}


def _reported_results(validity: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, Any]:
    """`results.<TASK>` of a benchmark outside the suites that tells a number, but no verdict per example.

    The number stands as reported: nothing can be counted against it, and what is not known is null.
    """
    examples, accuracy = results["examples"], results.get("accuracy")
    for number, example in enumerate(examples):
        if not isinstance(example, dict) or not _has_sample_fields(example) or {"correctness", "score"} & set(example):
            raise TaskFailed(f"example {number} lacks a field of a sample, or has a verdict where there are none")
    _check_counts(validity, results, len(examples))
    if not is_share(accuracy):
        raise TaskFailed(f"the accuracy is {accuracy!r}, not a number in [0, 1]")
    run = {"repetition": 1, "num_total": len(examples), "num_solved": None, "accuracy": accuracy}
    canonical = {
        "num_total": len(examples),
        "num_solved": None,
        "accuracy": accuracy,
        "accuracy_avg": accuracy,
        "accuracy_std_err": 0.0,
        "num_repeat": 1,
        "solved_avg": None,
        "run_stats": [run],
    }
    return {**canonical, **_extra(results, canonical), "examples": examples}


def _extra(results: Mapping[str, Any], canonical: Mapping[str, Any]) -> dict[str, Any]:
    """The benchmark's own further metrics of this trial."""
    return {name: value for name, value in results.items() if name not in canonical and name != "examples"}


def _whole_answer(graded: Mapping[str, Any]) -> dict[str, Any]:
    validity, results = graded["validity"], graded.get("results")
    if validity.get("status") != "ok":
        raise TaskFailed(f"the trial has the status {validity.get('status')!r}")
    if not isinstance(results, dict) or not results:
        raise TaskFailed("the grader returned nothing")
    if not isinstance(results.get("examples"), list) or not results["examples"]:
        raise TaskFailed("the grader returned no examples")
    return results


def _check_examples(examples: Sequence[Any]) -> bool:
    """Whether credit is partial (`score: [x]`, no `correctness`); TaskFailed when an example is not whole."""
    kinds = set()
    for number, example in enumerate(examples):
        if not isinstance(example, dict) or not _has_sample_fields(example):
            raise TaskFailed(f"example {number} lacks id, outputs, tokens, finish_reason or sampler_seed")
        score = example.get("score")
        if isinstance(example.get("correctness"), bool):
            kinds.add(False)
        elif isinstance(score, list) and len(score) == 1 and is_number(score[0]) and "correctness" not in example:
            kinds.add(True)
        else:
            raise TaskFailed(f"example {number} ({example['id']}) has neither a verdict nor one score")
    if len(kinds) != 1:
        raise TaskFailed("some examples have a verdict and others a score")
    return kinds.pop()


def _has_sample_fields(example: Mapping[str, Any]) -> bool:
    outputs, answers = example.get("model_outputs"), example.get("model_answers")
    return (
        isinstance(example.get("id"), str)
        and isinstance(outputs, list)
        and len(outputs) == 1
        and isinstance(outputs[0], str)
        and isinstance(answers, list)
        and type(example.get("tokens")) is int
        and type(example.get("sampler_seed")) is int
        and example.get("finish_reason") in FINISH_REASONS
    )


def _check_grader(examples: Sequence[Mapping[str, Any]]) -> None:
    faults = [r for e in examples if (r := str(e.get("reason") or "")).startswith(GRADER_FAULTS)]
    if faults:
        counts = f"{len(faults)} of {len(examples)} samples ({len(examples) - len(faults)} graded)"
        raise TaskFailed(f"the grader itself failed on {counts}: {faults[0][:200]}")


def _check_counts(validity: Mapping[str, Any], results: Mapping[str, Any], rows: int) -> None:
    counts = {name: validity.get(name) for name in ("expected", "generated", "graded")}
    if any(value != rows for value in counts.values()):
        told = ", ".join(f"{name} {value}" for name, value in counts.items())
        raise TaskFailed(f"the counts differ: {told}, examples {rows}")
    if validity.get("infra_failed"):
        raise TaskFailed(f"{validity['infra_failed']} samples failed for reasons of ours")
    runs = results.get("run_stats")
    if runs is not None and (not isinstance(runs, list) or len(runs) != 1 or not isinstance(runs[0], dict)):
        entries = len(runs) if isinstance(runs, list) else "no"
        raise TaskFailed(f"run_stats has {entries} repetitions, a trial has one")
    if results.get("num_repeat", 1) != 1:
        raise TaskFailed(f"num_repeat is {results['num_repeat']}, a trial has one repetition")
    totals = [results.get("num_total", rows), *(run.get("num_total", rows) for run in runs or ())]
    if any(type(total) is not int or total != rows for total in totals):
        raise TaskFailed(f"num_total is {totals[0]!r}, but there are {rows} examples")


def _native_metric(task: TaskPlan, results: Mapping[str, Any], solved: float, rows: int, partial: bool) -> float:
    """The named metric, where the samples judged under it have that mean; lm-eval sums credit in its own order."""
    value = results.get(task.metric or "")
    if not is_share(value):
        there = ", ".join(sorted(key for key in results if "," in key and "_stderr" not in key)) or "none"
        raise TaskFailed(f"the metric {task.metric!r} is {value!r}, not a number in [0, 1] (metrics there: {there})")
    if abs(value - solved / rows) > (_PARTIAL_TOLERANCE if partial else _TOLERANCE):
        raise TaskFailed(f"the metric {task.metric!r} is {value!r}, but its samples have {solved} of {rows}")
    return float(value)


def _evalchemy_accuracy(results: Mapping[str, Any], solved: float, rows: int, partial: bool) -> float:
    """The grader's accuracy, where its own numbers and the verdicts of its examples all agree."""
    run = (results.get("run_stats") or [{}])[0]
    told = [v for v in (results.get("accuracy"), results.get("accuracy_avg"), run.get("accuracy")) if v is not None]
    if not told:
        raise TaskFailed("the grader returned no accuracy")
    if not all(is_share(value) for value in told):
        raise TaskFailed(f"the accuracy is {told[0]!r}, not a number in [0, 1]")
    counts = [v for v in (results.get("num_solved"), run.get("num_solved"), results.get("solved_avg")) if v is not None]
    if not counts or not all(is_number(count) and abs(count - solved) <= _TOLERANCE * rows for count in counts):
        raise TaskFailed(f"the grader counts {counts[0] if counts else 'nothing'} solved, its examples {solved}")
    if any(abs(value - solved / rows) > _TOLERANCE for value in told):
        raise TaskFailed(f"the accuracy is {told[0]!r}, but {solved} of {rows} are solved")
    return float(told[0]) if partial else solved / rows
