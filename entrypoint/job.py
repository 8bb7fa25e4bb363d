"""The job file: what a person asks for.

In: a YAML file and `--set` overrides. Out: a frozen JobSpec, or a JobError that says which key is wrong,
where it was written and what to write instead. Whether the suites, tasks, profiles and folders it names
exist is for later stages to say.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, model_validator

from entrypoint.field import (
    MAX_INT,
    Count,
    Lax,
    Line,
    Lines,
    Name,
    PathText,
    Positive,
    RuleError,
    Section,
    Size,
    Text,
    checked,
)
from entrypoint.yaml_file import Document, Key, cut, dotted, read_file, read_text, refused

FIRST_SEED = 42
MAX_SEEDS = 1000


def seeds_from(count: int) -> tuple[int, ...]:
    """The seeds that a count stands for: 3 gives 42, 43, 44."""
    return tuple(range(FIRST_SEED, FIRST_SEED + count))


def _seeds(given: Any) -> Any:
    if isinstance(given, int) and not isinstance(given, bool):
        if not 1 <= given <= MAX_SEEDS:
            raise ValueError(f"a count of seeds is between 1 and {MAX_SEEDS}; a seed itself is written as [42]")
        return seeds_from(given)
    if not isinstance(given, (list, tuple)):
        raise ValueError("must be a count (3 gives 42, 43, 44) or a list of seeds ([42, 43])")
    if not 1 <= len(given) <= MAX_SEEDS:
        raise ValueError(f"a list of seeds has between 1 and {MAX_SEEDS} entries")
    for seed in given:
        if not isinstance(seed, int) or isinstance(seed, bool) or not 1 <= seed <= MAX_INT:
            raise ValueError(f"{seed!r} is not a seed; a seed is a whole number from 1 to {MAX_INT}")
        if given.count(seed) > 1:
            raise ValueError(f"seed {seed} is given twice, which counts one run as two; name each seed once")
    return tuple(given)


def _experiment(text: str) -> str:
    added = re.search(r"-(step|limit)[0-9]+$", text)
    if added and added[1] == "step":
        raise ValueError(f"{added[0]} is added from the name of the checkpoint folder; leave it out")
    if added:
        raise ValueError(f"{added[0]} is added when the job has a limit, to keep such results apart; leave it out")
    return text


def _day(text: str) -> str:
    try:
        whole = date.fromisoformat(text).isoformat() == text
    except ValueError:
        whole = False
    if not whole:
        raise ValueError('is not a day of the calendar; write it as "2026-01-31"')
    return text


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        whole = False
    if not whole or " " in text:
        raise ValueError("is not a URL of a server; write it as http://host:8000")
    if parts.username or parts.password:
        raise RuleError("must hold no password; name its variable in api_key_env", show_value=False)
    return text


def _variable(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        # Most likely the key itself was written here: it must not reach a log.
        raise RuleError("must be the name of an environment variable, not the key itself", show_value=False)
    return text


Command = Annotated[Lines, Field(min_length=1)]
Temperature = Annotated[float, Field(ge=0, le=2)]
Share = Annotated[float, Field(gt=0, le=1)]
Day = Annotated[str, AfterValidator(_day)]
Experiment = Annotated[Name, AfterValidator(_experiment)]
Url = Annotated[Line, AfterValidator(_url)]
Variable = Annotated[str, AfterValidator(_variable)]
SeedRule = Annotated[int, Field(ge=1, le=MAX_SEEDS)] | Annotated[list[Count], Field(min_length=1)]
Seeds = Annotated[tuple[int, ...], Lax, BeforeValidator(_seeds, json_schema_input_type=SeedRule)]


class Sampling(Section):
    """How tokens are drawn; every value is sent with every request."""

    temperature: Temperature = Field(default=0.7, description="0 is greedy")
    top_p: Share = Field(default=1.0, description="share of the probability to sample from")
    max_tokens: Count = Field(default=32768, description="longest answer, in tokens")
    seed_policy: Literal["per_sample", "shared"] = Field(
        default="per_sample", description="a seed for each sample, or one for all"
    )


class EngineSpec(Section):
    """What generates: vLLM started for this job, or a server that is already there."""

    kind: Literal["vllm", "endpoint"] = Field(default="vllm", description="vLLM, or a server that runs")
    profile: Line = Field(default="auto", description="a file name from profiles/gpu, or auto")
    tensor_parallel_size: Count | Literal["auto"] = Field(default="auto", description="GPUs per replica")
    replicas: Count | Literal["auto"] = Field(default="auto", description="engines side by side")
    gpu_memory_utilization: Share | None = Field(default=None, description="share of a GPU's memory")
    vram_headroom_mib: Size = Field(default=2048, description="left free on each GPU")
    vram_clamp: bool = Field(default=True, description="lower that share to what is free")
    min_gib_per_gpu: Positive | None = Field(default=None, description="refuse a GPU that has less for the engine")
    trust_remote_code: bool = Field(default=False, description="run the checkpoint's own code")
    max_model_len: Count | None = Field(default=None, description="prompt and answer together, in tokens")
    max_num_seqs: Count | None = Field(default=None, description="sequences in one batch")
    max_num_batched_tokens: Count | None = Field(default=None, description="tokens in one step")
    dtype: Literal["bfloat16", "float16", "float32"] = Field(default="bfloat16", description="of the weights")
    kv_cache_gib: Positive | None = Field(default=None, description="size of the KV cache")
    enforce_eager: bool | None = Field(default=None, description="no CUDA graphs and no compilation")
    start_timeout_s: Positive = Field(default=900, description="seconds until the engine has to be ready")
    request_timeout_s: Positive | None = Field(default=None, description="seconds one request may take")
    command: Command | None = Field(default=None, description="in place of vLLM's server")
    url: Url | None = Field(default=None, description="endpoint: http://host:port")
    socket: PathText | None = Field(default=None, description="endpoint: path of its Unix socket")
    model: Line | None = Field(default=None, description="endpoint: the name it serves the model under")
    api_key_env: Variable | None = Field(default=None, description="endpoint: variable with its key")

    @model_validator(mode="after")
    def _one_kind(self) -> EngineSpec:
        if self.kind == "endpoint":
            if (self.url is None) == (self.socket is None):
                raise RuleError("an endpoint needs exactly one of url and socket", show_value=False)
            if self.command is not None:
                raise RuleError("only for kind: vllm; an endpoint is not started here", "command")
        for key in ("url", "socket", "model", "api_key_env"):
            if self.kind == "vllm" and getattr(self, key) is not None:
                raise RuleError("only for kind: endpoint; set that, or leave this out", key)
        return self


class GraderSpec(Section):
    """How answers are graded; the defaults give upstream's verdicts, in isolation."""

    command: Command | None = Field(default=None, description="in place of the grader child's own command")
    require_isolation: bool = Field(default=False, description="refuse a machine that can't isolate graders fully")
    livecodebench: Literal["isolated", "upstream"] = Field(
        default="isolated", description="programs in processes of their own, or upstream's checker"
    )
    gpqa_order: Literal["upstream", "shuffled"] = Field(
        default="upstream", description="GPQADiamond: right answer always D, or an order of its own per question"
    )
    boxed_blank: Literal["upstream", "mended"] = Field(
        default="upstream", description="a blank after \\\\boxed: upstream's reading, or the box that was meant"
    )


