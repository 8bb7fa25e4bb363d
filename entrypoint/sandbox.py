"""Runs one child that executes benchmark code: confined, in a clean environment, for a limited time, all of it ended.

In: argv, log file, limit in seconds. Out: the exit code; the log holds what this child printed. A child of ours that
grades runs in bubblewrap where that works, and enters the policy that is written into its spec before it imports any
benchmark code (isolation.py); one that collects does the latter. A `command` of the job's own is only kept and ended.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import IO, Any

from entrypoint import bubblewrap, enforcement, isolation
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
    owner: int | None = None,
) -> int:
    """Exit code of the child (negative: the signal that ended it). ChildTimeout after `timeout_s`.

    `private` is the child's working folder, holds its caches, and is given to the user `owner`. `stop`, once set, ends
    the child early.
    """
    start_log(log)
    with log.open("ab") as out, _started(argv, private, out, owner) as process:
        return _wait(process, timeout_s, stop)


def start_log(log: Path) -> None:
    """An empty log: what an earlier child said in it would be taken for this one's."""
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")


@contextmanager
def _started(
    argv: Sequence[str], private: Path, out: IO[bytes], owner: int | None
) -> Iterator[subprocess.Popen[bytes]]:
    """The child's keeper, which ends as the child does. Afterwards no process is left; TransientError if one stays."""
    env = child_environment(private)
    if owner is not None:
        _give(private, owner)
    process = subprocess.Popen(
        under_keeper(argv),
        stdin=subprocess.PIPE,
        stdout=out,
        stderr=subprocess.STDOUT,
        cwd=private,
        env=env,
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


def _give(folder: Path, owner: int) -> None:
    for place, _, files in os.walk(folder):
        for path in (place, *(os.path.join(place, name) for name in files)):  # noqa: PTH118
            os.chown(path, owner, owner, follow_symlinks=False)


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
    read: Sequence[str] = (),
    parallel: int = 1,
    command: Sequence[str] = (),
    stop: threading.Event | None = None,
) -> list[dict[str, Any] | EvalcrateError]:
    """Runs one harness child on the jobs; each one's answer in their order, or the error that it came to.

    The child gets the name of a JSON file `{"mode", "parallel", "jobs": [{"spec", "log", "answer"}], "policy"}` and
    writes, per job, `{"ok": true, "value": {…}}` or `{"ok": false, "error", "exit_code"}` to the file `answer`. It can
    read `read`, and write `private` only. `command` replaces our own child, and is not confined. `log` is that child's
    own, and may be a job's too. A job without an answer is a HarnessError with the end of its log, or of the child's
    where the job did not get to say anything.
    """
    answers = [private / f"answer-{number}.json" for number in range(len(jobs))]
    told = [{"spec": j.spec, "log": str(j.log), "answer": str(a)} for j, a in zip(jobs, answers, strict=True)]
    spec_file = private / "spec.json"
    policy = None if command else _policy(mode, read, private, timeout_s)
    request = {"mode": mode, "parallel": parallel, "jobs": told, "policy": None if policy is None else asdict(policy)}
    spec_file.write_text(json.dumps(request), encoding="utf-8")
    logs = [str(one) for one in {log.absolute(), *(job.log.absolute() for job in jobs)}]
    argv = [*_apart(mode, policy, logs, private), *(command or _HARNESS), str(spec_file)]
    try:
        for job in jobs:
            start_log(job.log)
        owner = None if policy is None else policy.uid
        code = run_child(argv, private=private, log=log, timeout_s=timeout_s, stop=stop, owner=owner)
        ending = f"its process ended with exit code {code} and no answer"
    except ChildTimeout as err:
        ending = f"{err}; it was ended"
    except OSError as err:
        ending = f"its process can't be started ({err})"
    return [_answer_of(mode, job, answer, log, ending) for job, answer in zip(jobs, answers, strict=True)]


_GIB = 1 << 30
_FILE_BYTES = {"collect": 16 * _GIB, "grade": _GIB}
_OPEN_FILES = 1024
_ANSWER_BYTES = _GIB
_numbers = itertools.count()


def _policy(mode: str, read: Sequence[str], private: Path, timeout_s: float) -> isolation.Policy:
    """What our own child may do. Only a grader becomes another user: what collect wrote stays with the results."""
    found = enforcement.probe()
    paths = tuple(dict.fromkeys(os.path.abspath(path) for path in read))  # noqa: PTH100 (a link stays one)
    drops = mode == "grade" and found.root and enforcement.stays_root(paths) is None
    uid = enforcement.UIDS[(os.getpid() * 61 + next(_numbers)) % len(enforcement.UIDS)] if drops else None
    limits = {
        "AS": enforcement.MEMORY_GIB * _GIB,
        "CPU": math.ceil(timeout_s) + 1,
        "FSIZE": _FILE_BYTES[mode],
        "NOFILE": _OPEN_FILES,
        "CORE": 0,
        "NPROC": enforcement.PROCESSES + (0 if drops else _running(os.getuid())),
    }
    return isolation.Policy(
        read=paths,
        write=(str(private.absolute()),),
        limits=limits,
        uid=uid,
        past_modes=drops and enforcement.hidden(paths) is not None,
        landlock=found.landlock > 0,
        grader=found.grader,
        program=found.program,
    )


def _running(uid: int) -> int:
    """Threads of the user on this machine: the limit on processes counts them all."""
    count = 0
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if entry.stat().st_uid == uid:
                count += len(os.listdir(entry / "task"))  # noqa: PTH208
    return count


def _apart(mode: str, policy: isolation.Policy | None, logs: Sequence[str], private: Path) -> list[str]:
    """What puts the child into namespaces of its own; nothing where that can't be."""
    program = enforcement.probe().bubblewrap if policy is not None and mode == "grade" else None
    if program is None or policy is None:
        return []
    return bubblewrap.prefix(program, read=isolation.view(policy.read), write=(*policy.write, *logs), folder=private)


def _answer_of(mode: str, job: ChildJob, file: Path, log: Path, ending: str) -> dict[str, Any] | EvalcrateError:
    answer = read_json(file) if _is_plain(file) else None
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


def _is_plain(file: Path) -> bool:
    """Code that we don't trust wrote it: a link to a file of ours, a pipe or an endless file is no answer."""
    try:
        seen = file.lstat()
    except OSError:
        return False
    return stat.S_ISREG(seen.st_mode) and seen.st_nlink == 1 and seen.st_size <= _ANSWER_BYTES
