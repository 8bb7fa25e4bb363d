"""The child process in which benchmark code runs: `python -m entrypoint.harness.child SPEC.json`.

SPEC holds a mode, the policy that confines us from the first lines on, and jobs, each with a spec, a log and the file
its answer goes to. Heavy imports are done once; then every job runs in a forked process of its own, at most `parallel`
at a time. An answer file says `ok` with the value, or the error in one paragraph with its exit code; it appears whole
or not at all. Whoever started us (see sandbox.py) ends what is left when this process ends.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from entrypoint import isolation
from entrypoint.errors import EvalcrateError, HarnessError
from entrypoint.layout import printable, write_atomic
from entrypoint.plan import Sampling

_PRELOAD = {
    "collect": ("entrypoint.harness.collecting", "transformers.models.auto.tokenization_auto"),
    "grade": ("entrypoint.harness.grading",),
    "lm_eval": ("lm_eval.evaluator",),
    "evalchemy": ("lm_eval.tasks.hendrycks_math.utils", "sympy.parsing.latex"),
}


def main(spec_file: str) -> None:
    os.dup2(2, 1)  # benchmark code prints: all of it goes to the log
    request = json.loads(Path(spec_file).read_bytes())
    mode, waiting, running = request["mode"], request["jobs"], 0
    logs = {job["log"]: os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666) for job in waiting}
    if request["policy"] is not None:
        isolation.enter(isolation.Policy(**request["policy"]))
    for name in (mode, *sorted({job["spec"]["task"]["harness"] for job in waiting})):
        for module in _PRELOAD[name]:
            importlib.import_module(module)
    while waiting or running:
        if waiting and running < request["parallel"]:
            job = waiting.pop(0)
            if os.fork() == 0:
                _run_job(mode, job, logs[job["log"]])
            running += 1
        else:
            os.wait()
            running -= 1


def _run_job(mode: str, job: dict[str, Any], log: int) -> None:
    """One job in this forked process, which ends here whatever happens."""
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        write_atomic(Path(job["answer"]), _answer(mode, job["spec"]))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(70)


def _answer(mode: str, spec: dict[str, Any]) -> bytes:
    try:
        return _encode({"ok": True, "value": _work(mode, spec)})
    except EvalcrateError as err:
        return _encode({"ok": False, "error": str(err), "exit_code": err.exit_code})
    except Exception as err:  # benchmark code may raise anything; it is the harness that failed, not the model
        traceback.print_exc()
        return _encode({"ok": False, "error": f"{type(err).__name__}: {err}", "exit_code": HarnessError.exit_code})


def _work(mode: str, fields: dict[str, Any]) -> dict[str, Any]:
    from entrypoint.harness import adapter, collecting, grading

    task = adapter.TaskSource(**fields.pop("task"))
    if mode == "collect":
        sampling = Sampling(**fields.pop("sampling"))
        return collecting.collect(collecting.CollectSpec(task=task, sampling=sampling, **fields))
    return grading.grade(grading.GradeSpec(task=task, **fields))


def _encode(answer: dict[str, Any]) -> bytes:
    try:
        return json.dumps(printable(answer), allow_nan=False, default=_plain).encode()
    except ValueError as err:
        error = f"the benchmark returned a value that JSON can't hold ({err}); no score is published"
        return _encode({"ok": False, "error": error, "exit_code": HarnessError.exit_code})


def _plain(value: object) -> Any:
    """numpy scalars as Python numbers, anything else as text: an example may hold objects of the benchmark's own."""
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "shape", None) == () else str(value)


if __name__ == "__main__":
    main(sys.argv[1])