def _task_name(text: str) -> str:
    if ":" in text and not re.fullmatch(r"evalchemy:[A-Za-z0-9][A-Za-z0-9_.-]*", text):
        raise ValueError(
            "names a folder, which holds no colon; only a benchmark of evalchemy has one, evalchemy:<Name>"
        )
    return text


TaskName = Annotated[Name, AfterValidator(_task_name)]


class TaskSpec(Section):
    """One task and what is different for it; null takes the job's or the suite's value."""

    name: TaskName = Field(description="AIME24, gsm8k, a folder in tasks/, evalchemy:AIW, …")
    seeds: Seeds | None = Field(default=None, description="a count (42, 43, …) or a list")
    num_fewshot: Size | None = Field(default=None, description="examples shown")
    max_tokens: Count | None = Field(default=None, description="longest answer, in tokens")
    temperature: Temperature | None = Field(default=None, description="0 is greedy")
    top_p: Share | None = Field(default=None, description="share of the probability to sample from")
    metric: Line | None = Field(default=None, description="such as exact_match,strict-match")
    harness: Literal["lm_eval", "evalchemy"] | None = Field(default=None, description="whose task it is")


def _task(given: Any) -> Any:
    if not isinstance(given, (str, dict, TaskSpec)):
        raise ValueError("is not a task; write its name, or {name: …} with what is different for it")
    return {"name": given} if isinstance(given, str) else given


Task = Annotated[TaskSpec, BeforeValidator(_task, json_schema_input_type=str | TaskSpec)]


def _model_name(text: str) -> str:
    if text in (".", ".."):
        raise ValueError("becomes a folder name; write a name")
    return text


ModelName = Annotated[Line, AfterValidator(_model_name)]


