"""What must not break: a job file means what its writer meant, or is refused with file, line, key and value.

Incidents behind it: one seed reused for every repetition gives copies that are counted as independent
samples (NovaSky-AI/SkyRL#1015, vllm-project/vllm#7808), so `seeds: [42, 42, 43]` is refused; YAML 1.1 turns
`no` into false, `12:00:00` into 43200 and `1e-5` into text; a path cut at a comma was evaluated as another
checkpoint (EleutherAI/lm-evaluation-harness#1454), so names and paths are kept whole or refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from entrypoint.errors import JobError
from entrypoint.field import MAX_INT
from entrypoint.job import JobSpec, TaskSpec, job_schema, load_job, parse_job, seeds_from

MINIMAL: dict[str, Any] = {"experiment": "exp", "checkpoint": "/data/run/hf/step-300", "suite": "math"}
HEAD = "experiment: exp\ncheckpoint: /data/run/hf/step-300\nsuite: math\n"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    return tmp_path / "job.yaml"


def load(path: Path, text: str | bytes, *overrides: str) -> JobSpec:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_job(path, overrides)


def refusal(path: Path, text: str | bytes, *overrides: str) -> str:
    with pytest.raises(JobError) as caught:
        load(path, text, *overrides)
    return one_paragraph(caught.value)


def parse_refusal(**keys: Any) -> str:
    with pytest.raises(JobError) as caught:
        parse_job(MINIMAL | keys, "job")
    return one_paragraph(caught.value)


def one_paragraph(error: JobError) -> str:
    message = str(error)
    assert message.isprintable()
    assert len(message) < 1000
    assert error.exit_code == 2
    return message


# ── What a whole job file becomes ──────────────────────────────────────────────────────────────────────


def test_the_smallest_job_has_the_documented_defaults(job_file: Path) -> None:
    job = load(job_file, HEAD)
    assert (job.model_name, job.results, job.suite, job.suites, job.tasks) == (
        None,
        "results",
        "math",
        (),
        (),
    )
    assert (job.seeds, job.limit, job.data, job.keep_generations) == (None, None, None, True)
    assert job.sampling.model_dump() == {
        "temperature": 0.7,
        "top_p": 1.0,
        "max_tokens": 32768,
        "seed_policy": "per_sample",
    }
    assert job.engine.model_dump() == {
        "kind": "vllm",
        "profile": "auto",
        "tensor_parallel_size": "auto",
        "replicas": "auto",
        "gpu_memory_utilization": None,
        "vram_headroom_mib": 2048,
        "vram_clamp": True,
        "min_gib_per_gpu": None,
        "trust_remote_code": False,
        "max_model_len": None,
        "max_num_seqs": None,
        "max_num_batched_tokens": None,
        "dtype": "bfloat16",
        "kv_cache_gib": None,
        "enforce_eager": None,
        "start_timeout_s": 900,
        "request_timeout_s": None,
        "command": None,
        "url": None,
        "socket": None,
        "model": None,
        "api_key_env": None,
    }
    assert job.grader.command is None
    assert (job.chat_template, job.chat_template_kwargs, job.template_date) == ("auto", {}, "2026-01-01")
    assert (job.think_end_token, job.fewshot_seed, job.system_instruction) == (None, 1234, None)
    assert (job.task_timeout_s, job.on_overlong) == (None, "refuse")


def test_a_full_job_is_read_as_written(job_file: Path) -> None:
    job = load(
        job_file,
        """
experiment: exp_sft_qwen3_8b_x
checkpoint: /r/run,lr=1e-5/a:b//c [x]/step-300   # a comment
model_name: null
results: /results
suites: [math, code]
tasks: [AIME24, {name: MATH500, seeds: 3}, {name: gsm8k, num_fewshot: 5, max_tokens: 2048}]
seeds: [7, 5]
sampling: {temperature: 0, top_p: 1, max_tokens: 100, seed_policy: shared}
engine: {kind: endpoint, url: "http://127.0.0.1:8000", model: m, api_key_env: EVAL_KEY, max_model_len: 8192}
chat_template_kwargs: {enable_thinking: false, deep: [1, {a: null}]}
template_date: "2024-02-29"
system_instruction: |
  Two lines
  are kept.
