"""Several engines of one job share its requests, and none of them can lose, repeat or change an answer.

Incidents: two engines that start together on one node take the same port (vllm#39015, #43206); with a share fixed
beforehand one card idles while another still works off the longest answers; one card's fault ended the whole run.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from entrypoint.engine import journal
from entrypoint.errors import EngineError, Interrupted, TransientError
from tests.flow.conftest import ROOT, Bench
from tests.flow.test_generate import Run, a_trial, after
from tests.flow.test_preflight_machine import card

PORT = {"log": "torch.distributed.DistNetworkError: EADDRINUSE, message: address already in use", "exit_code": 1}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path, replicas=2)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def shares(run: Run) -> list[int]:
    """How many requests came to each process, the fewest first."""
    return sorted(Counter(lines(run.folder / "pids")).values())


def is_over(run: Run) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in lines(run.folder / "starts"))


# ---- who gets which request ----


def test_each_engine_gets_half_of_few_requests_and_about_half_of_many(run: Run) -> None:
    run.engine, run.script = {"max_open_requests": 64}, {"latency_s": 0.2}
    outcome = run.go(a_trial(questions=6))
    assert (shares(run), outcome.generated, outcome.engine_starts) == ([3, 3], 6, 2)
    (run.folder / "pids").unlink()
    run.engine, run.script = {"max_open_requests": 4}, {"latency_s": 0.05}
    outcome = run.go(a_trial("AIME25", questions=60))
    fewest, most = shares(run)
    assert fewest + most == outcome.generated == 60
    assert fewest >= 20
    assert max(progress.running for progress in run.progress) <= 8
    assert outcome.metrics["generation_tokens_total"] >= outcome.generated_tokens > 0
    assert is_over(run)


def test_no_more_engines_are_started_than_requests_are_missing(run: Run) -> None:
    assert run.go(a_trial(questions=1)).engine_starts == 1


def test_the_others_go_on_while_one_works_at_a_long_answer(run: Run) -> None:
    run.engine = {"max_open_requests": 1}
    run.script = {"answers": [{"match": "AIME24 question 0", "latency_s": 3}, {"match": "", "latency_s": 0.02}]}
    run.go(a_trial(questions=21))
    assert shares(run) == [1, 20]


def test_answers_do_not_depend_on_the_engine_that_gave_them(run: Run) -> None:
    trial = a_trial(questions=12)
    run.go(trial)
    one = Run(run.folder / "one")
    one.folder.mkdir()
    one.go(trial)
    assert one.texts(trial) == run.texts(trial)
    assert len(shares(one)) == 1


# ---- when one of them ends ----


def test_one_that_dies_loses_nothing_and_the_others_do_not_wait_for_it(run: Run) -> None:
    run.engine = {"max_open_requests": 2}
    run.script = {"die_after": [5, None], "start_delay_s": [0, 0, 120], "latency_s": 0.1}
    trial, began = a_trial(questions=40), time.monotonic()
    outcome = run.go(trial)
    assert time.monotonic() - began < 60
    assert not outcome.failed
    assert (outcome.generated, outcome.engine_starts) == (40, 3)
    view = journal.read(run.layout.generations)
    assert not view.problems
    assert len(lines_of_journal(run)) == 40
    again = len(run.bodies()) - 40
    assert 1 <= again <= 2, "only what was open at the engine that died is asked again"
    assert run.complete == [trial.key]
    assert is_over(run)


def lines_of_journal(run: Run) -> list[dict[str, Any]]:
    """The rows that the journal's files hold, whoever wrote them."""
    files = [path for path in run.layout.generations.rglob("*.jsonl") if path.is_file()]
    return [json.loads(line) for path in files for line in lines(path)]


def test_one_that_dies_comes_back_and_takes_its_share_again(run: Run) -> None:
    run.engine = {"max_open_requests": 2}
    run.script = {"die_after": [5, None], "latency_s": 0.1}
    outcome = run.go(a_trial(questions=150))
    assert (outcome.generated, outcome.engine_starts, outcome.failed) == (150, 3, {})
    assert len(shares(run)) == 3


def test_one_that_hangs_is_started_again_and_the_others_go_on(run: Run) -> None:
    run.engine = {"max_open_requests": 2, "request_timeout_s": 1.0}
    run.script = {"hang_after": [3, None], "latency_s": 0.05}
    outcome = run.go(a_trial(questions=60))
    assert (outcome.generated, outcome.failed) == (60, {})
    assert outcome.engine_starts >= 2


def test_one_that_does_not_start_is_told_and_the_others_do_its_work(run: Run) -> None:
    run.script = {"refuse_start": [{"log": "no kernel image is available", "exit_code": 3}, None]}
    outcome = run.go(a_trial(questions=10))
    assert (outcome.generated, outcome.engine_starts, shares(run)) == (10, 2, [10])
    (note,) = outcome.notes
    assert "of 2 (GPU-" in note
    assert "was given up: the engine ended with exit status 3 before it was ready" in note


