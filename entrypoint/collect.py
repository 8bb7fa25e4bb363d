"""collect: every request of every trial, written down before an engine starts; no network, no GPU.

In: a Plan. Out: request files and, per task, a CollectedTask or the reason why it can't be asked. A task that was
collected under the same inputs is not collected again; new seeds are added to it.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from entrypoint.errors import CheckpointError, EvalcrateError, JobError
from entrypoint.fingerprint import harness_digest
from entrypoint.layout import Layout, read_json, write_atomic, write_json
from entrypoint.plan import Plan, TaskPlan
from entrypoint.record import digest
from entrypoint.sandbox import ChildJob, ask_child

_TIMEOUT_S = 1800.0
_LIBRARIES = ("lm_eval", "transformers", "tokenizers", "jinja2")


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectedTrial:
    """Counts are requests and prompt tokens; `overlong`: prompts longer than `budget_tokens`.

    `until`: the task's own stop strings. `sha256`: of the request file, which is not used when it is another one.
    """

    requests: int
    digest: str
    prompt_tokens: Mapping[str, int]
    budget_tokens: int
    overlong: int
    bos: Mapping[str, int]
    stop: Sequence[str]
    until: Sequence[str]
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectedTask:
    task: TaskPlan
    trials: Mapping[int, CollectedTrial]


def task_source(plan: Plan, task: TaskPlan) -> dict[str, Any]:
    """What shapes the task's prompts, as the child is told it."""
    what = plan.evaluation
    return {
        "name": task.name,
        "harness": task.harness,
        "folder": plan.placement.folders[task.name],
        "num_fewshot": task.num_fewshot,
        "fewshot_seed": what.fewshot_seed,
        "limit": what.limit,
        "system_instruction": what.system_instruction,
        "chat": what.chat_template != "none",
        "data": [asdict(files) for files in plan.placement.data.get(task.name, ())],
        "options": dict(task.options),
        "cores": 1,
    }


def _checkpoint_files(checkpoint: Path) -> list[str]:
    """The folder, and what its links point to (the hub's cache keeps files elsewhere)."""
    return [str(checkpoint), *(str(file.resolve()) for file in checkpoint.iterdir() if file.is_symlink())]


def collect(
    plan: Plan,
    layout: Layout,
    *,
    cores: int,
    on_task: Callable[[str, CollectedTask | EvalcrateError], None],
) -> tuple[dict[str, CollectedTask], dict[str, str]]:
    """Collects all tasks, `cores` at once; returns them and the reasons of those that can't be asked.

    CheckpointError when the checkpoint's tokenizer or template is the cause: it concerns every task.
    """
    wanted = [_Wanted.of(plan, layout, task) for task in plan.evaluation.tasks]
    asked = [one for one in wanted if one.missing]
    answers: dict[str, dict[str, Any] | EvalcrateError] = {}
    with _private_folder(layout, asked) as private:
        if asked:
            jobs = [_job(plan, layout, one, private / one.task.name) for one in asked]
            found = ask_child(
                "collect",
                jobs,
                private=private,
                timeout_s=_TIMEOUT_S,
                read=[
                    *_checkpoint_files(Path(plan.placement.checkpoint)),
                    *(path for one in asked for path in plan.placement.files_of(one.task.name)),
                ],
                parallel=cores,
                log=layout.logs / "collect.log",
            )
            answers = {one.task.name: answer for one, answer in zip(asked, found, strict=True)}
        done: dict[str, CollectedTask] = {}
        failed: dict[str, str] = {}
        for one in wanted:
            outcome = _take_in(layout, one, answers.get(one.task.name, {}), private / one.task.name)
            on_task(one.task.name, outcome)
            if isinstance(outcome, CheckpointError):
                raise outcome
            if isinstance(outcome, EvalcrateError):
                failed[one.task.name] = str(outcome)
            else:
                done[one.task.name] = outcome
    return done, failed


@dataclass(frozen=True, kw_only=True, slots=True)
class _Wanted:
    """A task, the trials collected earlier under the same `inputs`, and the seeds that are missing."""

    task: TaskPlan
    inputs: str
    known: Mapping[int, dict[str, Any]]
    missing: tuple[int, ...]

    @staticmethod
    def of(plan: Plan, layout: Layout, task: TaskPlan) -> _Wanted:
        inputs = _inputs(plan, task)
        known = _known(layout, task, inputs)
        missing = tuple(seed for seed in task.seeds if seed not in known)
        return _Wanted(task=task, inputs=inputs, known=known, missing=missing)

    def collected(self, trials: Mapping[int, dict[str, Any]]) -> CollectedTask:
        return CollectedTask(task=self.task, trials={seed: CollectedTrial(**trials[seed]) for seed in self.task.seeds})


@contextmanager
def _private_folder(layout: Layout, asked: Sequence[_Wanted]) -> Iterator[Path]:
    """A folder beside the request files, so that what the child wrote is moved into place by a rename."""
    folder = layout.work / "requests"
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".collect-*"):  # of a run that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".collect-", dir=folder) as name:
        for one in asked:
            Path(name, one.task.name).mkdir()
        yield Path(name)


