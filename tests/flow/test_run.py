"""From a job file to the canonical layout, through the command line, on the fake engine.

Incidents: every request fails and the harness still exits 0 with `"results": {}` (marin#7391); saving fails, the
error is swallowed (marin#3690); resume caches keyed without the settings (lm-eval#3881, ao#3073); averages over fewer
repetitions than claimed (lighteval#771); graders that hang after all generation is done, children never reaped
(rllm#915).
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from entrypoint.layout import model_folder, short_hash
from tests.flow.conftest import ROOT, STEP_300, Bench

GRADER = [sys.executable, str(ROOT / "tests/fakes/grader.py")]


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.05)


def strip_time(name: str) -> str:
    return re.sub(r"results_[\dT.-]+Z", "results_TIME", name)


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_a_run_gives_the_canonical_layout(bench: Bench) -> None:
    assert bench.run() == 0
    assert [name.partition("/")[0] for name in bench.published()] == [
        "_markers",
        f"arithmetic_seed42-{short_hash('exp', '300', 'arithmetic', '42')}",
        f"arithmetic_seed43-{short_hash('exp', '300', 'arithmetic', '43')}",
        *[f"compile_arithmetic_avg2seeds-{short_hash('exp', '300', 'arithmetic', 'compile')}"] * 4,
        "results.json",
        "summary.md",
    ]
    (results,) = (n for n in bench.published() if n.startswith("arithmetic_seed42-"))
    parts = results.split("/")
    assert parts[1] == "arithmetic_0shot"
    assert parts[2] == model_folder(str(STEP_300.resolve()))
    document = json.loads((bench.root / results).read_bytes())
    examples = document["results"]["arithmetic"]["examples"]
    assert len(examples) == 64 == document["results"]["arithmetic"]["num_total"]
    assert {e["sampler_seed"] for e in examples} == {b["seed"] for b in bench.asked()[:64]}
    assert (bench.root / "_markers/arithmetic.complete.json").is_file()
    assert bench.results()["tasks"]["arithmetic"]["n_seeds"] == 2


def test_every_sampling_value_and_a_seed_of_its_own_is_in_every_request(bench: Bench) -> None:
    assert bench.run() == 0
    bodies = bench.asked()
    assert len(bodies) == 128
    assert {(b["temperature"], b["top_p"], b["max_tokens"], b["n"]) for b in bodies} == {(0.7, 1.0, 16, 1)}
    assert len({b["seed"] for b in bodies}) == 128
    assert {b["skip_special_tokens"] for b in bodies} == {b["spaces_between_special_tokens"] for b in bodies} == {False}


def test_the_shared_policy_sends_the_trials_seed_with_every_sample(bench: Bench) -> None:
    assert bench.run("--set", "sampling.seed_policy=shared") == 0
    assert sorted({b["seed"] for b in bench.asked()}) == [42, 43]


def test_right_answers_score(bench: Bench) -> None:
    rows = [json.loads(line) for line in (ROOT / "tasks/arithmetic/problems.jsonl").read_text().splitlines()]
    bench.script["answers"] = [{"match": r["question"], "text": f"\\boxed{{{r['answer']}}}"} for r in rows[:16]]
    bench.script["default"] = "no idea"
    assert bench.run() == 0
    task = bench.results()["tasks"]["arithmetic"]
    assert (task["mean"], task["std"]) == (0.25, 0.0)
    assert task["validity"]["format_fail"] == 2 * 48


def test_a_second_run_is_cached_and_starts_no_engine(bench: Bench) -> None:
    assert bench.run() == 0
    before = {n: (bench.root / n).read_bytes() for n in bench.published()}
    bench.said()
    assert bench.run("--json") == 0
    out, _ = bench.said()
    assert [s["status"] for s in json.loads(out)["summaries"]] == ["cached"]
    assert bench.engine_starts() == 1
    assert {n: (bench.root / n).read_bytes() for n in bench.published()} == before


def test_two_runs_into_two_folders_give_the_same_bytes(another_bench: Callable[[str], Bench]) -> None:
    first, second = another_bench("a"), another_bench("b")
    # the engine's command line is part of the fingerprint, so both share one script
    assert first.run() == 0
    second.job["engine"] = first.job["engine"]
    assert second.run() == 0
    for pattern in ("results.json", "compile_*/compiled_results/*"):
        for one in first.root.glob(pattern):
            assert one.read_bytes() == (second.root / one.relative_to(first.root)).read_bytes()


def test_more_seeds_only_generate_the_new_ones(bench: Bench) -> None:
    assert bench.run() == 0
    assert bench.run(seeds=3) == 0
    assert len(bench.asked()) == 3 * 64
    assert bench.results()["tasks"]["arithmetic"]["n_seeds"] == 3
    assert len(list(bench.root.glob("compile_*"))) == 1


def test_fewer_seeds_move_the_others_away(bench: Bench) -> None:
    assert bench.run() == 0
    assert bench.run(seeds=1) == 0
    assert [n for n in bench.published() if "seed43" in n or "compile" in n] == []
    assert not [p for p in (bench.root / "_work").rglob("results_*.json")]


def test_other_settings_are_refused_by_field_and_replaced_on_demand(bench: Bench) -> None:
    assert bench.run() == 0
    bench.said()
    before = bench.published()
    assert bench.run("--set", "sampling.temperature=0.6") == 2
    _, err = bench.said()
    assert "temperature: 0.7 -> 0.6" in err
    assert "--force" in err
    assert bench.published() == before
    assert bench.engine_starts() == 1
    assert bench.run("--set", "sampling.temperature=0.6", "--force") == 0
    assert bench.results()["tasks"]["arithmetic"]["effective"]["temperature"] == 0.6


def test_force_generates_a_complete_task_again(bench: Bench) -> None:
    assert bench.run() == 0
    first = (bench.root / "results.json").read_bytes()
    assert bench.run("--force") == 0
    assert len(bench.asked()) == 256
    assert (bench.root / "results.json").read_bytes() == first


def test_a_limit_has_a_folder_of_its_own_and_never_counts_as_complete(bench: Bench) -> None:
    assert bench.run(limit=5) == 0
    root = bench.folder / "results/exp-step300-limit5"
    assert root.is_dir()
    assert not (root / "_markers").exists()
    assert len(bench.asked()) == 10
    assert not bench.root.exists()


@pytest.mark.parametrize(
    "how", ["empty", "null", "list", "no-task", "nan", "short", "silent", "crash", "out-of-range", "wrong-count"]
)
def test_a_grader_without_an_answer_publishes_no_number(bench: Bench, how: str) -> None:
    assert bench.run(grader={"command": [*GRADER, how]}, seeds=1, limit=3) == 6
    _, err = bench.said()
    assert "no results for arithmetic" in err
    assert "Traceback" not in err
    root = bench.folder / "results/exp-step300-limit3"
    assert not list(root.glob("arithmetic_*"))
    assert not (root / "_markers").exists()
    task = json.loads((root / "results.json").read_bytes())["tasks"]["arithmetic"]
    assert (task["status"], task["mean"]) == ("failed", None)
    assert task["validity"]["status"] == "failed"


def test_a_grader_that_hangs_is_ended_with_all_it_started(bench: Bench) -> None:
    pids = bench.folder / "pids"
    started = time.monotonic()
    code = bench.run(grader={"command": [*GRADER, f"hang:{pids}"]}, seeds=1, limit=2, task_timeout_s=5)
    assert code == 6
    assert time.monotonic() - started < 60
    assert not [pid for pid in map(int, pids.read_text().split()) if alive(pid)]


def test_another_tasks_failure_does_not_stop_a_task(bench: Bench, evalchemy_tree: Path) -> None:
    rows = [json.loads(line) for line in (ROOT / "tasks/arithmetic/problems.jsonl").read_text().splitlines()]
    bench.script["answers"] = [{"match": rows[1]["question"], "status": 400, "message": "too long for me"}]
    engine = {**bench.job["engine"], "max_model_len": 4096}
    assert bench.run("--json", tasks=["AIME24", "arithmetic"], seeds=1, limit=3, engine=engine) == 1
    out, err = bench.said()
    said = json.loads(out)
    assert {s["task"]: s["status"] for s in said["summaries"]} == {"AIME24": "ok", "arithmetic": "failed"}
    assert "too long for me" in said["failures"][0]["reason"]
    assert "arithmetic" in err


def test_a_refused_request_is_an_engine_failure_when_nothing_else_is_left(bench: Bench) -> None:
    bench.script["answers"] = [{"match": "", "status": 400, "message": "too long for me"}]
    assert bench.run(seeds=1, limit=3) == 5
    _, err = bench.said()
    assert "too long for me" in err


def test_an_engine_that_does_not_start_is_named_with_its_last_words(bench: Bench) -> None:
    bench.script["refuse_start"] = {"log": "ValueError: this model is not known", "exit_code": 1}
    assert bench.run() == 5
    _, err = bench.said()
    assert "ValueError: this model is not known" in err
    assert "engine.log" in err
    assert not list(bench.root.glob("arithmetic_*"))


def test_a_neighbour_that_frees_memory_is_worth_another_try(bench: Bench) -> None:
    text = "Error in memory profiling. Initial free memory 82.94 GiB, current free memory 90.17 GiB"
    bench.script["refuse_start"] = {"log": text, "exit_code": 1}
    assert bench.run() == 75
    assert not (bench.root / "_markers").exists()


def test_the_stages_one_by_one_give_the_same_bytes_as_run(another_bench: Callable[[str], Bench]) -> None:
    whole, staged = another_bench("a"), another_bench("b")
    assert whole.run() == 0
    staged.job["engine"] = whole.job["engine"]
    for stage in ("collect", "generate", "grade", "settle", "report"):
        assert staged.run(command=stage) == 0, stage
    assert (staged.root / "results.json").read_bytes() == (whole.root / "results.json").read_bytes()
    assert [strip_time(n) for n in staged.published()] == [strip_time(n) for n in whole.published()]


def test_a_stage_without_the_one_before_says_which_to_run(bench: Bench) -> None:
    assert bench.run(command="generate") == 2
    _, err = bench.said()
    assert "evalcrate collect" in err
    assert bench.run(command="collect") == 0
    assert bench.run(command="grade") == 1
    _, err = bench.said()
    assert "not complete: arithmetic seed 42" in err


def test_prompts_without_room_are_refused_with_count_and_length(bench: Bench) -> None:
    assert bench.run("--set", "engine.max_model_len=40") == 2
    _, err = bench.said()
    assert "arithmetic: 128 of 128 prompts (longest" in err
    assert bench.engine_starts() == 0
    assert bench.run("--set", "engine.max_model_len=70", "--set", "on_overlong=truncate") == 0
    assert {len(b["prompt"]) for b in bench.asked()} == {54}
    assert bench.results()["tasks"]["arithmetic"]["effective"]["overlong"]


def test_generations_can_be_dropped_once_all_is_complete(bench: Bench) -> None:
    assert bench.run(keep_generations=False) == 0
    assert not list((bench.root / "_work/generations").glob("*"))
    assert not list((bench.root / "_work/graded").glob("*"))
    assert bench.run(keep_generations=False) == 0
    assert bench.engine_starts() == 1


def test_a_run_killed_in_the_middle_goes_on_without_asking_again(another_bench: Callable[[str], Bench]) -> None:
    calm, killed = another_bench("a"), another_bench("b")
    assert calm.run() == 0
    killed.job["engine"] = calm.job["engine"]
    calm.script["latency_s"] = 0.2
    calm.write()
    asked_before = len(calm.asked())
    process = subprocess.Popen(
        [sys.executable, "-m", "entrypoint", "run", str(killed.write())], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    journals = killed.root / "_work/generations"
    wait_until(lambda: sum(f.read_bytes().count(b"\n") for f in journals.glob("*.jsonl")) > 30, "thirty generations")
    process.kill()
    process.wait()
    stored = sum(f.read_bytes().count(b"\n") for f in journals.glob("*.jsonl"))
    in_flight = 4 * 32
    assert killed.run() == 0
    again = len(calm.asked()) - asked_before
    assert again <= 128 + in_flight
    assert sum(f.read_bytes().count(b"\n") for f in journals.glob("*.jsonl")) == 128
    assert stored >= 30
    assert (killed.root / "results.json").read_bytes() == (calm.root / "results.json").read_bytes()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_is_never_exit_code_zero_and_leaves_nothing_running(bench: Bench, number: int, code: int) -> None:
    bench.script["latency_s"] = 1.0
    process = subprocess.Popen(
        [sys.executable, "-m", "entrypoint", "run", str(bench.write())], cwd=ROOT, stderr=subprocess.PIPE
    )
    wait_until(lambda: len(bench.asked()) > 10, "ten requests")
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert b"Traceback" not in err
    assert not [pid for pid in map(int, bench.starts.read_text().split()) if alive(pid)]


def test_an_endpoint_is_used_and_marked_unproven(bench: Bench) -> None:
    socket = bench.folder / "s"
    bench.write()
    server = subprocess.Popen([*bench.command, "--uds", str(socket), "--model", bench.job["checkpoint"]])
    try:
        wait_until(socket.exists, "the endpoint's socket")
        engine: dict[str, Any] = {"kind": "endpoint", "socket": str(socket), "model": "m", "max_model_len": 512}
        assert bench.run(engine=engine) == 0
        assert {b["model"] for b in bench.asked()} == {"m"}
        assert "can't be proved" in json.dumps(json.loads((bench.root / "_work/plan.json").read_bytes()))
    finally:
        server.terminate()
        server.wait()


def test_benchmarks_of_the_pinned_source_run_end_to_end(bench: Bench, evalchemy_tree: Path) -> None:
    engine = {**bench.job["engine"], "max_model_len": 4096}
    tasks = [{"name": "AIME24", "seeds": 2}, {"name": "MATH500"}, "OlympiadBench_Physics"]
    bench.script["default"] = "It is \\boxed{73}."
    assert bench.run(tasks=tasks, engine=engine, limit=4, seeds=None) == 0
    root = bench.folder / "results/exp-step300-limit4"
    per_seed = sorted(root.glob("AIME24_seed*/AIME24_0shot/*/results_*.json"))
    assert len(per_seed) == 2
    for path, seed in zip(per_seed, (42, 43), strict=True):
        document = json.loads(path.read_bytes())
        entry = document["results"]["AIME24"]
        assert entry["num_repeat"] == 1
        assert len(entry["run_stats"]) == 1
        assert document["_evalcrate"]["seed_policy"] == "per_sample"
        asked = [
            json.loads(line) for line in (root / f"_work/requests/AIME24/seed{seed}.jsonl").read_text().splitlines()
        ]
        assert [e["sampler_seed"] for e in entry["examples"]] == [a["body"]["seed"] for a in asked]
        assert {a["seed"] for a in asked} == {seed}
    results = json.loads((root / "results.json").read_bytes())["tasks"]
    assert [row["status"] for row in results.values()] == ["ok", "ok", "ok"]
