"""Every request of a trial is known before an engine starts: right, repeatable to the byte, and refused by name if not.

lm-eval 0.4.13: its few-shot draw follows the run's seed, so trials would ask different prompts; `repeats` asks the same
request again; prompts over the budget are cut from the left without a word. A benchmark that asks its second question
from the first answer (a multi-turn task) can't be written down at all. All of it runs in the real harness child.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from entrypoint.errors import CheckpointError, EvalcrateError, HarnessError
from entrypoint.sandbox import ChildJob, ask_child

ROOT = Path(__file__).parents[2]
ADDER = ROOT / "examples/checkpoints/adder/hf/step-300"
CHATML = (ADDER / "chat_template.jinja").read_text(encoding="utf-8")
END = "<|im_end|>"
SEEDS = (42, 43)
SAMPLES = 4
SAMPLING = {"temperature": 0.7, "top_p": 1.0, "max_tokens": 16, "seed_policy": "per_sample"}

ROWS = f"""
import datasets

def load(**_):
    def rows(first, count):
        numbers = range(first, first + count)
        return datasets.Dataset.from_list([dict(question=f"{{n}}+{{n}}=", answer=str(n + n)) for n in numbers])
    return {{"train": rows(100, 30), "test": rows(0, {SAMPLES})}}
"""
TASK = """
task: {name}
custom_dataset: !function rows.load
test_split: test
fewshot_split: train
output_type: {kind}
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: {metric}}}]
metadata: {{version: 1.0}}
"""
UNTIL = 'generation_kwargs: {until: ["\\n\\n", "Q:"]}\n'

# As much of evalchemy as its tasks are loaded with: a TaskManager that makes the one benchmark asked for.
EVALCHEMY = """
import os
from lm_eval.api.instance import Instance


class Benchmark:
    n_repeat = 1

    def __init__(self, seed, max_tokens, system_instruction):
        self.seed, self.max_tokens, self.system_instruction = seed, max_tokens, system_instruction

    def load_questions(self):
        return [{"question": f"{n}+{n}=", "answer": str(n + n)} for n in range(3)]

    def ask(self, model, questions, seed=None, number=None):
        asked = []
        for n, question in enumerate(questions):
            prompt = model.apply_chat_template([{"role": "user", "content": question}])
            settings = {"seed": self.seed[0] if seed is None else seed, "max_gen_toks": self.max_tokens}
            asked.append(Instance("generate_until", {}, (prompt, settings), n if number is None else number))
            asked[-1].doc_id = n if number is None else number
        return model.generate_until(asked)

    def generate_responses(self, model):
        examples = self.load_questions()
        self.play(model, [example["question"] for example in examples])
        return {"examples": examples}


class OneRound(Benchmark):
    def play(self, model, questions):
        self.ask(model, questions)


class TwoRounds(Benchmark):
    def play(self, model, questions):
        for answer in self.ask(model, questions[:1]):
            self.ask(model, [f"You said {answer!r}; are you sure?"], number=1)


class MoreWhenWrong(Benchmark):
    def play(self, model, questions):
        answers = self.ask(model, questions[:1])
        if "1" in answers[0]:
            self.ask(model, questions[1:2], number=1)


class OtherSeed(Benchmark):
    def play(self, model, questions):
        self.ask(model, questions, seed=self.seed[0] + 1)


class Twice(Benchmark):
    def play(self, model, questions):
        self.ask(model, questions)
        self.ask(model, questions)


class Mute(Benchmark):
    def play(self, model, questions):
        pass


class Crashing(Benchmark):
    def play(self, model, questions):
        raise ValueError("no such subject")


class Ending(Benchmark):
    def play(self, model, questions):
        os._exit(3)


class NoGold(Benchmark):
    def load_questions(self):
        return [{"question": "1+1=", "answer": ""}]

    def play(self, model, questions):
        self.ask(model, questions)


class TaskManager:
    def __init__(self, task_list, max_tokens, seed, system_instruction):
        self.made = {name: globals()[name](seed, max_tokens, system_instruction) for name in task_list}

    def get_benchmark(self, name):
        return self.made[name]