class JobSpec(Section):
    """One evaluation job: which checkpoint, which tasks, how to sample, where the results go."""

    experiment: Experiment = Field(description="names the result folder, without the step")
    checkpoint: PathText = Field(description="folder of the checkpoint, the same path in a container")
    model_name: ModelName | None = Field(default=None, description="names the result's model folder")
    results: PathText = Field(default="results", description="folder that the results go to")
    suite: Line | None = Field(default=None, description="a file name from profiles/suites")
    suites: Lines = Field(default=(), description="several of them")
    tasks: Annotated[tuple[Task, ...], Lax] = Field(default=(), description="tasks, added to the suites'")
    seeds: Seeds | None = Field(default=None, description="a count (42, 43, …) or a list; null: the suite's")
    sampling: Sampling = Sampling()
    engine: EngineSpec = EngineSpec()
    grader: GraderSpec = GraderSpec()
    limit: Count | None = Field(default=None, description="only so many samples of each task")
    chat_template: PathText = Field(default="auto", description="auto (the checkpoint's), none, or a file")
    chat_template_kwargs: dict[str, JsonValue] = Field(default={}, description="such as enable_thinking")
    template_date: Day = Field(default="2026-01-01", description="today, for templates")
    think_end_token: Text | None = Field(default=None, description="what ends an answer's reasoning")
    fewshot_seed: Size = Field(default=1234, description="one draw for all trials")
    system_instruction: Text | None = Field(default=None, description="system message before every prompt")
    task_timeout_s: Positive | None = Field(default=None, description="seconds for one task")
    on_overlong: Literal["refuse", "truncate"] = Field(default="refuse", description="a prompt that is too long")
    data: PathText | None = Field(default=None, description="data folder of `evalcrate data fetch`; null: in the cache")
    keep_generations: bool = Field(default=True, description="keep generations of complete tasks")

    @property
    def suite_names(self) -> tuple[str, ...]:
        """`suite` and `suites` are two spellings of one wish."""
        return self.suites if self.suite is None else (self.suite,)

    @model_validator(mode="after")
    def _whole(self) -> JobSpec:
        if self.suite is not None and self.suites:
            raise RuleError("suite and suites are both given; keep one of them", "suites")
        if not (self.suite_names or self.tasks):
            raise RuleError("nothing to evaluate; give suite, suites or tasks")
        for key, names in (("suites", self.suites), ("tasks", tuple(task.name for task in self.tasks))):
            for n, name in enumerate(names):
                if name in names[:n]:
                    raise RuleError(f"{name} is named twice; name it once", key, n)
        room = self.engine.max_model_len or math.inf
        asked: dict[Key, int | None] = {
            ("tasks", n, "max_tokens"): task.max_tokens for n, task in enumerate(self.tasks)
        }
        if "max_tokens" in self.sampling.model_fields_set:
            asked[("sampling", "max_tokens")] = self.sampling.max_tokens
        for at, tokens in asked.items():
            if tokens and tokens >= room:
                raise RuleError(f"leaves no room for a prompt in engine.max_model_len {room}; lower it", *at)
        return self


def load_job(path: Path, overrides: Sequence[str] = ()) -> JobSpec:
    """The job in `path`; each override is `dotted.key=value`, its value read as YAML, a later one winning."""
    document = read_file(path)
    for override in overrides:
        document = _overridden(document, override)
    return checked(JobSpec, document)


def parse_job(data: object, origin: str) -> JobSpec:
    """The job in plain values; errors open with `origin`."""
    return checked(JobSpec, Document(data=data, places={(): origin}))


def job_schema() -> dict[str, Any]:
    """The JSON schema of a job file, for editors; it allows everything that `load_job` does."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **JobSpec.model_json_schema()}


def _overridden(document: Document, override: str) -> Document:
    """The document with one key replaced, its place being the override itself."""
    name, equals, text = override.partition("=")
    key = tuple(name.strip().split("."))
    secret = "api_key" in override or "@" in text
    place = f"--set {name}=…" if secret else f"--set {cut(override)}"
    if not equals or not all(key):
        raise refused(place, "is not key=value; write it as --set engine.profile=cpu")
    value = read_text(text, place, with_lines=False).data
    if text.strip() == "":
        raise refused(place, "has no value; write null to unset the key")
    root = dict(document.data)
    # The two are one wish in two spellings: replacing it in either spelling replaces it.
    for other in {"suite": ("suites",), "suites": ("suite",)}.get(".".join(key), ()):
        if document.places.get((other,), "").startswith("--set "):
            raise refused(place, f"{other} is set as well; set one of them")
        root.pop(other, None)
    inner = root
    for n, part in enumerate(key[:-1], start=1):
        below = inner.get(part, {})
        if not isinstance(below, dict):
            raise refused(place, f"{dotted(key[:n])} has no keys of its own; set {dotted(key[:n])} as a whole")
        inner[part] = inner = dict(below)
    inner[key[-1]] = value
    places = {at: where for at, where in document.places.items() if at[: len(key)] != key}
    parents = {key[:n]: place for n in range(1, len(key) + 1)}
    return Document(data=root, places=parents | places)