def recall(plan: Plan, layout: Layout) -> dict[str, CollectedTask]:
    """All tasks as an earlier collect left them; JobError when one was not collected for this plan."""
    found = {}
    for task in plan.evaluation.tasks:
        wanted = _Wanted.of(plan, layout, task)
        if wanted.missing:
            raise JobError(
                f"{layout.requests_dir(task.name)}: no requests of this plan for seeds "
                f"{', '.join(map(str, wanted.missing))}; run `evalcrate collect` with the same job first"
            )
        found[task.name] = wanted.collected(wanted.known)
    return found


def known_trials(plan: Plan, layout: Layout, task: TaskPlan) -> dict[int, CollectedTrial]:
    """The trials of the plan that an earlier collect wrote under the same inputs, by seed: all, some or none."""
    if not layout.collected(task.name).is_file():
        return {}
    known = _known(layout, task, _inputs(plan, task))
    return {seed: CollectedTrial(**known[seed]) for seed in task.seeds if seed in known}


def _inputs(plan: Plan, task: TaskPlan) -> str:
    """Digest of everything that can change a request of the task, the seeds apart."""
    what = asdict(plan.evaluation)
    shared = {k: v for k, v in what.items() if k not in ("tasks", "experiment", "step", "dtype")}
    own = {k: v for k, v in asdict(task).items() if k not in ("seeds", "metric")}
    versions = {name: version(name) for name in _LIBRARIES}
    return digest([shared, own, plan.placement.trust_remote_code, versions, harness_digest()])


def _known(layout: Layout, task: TaskPlan, inputs: str) -> dict[int, dict[str, Any]]:
    """Trials collected earlier under the same inputs and still there."""
    said = read_json(layout.collected(task.name))
    if not isinstance(said, dict) or said.get("inputs") != inputs:
        return {}
    trials = {int(seed): facts for seed, facts in said["trials"].items()}
    return {seed: facts for seed, facts in trials.items() if _is_whole(layout.requests(task.name, seed), facts)}


def _is_whole(file: Path, facts: Mapping[str, Any]) -> bool:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest() == str(facts.get("sha256"))
    except OSError:
        return False


def _take_in(
    layout: Layout, wanted: _Wanted, answer: Mapping[str, Any] | EvalcrateError, private: Path
) -> CollectedTask | EvalcrateError:
    """Moves what the child wrote into place, `collect.json` last, and joins it with what was known."""
    if isinstance(answer, EvalcrateError):
        return answer
    folder, name = layout.requests_dir(wanted.task.name), wanted.task.name
    trials = {**wanted.known, **{int(seed): facts for seed, facts in answer.items()}}
    if wanted.missing:
        if not wanted.known:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        chats = _lines(layout.chats(name)) | _lines(private / "chats.jsonl")
        for seed in wanted.missing:
            (private / f"seed{seed}.jsonl").replace(layout.requests(name, seed))
        write_atomic(layout.chats(name), b"".join(line + b"\n" for line in sorted(chats)))
        known = {str(seed): facts for seed, facts in sorted(trials.items())}
        write_json(layout.collected(name), {"task": name, "inputs": wanted.inputs, "trials": known})
    return wanted.collected(trials)


def _lines(file: Path) -> set[bytes]:
    return {line for line in file.read_bytes().split(b"\n") if line} if file.is_file() else set()


def _job(plan: Plan, layout: Layout, wanted: _Wanted, out: Path) -> ChildJob:
    what, where, name = plan.evaluation, plan.placement, wanted.task.name
    spec = {
        "task": task_source(plan, wanted.task),
        "seeds": list(wanted.missing),
        "sampling": asdict(wanted.task.sampling),
        "checkpoint": where.checkpoint,
        "template": where.template,
        "template_kwargs": dict(what.chat_template_kwargs),
        "template_date": what.template_date,
        "think_end_token": what.think_end_token,
        "trust_remote_code": where.trust_remote_code,
        "stop_token_ids": list(what.stop_token_ids),
        "max_model_len": what.max_model_len,
        "on_overlong": what.on_overlong,
        "out": str(out),
    }
    layout.logs.mkdir(parents=True, exist_ok=True)
    return ChildJob(task=name, spec=spec, log=layout.logs / f"collect-{name}.log")


def refuse_overlong(plan: Plan, collected: Mapping[str, CollectedTask]) -> None:
    """JobError when a prompt leaves no room for max_tokens: cutting it silently would change what is measured."""
    if plan.evaluation.on_overlong == "truncate":
        return
    found = [
        f"{name}: {sum(t.overlong for t in task.trials.values())} of {sum(t.requests for t in task.trials.values())} "
        f"prompts (longest {max(t.prompt_tokens['max'] for t in task.trials.values())} tokens, room for "
        f"{next(iter(task.trials.values())).budget_tokens})"
        for name, task in collected.items()
        if any(t.overlong for t in task.trials.values())
    ]
    if found:
        raise JobError(
            f"sampling.max_tokens: too large for engine.max_model_len {plan.evaluation.max_model_len}: "
            f"{'; '.join(found)}; raise engine.max_model_len, lower max_tokens, or set on_overlong: truncate"
        )
