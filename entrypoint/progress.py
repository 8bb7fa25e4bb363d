"""What a person sees while a run goes on: a live line on a terminal, plain lines everywhere else.

In: stages, notes, Progress values and task summaries. Out: text on stderr; stdout is left to tables and JSON.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, TextIO

from entrypoint.completion import TaskSummary
from entrypoint.generate import Outcome, Progress

_LINE_PERIOD_S = 10.0
_ODDITIES = {
    "truncated": "truncated",
    "empty": "empty",
    "format_fail": "without an answer",
    "grader_timeout": "too hard for the grader",
    "infra_failed": "failed for our reasons",
}


def duration(seconds: float) -> str:
    """`75` as `1:15`, `3675` as `1:01:15`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def describe(progress: Progress) -> str:
    """Done and running requests, tokens per second and the time left, from what this run itself generated."""
    done, fresh = progress.done, progress.done - progress.reused
    if not progress.elapsed_s and done < progress.total:
        return f"the engine starts ({duration(progress.start_s)})"
    text = f"{done}/{progress.total} requests"
    if progress.reused:
        text += f" ({progress.reused} from earlier runs)"
    if progress.elapsed_s > 0 and progress.generated_tokens:
        text += f", {progress.running} running, {progress.generated_tokens / progress.elapsed_s:,.0f} tokens/s"
    if fresh > 0 and done < progress.total:
        text += f", about {duration(progress.elapsed_s / fresh * (progress.total - done))} left"
    return text


class Lines:
    """Reporter: `quiet` keeps warnings and failures only."""

    def __init__(self, *, quiet: bool = False, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._quiet, self._live = quiet, self._out.isatty()
        self._lock = threading.Lock()
        self._last = 0.0
        self._open_line = False
        self._told_end = False

    def stage(self, text: str) -> None:
        self._told_end = False
        if not self._quiet:
            self._print(text)

    def note(self, text: str) -> None:
        if not self._quiet:
            self._print(f"  {text}")

    def task(self, summary: TaskSummary) -> None:
        if summary.status == "failed":
            self._print(f"  {summary.task}: failed: {summary.reason}")
        elif not self._quiet:
            self._print(f"  {summary.task}: {summary.status}, {score(summary)}")

    def progress(self, progress: Progress) -> None:
        finished = progress.done == progress.total
        if self._quiet or not progress.total or self._told_end:
            return
        self._told_end = finished
        with self._lock:
            now = monotonic()
            if self._live:
                self._out.write(f"\r\x1b[2K  {describe(progress)}")
                self._open_line = True
            elif finished or now - self._last >= _LINE_PERIOD_S:
                self._out.write(f"  {describe(progress)}\n")
                self._last = now
            self._out.flush()

    def _print(self, text: str) -> None:
        with self._lock:
            self._out.write(("\n" if self._open_line else "") + text + "\n")
            self._open_line = False
            self._out.flush()


def score(summary: TaskSummary) -> str:
    """Mean and sample standard deviation, times 100, with one decimal."""
    if summary.mean is None or summary.std is None:
        return "no score"
    spread = f" ± {100 * summary.std:.1f} (sd)" if len(summary.seeds) > 1 else ""
    return f"{100 * summary.mean:.1f}{spread}, {len(summary.seeds)} seed{'s' * (len(summary.seeds) > 1)}"


def generated(outcome: Outcome) -> str:
    """What the engine did in this run, its start included."""
    again = f", {outcome.resent} sent again" if outcome.resent else ""
    return (
        f"generated {outcome.generated:,} answers, {outcome.generated_tokens:,} tokens, in {duration(outcome.wall_s)} "
        f"with {outcome.engine_starts} engine start{'s' * (outcome.engine_starts > 1)}{again}"
    )


def table(summaries: Sequence[TaskSummary], validity: Sequence[Mapping[str, Any]]) -> str:
    """The closing table: one row per task."""
    rows = [("task", "status", "mean", "sample sd", "seeds", "validity")]
    for summary, counts in zip(summaries, validity, strict=True):
        mean = "-" if summary.mean is None else f"{summary.mean:.4f}"
        std = "-" if summary.std is None else f"{summary.std:.4f}"
        rows.append((summary.task, summary.status, mean, std, str(len(summary.seeds)), _validity_words(counts)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _validity_words(counts: Mapping[str, Any]) -> str:
    """`192/192 graded, 3 truncated`: how many samples a score stands on, and what is odd about them."""
    odd = [f"{counts[name]} {words}" for name, words in _ODDITIES.items() if counts.get(name)]
    return ", ".join([f"{counts.get('graded')}/{counts.get('expected')} graded", *odd])
