"""grade, inside its child process: the benchmark's own code once more, answered from the stored generations.

In: a GradeSpec (JSON) naming the trial's requests, chats and generations. Out: the grader's own result with one verdict
per sample, and what the answer extractors found.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entrypoint.errors import HarnessError
from entrypoint.harness import adapter, answer, generic, lm_eval_task, selfcheck
from entrypoint.harness.collecting import in_fork
from entrypoint.harness.lm import ReplayingLM
from entrypoint.record import Generation, generation_from, read_requests

_COUNTS = ("format_fail", "grader_timeout", "grader_error", "boxed_empty", "boxed_unclosed", "boxed_blank")


@dataclass(frozen=True, kw_only=True, slots=True)
class GradeSpec:
    """One trial to grade. `generations`: a JSONL of the trial's generations, in request order."""

    task: adapter.TaskSource
    seed: int
    metric: str | None
    max_tokens: int
    think_end_token: str | None
    until: Sequence[str]
    requests: str
    chats: str
    generations: str


def grade(spec: GradeSpec) -> dict[str, Any]:
    """`results`, `native` and `counts` of one trial; HarnessError when the fault is ours or the grader's."""
    requests = read_requests(Path(spec.requests))
    rows = [generation_from(json.loads(line)) for line in Path(spec.generations).read_bytes().split(b"\n") if line]
    if [r.id for r in rows] != [r.id for r in requests]:
        raise HarnessError(f"{spec.task.name} seed {spec.seed}: the generations are not those of its requests")
    generic_task = spec.task.harness == "evalchemy" and generic.is_generic(spec.task.name)
    if spec.task.harness == "evalchemy" and not generic_task:
        in_fork(lambda: selfcheck.selfcheck(Path(spec.task.folder), spec.task.name, spec.task.options))
    texts = [
        visible_text(row.text, (*spec.until, *request.body["stop"]), spec.think_end_token)
        for row, request in zip(rows, requests, strict=True)
    ]
    mended = spec.task.options.get("boxed_blank") == "mended"
    seen = [answer.mend_blank_boxes(text) for text in texts] if mended else texts
    lm = ReplayingLM(spec.task.name, [r.prompt for r in requests], seen, _read_chats(Path(spec.chats)))
    raw = adapter.run(spec.task, lm, seed=spec.seed, max_tokens=spec.max_tokens, grade=True)
    lm.require_all_used()
    if generic_task:
        native: dict[str, Any] = {}
        results = generic.results(spec.task.name, raw or {}, spec.metric, [r.sample for r in rows], seen)
    else:
        results, native = _evalchemy(spec, raw) if spec.task.harness == "evalchemy" else _lm_eval(spec, raw)
    found = results["examples"]
    if len(found) != len(rows):
        raise HarnessError(f"{spec.task.name} seed {spec.seed}: {len(found)} of {len(rows)} samples were graded")
    _refuse_grader_errors(spec, found)
    for example, row, text in zip(found, rows, texts, strict=True):
        if spec.task.harness == "lm_eval" and example["id"] != str(row.sample):
            raise HarnessError(
                f"{spec.task.name} seed {spec.seed}: sample {example['id']} stands where {row.sample} was asked"
            )
        example |= {
            "tokens": row.completion_tokens,
            "finish_reason": row.finish_reason,
            "sampler_seed": row.sampler_seed,
        }
        if mended:
            example |= {
                key: value for key, value in (("model_outputs", [text]), ("model_output", text)) if key in example
            }
    return {"results": results, "native": native, "counts": _counts(spec, found, rows)}


def visible_text(text: str, stops: Sequence[str], think_end_token: str | None) -> str:
    """What the benchmark sees of a generation: without the thinking, cut at the first stop string (lm-eval's order)."""
    if think_end_token:
        text = text.split(think_end_token)[-1].lstrip()
    for stop in filter(None, stops):
        text = text.split(stop)[0]
    return text


def _read_chats(path: Path) -> dict[str, str]:
    rows = (json.loads(line) for line in path.read_bytes().split(b"\n") if line)
    return {row["chat"]: row["text"] for row in rows}


def _evalchemy(spec: GradeSpec, raw: dict[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    name = spec.task.name
    if not isinstance(raw, dict) or not isinstance(raw.get("examples"), list) or not raw["examples"]:
        raise HarnessError(f"no results for {name}: its grader returned {_shape(raw)}")
    results = dict(raw)
    verdicts = answer.verdicts(name, raw)
    results["examples"] = [
        _both_shapes(example, index) | verdict
        for index, (example, verdict) in enumerate(zip(raw["examples"], verdicts, strict=True))
    ]
    letters = answer.answer_letters(name, raw["examples"])
    return results | ({} if letters is None else {"answer_letters": letters}), {}


def _refuse_grader_errors(spec: GradeSpec, examples: list[dict[str, Any]]) -> None:
    """HarnessError where the grader failed on a sample and called it wrong: that is no answer of the model's."""
    faults = [fault for example in examples if (fault := answer.grader_error(example)) is not None]
    if faults:
        counts = f"{len(faults)} of {len(examples)} samples ({len(examples) - len(faults)} graded)"
        raise HarnessError(
            f"{spec.task.name} seed {spec.seed}: the grader itself failed on {counts}: {faults[0][:200]}; "
            "no score is published"
        )


def _both_shapes(example: dict[str, Any], index: int) -> dict[str, Any]:
    """An example with `id`, and with `model_answers`/`model_outputs` also where the benchmark has singular names."""
    out = {"id": str(example.get("id", index)), **{k: v for k, v in example.items() if k != "id"}}
    if "model_output" in example:
        out["model_outputs"] = [example["model_output"]]
    if "model_answer" in example:
        out["model_answers"] = [example["model_answer"]]
    return out


def _lm_eval(spec: GradeSpec, raw: dict[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    name = spec.task.name
    if not raw or not isinstance(raw.get("results"), dict) or not raw["results"].get(name):
        raise HarnessError(f"no results for {name}: lm-eval returned {_shape(raw)}")
    results = dict(raw["results"][name])
    results["accuracy"] = results.get(spec.metric)
    results["examples"] = lm_eval_task.examples(raw, name, spec.metric or "")
    native: dict[str, Any] = {k: raw[k] for k in ("versions", "n-shot", "higher_is_better", "n-samples") if k in raw}
    return results, native


def _counts(spec: GradeSpec, examples: list[dict[str, Any]], rows: list[Generation]) -> dict[str, int]:
    counts = dict.fromkeys(_COUNTS, 0)
    for example, row in zip(examples, rows, strict=True):
        counts["format_fail"] += answer.format_fail(spec.task.name, example)
        counts["grader_timeout"] += bool(example.get("grader_timeout"))
        counts["grader_error"] += answer.grader_error(example) is not None
        empty, unclosed, blank = answer.boxed_problems(row.text)
        counts["boxed_empty"] += empty
        counts["boxed_unclosed"] += unclosed
        counts["boxed_blank"] += blank
    return counts


def _shape(value: object) -> str:
    if isinstance(value, dict):
        return f"a mapping with keys {sorted(value)[:8]}" if value else "an empty mapping"
    return type(value).__name__
