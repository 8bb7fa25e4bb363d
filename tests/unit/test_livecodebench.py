"""How LiveCodeBench's tests are read, and when two values are equal, are upstream's rules; data that is not what
LiveCodeBench publishes is our failure; and what ended a program is told from what the machine did to it.

Why: every one of these turns into a verdict. The private tests are a pickle, which could run anything.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import signal
import zlib
from typing import Any

import pytest

from entrypoint.errors import HarnessError, TransientError
from entrypoint.harness import livecodebench, program_watch
from entrypoint.harness.livecodebench import is_text, is_value, read_call, read_input, read_tests
from entrypoint.harness.program import Limits, Outcome
from entrypoint.harness.program_message import Bounds, Ending, Request
from entrypoint.harness.program_process import plain
from entrypoint.harness.program_watch import Watch

TEST = {"input": "1\n", "output": "2\n", "testtype": "stdin"}


def encoded(value: object) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


class RunsSomething:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("false",))


def test_private_tests_are_read_from_the_data_files_text() -> None:
    assert read_tests(encoded(json.dumps([TEST])), "p") == [TEST]
    assert read_tests([TEST], "p") == [TEST]


@pytest.mark.parametrize(
    "tests",
    [
        encoded(RunsSomething()),
        encoded(b"[]"),
        encoded("no json"),
        encoded(json.dumps({"input": ""})),
        encoded("[]"),
        base64.b64encode(b"no zlib").decode(),
        base64.b64encode(zlib.compress(b"\x80")).decode(),
        "no base64!",
        "",
        [],
    ],
)
def test_tests_of_another_form_are_our_failure_and_run_nothing(tests: Any) -> None:
    with pytest.raises(HarnessError, match=r"^p: it(s private test cases can't be read| has no test cases)"):
        read_tests(tests, "p")


def test_an_expected_output_loses_one_trailing_dash() -> None:
    assert read_input({"input": " 1\n", "output": " 2 \n"}) == (" 1\n", "2")
    assert read_input({"input": "", "output": "1 - \n"})[1] == "1"
    assert read_input({"input": "", "output": "1--"})[1] == "1-"


def test_output_is_compared_without_the_blanks_around_it() -> None:
    assert is_text(b"\n 2 3\n\n", "2 3")
    assert not is_text(b"2  3", "2 3")
    assert not is_text(b"2\xff", "2")


def call(given: str, program: str = "def f(x):\n    return x") -> tuple[str, list[Any]]:
    made = json.loads(read_call({"input": given, "output": "1"}, program, True)[0])
    assert made["kwargs"] == {}
    return made["name"], made["args"]


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ("1\n-2\n\n", [1, -2]),
        ("1.5\n1e3", [1.5, 1000.0]),
        ('"a b"\n"1"', ["a b", "1"]),
        ("[1, [2.5, null]]", [[1, [2.5, None]]]),
        ("true\nabc", ["true", "abc"]),
        ('s = "ab", n = 3, x=0.5, t=cd', ["ab", 3, 0.5, "cd"]),
        ("n = 3", [3]),
        ("", []),
    ],
)
def test_arguments_are_read_by_upstreams_rules(given: str, arguments: list[Any]) -> None:
    assert call(given) == ("f", arguments)


@pytest.mark.parametrize("given", ["a = b = c", "[1, 2]\n[=]", "[1, ]"])
def test_arguments_that_upstream_can_not_read_make_no_call(given: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        call(given)


def test_the_function_is_named_before_the_first_parenthesis() -> None:
    assert call("1", "import math\nfrom typing import List\n\ndef  solve (a): pass")[0] == "solve"
    assert call("1", "class Solution:\n    def solve(self, a): pass")[0] == "solve"
    assert call("1", "print(1)\ndef solve(a): pass")[0] == "print"


def test_a_function_of_a_stdin_problem_gets_its_input_as_it_is() -> None:
    made, expected = read_call({"input": "1\n", "output": " 2 "}, "def f(x): pass", False)
    assert (json.loads(made)["args"], expected) == (["1\n"], " 2 ")
    made, _ = read_call({"input": {"x": 1}, "output": 2}, "def f(x): pass", False)
    assert json.loads(made)["kwargs"] == {"x": 1}


def test_an_expected_value_that_is_no_json_is_text() -> None:
    values = [read_call({"input": "1", "output": text}, "f", True)[1] for text in ("[1, 2]\n", " ab ", '"ab"', "True")]
    assert values == [[1, 2], "ab", "ab", "True"]


VALUES = [
    None, True, False, 0, 1, -1, 1.0, 1.5, 0.0, -0.0, float("inf"), float("nan"), 2**53, 2**53 + 1, -(2**64), 2.0**64,
    10**5000, "", "1", "é\ud800", [], [1], [1, [2.5, None]], [[1]], (1,), [(1,)], {}, {"a": 1}, {"a": [1]},
    {"a": 1, "b": 2}, {"b": 2, "a": 1.0}, {1: 1}, {1}, frozenset(), b"1", 1j, range(2), {"a": (1,)},
    {"int": "0x1"}, {"dict": []}, {"other": "x"},
]  # fmt: skip
FROM_JSON = [value for value in VALUES if not isinstance(value, tuple | set | frozenset | bytes | complex | range)]
FROM_JSON = [value for value in FROM_JSON if value not in ([(1,)], {1: 1}, {"a": (1,)})]


def test_values_are_equal_here_when_they_are_in_one_process() -> None:
    """Every pair of a returned and an expected value; identity would make NaN in a list equal to itself."""
    for value in VALUES:
        sent = json.dumps(plain(value)).encode()
        for expected in FROM_JSON:
            assert is_value(sent, expected) == (value == expected), (value, expected)


def test_numpy_scalars_are_numbers_and_subclasses_what_they_hold() -> None:
    import enum
    from collections import Counter, OrderedDict, defaultdict

    import numpy as np

    values = [np.int64(3), np.float64(0.5), np.bool_(True), np.str_("a"), np.array(3), enum.IntEnum("E", "a b c").c]
    assert [plain(value) for value in values] == [3, 0.5, True, "a", 3, 3]
    assert "other" in plain(np.array([1, 2]))
    for value in (Counter({"a": 1}), OrderedDict({"a": 1}), defaultdict(int, a=1)):
        assert is_value(json.dumps(plain(value)).encode(), {"a": 1})


def test_a_value_that_holds_itself_or_is_too_deep_equals_nothing() -> None:
    value: list[Any] = []
    value.append(value)
    assert not is_value(json.dumps(plain(value)).encode(), [[[]]])


@pytest.mark.parametrize(
    "forged",
    [
        b"", b"{", b"[" * 10**6, b'{"int": 5}', b'{"int": "x"}', b'{"dict": 5}', b'{"dict": [5, 6]}',
        b'{"dict": [[[], 1], [{}, 1]]}', b'{"dict": [["a", 1], ["a", 1]]}', b"1" * 5000, b"\xff", b'{"a": 1}',
        b"6" * (17 << 20),
    ],
    ids=lambda forged: forged[:20].decode(errors="replace"),
)  # fmt: skip
def test_a_forged_answer_is_a_wrong_one(forged: bytes) -> None:
    assert not is_value(forged, {"a": 1, "b": 2})


def outcome(ending: Ending, code: int = 0, *, sure: bool = True, peak_bytes: int = 0) -> Outcome:
    return Outcome(ending=ending, code=code, sure=sure, peak_bytes=peak_bytes, output=b"")


@pytest.mark.parametrize(
    "said",
    [
        outcome(Ending.CPU),
        outcome(Ending.WAITED),
        outcome(Ending.THREADS),
        outcome(Ending.OUTPUT),
        outcome(Ending.EXITED, 1),
        outcome(Ending.SIGNALLED, signal.SIGSEGV),
    ],
)
def test_what_a_program_does_to_itself_is_its_fault(said: Outcome) -> None:
    assert livecodebench._fault(said, "p: test 1")


@pytest.mark.parametrize(
    ("said", "alone"),
    [
        (outcome(Ending.UNREADY), HarnessError),
        (outcome(Ending.STARVED), TransientError),
        (outcome(Ending.SIGNALLED, signal.SIGKILL, peak_bytes=2 << 30), TransientError),
        (outcome(Ending.SIGNALLED, signal.SIGKILL), livecodebench.Verdict),
        (outcome(Ending.WAITED, sure=False), livecodebench.Verdict),
    ],
)
def test_what_may_be_the_machines_doing_is_tried_again_alone(said: Outcome, alone: type) -> None:
    with pytest.raises(livecodebench._Doubt) as doubt:
        livecodebench._fault(said, "p: test 1")
    assert isinstance(doubt.value.alone, alone)


def test_idle_is_what_neither_ran_nor_waited_for_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """One second at each look, of which it ran 0.2 s: asleep, then waiting for a core, then runnable."""
    now, used = iter(range(100)), iter(0.2 * n for n in range(1, 100))
    monkeypatch.setattr(program_watch.time, "monotonic", lambda: float(next(now)))
    monkeypatch.setattr(Watch, "_cpu_s", lambda self: next(used))
    monkeypatch.setattr(program_watch.os, "listdir", lambda path: ["7"])
    shown = {"state": "S", "queued_ns": 0}
    monkeypatch.setattr(
        program_watch,
        "_text",
        lambda path: f"7 (a ) S) {shown['state']} 1" if path.endswith("/stat") else f"1 {shown['queued_ns']} 1",
    )
    bounds = Bounds(memory_bytes=0, output_bytes=0, threads=9, landlock=True, calls=None)
    watch = Watch(7, Request(0, 1, 1, 1, 0, 0), bounds, 0, 0)
    expected_s = 0.0
    for state, queued_s, idle_s in (("S", 0, 0.8), ("S", 0.6, 0.2), ("R", 0.6, 0.0), ("S", 0.6, 0.8)):
        shown.update(state=state, queued_ns=int(queued_s * 1e9))
        watch._account()
        expected_s += idle_s
        assert watch.idle_s == pytest.approx(expected_s)
    assert watch.sure


def test_where_waiting_for_a_core_is_not_told_idle_is_not_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> list[str]:
        raise PermissionError(13, path)

    monkeypatch.setattr(program_watch.os, "listdir", refuse)
    bounds = Bounds(memory_bytes=0, output_bytes=0, threads=9, landlock=True, calls=None)
    watch = Watch(os.getpid(), Request(0, 1, 1, 1, 0, 0), bounds, 0, 0)
    assert watch._account() == 0
    assert not watch.sure


def test_the_version_names_the_limits() -> None:
    assert livecodebench.VERSION.startswith("livecodebench-isolated-1 (cpu 7 s a test + 5 s, memory 4 GiB, ")
    assert Limits().budget_s(20) == 145
