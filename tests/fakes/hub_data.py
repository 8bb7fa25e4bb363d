"""Small synthetic data of each hub data set: its file format and columns, our own questions.

In: a folder. Out: files named as in the data set's repository, as `plan.DataFiles`, and per task the rows that a
benchmark asks, with an output and the credit that a person would give it.
"""

from __future__ import annotations

import base64
import csv
import json
import pickle
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from entrypoint.plan import DataFiles

Row = Mapping[str, Any]
CODE_TASKS = {"LiveCodeBench": "release_v2", "LiveCodeBenchv5_official": "release_v5"}
CODE_TASKS |= {"LiveCodeBenchv6_official": "release_v6"}
TASKS = ("HMMT", "GPQADiamond", "JEEBench", "HLE", *CODE_TASKS)
HUGE = 10**5000 + 7


@dataclass(frozen=True, kw_only=True, slots=True)
class Canned:
    """An output for one sample, the credit it deserves, and what is counted about it."""

    output: str
    credit: float
    counted: tuple[str, ...] = ()


def huge_text() -> str:
    """HUGE in decimal, which `str` refuses to write."""
    return "1" + "0" * 4999 + "7"


def write(folder: Path, task: str) -> DataFiles:
    """Writes the task's data set below `folder`, where another task may have written it already."""
    folder.mkdir(parents=True, exist_ok=True)
    if task in CODE_TASKS:
        return _write_code(folder, CODE_TASKS[task])
    return {"HMMT": _write_hmmt, "GPQADiamond": _write_gpqa, "JEEBench": _write_jee, "HLE": _write_hle}[task](folder)


# ---- HMMT: final answers in LaTeX ----

_HMMT = (
    ("Name one half.", "\\frac{1}{2}", "Half: \\boxed{0.5}", True),
    ("Name the two square roots of four.", "2,-2", "\\boxed{-2, 2}", True),
    ("Name root eight.", "2\\sqrt{2}", "\\boxed{\\sqrt{8}}", True),
    ("Name a third.", "\\frac{1}{3}", "\\boxed{0.3}", False),
    ("Name seven.", "7", "I can't say.", False),
    ("Name the number with five thousand digits that starts with 1 and ends with 7.", huge_text(), None, True),
    ("Name six.", "6", "\\boxed{1e400}", False),
    ("Name two plus x.", "x+2", "\\boxed{2+x}", True),
)


def _write_hmmt(folder: Path) -> DataFiles:
    rows = [
        {"problem_idx": n, "problem": problem, "answer": gold, "problem_type": ["Algebra"]}
        for n, (problem, gold, _, _) in enumerate(_HMMT, start=1)
    ]
    file = folder / "train-00000-of-00001.parquet"
    pq.write_table(pa.Table.from_pylist(rows), file)
    return DataFiles(id="MathArena/hmmt_feb_2025", config=None, format="parquet", splits={"train": (str(file),)})


def _hmmt_outputs() -> list[Canned]:
    outputs = [output or f"\\boxed{{{huge_text()}}}" for _, _, output, _ in _HMMT]
    missing = {4: ("format_fail",), 6: ("format_fail",)}
    return [
        Canned(output=output, credit=float(right), counted=missing.get(n, ()))
        for n, (output, (_, _, _, right)) in enumerate(zip(outputs, _HMMT, strict=True))
    ]


# ---- GPQADiamond: four options in columns ----

_GPQA = (
    ("Which of these is an odd number?", "3", ("2", "4", "6")),
    ("Which of these is a metal?", "iron", ("neon", "sulfur", "iodine")),
    ("Which of these is a planet?", "Mars", ("Sirius", "the Moon", "Vega")),
    ('Which of these is largest?\nAnswer with care, "please".', "10", ("9", "8, or so", "7")),
)


def _write_gpqa(folder: Path) -> DataFiles:
    file = folder / "gpqa_diamond.csv"
    rows = [_gpqa_row(n, *question) for n, question in enumerate(_GPQA)]
    with file.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return DataFiles(id="Idavidrein/gpqa", config="gpqa_diamond", format="csv", splits={"train": (str(file),)})


def _gpqa_row(number: int, question: str, right: str, wrong: Sequence[str]) -> Row:
    answers = {"Correct Answer": right, **{f"Incorrect Answer {n}": text for n, text in enumerate(wrong, start=1)}}
    return {
        "Pre-Revision Question": question.lower(),
        **{f"Pre-Revision {name}": text for name, text in answers.items()},
        "Pre-Revision Explanation": "none",
        "Question": question,
        **answers,
        "Explanation": "It is known.",
        "Writer's Difficulty Estimate": "Easy undergraduate level (or easier)",
        "Extra Revised Question": "",
        "Expert Validator Accuracy": "100",
        "Non-Expert Validator Accuracy": "33",
        "Record ID": f"rec{number}",
        "Subdomain": "Synthetic",
        "High-level domain": "Physics",
        "Canary String": "made for a test",
    }


