"""How fast model-written programs are graded, beside the same programs run bare: run by hand, never as a test.

    .venv/bin/python benchmarks/grading.py [--samples 500] [--tests 20] [--cores 2]

Prints wall seconds of grading so many LiveCodeBench-shaped samples, of `python -I program.py < input` on the same
inputs, as many at a time and up to a sample's first failure too, and the ratio.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from entrypoint.harness.livecodebench import Judge  # noqa: E402

SUM = "n = int(input())\na = list(map(int, input().split()))\nprint(sum(a))\n"
PAIRS = """
import sys
from collections import Counter
def main():
    n, *a = map(int, sys.stdin.read().split())
    print(sum(a) + sum(Counter(a).values()) - n)
main()
"""
HEAP = """
import heapq
n = int(input())
heap = [(-int(x), i) for i, x in enumerate(input().split())]
heapq.heapify(heap)
total = 0
while heap:
    total -= heapq.heappop(heap)[0]
print(total)
"""
SLOW = SUM + "k = 0\nfor i in range(200000): k ^= i\n"
WRONG_LATE = SUM.replace("sum(a)", "sum(a) if n < 1500 else 0")
WRONG = SUM.replace("sum(a)", "max(a)")
PROGRAMS = (SUM, PAIRS, HEAP, SLOW, WRONG_LATE, WRONG)


def cases(tests: int) -> list[dict[str, str]]:
    """Lists of 100, 200, … numbers and their sums."""
    made = []
    for number in range(1, tests + 1):
        values = [(number * 7919 * i) % 10007 for i in range(1, 100 * number + 1)]
        given = f"{len(values)}\n{' '.join(map(str, values))}\n"
        made.append({"input": given, "output": f"{sum(values)}\n", "testtype": "stdin"})
    return made


def run_bare(file: Path, tests: list[dict[str, str]]) -> bool:
    for test in tests:
        argv = [sys.executable, "-I", str(file)]
        done = subprocess.run(argv, input=test["input"], capture_output=True, text=True)
        if done.returncode or done.stdout.strip() != test["output"].strip():
            return False
    return True


def timed(work: Callable[[Any], bool], samples: list[Any], threads: int) -> tuple[float, list[bool]]:
    started = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        verdicts = list(pool.map(work, samples))
    return time.perf_counter() - started, verdicts


def graded(programs: list[str], tests: list[dict[str, str]], cores: int) -> tuple[float, list[bool]]:
    """With 32 threads that ask, as the benchmark has them; the judge's start and end included."""
    problem = {"task_id": "bench", "is_stdin": True, "test": tests}
    started = time.perf_counter()
    with Judge(cores) as judge:
        _, verdicts = timed(lambda program: judge.verdict(problem, program).passed, programs, 32)
    return time.perf_counter() - started, verdicts


def bare(programs: list[str], tests: list[dict[str, str]], cores: int) -> tuple[float, list[bool]]:
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number, program in enumerate(programs):
            files.append(Path(folder) / f"{number}.py")
            files[-1].write_text(program)
        return timed(lambda file: run_bare(file, tests), files, cores)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--tests", type=int, default=20)
    parser.add_argument("--cores", type=int, default=2)
    arguments = parser.parse_args()
    programs = [PROGRAMS[n % len(PROGRAMS)] for n in range(arguments.samples)]
    tests = cases(arguments.tests)
    ours_s, ours = graded(programs, tests, arguments.cores)
    bare_s, theirs = bare(programs, tests, arguments.cores)
    if ours != theirs:
        raise SystemExit("the verdicts differ")
    print(f"{arguments.samples} samples, {arguments.tests} tests each, {sum(ours)} right, {os.cpu_count()} CPUs")
    print(f"graded, {arguments.cores} at a time  {ours_s:7.1f} s")
    print(f"bare, {arguments.cores} at a time    {bare_s:7.1f} s")
    print(f"ratio                {ours_s / bare_s:7.2f}")


if __name__ == "__main__":
    main()