"""


def write_tasks(folder: Path) -> Path:
    """One lm-eval folder with all the tasks of this file."""
    texts = {
        "sums": TASK.format(name="sums", kind="generate_until", metric="exact_match") + UNTIL,
        "repeated": TASK.format(name="repeated", kind="generate_until", metric="exact_match") + UNTIL + "repeats: 2\n",
        "likelihood": TASK.format(name="likelihood", kind="loglikelihood", metric="acc"),
        "choice": TASK.format(name="choice", kind="multiple_choice", metric="acc") + 'doc_to_choice: ["0", "2"]\n',
    }
    folder.mkdir()
    (folder / "rows.py").write_text(ROWS)
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


def write_tree(folder: Path) -> Path:
    (folder / "eval").mkdir(parents=True)
    (folder / "eval/__init__.py").touch()
    (folder / "eval/task.py").write_text(EVALCHEMY)
    for name in re.findall(r"class (\w+)\(Benchmark\)", EVALCHEMY):
        (folder / "eval/chat_benchmarks" / name).mkdir(parents=True)
        (folder / "eval/chat_benchmarks" / name / "eval_instruct.py").touch()
    return folder


class Collector:
    """Jobs for one harness child, and afterwards what came of each by its label."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tasks, self.tree = write_tasks(folder / "tasks"), write_tree(folder / "tree")
        self.jobs: dict[str, ChildJob] = {}
        self.answers: dict[str, dict[str, Any] | EvalcrateError] = {}

    def add(self, label: str, task: str = "sums", harness: str = "lm_eval", **changes: Any) -> None:
        """`changes` are to the spec, or to its task or sampling where those have the key."""
        source: dict[str, Any] = {
            "name": task,
            "harness": harness,
            "folder": str(self.tasks if harness == "lm_eval" else self.tree),
            "num_fewshot": 0,
            "fewshot_seed": 1234,
            "limit": None,
            "system_instruction": None,
            "chat": True,
            "data": [],
            "options": {},
            "cores": 1,
        }
        spec: dict[str, Any] = {
            "task": source | {key: value for key, value in changes.items() if key in source},
            "seeds": list(SEEDS),
            "sampling": SAMPLING | {key: value for key, value in changes.items() if key in SAMPLING},
            "checkpoint": str(ADDER),
            "template": CHATML,
            "template_kwargs": {},
            "template_date": "2026-01-01",
            "think_end_token": None,
            "trust_remote_code": False,
            "stop_token_ids": [258],
            "max_model_len": 512,
            "on_overlong": "refuse",
            "out": str(self.folder / "private" / "out" / label),
        }
        spec |= {key: value for key, value in changes.items() if key not in source and key not in SAMPLING}
        Path(spec["out"]).mkdir(parents=True)
        self.jobs[label] = ChildJob(task=task, spec=spec, log=self.folder / f"{label}.log")

    def run(self) -> None:
        private = self.folder / "private"
        jobs = list(self.jobs.values())
        log = self.folder / "child.log"
        read = [path for job in jobs for path in (job.spec["checkpoint"], job.spec["task"]["folder"])]
        found = ask_child("collect", jobs, private=private, log=log, timeout_s=300, read=read, parallel=2)
        self.answers = dict(zip(self.jobs, found, strict=True))

    def facts(self, label: str, seed: int) -> dict[str, Any]:
        answer = self.answers[label]
        assert isinstance(answer, dict), answer
        facts: dict[str, Any] = answer[str(seed)]
        return facts

    def refusal(self, label: str) -> str:
        answer = self.answers[label]
        assert isinstance(answer, HarnessError), answer
        return str(answer)

    def requests(self, label: str, seed: int = SEEDS[0]) -> list[dict[str, Any]]:
        assert isinstance(self.answers[label], dict), self.answers[label]
        file = self.folder / "private" / "out" / label / f"seed{seed}.jsonl"
        return [json.loads(line) for line in file.read_bytes().splitlines()]

    def prompts(self, label: str, seed: int = SEEDS[0]) -> list[str]:
        return [row["prompt"] for row in self.requests(label, seed)]

    def chats(self, label: str) -> dict[str, str]:
        file = self.folder / "private" / "out" / label / "chats.jsonl"
        rows = [json.loads(line) for line in file.read_bytes().splitlines()]
        return {row["chat"]: row["text"] for row in rows}


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Collector:
    """All of this file's collecting, in one child: its imports take far longer than its work."""
    collector = Collector(tmp_path_factory.mktemp("collect"))
    collector.add("plain")
    collector.add("shared", seed_policy="shared")
    collector.add("fewshot", num_fewshot=2)
    collector.add("other draw", num_fewshot=2, fewshot_seed=99)
    collector.add("no chat", num_fewshot=2, chat=False)
    collector.add("limited", limit=2)
    collector.add("instructed", system_instruction="Be brief.")
    collector.add("thinking", think_end_token="</think>")
    template = "{{ strftime_now('%F') }} {{ size }} {{ enable_thinking is defined }}"
    collector.add("template", template=template, template_kwargs={"size": 7})
    collector.add("cut", max_model_len=36, on_overlong="truncate")
    collector.add("overlong", max_model_len=36)
    collector.add("bad template", template="{{ raise_exception('roles must alternate') }}")
    collector.add("no tokenizer", checkpoint=str(collector.tasks))
    for task in ("repeated", "likelihood", "choice", "absent"):
        collector.add(task, task)
    for task in re.findall(r"^class (\w+)\(Benchmark\)", EVALCHEMY, re.MULTILINE):
        collector.add(task, task, "evalchemy", seed_policy="shared")
    collector.run()
    return collector


