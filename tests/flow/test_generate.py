"""Every answer that counts was asked for as planned, is on disk, and is asked for once; every other one has a name.

Incidents: a killed run threw away hours of generations (resume was per task, not per answer); answers cut by the
context limit were scored as wrong; SIGTERM with requests open left them pending for ever (tried on vLLM 0.32.0); an
engine that ignores seeds made ten "seeds" one run (tt-inference-server#4292, vllm#3333); one lost connection among a
thousand failed a whole task.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from entrypoint.engine import journal
from entrypoint.errors import EngineError, Interrupted, JobError
from entrypoint.generate import Outcome, PendingTrial, Progress, generate
from entrypoint.layout import Layout
from entrypoint.plan import Engine, Evaluation, Placement, Plan
from entrypoint.record import Request, digest

FAKE = Path(__file__).parents[1] / "fakes" / "engine.py"
FINGERPRINT = "f" * 64


@dataclass
class Run:
    """One result folder and the fake engine it uses; `go` runs generate over `trials`."""

    folder: Path
    script: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    task_timeout_s: float | None = None
    on_overlong: str = "refuse"
    replicas: int = 1
    complete: list[tuple[str, int]] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)

    @property
    def layout(self) -> Layout:
        return Layout(results=self.folder / "results", experiment="exp", step=1, limit=None, model="m")

    def go(self, *trials: PendingTrial) -> Outcome:
        self.complete.clear()
        self.progress.clear()
        return generate(
            self.plan(),
            self.layout,
            trials,
            on_trial=lambda trial: self.complete.append(trial.key),
            on_progress=self.progress.append,
        )

    def plan(self) -> Plan:
        script = self.folder / "script.json"
        traces = {name: str(self.folder / name) for name in ("starts", "bodies", "pids")}
        script.write_text(json.dumps({**traces, **self.script}))
        values: dict[str, Any] = {
            "kind": "vllm",
            "version": "fake",
            "argv": (sys.executable, str(FAKE), "--fake", str(script), "--max-model-len", "512"),
            "env": {},
            "url": None,
            "socket": None,
            "model": None,
            "api_key_env": None,
            "start_timeout_s": 60.0,
            "request_timeout_s": 60.0,
            "shutdown_timeout_s": 20.0,
            "max_open_requests": 4,
        }
        return a_plan(Engine(**{**values, **self.engine}), self.task_timeout_s, self.on_overlong, self.replicas)

    def starts(self) -> int:
        path = self.folder / "starts"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def bodies(self) -> list[dict[str, Any]]:
        path = self.folder / "bodies"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def texts(self, *trials: PendingTrial) -> dict[str, str]:
        view = journal.read(self.layout.generations)
        return {r.id: view.load(r, t.fingerprint).text for t in trials for r in t.requests}


def a_plan(engine: Engine, task_timeout_s: float | None, on_overlong: str, replicas: int) -> Plan:
    blank: dict[str, Any] = dict.fromkeys(Evaluation.__dataclass_fields__)
    evaluation = Evaluation(**{**blank, "on_overlong": on_overlong})
    blank = dict.fromkeys(Placement.__dataclass_fields__)
    own = tuple({"CUDA_VISIBLE_DEVICES": f"GPU-{n}"} for n in range(replicas) if replicas > 1)
    placement = Placement(**{**blank, "engine": engine, "replicas": own})
    return Plan(
        evaluation=evaluation,
        placement=placement,
        task_timeout_s=task_timeout_s,
        keep_generations=True,
        grader_command=(),
        require_isolation=False,
        warnings=(),
    )


def a_trial(task: str = "AIME24", seed: int = 42, questions: int = 5, **body: Any) -> PendingTrial:
    requests = []
    for sample in range(questions):
        prompt = f"{task} question {sample}"
        asked = {
            "prompt": list(prompt.encode()),
            "max_tokens": 64,
            "temperature": 0.7,
            "top_p": 1.0,
            "seed": 1000 * seed + sample,
            "stop": [],
            "return_token_ids": True,
            **body,
        }
        requests.append(Request(id=digest(asked), task=task, seed=seed, sample=sample, prompt=prompt, body=asked))
    return PendingTrial(task=task, seed=seed, requests=tuple(requests), fingerprint=FINGERPRINT)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_everything_is_sent_as_planned_and_stored(run: Run) -> None:
    trials = [a_trial(seed=42), a_trial(seed=43), a_trial("MATH500", questions=0)]
    outcome = run.go(*trials)
    assert not outcome.failed
    assert (outcome.generated, outcome.reused, outcome.engine_starts) == (10, 0, 1)
    assert outcome.seeds_proved
    assert run.complete[0] == ("MATH500", 42)
    assert sorted(run.complete) == sorted(t.key for t in trials)
    asked = [dict(r.body) for t in trials for r in t.requests]
    assert sorted(run.bodies(), key=str) == sorted(asked, key=str)
    view = journal.read(run.layout.generations)
    for request in trials[0].requests:
        row = view.load(request, FINGERPRINT)
        assert row.sampler_seed == request.body["seed"]
        assert row.token_ids is not None
        assert bytes(row.token_ids).decode() == row.text
        assert row.attempt == 1
    last = run.progress[-1]
    assert (last.done, last.total, last.reused, last.running) == (10, 10, 0, 0)
    assert outcome.generated_tokens == last.generated_tokens > 0


def test_requests_go_out_in_order(run: Run) -> None:
    run.engine = {"max_open_requests": 1}
    trials = [a_trial(seed=43), a_trial(seed=42)]
    run.go(*trials)
    assert [b["seed"] for b in run.bodies()] == [r.body["seed"] for t in trials for r in t.requests]


def test_the_engine_model_name_is_added_at_the_transport_only(run: Run) -> None:
    run.engine = {"model": "served"}
    trial = a_trial(questions=1)
    run.go(trial)
    assert run.bodies() == [{"model": "served", **trial.requests[0].body}]


def test_a_complete_journal_starts_no_engine(run: Run) -> None:
    trial = a_trial()
    run.go(trial)
    outcome = run.go(trial)
    assert run.starts() == 1
    assert (outcome.generated, outcome.reused, outcome.engine_starts) == (0, 5, 0)
    assert run.complete == [trial.key]
    assert run.progress[-1].done == 5


def test_only_what_is_missing_is_asked(run: Run) -> None:
    run.go(a_trial(seed=42))
    outcome = run.go(a_trial(seed=42), a_trial(seed=43))
    assert (outcome.generated, outcome.reused) == (5, 5)
    assert len(run.bodies()) == 10


def test_another_fingerprint_is_asked_again(run: Run) -> None:
    run.go(a_trial())
    outcome = run.go(replace(a_trial(), fingerprint="0" * 64))
    assert (outcome.generated, outcome.reused) == (5, 0)


def test_no_more_than_the_bound_is_open_at_once(run: Run) -> None:
    run.script, run.engine = {"latency_s": 0.1}, {"max_open_requests": 3}
    run.go(a_trial(questions=12))
    assert max(p.running for p in run.progress) <= 3


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"status": 400, "message": "bad stop"}, "HTTP 400: bad stop"),
        ({"status": 404}, "HTTP 404: scripted refusal"),
        ({"status": 422}, "HTTP 422"),
    ],
)
def test_a_refused_request_fails_its_trial_by_name_and_no_other(
    run: Run, fault: Mapping[str, Any], reason: str
) -> None:
    run.script = {"answers": [{"match": "AIME24 question 3", **fault}]}
    good = a_trial("AIME25")
    outcome = run.go(a_trial("AIME24"), good)
    assert list(outcome.failed) == [("AIME24", 42)]
    assert "AIME24 seed 42 sample 3" in outcome.failed["AIME24", 42]
    assert reason in outcome.failed["AIME24", 42]
    assert run.complete == [good.key]
    assert [b["seed"] for b in run.bodies()].count(42003) == 2  # once per task: it is not sent again


def test_an_answer_cut_by_the_context_is_refused(run: Run) -> None:
    run.script = {"answers": [{"match": "AIME24", "text": "x" * 1000}]}
    good = a_trial("AIME25")
    outcome = run.go(a_trial("AIME24", max_tokens=600), good)
    assert "600 tokens were asked for" in outcome.failed["AIME24", 42]
    assert run.complete == [good.key]


def test_an_answer_that_reached_max_tokens_counts_as_length(run: Run) -> None:
    run.script = {"default": "x" * 1000}
    trial = a_trial(questions=1)
    run.go(trial)
    row = journal.read(run.layout.generations).load(trial.requests[0], FINGERPRINT)
    assert (row.finish_reason, row.completion_tokens) == ("length", 64)


@pytest.mark.parametrize(
    "fault", [{"error_every": 3}, {"disconnect_every": 3}, {"disconnect_every": 2, "error_every": 3}]
)
def test_lost_requests_are_sent_again_and_nothing_is_stored_twice(
    run: Run, monkeypatch: pytest.MonkeyPatch, fault: dict[str, Any]
) -> None:
    monkeypatch.setattr("entrypoint.engine.pool._BACKOFF_S", 0.01)
    run.script = fault
    trial = a_trial(questions=6)
    outcome = run.go(trial)
    assert not outcome.failed
    assert outcome.resent >= 2
    assert outcome.engine_starts == 1
    view = journal.read(run.layout.generations)
    assert not view.problems
    rows = [view.load(r, FINGERPRINT) for r in trial.requests]
    assert sum(row.attempt - 1 for row in rows) == outcome.resent


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"finish_reason": "abort"}, "finish_reason 'abort'"),
        ({"finish_reason": None}, "finish_reason None"),
        ({"raw": '{"choices": ['}, "not JSON"),
        ({"raw": "[]"}, "not a JSON object"),
        ({"raw": '{"choices": []}'}, "not a completion"),
        ({"raw": json.dumps({"choices": [{"text": "a", "finish_reason": "stop"}], "usage": {
            "prompt_tokens": True, "completion_tokens": 1}})}, "token counts"),
        ({"raw": json.dumps({"choices": [{"text": "a", "finish_reason": "stop", "token_ids": [1, 2]}], "usage": {
            "prompt_tokens": 17, "completion_tokens": 1}})}, "token ids are not the 1 tokens"),
        ({"status": 429}, "HTTP 429"),
        ({"status": 503}, "HTTP 503"),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_asked_again_up_to_a_bound(
    run: Run, monkeypatch: pytest.MonkeyPatch, rule: Mapping[str, Any], reason: str
) -> None:
    monkeypatch.setattr("entrypoint.engine.pool._BACKOFF_S", 0.01)
    monkeypatch.setattr("entrypoint.engine.pool.MAX_ATTEMPTS", 3)
    run.script = {"answers": [{"match": "question 1", **rule}]}
    outcome = run.go(a_trial(questions=3))
    assert "sent 3 times" in outcome.failed["AIME24", 42]
    assert reason in outcome.failed["AIME24", 42]
    assert outcome.generated == 2
    assert len(run.bodies()) == 5


def test_a_request_has_a_deadline(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("entrypoint.engine.pool._BACKOFF_S", 0.01)
    monkeypatch.setattr("entrypoint.engine.pool.MAX_ATTEMPTS", 2)
    run.script = {"answers": [{"match": "AIME24 question 1", "latency_s": 60}, {"match": "", "latency_s": 0.2}]}
    run.engine = {"request_timeout_s": 1.5, "max_open_requests": 2}
    outcome = run.go(a_trial(questions=3), a_trial("AIME25", questions=20))
    assert "no answer within 1.5 s" in outcome.failed["AIME24", 42]
    assert outcome.engine_starts == 1


def test_an_engine_that_dies_is_started_again_and_stored_answers_stay(run: Run) -> None:
    run.script = {"die_after": [4, None]}
    trial = a_trial(questions=10)
    outcome = run.go(trial)
    assert not outcome.failed
    assert (outcome.generated, outcome.engine_starts) == (10, 2)
    assert not journal.read(run.layout.generations).problems


def test_an_engine_that_hangs_is_started_again(run: Run) -> None:
    run.script, run.engine = {"hang_after": [3, None]}, {"request_timeout_s": 1.0}
    outcome = run.go(a_trial(questions=8))
    assert not outcome.failed
    assert outcome.engine_starts == 2


def test_an_engine_that_keeps_dying_is_given_up_and_what_it_answered_stays(run: Run) -> None:
    run.script = {"die_after": 2}
    with pytest.raises(EngineError, match=r"died or hung 3 times \(last: exit status 1\)") as caught:
        run.go(a_trial(questions=30))
    assert "engine.log" in str(caught.value)
    assert run.starts() == 3
    stored = len(journal.read(run.layout.generations))
    run.script = {}
    outcome = run.go(a_trial(questions=30))
    assert outcome.reused == stored
    assert outcome.generated == 30 - stored


def test_an_engine_that_ignores_seeds_is_refused_before_anything_is_asked(run: Run) -> None:
    run.script = {"ignore_seed": True}
    with pytest.raises(EngineError, match="does not honour seeds"):
        run.go(a_trial())
    assert not run.bodies()


def test_other_token_ids_are_refused_with_the_first_difference(run: Run) -> None:
    run.script = {"tokenize_shift": 1}
    with pytest.raises(EngineError, match=r"AIME24 seed 42 sample 0.*from position 0 on"):
        run.go(a_trial())
    assert not run.bodies()


def test_a_truncated_prompt_may_be_the_end_of_the_text(run: Run) -> None:
    trial = a_trial(questions=1)
    cut = replace(trial.requests[0], prompt="a long beginning, " + trial.requests[0].prompt)
    run.on_overlong = "truncate"
    assert not run.go(replace(trial, requests=(cut,))).failed
    run.on_overlong = "refuse"
    with pytest.raises(EngineError, match="tokenizes the prompt differently"):
        run.go(replace(trial, requests=(cut,), fingerprint="0" * 64))


def test_a_task_over_its_time_fails_by_name_and_the_others_go_on(run: Run) -> None:
    run.script = {"answers": [{"match": "AIME24 question 1", "latency_s": 60}, {"match": "", "latency_s": 0.05}]}
    run.task_timeout_s = 2.0
    slow, quick = a_trial("AIME24", questions=3), a_trial("AIME25", questions=3)
    outcome = run.go(slow, quick)
    assert list(outcome.failed) == [slow.key]
    assert "AIME24 seed 42: 1 generations are missing after task_timeout_s (2 s)" in outcome.failed[slow.key]
    assert run.complete == [quick.key]
    assert outcome.wall_s < 30


@contextmanager
def after(condition: Callable[[], bool], *signals: int) -> Iterator[None]:
    """Send us `signals`, one after the other, once the condition holds."""

    def wait() -> None:
        while not over.is_set() and not condition():
            over.wait(0.01)
        for number in signals:
            if not over.is_set():
                os.kill(os.getpid(), number)
                over.wait(0.3)

    over, thread = threading.Event(), threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_open_requests_finish_and_is_never_exit_code_zero(run: Run, number: int) -> None:
    run.script, run.engine = {"latency_s": 0.5}, {"max_open_requests": 3}
    before = signal.getsignal(number)
    with after(lambda: len(run.bodies()) >= 3, number), pytest.raises(Interrupted) as caught:
        run.go(a_trial(questions=40))
    assert caught.value.exit_code == 128 + number
    assert signal.getsignal(number) is before
    assert len(run.bodies()) == len(journal.read(run.layout.generations)) < 40
    pid = int((run.folder / "starts").read_text())
    assert not Path(f"/proc/{pid}").exists()


def test_a_second_signal_does_not_wait(run: Run) -> None:
    run.script = {"answers": [{"match": "question", "latency_s": 60}]}
    began = time.monotonic()
    with (
        after(lambda: len(run.bodies()) >= 3, signal.SIGTERM, signal.SIGINT),
        pytest.raises(Interrupted) as caught,
    ):
        run.go(a_trial())
    assert caught.value.exit_code == 128 + signal.SIGTERM
    assert time.monotonic() - began < 15
    pid = int((run.folder / "starts").read_text())
    assert not Path(f"/proc/{pid}").exists()


def test_a_drain_has_an_end(run: Run) -> None:
    run.script = {"answers": [{"match": "question", "latency_s": 60}]}
    run.engine = {"shutdown_timeout_s": 0.5}
    with after(lambda: len(run.bodies()) >= 3, signal.SIGTERM), pytest.raises(Interrupted):
        run.go(a_trial())


def test_a_signal_during_the_start_ends_it(run: Run) -> None:
    run.script = {"start_delay_s": 60}
    with after(lambda: run.starts() == 1, signal.SIGTERM), pytest.raises(Interrupted) as caught:
        run.go(a_trial())
    assert caught.value.exit_code == 143
    pid = int((run.folder / "starts").read_text())
    assert not Path(f"/proc/{pid}").exists()


def test_a_killed_run_goes_on_without_repeating_a_stored_answer(run: Run) -> None:
    trial = a_trial(questions=30)
    undisturbed = Run(run.folder / "other")
    undisturbed.folder.mkdir()
    undisturbed.go(trial)
    run.script = {"latency_s": 0.1}
    run.plan()
    program = (
        "from tests.flow.test_generate import *; "
        "Run(Path(sys.argv[1]), json.loads(sys.argv[2])).go(a_trial(questions=30))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(run.folder), json.dumps(run.script)], cwd=FAKE.parents[2]
    )
    deadline = time.monotonic() + 60
    while len(run.bodies()) < 12:
        assert time.monotonic() < deadline
        assert child.poll() is None
        time.sleep(0.01)
    child.kill()
    child.wait()
    stored = len(journal.read(run.layout.generations))
    assert 0 < stored < 30
    run.script = {}
    outcome = run.go(trial)
    assert (outcome.reused, outcome.generated) == (stored, 30 - stored)
    assert run.texts(trial) == undisturbed.texts(trial)


@contextmanager
def an_endpoint(run: Run, *arguments: str) -> Iterator[str]:
    """The fake engine as somebody else's server; its socket."""
    socket = run.folder / "endpoint.sock"
    argv = run.plan().placement.engine.argv
    server = subprocess.Popen([*argv, "--uds", str(socket), *arguments], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while not socket.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield str(socket)
    finally:
        server.kill()
        server.wait()


def test_an_endpoint_is_used_as_it_is(run: Run) -> None:
    with an_endpoint(run) as socket:
        run.engine = {"kind": "endpoint", "socket": socket, "argv": (), "model": "served"}
        outcome = run.go(a_trial())
    assert not outcome.failed
    assert outcome.seeds_proved
    assert run.starts() == 1
    assert not outcome.notes


def test_an_endpoint_without_seeds_or_tokenize_is_used_and_noted(run: Run) -> None:
    run.script = {"ignore_seed": True, "no_tokenize": True, "no_token_ids": True}
    with an_endpoint(run) as socket:
        run.engine = {"kind": "endpoint", "socket": socket, "argv": ()}
        outcome = run.go(a_trial())
    assert not outcome.failed
    assert not outcome.seeds_proved
    assert len(outcome.notes) == 2
    assert "seeds are unproven" in outcome.notes[0]
    assert "not compared" in outcome.notes[1]


def test_an_endpoint_that_is_not_there_is_named(run: Run) -> None:
    run.engine = {"kind": "endpoint", "socket": str(run.folder / "nobody.sock"), "argv": ()}
    with pytest.raises(EngineError, match=r"nobody\.sock"):
        run.go(a_trial())


def test_an_endpoint_key_that_is_not_set_is_a_mistake_in_the_job(run: Run) -> None:
    run.engine = {"kind": "endpoint", "url": "http://127.0.0.1:1", "argv": (), "api_key_env": "NO_SUCH_KEY"}
    with pytest.raises(JobError, match="NO_SUCH_KEY is not set"):
        run.go(a_trial())


def test_an_error_in_a_callback_is_not_swallowed_and_ends_the_engine(run: Run) -> None:
    def fail(_: PendingTrial) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        generate(run.plan(), run.layout, [a_trial()], on_trial=fail, on_progress=lambda _: None)
    pid = int((run.folder / "starts").read_text())
    assert not Path(f"/proc/{pid}").exists()


def test_generate_outside_the_main_thread_works_too(run: Run) -> None:
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(run.go(a_trial())))
    thread.start()
    thread.join(60)
    assert outcomes
    assert outcomes[0].generated == 5


def test_answers_do_not_depend_on_how_many_are_open(run: Run) -> None:
    trial = a_trial(questions=12)
    run.go(trial)
    texts = run.texts(trial)
    other = Run(run.folder / "other", engine={"max_open_requests": 1})
    other.folder.mkdir()
    other.go(trial)
    assert other.texts(trial) == texts
    assert len(set(texts.values())) == 12