def test_a_port_that_was_taken_is_no_reason_to_give_an_engine_up(run: Run) -> None:
    """vllm#39015, #43206: a free port is looked for and bound only later."""
    run.engine, run.script = {"max_open_requests": 64}, {"refuse_start": [PORT, None], "latency_s": 0.1}
    outcome = run.go(a_trial(questions=10))
    assert (outcome.generated, outcome.engine_starts, shares(run), outcome.notes) == (10, 3, [5, 5], ())
    run.script = {"refuse_start": PORT}
    with pytest.raises(TransientError, match="another engine took its port"):
        run.go(a_trial("AIME25"))


def test_only_when_none_is_left_the_run_fails_and_what_was_answered_stays(run: Run) -> None:
    run.script = {"die_after": 3}
    with pytest.raises(EngineError, match="died or hung 3 times"):
        run.go(a_trial(questions=60))
    assert run.starts() == 6
    stored = len(journal.read(run.layout.generations))
    run.script = {}
    outcome = run.go(a_trial(questions=60))
    assert (outcome.reused, outcome.generated) == (stored, 60 - stored)
    assert len(lines(run.layout.logs / "engine-2.log")) >= 4


def test_one_that_ignores_seeds_ends_the_run_before_anything_is_asked(run: Run) -> None:
    run.script = {"ignore_seed": [True, False]}
    with pytest.raises(EngineError, match="does not honour seeds"):
        run.go(a_trial())
    assert not run.bodies()
    assert is_over(run)


# ---- signals ----


def test_a_signal_drains_all_of_them(run: Run) -> None:
    run.engine, run.script = {"max_open_requests": 3}, {"latency_s": 0.5}
    with after(lambda: len(run.bodies()) >= 6, signal.SIGTERM), pytest.raises(Interrupted) as caught:
        run.go(a_trial(questions=60))
    assert caught.value.exit_code == 143
    assert len(run.bodies()) == len(journal.read(run.layout.generations)) < 60
    assert is_over(run)


def test_a_signal_ends_one_that_starts_while_the_others_drain(run: Run) -> None:
    run.engine = {"max_open_requests": 2}
    run.script = {"die_after": [2, None], "start_delay_s": [0, 0, 120], "latency_s": 0.3}
    with after(lambda: run.starts() == 3, signal.SIGTERM), pytest.raises(Interrupted):
        run.go(a_trial(questions=60))
    assert is_over(run)
    stored = len(journal.read(run.layout.generations))
    run.script = {}
    assert run.go(a_trial(questions=60)).reused == stored


def test_a_signal_while_one_still_starts_ends_all(run: Run) -> None:
    run.script = {"start_delay_s": [0, 120]}
    with after(lambda: run.starts() == 2, signal.SIGTERM), pytest.raises(Interrupted):
        run.go(a_trial())
    assert not run.bodies()
    assert is_over(run)


# ---- through the command line ----


@pytest.fixture
def cards(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A machine of four like cards, by a fake nvidia-smi."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvidia-smi").symlink_to(ROOT / "tests/fakes/nvidia_smi")
    (tmp_path / "bin/nvidia-smi.json").write_text(json.dumps({"gpus": [card(n) for n in range(4)]}))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("EVALCRATE_CACHE", str(tmp_path / "cache"))
    bench.script["masks"] = str(tmp_path / "masks")
    return bench


def engine(bench: Bench, **keys: Any) -> dict[str, Any]:
    return {**bench.job["engine"], **keys}


def test_a_job_on_four_cards_runs_an_engine_on_each(cards: Bench) -> None:
    assert cards.run(seeds=1, limit=8) == 0
    masks = lines(cards.folder / "masks")
    assert sorted(masks) == [card(n)["uuid"] for n in range(4)]
    found = json.loads((cards.root.parent / "exp-step300-limit8/_work/provenance.json").read_bytes())
    assert found["engine"]["replicas"] == 4


def test_results_are_the_same_bytes_with_one_engine_and_with_two(cards: Bench) -> None:
    found = []
    for replicas in (1, 2):
        assert cards.run(seeds=2, engine=engine(cards, replicas=replicas, tensor_parallel_size=1)) == 0
        found.append(cards.root.joinpath("results.json").read_bytes())
        cards.root.rename(cards.folder / f"with-{replicas}")
    assert found[0] == found[1]
    assert cards.engine_starts() == 3


def test_another_number_of_engines_makes_nothing_again(cards: Bench) -> None:
    for replicas in (1, 3):
        assert cards.run(seeds=1, limit=8, engine=engine(cards, replicas=replicas, tensor_parallel_size=1)) == 0
    assert cards.engine_starts() == 1
