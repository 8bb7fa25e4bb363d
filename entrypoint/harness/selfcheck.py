"""Before a benchmark grades anything, its grader must tell a right answer from a wrong one on this machine.

In: the patched tree and a task name. Out: nothing, or a HarnessError that says what the grader said.
The harness lock has antlr4-python3-runtime 4.11, the one sympy's LaTeX parser takes (without it every physics
answer is wrong, without an error), and no lark: with it `5.` equals `5`, and grading takes 4 times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entrypoint.errors import HarnessError
from entrypoint.fingerprint import grader_versions
from entrypoint.harness import answer, evalchemy


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """One expected answer, in the type and under the key the data has, with an output of each kind."""

    gold: object
    right: str
    wrong: str


def selfcheck(tree: Path, task: str) -> None:
    """Have the benchmark extract and grade a known-right and a known-wrong output: 1 and 0, or HarnessError.

    To be called where `evalchemy.run` may be, before it. A task without a probe is refused.
    """
    probe = PROBES.get(task)
    if probe is None:
        raise HarnessError(f"{task}: its grader has no self-check; known are {', '.join(PROBES)}")
    lm = _Answers((probe.right, probe.wrong))
    graded = evalchemy.run_on(tree, task, lm, [_question(task, probe, number) for number in (0, 1)])
    got = [verdict["correctness"] for verdict in answer.verdicts(task, graded)]
    if got != [True, False]:
        versions = ", ".join(f"{name} {version}" for name, version in grader_versions().items())
        raise HarnessError(
            f"{task}: self-check of the grader failed: {probe.right!r} and {probe.wrong!r} for {probe.gold!r}"
            f" were graded {got}, not [True, False]; its libraries are {versions}: install the harness lock"
        )


def _question(task: str, probe: Probe, number: int) -> dict[str, Any]:
    return {"id": number, "problem": "", "question": "", answer.SHAPES[task].gold: probe.gold}


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


# Right answers are written otherwise than the expected ones, so that comparing plain text would fail them.
_INTEGER = Probe(gold="73", right="It is 72 + 1, so $\\boxed{73 }$.", wrong="So \\boxed{74}.")
PROBES = {
    "AIME24": _INTEGER,
    "AIME25": _INTEGER,
    "AIME26": _INTEGER,
    "AMC23": Probe(gold=27, right="So \\boxed{27\\%}.", wrong="So \\boxed{72}."),
    "MATH500": Probe(
        gold="\\left( 3, \\frac{\\pi}{2} \\right)",
        right="First \\boxed{7}, then \\boxed{(3,\\dfrac{\\pi}{2})}.",
        wrong="\\boxed{(3,\\dfrac{\\pi}{3})}",
    ),
    "OlympiadBench": Probe(gold="\\frac{1}{2}", right="\\boxed{0.5}", wrong="\\boxed{0.25}"),
    "OlympiadBench_Physics": Probe(
        gold=["\\frac{1}{2} m v^{2}", "7.5"],
        right="\\boxed{E=\\frac{m v^2}{2}} and \\boxed{7.501}",
        wrong="\\boxed{E=m v^2} and \\boxed{7.501}",
    ),
}
