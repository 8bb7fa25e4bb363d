"""Before a benchmark grades anything, its grader must tell a right answer from a wrong one on this machine.

In: the patched tree and a task name. Out: nothing, or a HarnessError that says what the grader said.
The harness lock has antlr4-python3-runtime 4.11, the one sympy's LaTeX parser takes (without it every physics
answer is wrong, without an error), and no lark: with it `5.` equals `5`, and grading takes 4 times as long.
"""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from entrypoint.errors import HarnessError
from entrypoint.fingerprint import grader_versions
from entrypoint.harness import answer, evalchemy


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """One expected answer, in the type and under the key the data has, with an output of each kind.

    `question`: what else of a row the benchmark reads.
    """

    gold: object
    right: str
    wrong: str
    question: Mapping[str, Any] = field(default_factory=dict)


def selfcheck(tree: Path, task: str, options: Mapping[str, str]) -> None:
    """Have the benchmark extract and grade known-right and known-wrong outputs: 1 and 0, or HarnessError.

    To be called where `evalchemy.run` may be, before it, with the same `options`. A task without a probe is refused.
    """
    probes = PROBES.get(task)
    if probes is None:
        raise HarnessError(f"{task}: its grader has no self-check; known are {', '.join(PROBES)}")
    outputs = tuple(output for probe in probes for output in (probe.right, probe.wrong))
    questions = [_question(task, probe, 2 * n + wrong) for n, probe in enumerate(probes) for wrong in (0, 1)]
    graded = evalchemy.run_on(tree, task, _Answers(outputs), questions, options=options)
    for number, probe in enumerate(probes):
        got = list(answer.credits(task, graded)[2 * number :][:2])
        if got != [1, 0]:
            faults = [why for example in graded["examples"] if (why := answer.grader_error(example))]
            versions = ", ".join(f"{name} {version}" for name, version in grader_versions().items())
            raise HarnessError(
                f"{task}: self-check of the grader failed: {probe.right!r} and {probe.wrong!r} for {probe.gold!r}"
                f" were graded {got}, not [1, 0]{''.join(f' ({why})' for why in faults[:1])}; its libraries are"
                f" {versions}: install the harness lock"
            )


def _question(task: str, probe: Probe, number: int) -> dict[str, Any]:
    # A dict of its own for each sample: benchmarks write into it
    return {"id": number, "problem": "", "question": "", answer.SHAPES[task].gold: probe.gold, **probe.question}


class _Answers:
    """As much of a language model as a benchmark uses, giving its outputs in order."""

    per_request_seeds = True
    rank = 0
    world_size = 1

    def __init__(self, outputs: tuple[str, ...]) -> None:
        self._outputs = outputs

    def apply_chat_template(self, messages: list[dict[str, str]]) -> str:
        return messages[-1]["content"]

    def generate_until(self, requests: list[object]) -> list[str]:
        return list(self._outputs)


def _code_probe(kind: str, tests: Mapping[str, str], right: str, wrong: str) -> Probe:
    cases = [{"input": given, "output": wanted, "testtype": kind} for given, wanted in tests.items()]
    encoded = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode("ascii")
    question = {
        "prompt": "",
        "entry_point": "",
        "task_id": "probe",
        "is_stdin": kind == "stdin",
        "public_test_cases": "[]",
        "difficulty": "easy",
    }
    right, wrong = (f"```python\n{program}\n```" for program in (right, wrong))
    return Probe(gold=encoded, right=right, wrong=wrong, question=question)


# Right answers are written otherwise than the expected ones, so that comparing plain text would fail them.
_INTEGER = Probe(gold="73", right="It is 72 + 1, so $\\boxed{73 }$.", wrong="So \\boxed{74}.")
# The right option of this question is D in upstream's order and in the shuffled one.
_OPTIONS = {
    "Question": "Which of these four is even?",
    "Correct Answer": "2",
    **{f"Incorrect Answer {n}": str(2 * n + 1) for n in (1, 2, 3)},
}
_PROGRAMS = (
    _code_probe("stdin", {"2\n": "4", "3\n": "9"}, "print(int(input()) ** 2)", "print(int(input()) * 2)"),
    _code_probe("functional", {"2": "4", "3": "9"}, "def square(n):\n    return n * n", "def square(n):\n    return 4"),
)
PROBES: Mapping[str, tuple[Probe, ...]] = {
    "AIME24": (_INTEGER,),
    "AIME25": (_INTEGER,),
    "AIME26": (_INTEGER,),
    "AMC23": (Probe(gold=27, right="So \\boxed{27\\%}.", wrong="So \\boxed{72}."),),
    "HMMT": (Probe(gold="\\frac{\\sqrt{8}}{2}", right="\\boxed{\\sqrt{2}}", wrong="\\boxed{\\sqrt{3}}"),),
    "MATH500": (
        Probe(
            gold="\\left( 3, \\frac{\\pi}{2} \\right)",
            right="First \\boxed{7}, then \\boxed{(3,\\dfrac{\\pi}{2})}.",
            wrong="\\boxed{(3,\\dfrac{\\pi}{3})}",
        ),
    ),
    "OlympiadBench": (Probe(gold="\\frac{1}{2}", right="\\boxed{0.5}", wrong="\\boxed{0.25}"),),
    "OlympiadBench_Physics": (
        Probe(
            gold=["\\frac{1}{2} m v^{2}", "7.5"],
            right="\\boxed{E=\\frac{m v^2}{2}} and \\boxed{7.501}",
            wrong="\\boxed{E=m v^2} and \\boxed{7.501}",
        ),
    ),
    "GPQADiamond": (Probe(gold="D", right="Not A, so \\boxed{d}", wrong="Not D, so \\boxed{A}", question=_OPTIONS),),
    "HLE": (
        Probe(
            gold="B",
            right="Exact Answer: \\boxed{b}, not C",
            wrong="Answer: C, not B",
            question={"answer_type": "multipleChoice", "image": ""},
        ),
    ),
    "JEEBench": (
        Probe(
            gold="ABD",
            right="\\boxed{D, B, A}",
            wrong="\\boxed{ABC}",
            question={"type": "MCQ(multiple)", "index": 1, "subject": "math"},
        ),
        Probe(
            gold="2.50",
            right="\\boxed{2.5}",
            wrong="\\boxed{2.52}",
            question={"type": "Numeric", "index": 2, "subject": "phy"},
        ),
    ),
    "LiveCodeBench": _PROGRAMS,
    "LiveCodeBenchv5_official": _PROGRAMS,
    "LiveCodeBenchv6_official": _PROGRAMS,
}
