"""Upstream's LiveCodeBench checker in a process of its own: `upstream_checker.py TREE BENCHMARK < samples`.

In, JSON: `[[problem, program], …]`. Out, JSON on the last line: whether each passed.
"""

from __future__ import annotations

import importlib
import json
import os
import sys


def main(tree: str, benchmark: str) -> None:
    sys.path.insert(0, tree)
    checker = importlib.import_module(f"eval.chat_benchmarks.{benchmark}.livecodebench_utils")
    samples = json.load(sys.stdin)
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # programs print
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = open(0)  # noqa: SIM115
    passed = []
    for problem, program in samples:
        results = checker.lcb_run(problem, program, timeout=6, is_extracted=not problem["is_stdin"])
        passed.append(bool(results) and all(result[0] for result in results))
    json.dump(passed, answer)
    answer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
