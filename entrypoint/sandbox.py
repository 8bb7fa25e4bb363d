"""Runs one child that executes benchmark code: clean environment, a time limit, no process of it left afterwards.

In: argv, log file, limit in seconds. Out: the exit code; the log holds what this child printed. Isolation of the
network and the file system is not enforced here yet; the environment only keeps well-behaved code offline and off the
GPU.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import IO, Any

from entrypoint.errors import CheckpointError, EvalcrateError, HarnessError, JobError, TransientError
from entrypoint.layout import read_json
from entrypoint.process import log_tail, under_keeper

_KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TZ")
_LOOK_S = 0.1  # a `stop` is seen within
_KILL_GRACE_S = 15.0
_OFFLINE = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


class ChildTimeout(HarnessError):
    """The child was still running at its time limit and was ended with every process it started."""


class ChildStopped(HarnessError):
    """The run is being interrupted; the child was ended with every process it started."""


def child_environment(private: Path) -> dict[str, str]:
    """Environment of a child: a few neutral variables kept, every cache under its own private folder, no secrets."""
    env = {name: os.environ[name] for name in _KEPT if name in os.environ}
    kept_openblas = {k: v for k, v in os.environ.items() if k in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")}
    folders = ("HOME", "HF_HOME", "HF_DATASETS_CACHE", "XDG_CACHE_HOME", "MPLCONFIGDIR", "TMPDIR")
    own = {name: str(private / name.lower()) for name in folders}
    for folder in own.values():
        Path(folder).mkdir(parents=True, exist_ok=True)
    return env | kept_openblas | _OFFLINE | own | {"PYTHONPATH": str(Path(__file__).parent.parent)}


def run_child(
    argv: Sequence[str],
    *,
    private: Path,
    log: Path,
    timeout_s: float | None,
    stop: threading.Event | None = None,
) -> int:
    """Exit code of the child (negative: the signal that ended it). ChildTimeout after `timeout_s`.

    `private` is the child's working folder and holds its caches. `stop`, once set, ends the child early.
    """
    start_log(log)
    with log.open("ab") as out, _started(argv, private, out) as process:
        return _wait(process, timeout_s, stop)


def start_log(log: Path) -> None:
    """An empty log: what an earlier child said in it would be taken for this one's."""
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")


@contextmanager
def _started(argv: Sequence[str], private: Path, out: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """The child's keeper, which ends as the child does. Afterwards no process is left; TransientError if one stays."""
    process = subprocess.Popen(
        under_keeper(argv),
        stdin=subprocess.PIPE,
        stdout=out,
        stderr=subprocess.STDOUT,
        cwd=private,
        env=child_environment(private),
        start_new_session=True,
    )
    assert process.stdin is not None
    try:
        yield process
    finally:
        process.stdin.close()
        try:
            process.wait(_KILL_GRACE_S)
        except subprocess.TimeoutExpired:
            raise TransientError(
                f"{argv[0]}: its processes can't be ended (a file system that hangs?): see the children of process "
                f"{process.pid} in `ps`"
            ) from None


def _wait(process: subprocess.Popen[bytes], timeout_s: float | None, stop: threading.Event | None) -> int:
    """In short slices: nothing wakes a thread for whichever comes first, an end or an event."""
    deadline = math.inf if timeout_s is None else monotonic() + timeout_s
    while (left_s := deadline - monotonic()) > 0:
        if stop is not None and stop.is_set():
            raise ChildStopped("stopped")
        with suppress(subprocess.TimeoutExpired):
            return process.wait(min(left_s, _LOOK_S))
    raise ChildTimeout(f"no end after {timeout_s:g} s")


_HARNESS = (sys.executable, "-P", "-m", "entrypoint.harness.child")


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildJob:
    """One piece of work for a harness child: `spec` as it is told, `log` where what it prints goes."""

    task: str
    spec: Mapping[str, Any]
    log: Path


def ask_child(
    mode: str,
    jobs: Sequence[ChildJob],
    *,
    private: Path,
    log: Path,
    timeout_s: float,
    parallel: int = 1,
    command: Sequence[str] = (),
    stop: threading.Event | None = None,
) -> list[dict[str, Any] | EvalcrateError]:
    """Runs one harness child on the jobs; each one's answer in their order, or the error that it came to.

    The child gets the name of a JSON file `{"mode", "parallel", "jobs": [{"spec", "log", "answer"}]}` and writes, per
    job, `{"ok": true, "value": {…}}` or `{"ok": false, "error", "exit_code"}` to the file `answer`. `command` replaces
    our own child. `log` is that child's own, and may be a job's too. A job without an answer is a HarnessError with the
    end of its log, or of the child's where the job did not get to say anything.
    """
    answers = [private / f"answer-{number}.json" for number in range(len(jobs))]
    told = [{"spec": j.spec, "log": str(j.log), "answer": str(a)} for j, a in zip(jobs, answers, strict=True)]
    spec_file = private / "spec.json"
    spec_file.write_text(json.dumps({"mode": mode, "parallel": parallel, "jobs": told}), encoding="utf-8")
    argv = [*(command or _HARNESS), str(spec_file)]
    try:
        for job in jobs:
            start_log(job.log)
        code = run_child(argv, private=private, log=log, timeout_s=timeout_s, stop=stop)
        ending = f"its process ended with exit code {code} and no answer"
    except ChildTimeout as err:
        ending = f"{err}; it was ended"
    except OSError as err:
        ending = f"its process can't be started ({err})"
    return [_answer_of(mode, job, answer, log, ending) for job, answer in zip(jobs, answers, strict=True)]


def _answer_of(mode: str, job: ChildJob, file: Path, log: Path, ending: str) -> dict[str, Any] | EvalcrateError:
    answer = read_json(file)
    if not isinstance(answer, dict) or "ok" not in answer:
        told = next((f"; last lines of {said}:\n{tail}" for said in (job.log, log) if (tail := log_tail(said))), "")
        return HarnessError(f"{job.task}: {mode}: {ending}{told}")
    if not answer["ok"]:
        kinds = {kind.exit_code: kind for kind in (CheckpointError, JobError, HarnessError)}
        return kinds.get(answer.get("exit_code", 0), HarnessError)(f"{answer.get('error')} (log: {job.log})")
    value = answer.get("value")
    if not isinstance(value, dict):
        return HarnessError(f"no results for {job.task}: {mode} answered {type(value).__name__}; see {job.log}")
    return value
