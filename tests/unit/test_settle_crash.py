"""A run killed between any two changes of the disk claims nothing, and the next one ends as if it never was.

Incidents: half a JSON or a `.tmp` left by a crash, then counted (verifiers#1376, PyAutoFit#1480).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from entrypoint.completion import read_settled
from entrypoint.layout import Layout
from entrypoint.plan import TaskPlan
from entrypoint.report import write_report
from entrypoint.settle import forget_task, retire_foreign
from entrypoint.stale import retire
from tests.fakes.graded import (
    Bench,
    load,
    snapshot,
)


@contextmanager
def crash_after(changes: int) -> Iterator[None]:
    """Let `changes` changes of the disk happen (every write ends in one) and no more, as a kill does.

    Nothing is cleaned up either: what was being written stays behind as a `.tmp`.
    """
    left = changes

    def guarded(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return real(*args, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", guarded(Path.replace))
        patch.setattr(Path, "rename", guarded(Path.rename))
        patch.setattr(Path, "unlink", guarded(Path.unlink))
        yield


class Killed(BaseException):
    """No `except Exception` may catch it."""


def test_a_crash_between_any_two_changes_claims_nothing_and_the_next_run_ends_the_same(tmp_path: Path) -> None:
    whole = settle_with_crash(tmp_path / "whole", None)
    crashes, leftovers = 0, 0
    while (bench := settle_with_crash(tmp_path / str(crashes), crashes)).crashed:
        crashes += 1
        leftovers += len(list(bench.layout.root.rglob(".*.tmp")))
        assert published(bench) == published(whole)
        assert bench.state().complete
        assert all(len(bench.seed_files(seed)) == 1 for seed in bench.task.seeds)
        assert not list(bench.layout.work.glob("**/results_*.json"))
    assert crashes > 10
    assert leftovers > 3


class CrashBench(Bench):
    crashed = False


def settle_with_crash(folder: Path, changes: int | None) -> CrashBench:
    """Settle and report, grade seed 42 anew, settle until the crash, settle again."""
    bench = CrashBench(folder)
    bench.put_all({42: 4, 43: 5})
    bench.settle()
    write_report(bench.plan, bench.layout)
    bench.put_all({42: 6})
    try:
        with crash_after(1000 if changes is None else changes):
            bench.settle()
    except Killed:
        bench.crashed = True
        assert_true_or_absent(bench)
        bench.settle()
    return bench


def test_a_crash_in_the_first_settling_ends_the_same_as_none(tmp_path: Path) -> None:
    trees = []
    for changes in range(10):  # two results files, four compile files, no failure any more, a marker, and to spare
        bench = Bench(tmp_path / str(changes))
        bench.put_all({42: 4, 43: 5})
        with contextlib.suppress(Killed), crash_after(changes):
            bench.settle()
        bench.settle()
        trees.append(timeless(snapshot(bench.layout.root)))
    assert all(tree == trees[0] for tree in trees)


@pytest.mark.parametrize("forced", [forget_task, lambda layout, _: retire_foreign(layout, "d1" * 32)])
def test_a_crash_while_results_are_moved_away_leaves_no_claim_without_its_files(
    tmp_path: Path, forced: Callable[[Layout, TaskPlan], None]
) -> None:
    changes, crashed = 0, True
    while crashed:
        bench = Bench(tmp_path / str(changes))
        bench.put_all({42: 4, 43: 5})
        bench.settle()
        write_report(bench.plan, bench.layout)
        crashed = False
        try:
            with crash_after(changes):
                forced(bench.layout, bench.task)
        except Killed:
            crashed = True
            assert_claims_have_files(bench)
            forced(bench.layout, bench.task)
        assert [name for name in bench.published() if not Path(name).name.startswith("stale-")] == []
        changes += 1
    assert changes > 8


def assert_claims_have_files(bench: Bench) -> None:
    layout = bench.layout
    claims = [layout.results_json, layout.summary, layout.marker("AIME24")]
    if bench.state().complete:
        return
    assert not any(path.exists() for path in claims)


def published(bench: Bench) -> dict[str, bytes]:
    found = timeless(snapshot(bench.layout.root))
    return {name: content for name, content in found.items() if not name.startswith("_work")}


def timeless(tree: dict[str, bytes]) -> dict[str, bytes]:
    """Without the time in names and contents, and without what was being written when the process was killed."""
    return {
        re.sub(r"results_2.*Z", "results_Z", name): re.sub(rb'"date": .*', b"", content)
        for name, content in tree.items()
        if not name.endswith(".tmp")
    }


def assert_true_or_absent(bench: Bench) -> None:
    """A marker, average or report that is there agrees with the per-seed files that are there."""
    found = {seed: read_settled(bench.layout, bench.task, seed) for seed in bench.task.seeds}
    values = {str(seed): one.accuracy for seed, one in found.items() if one}
    claims = [(load(bench.layout.marker("AIME24")) or {}).get("per_seed")]
    claims += [row["correct_per_seed"] for row in bench.averaged() or []]
    report = load(bench.layout.results_json)
    claims += [report["tasks"]["AIME24"]["per_seed"]] if report else []
    assert report or not bench.layout.summary.exists() or bench.state().complete
    assert all(claim == values for claim in claims if claim is not None)


def test_tasks_settled_at_the_same_time_do_not_meet_in_the_stale_folder(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    folders = [bench.layout.root / f"folder-{number}" for number in range(40)]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "results_1.json").write_text(folder.name)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda folder: retire(bench.layout, folder), folders))
    moved = {path.read_text() for path in bench.layout.stale.glob("*/*/stale-results_1.json")}
    assert moved == {folder.name for folder in folders}
