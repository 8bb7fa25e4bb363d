"""The trials of one task -> mean, sample standard deviation and the compile files.

In: per-seed documents. Out: `averaged_results` and `compiled_results`, as JSON and CSV, in the columns and
value types that Marin's compiler (experiments/evals/evalchemy_results_compiler.py) writes.
"""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from entrypoint.layout import Layout, write_atomic, write_json
from entrypoint.plan import TaskPlan

_ROW_KEYS = ("id", "correct", "dataset_name", "model_name")  # of the JSON; the CSV has all


def mean_and_std(values: Iterable[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (ddof 1; 0.0 for one value).

    Computed on ratios, so that 0.4, 0.5, 0.6 give 0.5 and 0.1, and the order of the seeds does not show.
    """
    ratios = [_ratio(value) for value in values]
    return float(statistics.mean(ratios)), float(statistics.stdev(ratios)) if len(ratios) > 1 else 0.0


def _ratio(value: float) -> Fraction:
    """The small ratio that `value` is the nearest float of (1/3 of 0.333…), else exactly `value`."""
    small = Fraction(value).limit_denominator(1_000_000)
    return small if float(small) == value else Fraction(value)


def write_average(layout: Layout, task: TaskPlan, trials: Mapping[int, Mapping[str, Any]]) -> None:
    """Write the four compile files.

    `trials` are the per-seed documents of all seeds of the task, with equally many samples each;
    `averaged_results.json`, which readers look for, comes after the rows that it stands on.
    """
    folder = layout.compile_dir(task.name, len(trials))
    name = task.name.lower()
    results = {seed: document["results"][task.name] for seed, document in trials.items()}
    rows = [_row(name, seed, example) for seed, one in results.items() for example in one["examples"]]
    write_json(folder / "compiled_results.json", [{key: row[key] for key in _ROW_KEYS} for row in rows])
    write_atomic(folder / "compiled_results.csv", _csv(rows))
    mean, std = mean_and_std(one["accuracy"] for one in results.values())
    averaged = {
        "base_model_name": name,
        "dataset_name": name,
        "num_seeds": len(results),
        "seeds": list(results),
        "correct_mean": mean,
        "correct_std": std,
        "correct_per_seed": {str(seed): one["accuracy"] for seed, one in results.items()},
    }
    write_json(folder / "averaged_results.json", [averaged])
    cells = {key: json.dumps(averaged[key]) for key in ("seeds", "correct_per_seed")}
    write_atomic(folder / "averaged_results.csv", _csv([{**averaged, **cells}]))


def _row(name: str, seed: int, example: Mapping[str, Any]) -> dict[str, Any]:
    """One sample under one seed."""
    return {
        "id": example["id"],
        "correct": _credit(example),
        "dataset_name": name,
        "model_name": f"{name}_seed{seed}",
        "base_model_name": name,
        "seed": seed,
    }


def _credit(example: Mapping[str, Any]) -> int | float | None:
    """1 or 0, a float where the benchmark gives partial credit, None where it tells no verdict per example."""
    if "correctness" in example:
        return int(example["correctness"])
    return float(example["score"][0]) if "score" in example else None


def _csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode("utf-8", "backslashreplace")
