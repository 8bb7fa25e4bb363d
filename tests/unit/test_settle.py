"""What is published must be true, where readers look, and stay so when the process is killed on any line.

Incidents: averages over fewer seeds than claimed (lighteval#771), ddof 0 taken for the sample deviation
(marin#9196), duplicates that a glob counts twice (the compiler of Marin), the newest file chosen by file time
(product-integrator#1464).
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from entrypoint.average import mean_and_std
from entrypoint.completion import failure_file
from entrypoint.layout import write_json
from entrypoint.report import write_report
from entrypoint.settle import forget_task, record_failure, retire_foreign
from tests.fakes.graded import (
    Bench,
    load,
    plain_shape,
    snapshot,
    task_plan,
    write_graded,
)

GOLDEN = Path(__file__).parent / "golden" / "two-seeds"
TENTHS = {42: 4, 43: 5, 44: 6}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_the_standard_deviation_is_the_sample_one() -> None:
    assert mean_and_std([0.4, 0.5, 0.6]) == (0.5, 0.1)
    mean, std = mean_and_std(n / 30 for n in (13, 12, 14, 13, 11, 13, 12, 15, 13, 12))
    assert (round(mean, 6), round(std, 6)) == (0.426667, 0.037843)
    assert mean_and_std([0.3]) == (0.3, 0.0)
    assert mean_and_std([2 / 3, 1 / 3])[0] == 0.5


def test_three_seeds_give_per_seed_files_compile_files_and_a_marker(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task_plan(seeds=(42, 43, 44)))
    bench.put_all(TENTHS)
    summary = bench.settle()
    assert (summary.status, summary.mean, summary.std) == ("ok", 0.5, 0.1)
    assert bench.averaged() == [
        {
            "base_model_name": "aime24",
            "dataset_name": "aime24",
            "num_seeds": 3,
            "seeds": [42, 43, 44],
            "correct_mean": 0.5,
            "correct_std": 0.1,
            "correct_per_seed": {"42": 0.4, "43": 0.5, "44": 0.6},
        }
    ]
    marker = load(bench.layout.marker("AIME24"))
    known = {key: marker[key] for key in ("task", "status", "seeds", "mean", "std", "checkpoint", "elapsed_seconds")}
    assert known == {
        "task": "AIME24",
        "status": "complete",
        "seeds": [42, 43, 44],
        "mean": 0.5,
        "std": 0.1,
        "checkpoint": "c0" * 32,
        "elapsed_seconds": 4.5,
    }
    assert set(marker["fingerprints"]["43"]) == {"generation", "grading"}


def test_compiled_rows_are_one_per_sample_and_seed_and_their_means_are_the_averages(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task_plan(seeds=(42, 43, 44)))
    bench.put_all(TENTHS)
    bench.settle()
    folder = bench.layout.compile_dir("AIME24", 3)
    rows = load(folder / "compiled_results.json")
    assert rows[0] == {"id": "0", "correct": 1, "dataset_name": "aime24", "model_name": "aime24_seed42"}
    assert len(rows) == 30
    for seed, solved in TENTHS.items():
        assert sum(row["correct"] for row in rows if row["model_name"] == f"aime24_seed{seed}") == solved
    table = list(csv.DictReader(io.StringIO((folder / "compiled_results.csv").read_text())))
    assert list(table[0]) == ["id", "correct", "dataset_name", "model_name", "base_model_name", "seed"]
    assert (table[29]["base_model_name"], table[29]["seed"]) == ("aime24", "44")
    averaged = list(csv.DictReader(io.StringIO((folder / "averaged_results.csv").read_text())))
    assert list(averaged[0]) == list(bench.averaged()[0])
    assert json.loads(averaged[0]["correct_per_seed"]) == {"42": 0.4, "43": 0.5, "44": 0.6}


def test_one_seed_has_a_deviation_of_zero_and_no_compile_folder(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task_plan("MATH500", (42,)))
    bench.put(42, plain_shape([True, False, False, False], 42))
    summary = bench.settle()
    assert (summary.mean, summary.std) == (0.25, 0.0)
    assert not list(bench.layout.root.glob("compile_*"))
    assert bench.state(rows=4).complete


def test_one_failed_seed_leaves_the_good_trial_and_no_average(bench: Bench) -> None:
    bench.put_all({42: 4})
    bench.put(43, None, status="failed", reason="2 requests were lost")
    summary = bench.settle()
    assert (summary.status, summary.mean, dict(summary.per_seed)) == ("failed", None, {42: 0.4})
    assert "1 of 2 seeds failed" in str(summary.reason)
    assert [Path(name).parts[1] for name in bench.published()] == ["AIME24_0shot"]
    record = load(failure_file(bench.layout, "AIME24"))
    assert record["validity"]["43"]["reason"] == "2 requests were lost"
    bench.put_all({43: 5})
    assert bench.settle().status == "ok"
    assert not failure_file(bench.layout, "AIME24").exists()


def test_there_is_no_average_over_fewer_seeds_than_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task_plan(seeds=(42, 43, 44, 45)))
    bench.put_all({42: 4, 43: 5, 45: 6})
    assert bench.settle().status == "failed"
    assert not list(bench.layout.root.glob("compile_*"))
    assert not bench.layout.marker("AIME24").exists()
    assert bench.state().settled == (42, 43, 45)


def test_there_is_no_average_over_seeds_with_different_totals(bench: Bench) -> None:
    bench.put_all({42: 4}, total=30)
    bench.put_all({43: 4}, total=27)
    summary = bench.settle()
    assert "seed 42: 30, seed 43: 27" in str(summary.reason)
    assert bench.averaged() is None
    assert not bench.layout.marker("AIME24").exists()


def test_there_is_no_average_over_seeds_from_different_graders(bench: Bench) -> None:
    bench.put_all({42: 4, 43: 5})
    trial = load(bench.layout.graded("AIME24", 43))
    trial["fingerprints"]["grading"]["fields"]["lark"] = "1.2.2"
    write_graded(bench.layout, trial)
    assert "lark: absent -> 1.2.2" in str(bench.settle().reason)
    assert not bench.layout.marker("AIME24").exists()


def test_settling_again_keeps_names_and_bytes(bench: Bench) -> None:
    bench.put_all({42: 4, 43: 5})
    bench.settle()
    before = snapshot(bench.layout.root)
    assert bench.settle().status == "ok"
    assert snapshot(bench.layout.root) == before


def test_a_changed_trial_keeps_its_name_and_nothing_old_stays_published(bench: Bench) -> None:
    bench.put_all({42: 4, 43: 5})
    bench.settle()
    names = [bench.seed_files(seed) for seed in (42, 43)]
    date = load(names[0][0])["date"]
    bench.put_all({42: 6})
    assert bench.settle().mean == 0.55
    assert [bench.seed_files(seed) for seed in (42, 43)] == names
    assert load(names[0][0])["date"] > date
    assert bench.averaged()[0]["correct_per_seed"] == {"42": 0.6, "43": 0.5}


def test_two_folders_agree_but_for_date_and_our_own_block(tmp_path: Path) -> None:
    found = []
    for name, late in (("a", 0), ("b", 5)):
        bench = Bench(tmp_path / name)
        bench.put_all({42: 4, 43: 5})
        trial = load(bench.layout.graded("AIME24", 42))
        write_graded(bench.layout, {**trial, "elapsed_seconds": 1.0 + late})
        for _ in range(late):
            bench.clock()
        bench.settle()
        documents = [load(bench.seed_files(seed)[0]) for seed in (42, 43)]
        kept = [{k: v for k, v in one.items() if k not in ("date", "_evalcrate")} for one in documents]
        averages = sorted(bench.layout.root.glob("compile_*/*/*"))
        found.append((kept, [path.read_bytes() for path in averages]))
    assert found[0] == found[1]
    assert str(tmp_path) not in json.dumps(found[0][0])


def test_the_readers_glob_finds_one_file_per_seed_and_none_under_work(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task_plan(seeds=range(42, 52)))
    bench.put_all({seed: 5 for seed in range(42, 52)})
    bench.settle()
    assert all(len(bench.seed_files(seed)) == 1 for seed in bench.task.seeds)
    bench.reseed((42, 43, 44))
    bench.settle()
    assert len(list(bench.layout.root.glob("**/results_*.json"))) == 3
    assert list(bench.layout.work.glob("**/results_*.json")) == []
    assert bench.layout.stale.is_dir()


def test_more_seeds_and_back_keeps_the_first_three_and_moves_the_others(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task_plan(seeds=(42, 43, 44)))
    bench.put_all(TENTHS)
    bench.settle()
    three = {path: path.read_bytes() for seed in TENTHS for path in bench.seed_files(seed)}
    averages = bench.averaged()
    bench.reseed(range(42, 52))
    assert bench.state().settled == (42, 43, 44)
    bench.put_all({seed: 5 for seed in range(45, 52)})
    assert bench.settle().seeds == tuple(range(42, 52))
    assert [p.name[:24] for p in bench.layout.root.glob("compile_*")] == ["compile_AIME24_avg10seed"]
    bench.reseed((42, 43, 44))
    assert not bench.state().complete
    bench.settle()
    assert {path: path.read_bytes() for seed in TENTHS for path in bench.seed_files(seed)}.keys() == three.keys()
    assert bench.averaged() == averages
    assert sorted(p.name for p in bench.layout.root.glob("*_seed*")) == sorted(
        bench.layout.seed_dir("AIME24", seed).name for seed in TENTHS
    )
    assert len(list(bench.layout.stale.glob("*/AIME24_seed*/*/*/stale-results_*.json"))) == 7
    assert bench.state().complete


def test_folders_of_other_tasks_are_left_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    others = ["AIME24x_seed45-abcdef", "compile_AIME245_avg3seeds-abcdef", "AIME24_seed45", "notes"]
    for name in others:
        (bench.layout.root / name).mkdir(parents=True)
    bench.put_all({42: 4, 43: 5})
    bench.settle()
    assert all((bench.layout.root / name).is_dir() for name in others)


def test_another_models_folder_and_leftovers_move_to_stale(bench: Bench) -> None:
    bench.put_all({42: 4, 43: 5})
    bench.settle()
    kept = bench.seed_files(42)[0]
    foreign = kept.parent.with_name("__other__model")
    foreign.mkdir()
    for path in (
        foreign / "results_old.json",
        kept.with_name("results_old.json"),
        kept.with_name("results_x.json.tmp"),
    ):
        path.write_text("{}")
    assert not bench.state().complete
    bench.settle()
    assert bench.seed_files(42) == [kept]
    assert [p.name for p in kept.parent.parent.iterdir()] == [kept.parent.name]
    assert [p.name for p in kept.parent.iterdir()] == [kept.name]
    assert len(list(bench.layout.stale.rglob("stale-results_*"))) == 3
    assert bench.state().complete


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_the_kept_name_is_the_newest_by_the_time_inside_the_files(
    bench: Bench, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    folder = bench.layout.model_dir("AIME24", 42, 0)
    older, newer = folder / "results_2026-11-01T01-50-00.json", folder / "results_2026-11-01T01-10-00.json"
    write_json(older, {"date": 1_793_500_000.0})
    write_json(newer, {"date": 1_793_501_200.5})
    os.utime(older, (2e9, 2e9))
    bench.put_all({42: 4, 43: 5})
    bench.settle()
    assert bench.seed_files(42) == [newer]


def test_a_limited_run_never_claims_to_be_complete(tmp_path: Path) -> None:
    bench = Bench(tmp_path, limit=5)
    bench.put_all({42: 4, 43: 5})
    assert bench.settle().status == "ok"
    assert bench.layout.root.name == "exp-step300-limit5"
    assert not bench.layout.marker("AIME24").exists()
    state = bench.state()
    assert (state.complete, state.settled) == (False, (42, 43))


def test_a_settled_trial_needs_its_graded_file_no_more(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task_plan(seeds=(42, 43)))
    bench.put_all({42: 4, 43: 5})
    bench.settle()
    before = bench.published()
    shutil.rmtree(bench.layout.graded("AIME24", 42).parent)
    assert bench.state().complete
    bench.reseed((42, 43, 44))
    bench.put_all({44: 6})
    assert bench.settle().mean == 0.5
    assert {name for name in before if "_seed" in name and "compile" not in name} <= bench.published()


def test_a_forgotten_task_leaves_nothing_that_says_it_is_done(bench: Bench) -> None:
    bench.put_all({42: 4, 43: 5})
    bench.settle()
    write_report(bench.plan, bench.layout)
    (bench.layout.root / "AIME24x_seed45-abcdef").mkdir()
    forget_task(bench.layout, bench.task)
    assert bench.published() == set()
    assert not bench.layout.graded("AIME24", 42).exists()
    assert (bench.layout.root / "AIME24x_seed45-abcdef").is_dir()
    assert not bench.state().complete
    assert len(list(bench.layout.stale.rglob("stale-results*.json"))) == 3
    assert bench.settle().status == "failed"
    bench.put_all({42: 6, 43: 6})
    assert bench.settle().mean == 0.6


def test_a_changed_task_takes_the_old_report_away(bench: Bench) -> None:
    bench.put_all({42: 4, 43: 5})
    bench.settle()
    write_report(bench.plan, bench.layout)
    bench.settle()
    assert bench.layout.results_json.exists()
    bench.put(43, None, status="failed", reason="2 requests were lost")
    bench.settle()
    assert not bench.layout.results_json.exists()
    assert not bench.layout.summary.exists()


def settle_two(folder: Path, checkpoint: str) -> list[Bench]:
    """AIME24 and MATH500 in one folder, both complete."""
    benches = []
    for task in (task_plan(), task_plan("MATH500", (42,))):
        bench = Bench(folder, task, checkpoint_identity=checkpoint)
        bench.put_all(dict.fromkeys(task.seeds, 5))
        bench.settle()
        benches.append(bench)
    return benches


def test_every_task_of_another_checkpoint_moves_to_stale_and_no_other(tmp_path: Path) -> None:
    aime, math = settle_two(tmp_path, "c0" * 32)
    aime.plan = replace(aime.plan, evaluation=replace(aime.plan.evaluation, checkpoint_identity="d1" * 32))
    aime.put_all({42: 6, 43: 6})
    aime.settle()
    kept = {name for name in aime.published() if "AIME24" in name}
    write_report(math.plan, math.layout)
    retire_foreign(aime.layout, "d1" * 32)
    assert aime.published() == kept
    assert aime.state().complete
    assert not math.state().complete
    assert len(list(aime.layout.stale.glob("*/MATH500_seed42-*/*/*/stale-results_*.json"))) == 1


def test_what_is_of_this_checkpoint_is_not_moved(tmp_path: Path) -> None:
    aime, _ = settle_two(tmp_path, "c0" * 32)
    write_report(aime.plan, aime.layout)
    before = snapshot(aime.layout.root)
    retire_foreign(aime.layout, "c0" * 32)
    assert snapshot(aime.layout.root) == before


@pytest.mark.parametrize("where", ["collect", "grade"])
def test_a_reason_holds_no_path_of_the_result_folder(tmp_path: Path, where: str) -> None:
    records = []
    for name in ("a", "some/where/else"):
        bench = Bench(tmp_path / name)
        log = bench.layout.logs / "collect-AIME24.log"
        reason = f"{bench.layout.root}: the child died, see {log}"
        if where == "collect":
            summary = record_failure(bench.layout, bench.task, reason)
        else:
            for seed in bench.task.seeds:
                bench.put(seed, None, status="failed", reason=reason)
            summary = bench.settle()
        assert "exp-step300: the child died, see _work/logs/collect-AIME24.log" in str(summary.reason)
        write_report(bench.plan, bench.layout)
        record = failure_file(bench.layout, "AIME24").read_bytes()
        records.append((record, bench.layout.results_json.read_bytes(), bench.layout.summary.read_bytes()))
    assert records[0] == records[1]
    assert str(tmp_path).encode() not in b"".join(records[0])
