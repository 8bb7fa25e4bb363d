"""The layout of a small task, byte for byte: other people's programs read it, so that a change must be seen.

The golden folder is made by `python -m tests.unit.test_settle_golden`, when the layout changes on purpose.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.fakes.graded import (
    Bench,
    graded_trial,
    load,
    repeat_shape,
    snapshot,
    write_graded,
)

GOLDEN = Path(__file__).parent / "golden" / "two-seeds"


def test_a_small_task_is_byte_for_byte_the_golden_folder(tmp_path: Path) -> None:
    settle_golden(tmp_path)
    assert snapshot(tmp_path) == snapshot(GOLDEN)


def settle_golden(folder: Path) -> None:
    bench = Bench(folder)
    for seed in (42, 43):
        trial = graded_trial(bench.plan, bench.task, seed, repeat_shape([True, seed == 43, False], seed))
        trial["native"] |= {"transformers_version": "5.19.0", "lm_eval_version": "0.4.13"}
        write_graded(bench.layout, trial)
    bench.settle()
    shutil.rmtree(bench.layout.work)


def test_a_reader_finds_task_seed_and_rows_from_the_paths_alone() -> None:
    """As the compiler of Marin reads: it takes every identity from the path, and a glob for what is there."""
    found = {}
    for path in sorted(GOLDEN.glob("*/*_seed*/*/*/results_*.json")):
        model = path.parts[-4].rsplit("-", 1)[0].lower()
        seed = re.search(r"[-_]seed(\d+)(?=[-_]|$)", model)
        assert seed
        assert path.parts[-3].rsplit("_", 1)[0].lower() == "aime24"
        answers = [(e["model_answers"][0], e["expected_answer"]) for e in load(path)["results"]["AIME24"]["examples"]]
        found[int(seed[1])] = sum(answer == expected for answer, expected in answers) / len(answers)
    (averaged,) = load(next(GOLDEN.glob("*/compile_*/compiled_results/averaged_results.json")))
    assert {str(seed): value for seed, value in found.items()} == averaged["correct_per_seed"]
    assert averaged["base_model_name"] == "aime24"


if __name__ == "__main__":
    shutil.rmtree(GOLDEN, ignore_errors=True)
    settle_golden(GOLDEN)
