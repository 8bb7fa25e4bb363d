"""Settled files -> results.json, for programs, and summary.md, for people. Starts nothing.

In: the plan and its result folder. Out: the two files, which speak of every task of the plan, failed ones too.
"""

from __future__ import annotations

from entrypoint.layout import Layout, write_atomic, write_json
from entrypoint.plan import Plan
from entrypoint.report.results import read_tasks, results_document
from entrypoint.report.summary import summary_text

__all__ = ["write_report"]


def write_report(plan: Plan, layout: Layout) -> None:
    tasks = read_tasks(plan, layout)
    write_json(layout.results_json, results_document(plan, tasks))
    write_atomic(layout.summary, summary_text(plan, tasks).encode())
