"""Everything a run will do, decided before anything starts.

resolve(...) -> Plan: pure (no file, clock or environment is read), frozen, with a digest. `Evaluation` says what is
measured and is the same on every machine; `Placement` says how this machine carries it out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from entrypoint.record import digest

if TYPE_CHECKING:
    from entrypoint.checkpoint import Checkpoint
    from entrypoint.job import JobSpec

SCHEMA = 1
# What a generation_config.json may say about sampling; a server would take these for requests that leave them open.
_SAMPLING_DEFAULTS = (
    "do_sample",
    "frequency_penalty",
    "max_new_tokens",
    "min_p",
    "presence_penalty",
    "repetition_penalty",
    "temperature",
    "top_k",
    "top_p",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """What every request of a task asks for; `max_tokens` counts generated tokens."""

    temperature: float
    top_p: float
    max_tokens: int
    seed_policy: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFiles:
    """Files of one locked data set: `splits` are lists of absolute paths by split, in the order of their rows.

    `format`: parquet, csv, json (one object a line, or one array) or zip. `config` tells apart data sets of one `id`.
    """

    id: str
    config: str | None
    format: str
    splits: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskPlan:
    """One task with its trials (one per seed). `metric` is the reported key that becomes `accuracy`, None for its own.

    `source` identifies the benchmark's code: the patch series' digest, a task folder's hash, or lm-eval's version.
    `data` identifies its locked data files, "" for data that comes with the code. `options`: what the job chose of the
    grader's ways that can change a score of this task.
    """

    name: str
    harness: str
    num_fewshot: int
    metric: str | None
    seeds: tuple[int, ...]
    sampling: Sampling
    source: str
    data: str
    options: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """What is measured. Portable: no path, host or clock in it; its digest is the identity of the evaluation."""

    experiment: str
    step: int | None
    limit: int | None
    checkpoint_identity: str
    tasks: tuple[TaskPlan, ...]
    chat_template: str
    chat_template_digest: str | None
    chat_template_kwargs: Mapping[str, Any]
    template_date: str
    think_end_token: str | None
    fewshot_seed: int
    system_instruction: str | None
    on_overlong: str
    stop_token_ids: tuple[int, ...]
    generation_config_ignored: Mapping[str, Any]
    max_model_len: int
    dtype: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """How to reach or start the engine.

    kind `vllm`: `argv` (without `--uds`) is run with `env` laid over a cleaned environment.
    kind `endpoint`: `url` or `socket` of an OpenAI-compatible server, `model` its served name, `api_key_env` the
    variable that holds its key. Times are seconds.
    """

    kind: str
    version: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    url: str | None
    socket: str | None
    model: str | None
    api_key_env: str | None
    start_timeout_s: float
    request_timeout_s: float
    shutdown_timeout_s: float
    max_open_requests: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """How this machine carries the evaluation out.

    `folders`: where each task's code lies. `data`: where its locked data files lie. `template`: the chat template's
    text, None for none.
    `replicas`: what each of several engines has of its own in its environment, over that of `engine`; empty for one.
    `numerics`: the values that can change a generated token. `origins`: where each engine value came from.
    """

    checkpoint: str
    results: str
    model_name: str
    template: str | None
    trust_remote_code: bool
    folders: Mapping[str, str]
    data: Mapping[str, tuple[DataFiles, ...]]
    profile: str | None
    device: str
    engine: Engine
    numerics: Mapping[str, Any]
    values: Mapping[str, Any]
    origins: Mapping[str, str]
    replicas: tuple[Mapping[str, str], ...] = ()

    @property
    def engines(self) -> tuple[Engine, ...]:
        """Those that a run starts side by side; they differ in their cards alone."""
        own = self.replicas or ({},)
        return tuple(replace(self.engine, env={**self.engine.env, **env}) for env in own)

    def files_of(self, task: str) -> tuple[str, ...]:
        """The folder of the task's code and the files of its data: all that its children have to read."""
        splits = (split for one in self.data.get(task, ()) for split in one.splits.values())
        return (self.folders[task], *(path for split in splits for path in split))

    @property
    def files(self) -> tuple[str, ...]:
        """Those of every task."""
        return tuple(path for task in self.folders for path in self.files_of(task))


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    evaluation: Evaluation
    placement: Placement
    task_timeout_s: float | None
    keep_generations: bool
    grader_command: tuple[str, ...]
    require_isolation: bool
    warnings: tuple[str, ...]

    @property
    def identity(self) -> str:
        """sha256 of the evaluation: equal on every machine that would measure the same."""
        return digest(asdict(self.evaluation))

    def to_json(self) -> dict[str, Any]:
        """plan.json: same job, profiles and facts give the same bytes."""
        values = asdict(self)
        if not self.placement.replicas:
            del values["placement"]["replicas"]
        return {"schema": SCHEMA, "identity": self.identity, **values}


def resolve(
    job: JobSpec,
    tasks: tuple[TaskPlan, ...],
    checkpoint: Checkpoint,
    template: str | None,
    placement: Placement,
    warnings: tuple[str, ...],
) -> Plan:
    """The plan of one job, from its tasks, its checkpoint's facts and its placement on this machine."""
    return Plan(
        evaluation=Evaluation(
            experiment=job.experiment,
            step=checkpoint.step,
            limit=job.limit,
            checkpoint_identity=checkpoint.identity,
            tasks=tasks,
            chat_template=job.chat_template if job.chat_template in ("auto", "none") else "file",
            chat_template_digest=None if template is None else hashlib.sha256(template.encode()).hexdigest(),
            chat_template_kwargs=dict(job.chat_template_kwargs),
            template_date=str(job.template_date),
            think_end_token=job.think_end_token,
            fewshot_seed=job.fewshot_seed,
            system_instruction=job.system_instruction,
            on_overlong=job.on_overlong,
            stop_token_ids=checkpoint.eos_token_ids,
            generation_config_ignored={
                k: v for k, v in sorted(checkpoint.generation_config.items()) if k in _SAMPLING_DEFAULTS
            },
            max_model_len=max_model_len(job, tasks),
            dtype=job.engine.dtype,
        ),
        placement=placement,
        task_timeout_s=job.task_timeout_s,
        keep_generations=job.keep_generations,
        grader_command=tuple(job.grader.command or ()),
        require_isolation=job.grader.require_isolation,
        warnings=warnings,
    )


def max_model_len(job: JobSpec, tasks: tuple[TaskPlan, ...]) -> int:
    """Tokens of prompt and generation together: the job's value, else room for 4096 prompt tokens."""
    return job.engine.max_model_len or max(t.sampling.max_tokens for t in tasks) + 4096
