# ruff: noqa: E501 (programs, a line each)
"""A benign program gets upstream's verdict, except in the cases that livecodebench.py lists.

Why: results are compared with tables made by upstream's checker, so that every verdict that differs must be known by
name. Incident: upstream grades a right program wrong when it ends by `sys.exit()` or reads `sys.stdin.buffer`.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from entrypoint.harness.livecodebench import Judge

ROOT = Path(__file__).parents[2]


def problem(kind: str, *tests: tuple[str, str]) -> dict[str, Any]:
    return {
        "task_id": "a-problem",
        "is_stdin": kind == "stdin",
        "test": [{"input": given, "output": wanted, "testtype": kind} for given, wanted in tests],
    }


SUM = problem("stdin", ("2\n1 2\n", "3\n"), ("3\n1 2 3", "6"), ("1\n-5\n", "-5\n"))
LINES = problem("stdin", ("2\nab\ncd\n", "ba\ndc\n"), ("1\nxyz\n", "zyx"))
EMPTY = problem("stdin", ("", "0\n"))
DASH = problem("stdin", ("", "1 -\n"))
RETURNS = problem("stdin", ("a\r\nb\r\n", "2 2"))
ADD = problem("functional", ("3\n4", "7"), ("-1\n1", "0"))
LIST = problem("functional", ("[3, 1, 2]", "[1, 2, 3]"), ("[]", "[]"))
NAMED = problem("functional", ('text = "ab", times = 2', '"abab"'))
TEXT = problem("functional", ('"ab"', '"ba"'))
BARE = problem("functional", ("ab", "ba"))
FLOAT = problem("functional", ("4", "2.0"))
BIG = problem("functional", ("100", str(7**100)))
TRUTH = problem("functional", ("4", "true"))
NOTHING = problem("functional", ("4", "null"))
NESTED = problem("functional", ("3", '{"3": [1, 2.5, [null, true]]}'))
UNREADABLE = problem("functional", ("a = b = c", "1"))
MIXED = {**problem("functional", ("3", "3")), "is_stdin": True}
NAN = problem("functional", ("3", "NaN"))

READ_SUM = "n = int(input())\na = list(map(int, input().split()))\n"


class Sample(NamedTuple):
    """`here` and `upstream`: whether it passes."""

    problem: dict[str, Any]
    program: str
    here: bool
    upstream: bool


def same(problem: dict[str, Any], program: str, passes: bool) -> Sample:
    return Sample(problem, program, passes, passes)


SAME = {
    "stdin": same(SUM, READ_SUM + "print(sum(a))", True),
    "stdin, wrong": same(SUM, READ_SUM + "print(max(a))", False),
    "right on the first test only": same(SUM, READ_SUM + "print(3)", False),
    "a function and its call": same(SUM, "def main():\n    input()\n    print(sum(map(int, input().split())))\nmain()", True),
    "leading imports": same(
        SUM, "import sys\nfrom collections import *\ninput = sys.stdin.readline\n" + READ_SUM + "print(sum(a))", True
    ),
    "sys.stdin.read": same(SUM, "import sys\nprint(sum(map(int, sys.stdin.read().split()[1:])))", True),
    "iterates stdin": same(SUM, "import sys\nnext(sys.stdin)\nfor line in sys.stdin: print(sum(map(int, line.split())))", True),
    "sys.stdout.write": same(SUM, "import sys\n" + READ_SUM + "sys.stdout.write(str(sum(a)) + '  \\n\\n')", True),
    "input's prompt is output": same(SUM, "n = input('n? ')\nprint(sum(map(int, input().split())))", False),
    "__main__": same(SUM, READ_SUM + 'if __name__ == "__main__":\n    print(sum(a))', True),
    "input at the end of file": same(EMPTY, "input()\nprint(0)", False),
    "EOFError is caught": same(EMPTY, "try:\n    input()\nexcept EOFError:\n    print(0)", True),
    "no output": same(EMPTY, "", False),
    "syntax error": same(EMPTY, "print(0", False),
    "fails after its output": same(EMPTY, "print(0)\n1 / 0", False),
    "ends by a text": same(EMPTY, "print(0)\nimport sys\nsys.exit('no')", False),
    "stderr": same(EMPTY, "import sys\nprint('why', file=sys.stderr)\nprint(0)", True),
    "a thread that it joins": same(
        LINES,
        "import sys, threading\nsys.setrecursionlimit(10 ** 6)\nthreading.stack_size(1 << 27)\ndef main():\n"
        "    for _ in range(int(input())): print(input()[::-1])\n"
        "t = threading.Thread(target=main)\nt.start()\nt.join()",
        True,
    ),
    "deep recursion": same(
        EMPTY, "import sys\nsys.setrecursionlimit(10 ** 6)\nf = lambda n: n and f(n - 1)\nprint(f(50000))", True
    ),
    "too deep recursion": same(EMPTY, "f = lambda n: n and f(n - 1)\nprint(f(50000))", False),
    "a class": same(LINES, "class Solution:\n    def run(self):\n        print(input()[::-1])\nfor _ in range(int(input())): Solution().run()", True),
    "numpy": same(SUM, "import numpy as np\ninput()\nprint(np.array(list(map(int, input().split()))).sum())", True),
    "a data class": same(
        EMPTY, "from dataclasses import dataclass\n@dataclass\nclass A:\n    n: int = 0\nprint(A().n)", True
    ),
    "subprocess": same(EMPTY, "import subprocess\nsubprocess.run(['/bin/true'])\nprint(0)", False),
    "a trailing dash is not wanted": same(DASH, "print(1)", True),
    "a trailing dash": same(DASH, "print('1 -')", False),
    "carriage returns stay": same(RETURNS, "print(len(input()), len(input()))", True),
    "a number of 5000 digits": same(EMPTY, "print(10 ** 5000)", False),
    "function": same(ADD, "def add(a, b):\n    return a + b", True),
    "function, wrong": same(ADD, "def add(a, b):\n    return a * b", False),
    "function that prints": same(ADD, "def add(a, b):\n    print(a, b)\n    return a + b", True),
    "function that prints only": same(ADD, "def add(a, b):\n    print(a + b)", False),
    "function with types": same(LIST, "from typing import List\n\ndef order(a: List[int]) -> List[int]:\n    return sorted(a)", True),
    "function that fails": same(LIST, "def order(a):\n    return a[5]", False),
    "function in place": same(LIST, "def order(a):\n    a.sort()\n    return a", True),
    "function with a main block": same(
        LIST, 'def order(a):\n    return sorted(a)\n\nif __name__ == "__main__":\n    print(order(eval(input())))', True
    ),
    "class Solution": same(LIST, "class Solution:\n    def order(self, a):\n        return sorted(a)", False),
    "the second function": same(LIST, "def helper(a):\n    return a\n\ndef order(a):\n    return sorted(helper(a))", False),
    "a call before the function": same(LIST, "import sys\nsys.setrecursionlimit(5000)\ndef order(a):\n    return sorted(a)", False),
    "a tuple for a list": same(LIST, "def order(a):\n    return tuple(sorted(a))", False),
    "a set for a list": same(LIST, "def order(a):\n    return set(a)", False),
    "numpy scalars": same(LIST, "import numpy as np\ndef order(a):\n    return [np.int64(n) for n in sorted(a)]", True),
    "a numpy array": same(LIST, "import numpy as np\ndef order(a):\n    return np.sort(np.array([*a, 1, 2]))", False),
    "named arguments": same(NAMED, "def repeat(text, times):\n    return text * times", True),
    "quoted text": same(TEXT, "def turn(s):\n    return s[::-1]", True),
    "bare text": same(BARE, "def turn(s):\n    return s[::-1]", True),
    "int for float": same(FLOAT, "def half(n):\n    return n // 2", True),
    "big int": same(BIG, "def power(n):\n    return 7 ** n", True),
    "big int, wrong": same(BIG, "def power(n):\n    return 7 ** n + 1", False),
    "numpy truth": same(TRUTH, "import numpy as np\ndef even(n):\n    return np.int64(n) % 2 == 0", True),
    "1 for true": same(TRUTH, "def even(n):\n    return 1", True),
    "nothing": same(NOTHING, "def nothing(n):\n    pass", True),
    "nested": same(
        NESTED, "from collections import OrderedDict\ndef nest(n):\n    return OrderedDict({str(n): [1, 2.5, [None, True]]})", True
    ),
    "nested, a tuple inside": same(NESTED, "def nest(n):\n    return {str(n): [1, 2.5, (None, True)]}", False),
    "nested, another key": same(NESTED, "def nest(n):\n    return {n: [1, 2.5, [None, True]]}", False),
    "no number equals NaN": same(NAN, "def nan(n):\n    return float('nan')", False),
    "unreadable arguments": same(UNREADABLE, "def one(*args):\n    return 1", False),
    "a function of a stdin problem gets text": same(MIXED, "def same(n):\n    return n", True),
    "ends in a function": same(ADD, "import sys\ndef add(a, b):\n    sys.exit(0)", False),
}  # fmt: skip

# As the table in livecodebench.py, in its order.
DIFFERENT = {
    "sys.exit": Sample(EMPTY, "import sys\nprint(0)\nsys.exit()", True, False),
    "exit": Sample(EMPTY, "print(0)\nexit(0)", True, False),
    "os._exit": Sample(EMPTY, "import os\nprint(0, flush=True)\nos._exit(0)", True, False),
    "stdin.buffer": Sample(SUM, "import sys\nprint(sum(map(int, sys.stdin.buffer.read().split()[1:])))", True, False),
    "open(0)": Sample(SUM, "print(sum(map(int, open(0).read().split()[1:])))", True, False),
    "os.read(0)": Sample(SUM, "import os\nprint(sum(map(int, os.read(0, 1000).split()[1:])))", True, False),
    "stdout.buffer": Sample(EMPTY, "import sys\nsys.stdout.buffer.write(b'0')", True, False),
    "closes stdout": Sample(EMPTY, "import sys\nprint(0)\nsys.stdout.close()", True, False),
    "single quotes": Sample(EMPTY, "if __name__ == '__main__':\n    print(0)", True, False),
    "__future__": Sample(
        EMPTY, 'from __future__ import annotations\nif __name__ == "__main__":\n    print(0)', True, False
    ),
    "unjoined thread": Sample(
        EMPTY, "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.3), print(0))).start()", True, False
    ),
    "at exit": Sample(EMPTY, "import atexit\natexit.register(print, 0)", True, False),
    "os.getcwd": Sample(EMPTY, "import os\nos.getcwd()\nprint(0)", True, False),
    "resource": Sample(EMPTY, "import resource\nprint(0)", True, False),
    "temporary file": Sample(
        EMPTY, "import tempfile\nwith tempfile.TemporaryFile() as f:\n    f.write(b'0')\nprint(0)", False, True
    ),
    "socket": Sample(EMPTY, "import socket\nsocket.socket().close()\nprint(0)", False, True),
    "equals everything": Sample(ADD, "from unittest.mock import ANY\ndef add(a, b):\n    return ANY", False, True),
    "state": Sample(
        problem("functional", ("0", "1"), ("0", "2")),
        "def count(n):\n    import math\n    math.n = getattr(math, 'n', 0) + 1\n    return math.n",
        False,
        True,
    ),
    "threads": Sample(
        EMPTY,
        "import threading, time\nthreading.stack_size(1 << 16)\n"
        "for _ in range(300): threading.Thread(target=time.sleep, args=(1,)).start()\nprint(0)",
        False,
        True,
    ),
    "much output": Sample(
        problem("stdin", ("", "0")), "for _ in range(70): print(' ' * (1 << 20))\nprint(0)", False, True
    ),
}  # fmt: skip
SAMPLES = {**SAME, **DIFFERENT}


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(1) as judge:
        yield judge


@pytest.mark.parametrize("name", SAMPLES)
def test_the_verdict_is_known(judge: Judge, name: str) -> None:
    sample = SAMPLES[name]
    verdict = judge.verdict(sample.problem, sample.program)
    assert verdict.passed == sample.here, verdict.reason
    assert bool(verdict.reason) != verdict.passed


@pytest.mark.parametrize("benchmark", ["LiveCodeBench", "LiveCodeBenchv5_official", "LiveCodeBenchv6_official"])
def test_upstreams_verdict_differs_where_it_is_said_to(evalchemy_tree: Path, tmp_path: Path, benchmark: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/fakes/upstream_checker.py"), str(evalchemy_tree), benchmark],
        input=json.dumps([[sample.problem, sample.program] for sample in SAMPLES.values()]),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path), "PYTHONHASHSEED": "0"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    upstream = dict(zip(SAMPLES, json.loads(done.stdout), strict=True))
    assert upstream == {name: sample.upstream for name, sample in SAMPLES.items()}


def test_tests_may_come_as_the_data_file_has_them(judge: Judge) -> None:
    text = json.dumps(SUM["test"])
    encoded = base64.b64encode(zlib.compress(pickle.dumps(text))).decode()
    assert judge.verdict({**SUM, "test": encoded}, READ_SUM + "print(sum(a))").passed
    assert not judge.verdict({**SUM, "test": encoded}, READ_SUM + "print(max(a))").passed
