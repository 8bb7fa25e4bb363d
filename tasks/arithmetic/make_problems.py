"""Writes problems.jsonl, the sums that the task `arithmetic` asks.

Takes nothing. Gives 64 distinct sums of two addends in 0..99, one JSON object a line, alike on every Python.
Run it again after changing it: `python tasks/arithmetic/make_problems.py`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

SEED = "arithmetic-1"
PROBLEMS = 64
ADDENDS = 100
QUESTION = "What is {a} + {b}? Put the answer in \\boxed{{}}."


def drawn_pairs() -> list[tuple[int, int]]:
    """The first PROBLEMS pairs in the order of a seeded hash: a draw that no change of `random` can move."""

    def rank(pair: tuple[int, int]) -> bytes:
        return hashlib.sha256(f"{SEED}\0{pair[0]}\0{pair[1]}".encode()).digest()

    pairs = [(a, b) for a in range(ADDENDS) for b in range(ADDENDS)]
    return sorted(pairs, key=rank)[:PROBLEMS]


def problem_lines() -> str:
    rows = (
        {"id": position, "a": a, "b": b, "question": QUESTION.format(a=a, b=b), "answer": str(a + b)}
        for position, (a, b) in enumerate(drawn_pairs())
    )
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


if __name__ == "__main__":
    Path(__file__).with_name("problems.jsonl").write_text(problem_lines(), encoding="utf-8")