def _gpqa_outputs() -> list[Canned]:
    return [
        Canned(output="So it is \\boxed{D}", credit=1.0),
        Canned(output="The answer is A.", credit=0.0),
        Canned(output="d", credit=1.0),
        Canned(output="none of them", credit=0.0, counted=("format_fail",)),
    ]


# ---- JEEBench: four types, partial credit in one of them ----

_JEE = (
    ("math", "MCQ", "B", "\\boxed{B}", 1.0),
    ("phy", "MCQ", "C", "\\boxed{CD}", 0.0),
    ("phy", "MCQ(multiple)", "ABCD", "\\boxed{AC}", 0.5),
    ("chem", "MCQ(multiple)", "AB", "\\boxed{ABC}", 0.0),
    ("math", "MCQ(multiple)", "BD", "\\boxed{D, B}", 1.0),
    ("chem", "Integer", "7", "\\boxed{7}", 1.0),
    ("phy", "Numeric", "3.14", "\\boxed{3.149}", 1.0),
    ("phy", "Numeric", "3.14", "It is 3.14.", 0.0),
)


def _write_jee(folder: Path) -> DataFiles:
    rows = [
        {
            "subject": subject,
            "description": "Synthetic 2026",
            "gold": gold,
            "index": n,
            "type": kind,
            "question": f"Question {n} of {subject}?\n\n(A) one\n(B) two\n(C) three\n(D) four",
        }
        for n, (subject, kind, gold, _, _) in enumerate(_JEE, start=1)
    ]
    file = folder / "test.json"
    file.write_text(json.dumps(rows, indent=4), encoding="utf-8")
    return DataFiles(id="daman1209arora/jeebench", config=None, format="json", splits={"test": (str(file),)})


def _jee_outputs() -> list[Canned]:
    return [
        Canned(output=output, credit=credit, counted=() if "boxed" in output else ("format_fail",))
        for _, _, _, output, credit in _JEE
    ]


# ---- HLE: multiple choice without a picture is asked, the rest is not ----

_HLE = (
    ("Is it A or B?", "B", "multipleChoice", "", "Answer: B"),
    ("What is shown?", "C", "multipleChoice", "data:image/png;base64,AAAA", None),
    ("How many?", "12", "exactMatch", "", None),
    ("Is it C or D?", "C", "multipleChoice", "", "Exact Answer: \\boxed{d}"),
    ("Is it E or F?", "E", "multipleChoice", "", "surely the first"),
    ("Is it G or H?", "G", "multipleChoice", "", "I take (G)"),
)
_PICTURE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def _write_hle(folder: Path) -> DataFiles:
    names = ("id", "question", "image", "answer", "answer_type", "author_name", "rationale", "raw_subject", "category")
    texts = [(name, pa.string()) for name in (*names, "canary")]
    pictures = [("image_preview", _PICTURE), ("rationale_image", _PICTURE)]
    features = {name: {"dtype": "string", "_type": "Value"} for name, _ in texts}
    features |= {name: {"_type": "Image"} for name, _ in pictures}
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    file = folder / "test-00000-of-00001.parquet"
    rows = [_hle_row(number, *question) for number, question in enumerate(_HLE)]
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema([*texts, *pictures], metadata=about)), file)
    return DataFiles(id="cais/hle", config=None, format="parquet", splits={"test": (str(file),)})


def _hle_row(number: int, question: str, answer: str, kind: str, image: str, _: str | None) -> Row:
    picture = {"bytes": b"no picture really", "path": "x.png"}
    return {
        "id": f"{number:024x}",
        "question": question,
        "image": image,
        "answer": answer,
        "answer_type": kind,
        "author_name": "nobody",
        "rationale": "because",
        "raw_subject": "Letters",
        "category": "Other",
        "canary": "made for a test",
        "image_preview": picture if image else None,
        "rationale_image": picture,
    }


def _hle_outputs() -> list[Canned]:
    outputs = [output for *_, output in _HLE if output is not None]
    return [
        Canned(output=outputs[0], credit=1.0),
        Canned(output=outputs[1], credit=0.0),
        Canned(output=outputs[2], credit=0.0, counted=("format_fail",)),
        Canned(output=outputs[3], credit=1.0),
    ]


# ---- LiveCodeBench: a release is the first N files ----