""",
    )
    assert job.checkpoint == "/r/run,lr=1e-5/a:b//c [x]/step-300"
    assert job.suite_names == ("math", "code")
    assert [task.name for task in job.tasks] == ["AIME24", "MATH500", "gsm8k"]
    assert job.tasks[0] == TaskSpec(name="AIME24")
    assert (job.tasks[1].seeds, job.tasks[2].num_fewshot, job.tasks[2].max_tokens) == ((42, 43, 44), 5, 2048)
    assert job.seeds == (7, 5)
    assert isinstance(job.sampling.temperature, float)
    assert job.engine.api_key_env == "EVAL_KEY"
    assert job.chat_template_kwargs == {"enable_thinking": False, "deep": [1, {"a": None}]}
    assert job.system_instruction == "Two lines\nare kept.\n"


def test_two_spellings_of_one_job_are_equal(job_file: Path) -> None:
    plain = load(job_file, HEAD + "seeds: 2\ntasks: [AIME24]\nsampling: {temperature: 1}\n")
    other = load(job_file, HEAD + "sampling: {'temperature': 1.0}\ntasks:\n- name: AIME24\nseeds: [42, 43]\n")
    assert plain == other
    assert plain.model_dump_json() == other.model_dump_json()


def test_a_job_cannot_be_changed() -> None:
    job: Any = parse_job(MINIMAL, "job")
    with pytest.raises(ValueError, match="frozen"):
        job.limit = 3


def test_a_byte_order_mark_and_windows_line_ends_are_read(job_file: Path) -> None:
    assert load(job_file, b"\xef\xbb\xbf" + HEAD.replace("\n", "\r\n").encode()).suite == "math"


@pytest.mark.parametrize("name", ["math", "science", "code", "delphi"])
def test_the_example_jobs_are_valid(name: str) -> None:
    job = load_job(ROOT / "jobs" / f"{name}.yaml")
    assert job.suite == name


def test_the_delphi_job_keeps_gsm8k_prompts_whole() -> None:
    job = load_job(ROOT / "jobs" / "delphi.yaml")
    assert (job.engine.max_model_len, job.sampling.max_tokens) == (4096, 3584)
    assert [(task.name, task.max_tokens) for task in job.tasks] == [("gsm8k", 2048)]


# ── Every field and every wrong type ───────────────────────────────────────────────────────────────────

POOL: dict[str, Any] = {
    "null": None,
    "bool": True,
    "int": 3,
    "whole float": 3.0,
    "float": 0.5,
    "text": "text",
    "number as text": "3",
    "empty text": "",
    "list": ["text"],
    "empty list": [],
    "list of ints": [3],
    "mapping": {"text": 3},
    "empty mapping": {},
    "list of mappings": [{"text": 3}],
    "nan": float("nan"),
    "infinity": float("inf"),
    "huge": 10**400,
    "minus one": -1,
    "zero": 0,
    "object": object(),
    "bytes": b"text",
}
WORDS = {"text", "number as text"}
NUMBERS = {"int", "whole float", "float"}
COUNT = {"int"}
SIZE = {"int", "zero"}
SECTION = {"empty mapping"}
ACCEPTED: dict[str, set[str]] = {
    "experiment": WORDS,
    "checkpoint": WORDS,
    "model_name": WORDS | {"null"},
    "results": WORDS,
    "suite": WORDS | {"null"},
    "suites": {"list", "empty list"},
    "tasks": {"list", "empty list"},
    "seeds": {"null", "int", "list of ints"},
    "sampling": SECTION,
    "sampling.temperature": {"float", "zero"},
    "sampling.top_p": {"float"},
    "sampling.max_tokens": COUNT,
    "sampling.seed_policy": set(),
    "engine": SECTION,
    "engine.kind": set(),
    "engine.profile": WORDS,
    "engine.tensor_parallel_size": COUNT,
    "engine.replicas": COUNT,
    "engine.gpu_memory_utilization": {"null", "float"},
    "engine.vram_headroom_mib": SIZE,
    "engine.vram_clamp": {"bool"},
    "engine.min_gib_per_gpu": NUMBERS | {"null"},
    "engine.trust_remote_code": {"bool"},
    "engine.max_model_len": COUNT | {"null"},
    "engine.max_num_seqs": COUNT | {"null"},
    "engine.max_num_batched_tokens": COUNT | {"null"},
    "engine.dtype": set(),
    "engine.kv_cache_gib": NUMBERS | {"null"},
    "engine.enforce_eager": {"bool", "null"},
    "engine.start_timeout_s": NUMBERS,
    "engine.request_timeout_s": NUMBERS | {"null"},
    "engine.command": {"list", "null"},
    "engine.url": {"null"},
    "engine.socket": {"null"},
    "engine.model": {"null"},
    "engine.api_key_env": {"null"},
    "grader": SECTION,
    "grader.command": {"list", "null"},
    "grader.require_isolation": {"bool"},
    "grader.livecodebench": set(),
    "grader.gpqa_order": set(),
    "grader.boxed_blank": set(),
    "limit": COUNT | {"null"},
    "chat_template": WORDS,
    "chat_template_kwargs": {"mapping", "empty mapping"},
    "template_date": set(),
    "think_end_token": WORDS | {"null"},
    "fewshot_seed": SIZE,
    "system_instruction": WORDS | {"null"},
    "task_timeout_s": NUMBERS | {"null"},
    "on_overlong": set(),
    "data": WORDS | {"null"},
    "keep_generations": {"bool"},
    "tasks.0.name": WORDS,
    "tasks.0.seeds": {"null", "int", "list of ints"},
    "tasks.0.num_fewshot": SIZE | {"null"},
    "tasks.0.max_tokens": COUNT | {"null"},
    "tasks.0.temperature": {"null", "float", "zero"},
    "tasks.0.top_p": {"null", "float"},
    "tasks.0.metric": WORDS | {"null"},
    "tasks.0.harness": {"null"},
}
GOOD: dict[str, Any] = {
    "sampling.seed_policy": "shared",
    "engine.tensor_parallel_size": "auto",
    "engine.kind": "vllm",
    "engine.dtype": "float16",
    "grader.livecodebench": "upstream",
    "grader.gpqa_order": "shuffled",
    "grader.boxed_blank": "mended",
    "template_date": "2026-12-31",
    "on_overlong": "truncate",
    "chat_template": "none",
    "tasks": ["AIME24", {"name": "MATH500", "seeds": [1, 2]}],
    "seeds": [MAX_INT],
    "sampling.temperature": 2,
    "sampling.top_p": 1,
    "tasks.0.harness": "lm_eval",
}


def with_value(key: str, value: Any) -> dict[str, Any]:
    """The minimal job with one (dotted) key set."""
    *parents, last = key.split(".")
    data = dict(MINIMAL)
    if key in ("suite", "suites"):
        del data["suite"]
        data["tasks"] = ["AIME24"]
    if parents[:1] == ["tasks"]:
        data["tasks"] = [{"name": "AIME24"} | {last: value}]
    elif parents:
        data[parents[0]] = {last: value}
    else:
        data[last] = value
    return data


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from leaves(field.annotation, f"{prefix}{name}.")


def test_the_table_of_fields_is_complete() -> None:
    tasks = {f"tasks.0.{name}" for name in TaskSpec.model_fields}
    assert set(ACCEPTED) == set(leaves(JobSpec)) | tasks


@pytest.mark.parametrize("key", ACCEPTED)
def test_each_field_takes_its_own_type_and_no_other(key: str) -> None:
    for kind, value in POOL.items():
        data = with_value(key, value)
        if kind in ACCEPTED[key]:
            parse_job(data, "job")
            continue
        with pytest.raises(JobError) as caught:
            print(kind, parse_job(data, "job"))
        message = one_paragraph(caught.value)
        assert message.startswith(f"job: {key.replace('.0', '[0]')}"), kind
        assert "Input should" not in message, kind


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("limit: '3'", 'job.yaml:4: limit: "3": must be a whole number; write it without quotes'),
        ("limit: 3.0", "job.yaml:4: limit: 3.0: must be a whole number; write 3"),
        ("limit: true", "job.yaml:4: limit: true: must be a whole number"),
        ("results: 2026", 'job.yaml:4: results: 2026: must be text; put it in quotes: "2026"'),
        ("sampling:", "job.yaml:4: sampling: null: must be a `key: value` mapping; give a value"),
        ("tasks: AIME24", 'job.yaml:4: tasks: "AIME24": must be a list, as in [one, two]'),
        ("engine:\n  kind: vlm", 'job.yaml:5: engine.kind: "vlm": must be vllm or endpoint'),
        ("engine:\n  replicas: two", 'job.yaml:5: engine.replicas: "two": must be a whole number or auto'),
        ("tasks:\n- AIME24\n- seeds: 3", "job.yaml:6: tasks[1].name: is missing; add it"),
        ("tasks:\n- AIME24\n- 3", "job.yaml:6: tasks[1]: 3: is not a task; write its name"),
        ("limit: 0", "job.yaml:4: limit: 0: must be greater than or equal to 1"),
        ("sampling: {temperature: 2.1}", "job.yaml:4: sampling.temperature: 2.1: must be less than"),
        ("sampling: {top_p: 0}", "job.yaml:4: sampling.top_p: 0: must be greater than 0"),
        ("keep_generations: nein", 'job.yaml:4: keep_generations: "nein": must be true or false'),
    ],
)  # fmt: skip
def test_an_error_names_file_line_key_value_and_what_to_do(job_file: Path, extra: str, message: str) -> None:
    assert refusal(job_file, HEAD + extra).removeprefix(f"{job_file.parent}/").startswith(message)


@pytest.mark.parametrize("key", ["experiment", "checkpoint"])
def test_a_required_key_that_is_missing_is_named(job_file: Path, key: str) -> None:
    text = "".join(line for line in HEAD.splitlines(keepends=True) if not line.startswith(key))
    assert refusal(job_file, text) == f"{job_file}: {key}: is missing; add it"


@pytest.mark.parametrize(
    ("extra", "hint"),
    [
        ("sampling: {temprature: 1}", "sampling.temprature: unknown key; did you mean temperature?"),
        ("Seeds: 3", "Seeds: unknown key; did you mean seeds?"),
        ("keep-generations: true", "keep-generations: unknown key; did you mean keep_generations?"),
        ("temperature: 0.7", "temperature: unknown key; did you mean sampling.temperature or"),
        ("max_tokens: 9", "did you mean sampling.max_tokens or max_tokens in an entry of tasks?"),
        ("max_gen_toks: 9", "max_gen_toks: unknown key; did you mean sampling.max_tokens or"),
        ("num_fewshot: 5", "num_fewshot in an entry of tasks?"),
        ("engine: {limit: 5}", "engine.limit: unknown key; did you mean limit at the top level?"),
        ("tasks: [{name: AIME24, seed: 3}]", "tasks[0].seed: unknown key; did you mean seeds?"),
        ("sampling: {qqq: 1}", "the keys here are temperature, top_p, max_tokens, seed_policy"),
    ],
)
def test_an_unknown_key_gets_the_nearest_valid_name(job_file: Path, extra: str, hint: str) -> None:
    message = refusal(job_file, HEAD + extra)
    assert message.startswith(f"{job_file}:4: ")
    assert hint in message


def test_a_misspelled_required_key_is_reported_as_the_misspelling(job_file: Path) -> None:
    message = refusal(job_file, HEAD.replace("checkpoint", "checkpont"))
    assert message == f"{job_file}:2: checkpont: unknown key; did you mean checkpoint?"


# ── YAML surprises ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("word", ["no", "No", "NO", "off", "n", "yes", "on", "Y", "oN"])
def test_words_that_some_readers_take_for_booleans_are_refused(job_file: Path, word: str) -> None:
    for key in ("model_name", "keep_generations"):
        message = refusal(job_file, HEAD + f"{key}: {word}\n")
        assert message.startswith(f"{job_file}:4: {key}: {word}: some YAML readers take it for ")
        assert message.endswith("if it is text, put it in quotes")
    assert load(job_file, HEAD + f'model_name: "{word}"\n').model_name == word


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("1e-5", "write 0.00001,"),
        ("1E-5", "write 0.00001,"),
        ("1e0", "write 1,"),
        ("5.0e-1", None),
        ("1.5e-1", None),
        ("1.5e1", "write 15,"),
        ("1e-400", "write a number of ordinary size"),
        ("1e999999999999999999999", "write a number of ordinary size"),
        ("1.0e+400", "write a number of ordinary size"),
        ("0:30", "in sixties"),
        ("00.5", None),
        (".5", None),
        ("0_1", "underscores"),
        ("0.5_0", "underscores"),
        ("010", "octal"),
        ("0o7", "octal"),
        ("0b1", "binary"),
        (".nan", "not a finite number"),
        ("-.Inf", "not a finite number"),
        ("+1", None),
        ("0x1", None),
        ("1.", None),
    ],
)
def test_a_number_is_a_number_to_every_yaml_reader_or_refused(job_file: Path, value: str, hint: str | None) -> None:
    text = HEAD + f"sampling:\n  temperature: {value}\n"
    if hint is None:
        expected = 1.0 if value == "0x1" else float(value)
        assert load(job_file, text).sampling.temperature == expected
        return
    message = refusal(job_file, text)
    assert message.startswith(f"{job_file}:5: sampling.temperature: {value}: ")
    assert hint in message


@pytest.mark.parametrize(
    "value", ["12:00:00", "1:30", "-1:30.5", "2026_08", "1_000", "0777", "08", "2026-1-1 10:00:00", "="]
)  # fmt: skip
def test_text_that_some_readers_take_for_something_else_needs_quotes(job_file: Path, value: str) -> None:
    assert "in quotes" in refusal(job_file, HEAD + f"model_name: {value}\n")
    assert load(job_file, HEAD + f"model_name: '{value}'\n").model_name == value


@pytest.mark.parametrize(
    "value", ["1.2.3", "a_b", "v1_0", "12:00:00Z", "nope", "3x", "1,000", "a:b", "2026-01", "exp=1e-5", "a#b"]
)
def test_ordinary_text_needs_no_quotes(job_file: Path, value: str) -> None:
    assert load(job_file, HEAD + f"model_name: {value}\n").model_name == value


def test_the_template_date_wants_quotes_and_a_real_day(job_file: Path) -> None:
    assert "in quotes" in refusal(job_file, HEAD + "template_date: 2026-01-01\n")
    for day in ("2026-02-30", "20260101", "2026-1-1", "2026-W01-1", "2026-01-01T00:00", "today"):
        assert "is not a day of the calendar" in parse_refusal(template_date=day)


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("experiment: a\n\nexperiment: b\n", 3, "experiment: duplicate key, first at job.yaml:1; keep one"),
        ("sampling:\n  top_p: 1\n  top_p: 0.5\n", 3, "sampling.top_p: duplicate key, first at job.yaml:2"),
        ("sampling: {top_p: 1, 'top_p': 1}\n", 1, "sampling.top_p: duplicate key"),
        ("a: &x 3\nb: *x\n", 1, "a: anchors (&) and aliases (*) are not read"),
        ("a:\n- *x\n", 2, "a[0]: anchors (&) and aliases (*) are not read"),
        ("<<: {a: 1}\n", 1, "<<: some YAML readers"),
        ("a: !!str 3\n", 1, "a: tags (!) are not read"),
        ("a: !!python/object/apply:os.system [ls]\n", 1, "a: tags (!) are not read"),
        ("a: 1\n---\nb: 2\n", 2, "a second document starts here"),
        ("a: 1\n...\nb: 2\n", 3, "a second document starts here"),
        ("%YAML 1.1\n---\na: no\n", 2, "a % directive"),
        ("%TAG ! x:\n---\na: 1\n", 2, "a % directive"),
        ("a: [1,\n  2\n", 3, "is not YAML (expected ',' or ']'"),
        ("a: b: c\n", 1, "is not YAML (mapping values are not allowed here)"),
        ("a: 1\n b: 2\n", 2, "is not YAML ("),
        ("a:\n\t- b\n", 2, "is not YAML ("),
        ("a: 'x\n", 2, "is not YAML (found unexpected end of stream)"),
        ('a: "\\UFFFFFFFF"\n', 1, "is not YAML ("),
        ("a: \0\n", 1, "is not YAML (special characters are not allowed)"),
        ('a: "\\0"\n', 1, "a: holds a character that no file can"),
        ('a: "\\ud800"\n', 1, "a: holds a character that no file can"),
        ("1: a\n", 1, "1: a key must be text"),
        ("null: a\n", 1, "null: a key must be text"),
        ("? [a]\n: b\n", 1, "a key must be text"),
        ("on: a\n", 1, "on: some YAML readers take it for true"),
        ("{a: " * 30, 1, "more than 20000 values or 20 levels"),
        ("{" * 30, 1, "a key must be text"),
        ("- " * 30 + "x\n", 1, "more than 20000 values or 20 levels"),
        ("[" * 1000, 1, "more than 20000 values or 20 levels"),
    ],
)
def test_what_is_not_plain_yaml_is_refused_with_its_line(
    job_file: Path, monkeypatch: pytest.MonkeyPatch, text: str, line: int, what: str
) -> None:
    monkeypatch.chdir(job_file.parent)
    job_file.write_text(text)
    with pytest.raises(JobError) as caught:
        load_job(Path("job.yaml"))
    assert one_paragraph(caught.value).startswith(f"job.yaml:{line}: {what}")


def test_a_file_of_very_many_values_is_refused(job_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("entrypoint.yaml_file.MAX_VALUES", 100)
    assert "more than 100 values or 20 levels" in refusal(job_file, "a: [" + "1," * 100 + "]\n")
    assert load(job_file, HEAD + "seeds: [" + ", ".join(map(str, range(1, 80))) + "]\n").suite == "math"


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n", "null\n"])
def test_an_empty_file_is_called_empty(job_file: Path, text: str) -> None:
    assert refusal(job_file, text) == f"{job_file}: is empty; write at least one `key: value` line"


@pytest.mark.parametrize("text", ["just text", "[a, b]", "- a\n- b\n", "3", '"a: b"'])
def test_a_top_level_that_is_no_mapping_is_refused(job_file: Path, text: str) -> None:
    assert "has no `key: value` lines at its top level" in refusal(job_file, text)


def test_a_file_that_is_not_utf8_is_refused_with_its_line(job_file: Path) -> None:
    assert refusal(job_file, b"a: 1\nb: \xff\n") == f"{job_file}:2: is not UTF-8 text; save the file as UTF-8"
    assert "is not UTF-8 text" in refusal(job_file, HEAD.encode("utf-16"))


def test_a_file_of_more_than_a_megabyte_is_refused(job_file: Path) -> None:
    assert "is larger than 1000000 bytes" in refusal(job_file, HEAD.encode() + b"#" * 1_000_000)


def test_a_missing_file_a_folder_and_a_broken_name_are_refused(tmp_path: Path) -> None:
    for path, what in (
        (tmp_path / "none.yaml", "no such file"),
        (tmp_path, "is a directory"),
        (tmp_path / ("x" * 300), "can't be read (File name too long)"),
        (Path("a\0b\nc"), "can't be read"),
    ):
        with pytest.raises(JobError) as caught:
            load_job(path)
        assert what in one_paragraph(caught.value)


def test_a_file_without_read_rights_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(JobError, match=r"can't be read \(Permission denied\)"):
        load_job(tmp_path / "job.yaml")


# ── Rules of single fields ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("given_seeds", "seeds"),
    [
        (1, (42,)),
        (3, (42, 43, 44)),
        (1000, seeds_from(1000)),
        ([44, 42], (44, 42)),
        ([1], (1,)),
        ([MAX_INT], (MAX_INT,)),
    ],
)
def test_seeds_are_a_count_from_42_or_a_list_in_its_order(given_seeds: Any, seeds: tuple[int, ...]) -> None:
    assert parse_job(MINIMAL | {"seeds": given_seeds}, "job").seeds == seeds
    assert parse_job(with_value("tasks.0.seeds", given_seeds), "job").tasks[0].seeds == seeds


@pytest.mark.parametrize(
    ("seeds", "what"),
    [
        ([42, 42, 43], "seed 42 is given twice"),
        (0, "a count of seeds is between 1 and 1000"),
        (-1, "a count of seeds is between 1 and 1000"),
        (1001, "a count of seeds is between 1 and 1000"),
        (10**30, "a count of seeds is between 1 and 1000"),
        ([], "a list of seeds has between 1 and 1000 entries"),
        (list(range(1, 1002)), "a list of seeds has between 1 and 1000 entries"),
        ([0], "0 is not a seed"),
        ([-1], "-1 is not a seed"),
        ([MAX_INT + 1], "2147483648 is not a seed"),
        ([True], "True is not a seed"),
        ([42.0], "42.0 is not a seed"),
        (["42"], "'42' is not a seed"),
        ([[42]], "[42] is not a seed"),
        (True, "must be a count"),
        ("42", "must be a count"),
        ({"count": 3}, "must be a count"),
    ],
)
def test_seeds_that_would_count_one_run_twice_or_mean_nothing_are_refused(seeds: Any, what: str) -> None:
    message = parse_refusal(seeds=seeds)
    assert message.startswith("job: seeds: ")
    assert f": {what}" in message
    assert "tasks[0].seeds: " in parse_refusal(tasks=[{"name": "AIME24", "seeds": seeds}])


@pytest.mark.parametrize(
    "name",
    ["", " ", "a/b", "a\\b", ".", "..", ".a", "_a", "-a", "a\0", "a\nb", " a", "a ", "\u202ea", "é" * 101],
)  # fmt: skip
def test_experiment_and_task_names_are_one_safe_path_component(name: str) -> None:
    assert parse_refusal(experiment=name).startswith("job: experiment: ")
    assert parse_refusal(tasks=[name]).startswith("job: tasks[0]")


@pytest.mark.parametrize("name", ["a", "exp.1", "exp_sft-x", "lr=1e-5,b", "實驗", "x" * 200, "a b", "step-300x"])
def test_other_experiment_names_are_kept_as_they_are(name: str) -> None:
    assert parse_job(MINIMAL | {"experiment": name}, "job").experiment == name


@pytest.mark.parametrize("name", ["exp-step300", "exp-step0900", "exp-limit5", "e-step3"])
def test_an_experiment_that_carries_its_step_or_limit_is_refused_with_the_reason(name: str) -> None:
    message = parse_refusal(experiment=name)
    assert re.search(r"-(step|limit)\d+ is added .*leave it out$", message)


@pytest.mark.parametrize("path", ["~", "~/x", "~user/x", "$HOME/x", "${SCRATCH}/x", "/a/${B}/c", "", "  ", "a\nb"])
@pytest.mark.parametrize("key", ["checkpoint", "results", "data", "chat_template"])
def test_paths_are_not_expanded_so_what_looks_like_it_is_refused(key: str, path: str) -> None:
    assert parse_refusal(**{key: path}).startswith(f"job: {key}: ")


def test_hub_ids_are_left_to_the_checkpoint_stage() -> None:
    assert parse_job(MINIMAL | {"checkpoint": "Qwen/Qwen3-8B"}, "job").checkpoint == "Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    "url", ["x", "h:8000", "ftp://h", "http://", "http://h:port", "http://h:99999", "http://a b", "http://[x"]
)
def test_a_url_has_to_be_one_of_a_server(url: str) -> None:
    message = parse_refusal(engine={"kind": "endpoint", "url": url})
    assert message.startswith("job: engine.url: ")
    assert "write it as http://host:8000" in message


def test_a_key_that_was_written_into_the_job_is_not_repeated(job_file: Path) -> None:
    secret = "sk-abc-123"
    text = HEAD + f"engine: {{kind: endpoint, url: 'http://h', api_key_env: {secret}}}\n"
    assert secret not in refusal(job_file, text)
    assert secret not in refusal(job_file, HEAD + f"engine: {{kind: endpoint, url: 'http://u:{secret}@h'}}\n")
    assert secret not in refusal(job_file, HEAD, f"engine.api_key_env={secret}")
    assert secret not in refusal(job_file, HEAD, f"engine.api_key={secret}")
    assert secret not in refusal(job_file, HEAD, f"engine={{api_key: {secret}}}")
    assert secret not in refusal(job_file, HEAD, "engine.kind=endpoint", f"engine.url=http://u:{secret}@h")


@pytest.mark.parametrize("value", [float("nan"), {"a": [float("inf")]}, {1}, object(), {"a": {1: 2}}])
def test_template_arguments_are_what_json_can_carry(value: Any) -> None:
    assert parse_refusal(chat_template_kwargs={"a": value}).startswith("job: chat_template_kwargs")


# ── Rules over several fields ──────────────────────────────────────────────────────────────────────────


def test_suite_and_suites_exclude_each_other() -> None:
    assert 'suites: ["code"]: suite and suites are both given' in parse_refusal(suites=["code"])


def test_a_job_names_something_to_evaluate() -> None:
    bare = {key: value for key, value in MINIMAL.items() if key != "suite"}
    with pytest.raises(JobError, match=r"^job: nothing to evaluate; give suite, suites or tasks$"):
        parse_job(bare, "job")
    with pytest.raises(JobError, match="nothing to evaluate"):
        parse_job(bare | {"suites": [], "tasks": []}, "job")
    assert parse_job(bare | {"tasks": ["AIME24"]}, "job").suite_names == ()


def test_a_task_or_suite_named_twice_is_refused_at_the_second(job_file: Path) -> None:
    message = refusal(job_file, HEAD + "tasks:\n- AIME24\n- {name: AIME24, seeds: 3}\n")
    assert message.startswith(f"{job_file}:6: tasks[1]: ")
    assert message.endswith("AIME24 is named twice; name it once")
    text = HEAD.replace("suite: math", "suites: [math, code, math]")
    assert f'{job_file}:3: suites[2]: "math": math is named twice' in refusal(job_file, text)


@pytest.mark.parametrize(
    ("engine", "what"),
    [
        ({"kind": "endpoint"}, "engine: an endpoint needs exactly one of url and socket"),
        ({"kind": "endpoint", "url": "http://h", "socket": "/s"}, "engine: an endpoint needs exactly one"),
        ({"kind": "endpoint", "socket": "/s", "command": ["x"]}, "engine.command: ["),
        ({"url": "http://h"}, 'engine.url: "http://h": only for kind: endpoint'),
        ({"socket": "/s"}, 'engine.socket: "/s": only for kind: endpoint'),
        ({"model": "m"}, 'engine.model: "m": only for kind: endpoint'),
        ({"api_key_env": "KEY"}, 'engine.api_key_env: "KEY": only for kind: endpoint'),
    ],
)
def test_engine_keys_belong_to_their_kind(engine: dict[str, Any], what: str) -> None:
    assert parse_refusal(engine=engine).startswith(f"job: {what}")


@pytest.mark.parametrize("tokens", [4096, 5000])
def test_an_answer_has_to_leave_room_for_its_prompt(tokens: int) -> None:
    engine = {"max_model_len": 4096}
    message = parse_refusal(engine=engine, sampling={"max_tokens": tokens})
    assert message.startswith(f"job: sampling.max_tokens: {tokens}: leaves no room for a prompt")
    message = parse_refusal(engine=engine, tasks=[{"name": "AIME24", "max_tokens": tokens}])
    assert message.startswith(f"job: tasks[0].max_tokens: {tokens}: leaves no room for a prompt")


def test_the_default_answer_length_is_not_held_against_a_short_context() -> None:
    job = parse_job(MINIMAL | {"engine": {"max_model_len": 4096}, "sampling": {"temperature": 1}}, "job")
    assert job.engine.max_model_len == 4096
    parse_job(MINIMAL | {"engine": {"max_model_len": 4096}, "sampling": {"max_tokens": 4095}}, "job")


# ── Overrides ──────────────────────────────────────────────────────────────────────────────────────────


def test_overrides_replace_values_and_the_last_one_wins(job_file: Path) -> None:
    job = load(
        job_file,
        HEAD + "seeds: [1, 2]\nengine: {profile: h100-80g, dtype: float16}\n",
        "engine.profile=cpu",
        "seeds=3",
        "seeds=2",
        "tasks=[AIME24, {name: MATH500, seeds: 3}]",
        "sampling.temperature=0.5",
        "chat_template_kwargs.enable_thinking=false",
        "experiment=a=b",
        "model_name=null",
    )
    assert (job.engine.profile, job.engine.dtype) == ("cpu", "float16")
    assert job.seeds == (42, 43)
    assert [task.name for task in job.tasks] == ["AIME24", "MATH500"]
    assert job.sampling.temperature == 0.5
    assert job.chat_template_kwargs == {"enable_thinking": False}
    assert job.experiment == "a=b"


def test_an_override_can_repair_a_wrong_or_missing_value(job_file: Path) -> None:
    assert load(job_file, HEAD + "limit: many\n", "limit=3").limit == 3
    text = HEAD.replace("checkpoint: /data/run/hf/step-300\n", "")
    assert load(job_file, text, "checkpoint=/data/step-1").checkpoint == "/data/step-1"


def test_setting_suite_replaces_suites_and_the_other_way_round(job_file: Path) -> None:
    many = HEAD.replace("suite: math", "suites: [math, science]")
    assert load(job_file, many, "suite=code").suite_names == ("code",)
    assert load(job_file, HEAD, "suites=[code, delphi]").suite_names == ("code", "delphi")
    assert load(job_file, HEAD, "suite=null", "tasks=[AIME24]").suite_names == ()
    message = refusal(job_file, HEAD, "suite=code", "suites=[math]")
    assert message == "--set suites=[math]: suite is set as well; set one of them"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("engine.profil=cpu", "engine.profil: unknown key; did you mean profile?"),
        ("engin.profile=cpu", "engin: unknown key; did you mean engine?"),
        ("sampling.temperature=hot", 'sampling.temperature: "hot": must be a valid number'),
        ("sampling.temperature=1e-5", "1e-5: some YAML readers take it for text; write 0.00001, or"),
        ("model_name=no", "no: some YAML readers take it for false"),
        ("seeds=[42,42]", "seeds: [42, 42]: seed 42 is given twice"),
        ("limit=2026_08", "2026_08: some YAML readers drop the underscores"),
        ("seeds=[1", "is not YAML ("),
        ("seeds=", "has no value; write null to unset the key"),
        ("seeds= ", "has no value; write null to unset the key"),
        ("seeds", "is not key=value; write it as --set engine.profile=cpu"),
        ("=3", "is not key=value"),
        ("engine..profile=cpu", "is not key=value"),
        ("experiment.x=3", "experiment has no keys of its own; set experiment as a whole"),
        ("tasks.0=AIME24", "tasks: "),
        ("sampling={top_p: 1, top_p: 1}", "top_p: duplicate key"),
        ("limit=&a 3", "anchors (&)"),
        ("limit=!!int 3", "tags (!)"),
        ("engine.kind=endpoint", "engine: an endpoint needs exactly one"),
    ],
)
def test_a_wrong_override_is_named_as_it_was_given(job_file: Path, override: str, message: str) -> None:
    found = refusal(job_file, HEAD, override)
    if override.startswith("tasks.0"):
        # A mapping where a list belongs: an override makes mappings, never lists.
        assert found.startswith("--set tasks.0=AIME24: tasks: ")
        return
    assert found.startswith(f"--set {override}: {message}")


def test_an_override_of_an_entry_in_a_list_is_refused(job_file: Path) -> None:
    found = refusal(job_file, HEAD + "tasks: [AIME24]\n", "tasks.0.seeds=3")
    assert found == "--set tasks.0.seeds=3: tasks has no keys of its own; set tasks as a whole"


def test_an_error_elsewhere_still_names_the_file_after_an_override(job_file: Path) -> None:
    found = refusal(job_file, HEAD + "engine: {dtype: int8}\n", "engine.profile=cpu")
    assert found.startswith(f'{job_file}:4: engine.dtype: "int8": must be ')


# ── The schema ─────────────────────────────────────────────────────────────────────────────────────────


def allows(schema: dict[str, Any], value: Any, root: dict[str, Any]) -> bool:
    """Whether a JSON schema allows a value, for the keywords of the job schema (others fail)."""
    if "$ref" in schema:
        return allows(root["$defs"][schema["$ref"].removeprefix("#/$defs/")], value, root)
    if "anyOf" in schema:
        return any(allows(option, value, root) for option in schema["anyOf"])
    known = {
        "type",
        "enum",
        "const",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "minItems",
        "items",
        "properties",
    }
    known |= {"required", "additionalProperties", "title", "description", "default", "$defs", "$schema"}
    assert set(schema) <= known, schema
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    types = {
        "null": value is None,
        "boolean": isinstance(value, bool),
        "integer": number and float(value).is_integer(),
        "number": number,
        "string": isinstance(value, str),
        "array": isinstance(value, list),
        "object": isinstance(value, dict),
    }
    if "type" in schema and not types[schema["type"]]:
        return False
    if ("enum" in schema and value not in schema["enum"]) or value != schema.get("const", value):
        return False
    if number:
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        return bool(low <= value <= high and value > schema.get("exclusiveMinimum", value - 1))
    if isinstance(value, list):
        items = all(allows(schema.get("items", {}), item, root) for item in value)
        return items and len(value) >= schema.get("minItems", 0)
    if isinstance(value, dict):
        return allows_mapping(schema, value, root)
    return True


def allows_mapping(schema: dict[str, Any], value: dict[str, Any], root: dict[str, Any]) -> bool:
    if not set(schema.get("required", ())) <= set(value):
        return False
    properties, other = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name, item in value.items():
        if name not in properties and other is False:
            return False
        if not allows(properties.get(name, other if isinstance(other, dict) else {}), item, root):
            return False
    return True


def test_the_schema_is_json_and_describes_every_field() -> None:
    schema = job_schema()
    assert json.loads(json.dumps(schema, allow_nan=False)) == schema
    sections = {"JobSpec": schema} | {name: each for name, each in schema["$defs"].items() if each}
    assert set(sections) >= {"JobSpec", "Sampling", "EngineSpec", "GraderSpec", "TaskSpec"}
    for name, section in sections.items():
        assert section["additionalProperties"] is False, name
        for key, field in section["properties"].items():
            described = field if "$ref" not in field else schema["$defs"][field["$ref"].split("/")[-1]]
            assert len(described["description"]) > 5, f"{name}.{key}"


@pytest.mark.parametrize("key", ACCEPTED)
def test_the_schema_allows_what_a_job_may_say(key: str) -> None:
    schema = job_schema()
    values = [POOL[kind] for kind in ACCEPTED[key]] + ([GOOD[key]] if key in GOOD else [])
    assert values
    for value in values:
        assert allows(schema, with_value(key, value), schema), value
        parse_job(with_value(key, value), "job")


@pytest.mark.parametrize("key", ACCEPTED)
def test_the_schema_refuses_values_of_another_type(key: str) -> None:
    schema = job_schema()
    for kind in ("bool", "int", "float", "list", "list of ints", "empty mapping"):
        if kind not in ACCEPTED[key]:
            allowed = allows(schema, with_value(key, POOL[kind]), schema)
            assert not allowed or (key, kind) in {("sampling.temperature", "int")}, kind


def test_the_schema_refuses_unknown_and_missing_keys() -> None:
    schema = job_schema()
    assert allows(schema, MINIMAL, schema)
    assert not allows(schema, MINIMAL | {"sead": 3}, schema)
    assert not allows(schema, {"experiment": "x"}, schema)


# ── Anything at all ────────────────────────────────────────────────────────────────────────────────────

YAML_ALPHABET = st.sampled_from("abn01e.-_:,[]{}'\"#&*!|>%@?~= \n\t\r\\\u2028\ufeffé\x85")
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from([*JobSpec.model_fields, "sead", ""])
RELAXED = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def is_job_or_refusal(path: Path, raw: bytes, *overrides: str) -> None:
    path.write_bytes(raw)
    try:
        assert isinstance(load_job(path, overrides), JobSpec)
    except JobError as error:
        one_paragraph(error)


@RELAXED
@given(raw=st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode(errors="replace")))
def test_any_bytes_are_a_job_or_a_refusal(job_file: Path, raw: bytes) -> None:
    is_job_or_refusal(job_file, raw)


@RELAXED
@given(text=st.text(YAML_ALPHABET, max_size=60))
def test_any_yaml_like_text_is_a_job_or_a_refusal(job_file: Path, text: str) -> None:
    is_job_or_refusal(job_file, text.encode())
    is_job_or_refusal(job_file, f"{HEAD}chat_template_kwargs: {text}".encode())
    is_job_or_refusal(job_file, HEAD.encode(), f"engine.profile={text}", text)


@RELAXED
@given(data=st.dictionaries(KEYS, VALUES, max_size=5))
def test_any_plain_values_are_a_job_or_a_refusal(job_file: Path, data: dict[str, Any]) -> None:
    for each in (data, MINIMAL | data):
        try:
            assert isinstance(parse_job(each, "job"), JobSpec)
        except JobError as error:
            one_paragraph(error)
        is_job_or_refusal(job_file, json.dumps(each).encode())


@RELAXED
@given(text=st.text(min_size=1, max_size=20))
def test_quoted_text_comes_back_unchanged_or_is_refused(job_file: Path, text: str) -> None:
    job_file.write_bytes((HEAD + f"system_instruction: {json.dumps(text)}\n").encode())
    try:
        assert load_job(job_file).system_instruction == text
    except JobError as error:
        one_paragraph(error)
        assert not text.isprintable() or not text.strip()


def test_plain_values_of_any_other_kind_are_refused() -> None:
    for data in (None, 3, "text", [], [MINIMAL], {1: 2}, object()):
        with pytest.raises(JobError, match=r"^job: "):
            parse_job(data, "job")
