"""Verdicts on LiveCodeBench programs: each runs isolated (see program.py), what it writes is compared here.

In: upstream's problem and the program that upstream cut out of the model's text. Out: passed or not, and why. An error
says that there is no verdict: ours, never the program's. Differs from upstream's checker in these verdicts:

    a stdin program that                              upstream  here
    ends by sys.exit(), exit() or os._exit(0)         wrong     as its output is
    reads sys.stdin.buffer, open(0), os.read(0)       wrong     as its output is
    writes sys.stdout.buffer, closes sys.stdout       wrong     as its output is
    has `if __name__ == '__main__'` in single quotes  wrong     as its output is
    has that in double ones and a __future__ import   wrong     as its output is
    prints from a thread it doesn't join, or at exit  wrong     as its output is
    a program of either kind that
    uses os.getcwd, os.putenv or import resource      wrong     as its output is
    opens a file to write, even a temporary one       right     wrong
    opens a socket                                    right     wrong
    returns a value that equals everything            right     wrong
    keeps state from one test to the next             right     wrong
    sleeps, or was starved by a busy machine          by wall   by CPU time and by idle time
    writes over 64 MiB, has over 256 threads          right     wrong
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import signal
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from entrypoint.errors import EvalcrateError, HarnessError, TransientError
from entrypoint.harness.program import Budget, Limits, Outcome, Runner, RunnerLost, Runners
from entrypoint.harness.program_message import Ending, Kind

LIMITS = Limits()
VERSION = (
    f"livecodebench-isolated-1 (cpu {LIMITS.cpu_per_test_s:g} s a test + {LIMITS.cpu_fixed_s:g} s, "
    f"memory {LIMITS.memory_bytes >> 30} GiB, output {LIMITS.output_bytes >> 20} MiB, threads {LIMITS.threads})"
)
_LONGEST_VALUE = 16 << 20
_SMALL_BYTES = 256 << 20  # a process of this size that gets SIGKILL, alone, was not killed for want of memory
_WHY = {
    Ending.CPU: "it used more CPU time than the limit",
    Ending.WAITED: "it waited for longer than the limit",
    Ending.THREADS: "it had more threads than the limit",
    Ending.OUTPUT: "it wrote too much output",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """`reason` is empty when the program passed every test."""

    passed: bool
    reason: str


class _Doubt(Exception):
    """A run that may have ended so for a reason outside the program. `alone`: what to conclude if it does so again."""

    def __init__(self, alone: Verdict | EvalcrateError) -> None:
        super().__init__()
        self.alone = alone


class Judge:
    """Gives verdicts, from any number of threads, with at most `cores` programs running; a context manager."""

    def __init__(self, cores: int, *, limits: Limits = LIMITS, landlock: bool = True) -> None:
        self._limits = limits
        self._runners = Runners(cores, limits, landlock=landlock)

    def __enter__(self) -> Judge:
        self._runners.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, at: TracebackType | None) -> None:
        self._runners.__exit__(kind, err, at)

    def verdict(self, problem: Mapping[str, Any], completion: str) -> Verdict:
        """Runs `completion` on the problem's tests up to the first it fails. HarnessError, TransientError: no verdict.

        `problem`: upstream's example; its `test` is the list of tests or still the data file's encoded text.
        """
        name = str(problem.get("task_id"))
        tests = read_tests(problem["test"], name)
        is_extracted = not problem["is_stdin"]
        try:
            with self._runners.any() as runner:
                return self._try(runner, name, tests, completion, is_extracted)
        except _Doubt:
            pass
        try:
            with self._runners.alone() as runner:
                return self._try(runner, name, tests, completion, is_extracted)
        except _Doubt as doubt:
            if isinstance(doubt.alone, Verdict):
                return doubt.alone
            raise doubt.alone from doubt

    def _try(
        self, runner: Runner, name: str, tests: Sequence[Mapping[str, Any]], completion: str, is_extracted: bool
    ) -> Verdict:
        budget_s = self._limits.budget_s(len(tests))
        wall_s = self._limits.starved_factor * budget_s + self._limits.starved_s
        left = Budget(cpu_s=budget_s, idle_s=budget_s, wall_s=wall_s)
        program = completion.encode("utf-8", "surrogatepass")
        calls = tests[0]["testtype"] == "functional"
        for number, test in enumerate(tests, 1):
            where = f"test {number} of {len(tests)}"
            try:
                given, expected = read_call(test, completion, is_extracted) if calls else read_input(test)
            except (ValueError, IndexError):
                return Verdict(passed=False, reason=f"{where}: upstream's rules make no call of it")
            kind = Kind.CALL if calls else Kind.MAIN
            try:
                outcome = runner.run(kind, program, given.encode("utf-8", "surrogatepass"), left)
            except RunnerLost as err:
                raise _Doubt(HarnessError(f"{name}: {where}: {err} twice: see the log above")) from err
            if wrong := _fault(outcome, f"{name}: {where}"):
                return Verdict(passed=False, reason=f"{where}: {wrong}")
            if not (is_value if calls else is_text)(outcome.output, expected):
                return Verdict(passed=False, reason=f"{where}: wrong answer")
        return Verdict(passed=True, reason="")


def _fault(outcome: Outcome, where: str) -> str:
    """Why the program failed whatever it wrote, or nothing; _Doubt where that may be the machine's doing."""
    ending = outcome.ending
    if ending is Ending.UNREADY:
        raise _Doubt(HarnessError(f"{where}: its process can't be set up; see `evalcrate doctor` for the isolation"))
    if ending is Ending.STARVED:
        raise _Doubt(TransientError(f"{where}: it got next to no CPU time, even alone: run again on a freer machine"))
    if ending is Ending.WAITED and not outcome.sure:
        raise _Doubt(Verdict(passed=False, reason=f"{where}: {_WHY[ending]}"))
    if ending is Ending.SIGNALLED and outcome.code == signal.SIGKILL:
        raise _Doubt(
            Verdict(passed=False, reason=f"{where}: it ended itself by SIGKILL")
            if outcome.peak_bytes < _SMALL_BYTES
            else TransientError(f"{where}: the system killed it, likely short of memory: run again with more of it")
        )
    if ending is Ending.SIGNALLED:
        return f"it ended by signal {outcome.code}"
    if ending is Ending.EXITED:
        return f"it ended with exit status {outcome.code}" if outcome.code else ""
    return _WHY[ending]