_ADD = "n = int(input())\nprint(sum(int(input()) for _ in range(n)))"
_STDIN = [("2\n3\n4\n", "7\n"), ("1\n-5\n", "-5\n"), ("0\n", "0")]
_FUNCTIONAL = [("[1, 2, 3]\n2", "[2, 4, 6]"), ("[]\n5", "[]")]


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One problem in one file: `tests` are (input, output); `program` with the credit it deserves."""

    id: str
    file: int
    date: str
    difficulty: str
    kind: str
    program: str | None
    right: bool


_STARTER = "class Solution:\n    def scale(self, numbers, factor):\n        "
_SCALE = "def scale(numbers, factor):\n    return [factor * n for n in numbers]"
PROBLEMS = (
    Problem(id="a1", file=1, date="2023-05-01", difficulty="hard", kind="stdin", program=_ADD, right=True),
    Problem(id="a2", file=1, date="2023-06-01", difficulty="easy", kind="functional", program=_SCALE, right=True),
    Problem(id="a3", file=2, date="2024-01-01", difficulty="easy", kind="stdin", program="print(7)", right=False),
    Problem(id="a4", file=2, date="2024-02-01", difficulty="medium", kind="stdin", program=None, right=False),
    Problem(id="b1", file=3, date="2024-07-31", difficulty="easy", kind="stdin", program=_ADD, right=True),
    Problem(id="b2", file=4, date="2024-08-01", difficulty="medium", kind="stdin", program=_ADD, right=True),
    Problem(
        id="b3",
        file=5,
        date="2025-01-04",
        difficulty="easy",
        kind="functional",
        program=_SCALE.replace("factor * n", "n"),
        right=False,
    ),
    Problem(id="c1", file=6, date="2025-04-05", difficulty="hard", kind="functional", program=_SCALE, right=True),
    Problem(id="c2", file=6, date="2025-02-09", difficulty="easy", kind="stdin", program="1/0", right=False),
)
_RELEASE_FILES = {"release_v2": 2, "release_v5": 5, "release_v6": 6}
_RELEASE_DATES = {
    "release_v2": ("0000", "9999"),
    "release_v5": ("2024-08", "2025-02"),
    "release_v6": ("2025-01", "2025-05"),
}


def problems(task: str) -> list[Problem]:
    """The problems that the task asks, in the order of its files."""
    release = CODE_TASKS[task]
    first, end = _RELEASE_DATES[release]
    return [p for p in PROBLEMS if p.file <= _RELEASE_FILES[release] and first <= p.date < end]


def encode_tests(tests: Sequence[Mapping[str, str]]) -> str:
    """Private test cases as the data files hold them."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode("ascii")


def _write_code(folder: Path, release: str) -> DataFiles:
    files = [folder / f"test{n if n > 1 else ''}.jsonl" for n in range(1, _RELEASE_FILES[release] + 1)]
    for number, file in enumerate(files, start=1):
        rows = [_code_row(problem) for problem in PROBLEMS if problem.file == number]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    splits = {"test": tuple(map(str, files))}
    return DataFiles(id="livecodebench/code_generation_lite", config=release, format="json", splits=splits)


def _code_row(problem: Problem) -> Row:
    stdin = problem.kind == "stdin"
    pairs = _STDIN if stdin else _FUNCTIONAL
    tests = [{"input": given, "output": wanted, "testtype": problem.kind} for given, wanted in pairs]
    return {
        "question_title": f"Problem {problem.id}",
        "question_content": f"Problem {problem.id}: "
        + ("add the numbers that follow their count." if stdin else "scale the numbers."),
        "platform": "atcoder" if stdin else "leetcode",
        "question_id": problem.id,
        "contest_id": "synthetic",
        "contest_date": f"{problem.date}T00:00:00",
        "starter_code": "" if stdin else _STARTER,
        "difficulty": problem.difficulty,
        "public_test_cases": json.dumps(tests[:1]),
        "private_test_cases": encode_tests(tests),
        "metadata": json.dumps({} if stdin else {"func_name": "scale"}),
    }


def _code_outputs(task: str) -> list[Canned]:
    return [
        Canned(output="I give up.", credit=0.0, counted=("format_fail",))
        if problem.program is None
        else Canned(output=f"First:\n```python\n0\n```\nthen\n```python\n{problem.program}\n```", credit=problem.right)
        for problem in problems(task)
    ]


def outputs(task: str) -> list[Canned]:
    """An output per sample that `task` asks of this data, in their order."""
    if task in CODE_TASKS:
        return _code_outputs(task)
    known = {"HMMT": _hmmt_outputs, "GPQADiamond": _gpqa_outputs, "JEEBench": _jee_outputs, "HLE": _hle_outputs}
    return known[task]()


def expected_rows(task: str) -> int:
    """Rows of the data set's files; a task may ask fewer (HLE, the releases with a date)."""
    if task in CODE_TASKS:
        return sum(problem.file <= _RELEASE_FILES[CODE_TASKS[task]] for problem in PROBLEMS)
    return len({"HMMT": _HMMT, "GPQADiamond": _GPQA, "JEEBench": _JEE, "HLE": _HLE}[task])