def chatml(*contents: str) -> str:
    """A chat of user and assistant in turn that asks for the next answer."""
    turns = [f"<|im_start|>{('user', 'assistant')[n % 2]}\n{text}{END}\n" for n, text in enumerate(contents)]
    return "".join(turns) + "<|im_start|>assistant\n"


def canonical_sha256(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


# ---- prompts ----


def test_every_sample_is_asked_once_in_data_set_order(collected: Collector) -> None:
    for seed in SEEDS:
        rows = collected.requests("plain", seed)
        assert [(row["task"], row["seed"], row["sample"]) for row in rows] == [
            ("sums", seed, n) for n in range(SAMPLES)
        ]
        assert collected.prompts("plain", seed) == [chatml(f"{n}+{n}=") for n in range(SAMPLES)]
        assert collected.facts("plain", seed)["requests"] == SAMPLES


def test_few_shot_examples_are_turns_of_their_own(collected: Collector) -> None:
    for number, prompt in enumerate(collected.prompts("fewshot")):
        turns = [turn.partition("\n")[2] for turn in prompt.split("<|im_start|>")[1:]]
        first, first_answer, second, second_answer = (turn.removesuffix(f"{END}\n") for turn in turns[:4])
        assert prompt == chatml(first, first_answer, second, second_answer, f"{number}+{number}=")
        for question, answer in ((first, first_answer), (second, second_answer)):
            left, right = question.removesuffix("=").split("+")
            assert int(left) == int(right) >= 100
            assert answer == str(int(left) + int(right))


def test_few_shot_examples_are_the_same_in_all_trials(collected: Collector) -> None:
    assert collected.prompts("fewshot", 42) == collected.prompts("fewshot", 43)
    assert collected.prompts("other draw", 42) == collected.prompts("other draw", 43)


def test_few_shot_examples_are_drawn_by_the_few_shot_seed(collected: Collector) -> None:
    assert collected.prompts("fewshot") != collected.prompts("other draw")


def test_without_a_chat_the_prompt_is_plain_text(collected: Collector) -> None:
    for number, prompt in enumerate(collected.prompts("no chat")):
        assert "<|im_start|>" not in prompt
        assert prompt.endswith(f"\n\n{number}+{number}=")
        assert len(prompt.split("\n\n")) == 3
    assert collected.chats("no chat") == {}


def test_a_limit_keeps_the_first_samples(collected: Collector) -> None:
    assert collected.prompts("limited") == collected.prompts("plain")[:2]


def test_a_system_instruction_comes_first(collected: Collector) -> None:
    system = f"<|im_start|>system\nBe brief.{END}\n"
    assert collected.prompts("instructed") == [system + prompt for prompt in collected.prompts("plain")]


def test_the_template_its_arguments_and_its_day_are_the_jobs(collected: Collector) -> None:
    assert set(collected.prompts("template")) == {"2026-01-01 7 False"}


def test_every_rendered_chat_is_written_down_under_its_digest(collected: Collector) -> None:
    expected = {
        canonical_sha256([[{"role": "user", "content": f"{n}+{n}="}], True]): chatml(f"{n}+{n}=")
        for n in range(SAMPLES)
    }
    assert collected.chats("plain") == expected


# ---- bodies ----


def test_a_request_is_named_by_the_digest_of_its_body(collected: Collector) -> None:
    for label in ("plain", "shared", "fewshot", "cut"):
        rows = collected.requests(label)
        assert [row["id"] for row in rows] == [canonical_sha256(row["body"]) for row in rows]
        names = hashlib.sha256("\n".join(row["id"] for row in rows).encode()).hexdigest()
        assert collected.facts(label, SEEDS[0])["digest"] == names


def test_a_body_says_everything_the_sampler_needs(collected: Collector) -> None:
    for row in collected.requests("plain"):
        body = dict(row["body"])
        text = row["prompt"].replace("<|im_start|>", "S").replace(END, "E")
        assert len(body.pop("prompt")) == len(text)
        assert isinstance(body.pop("seed"), int)
        assert body == {
            "max_tokens": 16,
            "temperature": 0.7,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "n": 1,
            "stop": ["\n\n", "Q:", END],
            "stop_token_ids": [258],
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "return_token_ids": True,
        }


def test_the_tasks_stop_strings_are_kept_and_the_end_token_is_added(collected: Collector) -> None:
    assert {tuple(row["body"]["stop"]) for row in collected.requests("fewshot")} == {("\n\n", "Q:", END)}
    assert {tuple(row["body"]["stop"]) for row in collected.requests("OneRound")} == {(END,)}
    assert collected.facts("plain", 42)["stop"] == ["\n\n", "Q:", END]


def test_a_thinking_model_is_stopped_by_its_end_token_only(collected: Collector) -> None:
    """The task's stop strings stand in the thinking too; they are applied to the answer when it is graded."""
    assert {tuple(row["body"]["stop"]) for row in collected.requests("thinking")} == {(END,)}


def test_a_shared_seed_is_the_trials_own(collected: Collector) -> None:
    for seed in SEEDS:
        assert [row["body"]["seed"] for row in collected.requests("shared", seed)] == [seed] * SAMPLES


def test_a_seed_per_sample_differs_in_every_sample_and_trial(collected: Collector) -> None:
    drawn = [row["body"]["seed"] for seed in SEEDS for row in collected.requests("plain", seed)]
    assert len(set(drawn)) == len(SEEDS) * SAMPLES
    assert all(0 <= seed < 2**31 for seed in drawn)
    names = (f"{seed}\0sums\0{n}".encode() for seed in SEEDS for n in range(SAMPLES))
    assert drawn == [int.from_bytes(hashlib.sha256(name).digest()[:4], "big") >> 1 for name in names]


def test_the_seed_policy_changes_nothing_but_the_seed(collected: Collector) -> None:
    def without_seed(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "id": None, "body": {**row["body"], "seed": None}}

    assert [*map(without_seed, collected.requests("plain"))] == [*map(without_seed, collected.requests("shared"))]


# ---- the budget ----


def test_truncation_keeps_the_last_tokens(collected: Collector) -> None:
    whole, cut = collected.requests("plain"), collected.requests("cut")
    assert [len(row["body"]["prompt"]) for row in whole] == [23] * SAMPLES
    assert [row["body"]["prompt"] for row in cut] == [row["body"]["prompt"][-20:] for row in whole]
    assert [row["prompt"] for row in cut] == [row["prompt"] for row in whole]


def test_overlong_prompts_are_counted_and_left_whole_unless_the_job_says_truncate(collected: Collector) -> None:
    whole = [row["body"]["prompt"] for row in collected.requests("plain")]
    assert [row["body"]["prompt"] for row in collected.requests("overlong")] == whole
    for label in ("overlong", "cut"):
        facts = collected.facts(label, 42)
        assert (facts["overlong"], facts["budget_tokens"]) == (SAMPLES, 20)
        assert facts["prompt_tokens"] == {"min": 23, "max": 23, "total": 23 * SAMPLES}
    assert collected.facts("plain", 42)["overlong"] == 0


def test_how_bos_got_there_is_counted(collected: Collector) -> None:
    assert collected.facts("plain", 42)["bos"] == {"none": SAMPLES}


# ---- what can't be asked ----


def test_repeats_are_refused_by_name(collected: Collector) -> None:
    assert collected.refusal("repeated").startswith("repeated: repeats: 2 ")


@pytest.mark.parametrize(("task", "kind"), [("likelihood", "loglikelihood"), ("choice", "multiple_choice")])
def test_a_task_of_log_likelihoods_is_refused_by_name(collected: Collector, task: str, kind: str) -> None:
    assert collected.refusal(task).startswith(f"{task}: it is of type {kind}; only generate_until")


def test_an_unknown_task_is_refused_by_name_and_folder(collected: Collector) -> None:
    said = collected.refusal("absent")
    assert said.startswith("absent: ")
    assert str(collected.tasks) in said


def test_a_benchmark_of_one_round_is_collected(collected: Collector) -> None:
    for seed in SEEDS:
        assert collected.prompts("OneRound", seed) == [chatml(f"{n}+{n}=") for n in range(3)]
        assert [row["body"]["seed"] for row in collected.requests("OneRound", seed)] == [seed] * 3


@pytest.mark.parametrize("task", ["TwoRounds", "MoreWhenWrong"])
def test_requests_that_depend_on_earlier_answers_are_refused_with_the_reason(collected: Collector, task: str) -> None:
    said = collected.refusal(task)
    assert said.startswith(f"{task}: its requests depend on the model's earlier answers (a multi-turn task)")
    assert not list((collected.folder / "private" / "out" / task).iterdir())


def test_a_benchmark_that_asks_another_seed_is_refused(collected: Collector) -> None:
    assert collected.refusal("OtherSeed").startswith("OtherSeed: it asks seed 43 in the trial of seed 42")


def test_a_sample_asked_more_than_once_is_refused(collected: Collector) -> None:
    assert collected.refusal("Twice").startswith("Twice: it asks a sample more than once in one trial")


def test_a_benchmark_that_asks_nothing_is_refused(collected: Collector) -> None:
    assert collected.refusal("Mute").startswith("Mute: it asked nothing with seed 42")


def test_a_sample_without_an_expected_answer_is_refused(collected: Collector) -> None:
    assert collected.refusal("NoGold").startswith("NoGold: sample 0 has no expected answer")


def test_a_benchmark_that_crashes_is_told_with_its_words(collected: Collector) -> None:
    assert collected.refusal("Crashing").startswith("Crashing: asking its requests failed: ValueError: no such subject")


def test_a_benchmark_that_ends_its_process_is_told_with_the_exit_code(collected: Collector) -> None:
    said = collected.refusal("Ending")
    assert "exit code 3" in said
    assert str(collected.folder / "Ending.log") in said


@pytest.mark.parametrize(
    ("label", "words"), [("bad template", "roles must alternate"), ("no tokenizer", "its tokenizer can't be loaded")]
)
def test_a_fault_of_the_checkpoint_stays_one(collected: Collector, label: str, words: str) -> None:
    answer = collected.answers[label]
    assert isinstance(answer, CheckpointError)
    assert words in str(answer)


# ---- the same bytes again ----


def run_alone(folder: Path, label: str, jobs: Mapping[str, ChildJob], hash_seed: str) -> dict[str, bytes]:
    """The child on its own, under another order of sets; every file that it wrote, and its answers."""
    told, place = [], folder / label
    for name, job in jobs.items():
        out = place / name
        out.mkdir(parents=True)
        spec = {**job.spec, "out": str(out)}
        told.append({"spec": spec, "log": str(place / f"{name}.log"), "answer": str(out / "answer.json")})
    spec_file = place / "spec.json"
    spec_file.write_text(json.dumps({"mode": "collect", "parallel": 2, "jobs": told, "policy": None}))
    kept = {key: os.environ[key] for key in ("PATH", "LD_LIBRARY_PATH") if key in os.environ}
    own = {"PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "HF_HUB_OFFLINE": "1", "HOME": str(place)}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "entrypoint.harness.child", str(spec_file)],
        env={**kept, **own, "PYTHONHASHSEED": hash_seed},
        cwd=place,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == ""
    return {str(file.relative_to(place)): file.read_bytes() for name in jobs for file in (place / name).iterdir()}


def test_two_collects_give_identical_bytes_whatever_the_order_of_sets(collected: Collector, tmp_path: Path) -> None:
    jobs = {label: collected.jobs[label] for label in ("fewshot", "OneRound")}
    first, second = (run_alone(tmp_path, f"hash{seed}", jobs, seed) for seed in ("1", "2"))
    names = ("answer.json", "chats.jsonl", "seed42.jsonl", "seed43.jsonl")
    assert sorted(first) == sorted(f"{label}/{name}" for label in jobs for name in names)
    assert first == second
    for label in jobs:
        written = collected.folder / "private" / "out" / label
        assert {f"{label}/{file.name}": file.read_bytes() for file in written.iterdir()}.items() <= first.items()


# ---- and then graded ----


@pytest.fixture
def graded(collected: Collector, tmp_path: Path) -> Callable[[str, list[str]], dict[str, Any] | EvalcrateError]:
    """Grades the first trial of a label with these texts as its generations."""

    def grade(label: str, texts: list[str]) -> dict[str, Any] | EvalcrateError:
        job, out = collected.jobs[label], collected.folder / "private" / "out" / label
        rows = [
            {key: row[key] for key in ("id", "task", "seed", "sample")}
            | {"fingerprint": "f", "text": text, "token_ids": None, "finish_reason": "stop", "stop_reason": None}
            | {"prompt_tokens": 1, "completion_tokens": 1, "sampler_seed": row["body"]["seed"], "attempt": 1}
            | {"started_at": "2026-01-01T00:00:00Z", "finished_at": "2026-01-01T00:00:00Z"}
            for row, text in zip(collected.requests(label), texts, strict=True)
        ]
        (tmp_path / "generations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        spec = {
            "task": job.spec["task"],
            "seed": SEEDS[0],
            "metric": "exact_match,none",
            "max_tokens": SAMPLING["max_tokens"],
            "think_end_token": job.spec["think_end_token"],
            "until": collected.facts(label, SEEDS[0])["until"],
            "requests": str(out / f"seed{SEEDS[0]}.jsonl"),
            "chats": str(out / "chats.jsonl"),
            "generations": str(tmp_path / "generations.jsonl"),
        }
        (tmp_path / "private").mkdir()
        told = ChildJob(task=job.task, spec=spec, log=tmp_path / "grade.log")
        read = [job.spec["task"]["folder"], str(tmp_path), str(out)]
        return ask_child("grade", [told], private=tmp_path / "private", log=told.log, timeout_s=300, read=read)[0]

    return grade


def test_the_tasks_stop_strings_end_the_answer_after_the_thinking(
    graded: Callable[[str, list[str]], dict[str, Any] | EvalcrateError],
) -> None:
    """Sample n asks n+n; the blank line in the thinking must not end the text, the one in the answer must."""
    found = graded("thinking", [f"Let me see.\n\nQ: what?</think>\n\n{n + n}\n\nQ: 9+9=" for n in (0, 1, 2, 9)])
    assert isinstance(found, dict), found
    examples = found["results"]["examples"]
    assert [example["model_outputs"] for example in examples] == [["0"], ["2"], ["4"], ["18"]]
    assert [example["correctness"] for example in examples] == [True, True, True, False]
