#!/usr/bin/env python3
"""A stand-in for the grader child: `python tests/fakes/grader.py HOW SPEC.json` answers in one scripted way.

HOW: `empty`, `null`, `list`, `no-task` (malformed results) · `nan` · `short` (one sample less) · `silent` (exit 0, no
answer) · `crash` (exit 3) · `hang` (ignores SIGTERM, with a child that does too; the file `pids` beside this run's HOW
argument `hang:FILE` gets both) · `out-of-range` (accuracy 1.5) · `wrong-count` (accuracy 0.5, though every example is
marked wrong).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any


def main(how: str, spec_file: str) -> None:
    (job,) = json.loads(Path(spec_file).read_bytes())["jobs"]
    rows = [json.loads(line) for line in Path(job["spec"]["generations"]).read_bytes().splitlines()]
    if how == "silent":
        return
    if how == "crash":
        print("the grader fell over")
        sys.exit(3)
    if how.startswith("hang:"):
        hang(Path(how.partition(":")[2]))
    Path(job["answer"]).write_text(json.dumps({"ok": True, "value": answer(how, rows)}))


def answer(how: str, rows: list[dict[str, Any]]) -> Any:
    examples = [
        {
            "id": str(row["sample"]),
            "model_answers": ["1"],
            "model_outputs": [row["text"]],
            "correctness": False,
            "tokens": row["completion_tokens"],
            "finish_reason": row["finish_reason"],
            "sampler_seed": row["sampler_seed"],
        }
        for row in rows
    ]

    def scored(value: float) -> dict[str, Any]:
        return {"exact_match,boxed": value, "accuracy": value, "examples": examples}

    shapes: dict[str, Any] = {
        "empty": {"results": {}},
        "null": {"results": None},
        "list": [],
        "no-task": {"results": {"examples": None}},
        "nan": {"results": scored(float("nan"))},
        "short": {"results": {**scored(0.0), "examples": examples[1:]}},
        "out-of-range": {"results": scored(1.5)},
        "wrong-count": {"results": scored(0.5)},
    }
    return shapes[how]


def hang(pids: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = os.fork()
    if child:
        pids.write_text(f"{os.getpid()} {child}")
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