class _TextOnly(pickle.Unpickler):
    """Reads a pickled str; a pickle that names anything else is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def read_tests(tests: str | Sequence[Mapping[str, Any]], name: str) -> Sequence[Mapping[str, Any]]:
    """A problem's tests; HarnessError when its data is not what LiveCodeBench publishes, or empty."""
    found: Any = tests
    if isinstance(tests, str):
        try:
            text = _TextOnly(io.BytesIO(zlib.decompress(base64.b64decode(tests)))).load()
            if not isinstance(text, str):
                raise pickle.UnpicklingError(f"it holds {type(text).__name__}")
            found = json.loads(text)
        except (ValueError, EOFError, zlib.error, pickle.UnpicklingError) as err:
            raise HarnessError(
                f"{name}: its private test cases can't be read ({err}): see `evalcrate data verify`"
            ) from err
    if not isinstance(found, list) or not found:
        raise HarnessError(f"{name}: it has no test cases: see `evalcrate data verify`")
    return found


def read_input(test: Mapping[str, Any]) -> tuple[str, str]:
    """stdin and the expected output, without one trailing `-` as upstream has it."""
    expected = test["output"].strip()
    return test["input"], expected[:-1].rstrip() if expected.endswith("-") else expected


def is_text(output: bytes, expected: str) -> bool:
    try:
        return output.decode("utf-8", "surrogatepass").strip() == expected
    except UnicodeDecodeError:
        return False


def read_call(test: Mapping[str, Any], completion: str, is_extracted: bool) -> tuple[str, Any]:
    """The call as the runner takes it, and the expected value, by upstream's rules; ValueError where they fail.

    The function's name is the last word before the program's first parenthesis.
    """
    call: dict[str, Any] = {"name": completion.split("(")[0].split()[-1], "args": [], "kwargs": {}}
    given, expected = test["input"], test["output"]
    if not is_extracted:
        call |= {"kwargs": given} if isinstance(given, dict) else {"args": [given]}
        return json.dumps(call), expected
    call["args"] = _named(given) if "=" in given else _lines(given)
    expected = expected.strip()
    with suppress(json.JSONDecodeError):
        expected = json.loads(expected)
    return json.dumps(call), expected


def _named(text: str) -> list[Any]:
    """The values of `a = 1, b = "x"`."""
    values: list[Any] = []
    for part in text.split(","):
        _, value = map(str.strip, part.split("="))
        number = _number(value)
        values.append(value.strip('"') if number is None else number)
    return values


def _lines(text: str) -> list[Any]:
    """One value a line: a quoted text, a JSON list, a number, or a text."""
    values: list[Any] = []
    for line in filter(None, map(str.strip, text.split("\n"))):
        if line.startswith('"') and line.endswith('"'):
            values.append(line.strip('"'))
        elif line.startswith("[") and line.endswith("]"):
            values.append(json.loads(line))
        else:
            number = _number(line)
            values.append(line if number is None else number)
    return values


def _number(text: str) -> int | float | None:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return None


def is_value(output: bytes, expected: Any) -> bool:
    """Whether what the runner's `plain` wrote equals the value read from JSON, by Python's `==`."""
    if len(output) > _LONGEST_VALUE:
        return False
    try:
        return _equal(json.loads(output), expected)
    except (ValueError, TypeError, RecursionError):  # the program wrote into its answer
        return False


def _equal(value: Any, expected: Any) -> bool:
    if isinstance(value, list):
        return isinstance(expected, list) and len(value) == len(expected) and all(map(_equal, value, expected))
    if not isinstance(value, dict):
        return bool(value == expected)
    if "int" in value:
        return bool(int(value["int"], 16) == expected)
    pairs = value.get("dict")
    if not isinstance(expected, dict) or pairs is None or len(pairs) != len(expected):
        return False
    return len({key for key, item in pairs if key in expected and _equal(item, expected[key])}) == len(expected)
