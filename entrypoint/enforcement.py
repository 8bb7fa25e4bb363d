"""What isolates graders on this machine: each mechanism tried once in a real child, and said in words.

In: this machine. Out: Mechanisms for whoever starts children, and one Measure per promise: enforced by what, or not
and why, with what to do about it.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from entrypoint import bubblewrap, isolation, landlock, syscall_filter

UIDS = range(61184, 65520)  # free by systemd's and Debian's tables: no person, no service
MEMORY_GIB = 8  # per process; the address space, of which a grader uses a tenth
PROCESSES = 512  # per grading child, beside what the user runs already
_PROBE_TIMEOUT_S = 20
_SIGNALS_SINCE = 6  # Landlock's ABI that keeps signals inside
_PACKAGE = Path(__file__).parent
_OWN_COMMAND = "grader.command is a program of the job's own and is run as it is"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mechanisms:
    """What was seen to work here. `lacks`: why each other one does not, by name.

    `bubblewrap`: its program. `root`: we are root and can become another user. `landlock`: ABI version, 0 for none.
    `grader`, `program`: the system call filters in base64.
    """

    bubblewrap: str | None
    root: bool
    landlock: int
    grader: str | None
    program: str | None
    lacks: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """A promise: enforced `by` these; with `lacks` not, or not wholly, for this reason."""

    what: str
    by: tuple[str, ...]
    lacks: str | None


@functools.cache
def probe() -> Mechanisms:
    """Tries everything in two short children (about 0.2 s, once per process)."""
    grader, program = (_text(isolation.built(rules)) for rules in (syscall_filter.GRADER, syscall_filter.PROGRAM))
    root = os.geteuid() == 0
    policy = isolation.Policy(
        read=(),
        write=(),
        limits={},
        uid=UIDS[0] if root else None,
        past_modes=True,
        landlock=True,
        grader=grader,
        program=None,
    )
    lacks = _tried(policy, [])
    found = shutil.which("bwrap")
    if found is None:
        lacks["bubblewrap"] = "bwrap is not on PATH; install bubblewrap"
    elif refused := {k: v for k, v in _tried(policy, [found]).items() if k not in lacks}:
        lacks["bubblewrap"] = f"bwrap does not work here ({'; '.join(refused.values())}); allow user namespaces"
    if grader is None:
        lacks["seccomp"] = "libseccomp.so.2 or pyseccomp is missing; install libseccomp2"
    return Mechanisms(
        bubblewrap=None if "bubblewrap" in lacks else found,
        root=root and "uid" not in lacks,
        landlock=0 if "landlock" in lacks else landlock.abi(),
        grader=None if "seccomp" in lacks else grader,
        program=None if "seccomp" in lacks else program,
        lacks=lacks,
    )


def _text(code: bytes | None) -> str | None:
    return None if code is None else base64.b64encode(code).decode()


def _tried(policy: isolation.Policy, program: Sequence[str]) -> dict[str, str]:
    """Mechanisms that failed in a child of their own, with the reason; `bubblewrap` when it does not start one."""
    root = str(_PACKAGE.parent)
    code = f"import sys; sys.path.insert(0, {root!r}); from entrypoint import enforcement; enforcement.trial()"
    argv = [sys.executable, "-I", "-S", "-c", code, json.dumps(asdict(policy))]
    with tempfile.TemporaryDirectory(prefix="evalcrate-probe-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        if program:
            view = isolation.view(policy.read)
            argv = [*bubblewrap.prefix(program[0], read=view, write=[name], folder=folder), *argv]
        try:
            done = subprocess.run(
                argv, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_TIMEOUT_S, check=False
            )
            failed: dict[str, str] = json.loads(done.stdout)
        except (OSError, subprocess.TimeoutExpired) as err:
            return {"bubblewrap" if program else "child": str(err)}
        except ValueError:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            return {"bubblewrap" if program else "child": said[-1] if said else f"exit code {done.returncode}"}
    return failed


def trial() -> None:
    """In the child: enters each layer, looks whether it holds, and prints those that do not with the reason."""
    policy = isolation.Policy(**json.loads(sys.argv[1]))
    failed = {}
    layers = {"uid": _uid_is_taken, "landlock": _root_is_hidden, "seccomp": _no_socket}
    for name, holds in layers.items():
        try:
            isolation.give_up_privileges()
            if not holds(policy):
                failed[name] = "it was entered and does not hold"
        except OSError as err:
            failed[name] = err.strerror or str(err)
    print(json.dumps(failed))


def _uid_is_taken(policy: isolation.Policy) -> bool:
    if policy.uid is not None:
        isolation.become(policy.uid, past_modes=policy.past_modes)
    return policy.uid in (None, os.getuid())


def _root_is_hidden(policy: isolation.Policy) -> bool:
    isolation.enter_files(policy)
    try:
        os.listdir("/")  # noqa: PTH208
    except PermissionError:
        return True
    return False


def _no_socket(policy: isolation.Policy) -> bool:
    if policy.grader is not None:
        syscall_filter.install(base64.b64decode(policy.grader))
    try:
        socket.socket().close()
    except PermissionError:
        return True
    return False


def out_of_reach(paths: Iterable[str], *, parents: bool) -> str | None:
    """The first of `paths` whose mode, or with `parents` that of a folder above it, keeps other users out."""
    for path in map(Path, paths):
        for place in (path, *(path.parents if parents else ())):
            try:
                mode = place.stat().st_mode
            except OSError:
                continue
            needed = 0o4 if not stat.S_ISDIR(mode) else 0o5 if place == path else 0o1
            if mode & needed != needed:
                return str(place)
    return None


def hidden(paths: Iterable[str]) -> str | None:
    """What a child that reads `paths` could not read as another user, if any."""
    own = (*isolation.interpreter(), str(_PACKAGE))
    return out_of_reach((*own, *paths), parents=probe().bubblewrap is None)


def stays_root(paths: Iterable[str]) -> str | None:
    """Why a child that reads `paths` is not run as another user; None when it is, or when we are not root."""
    found = probe()
    if not found.root:
        return found.lacks.get("uid")
    if found.landlock and found.grader:  # the right to read past modes is then bounded by the list of paths
        return None
    place = hidden(paths)
    return None if place is None else f"{place} can't be read by another user; allow it, or move what lies there"


def describe(paths: Sequence[str] = (), *, command: bool = False) -> tuple[Measure, ...]:
    """Every promise for graders that read `paths`. `command`: the job runs a grader of its own instead of ours."""
    found, user = probe(), stays_root(paths)
    apart, files, calls = found.bubblewrap is not None, found.landlock > 0, found.grader is not None
    quiet, plain = found.landlock >= _SIGNALS_SINCE, user is None
    landlocked = f"Landlock (ABI {found.landlock})"
    person = f"uids from {UIDS[0]} on, no group" if found.root else f"uid {os.getuid()}, not root"
    memory = f"rlimit: {MEMORY_GIB} GiB per process"
    rows: tuple[tuple[str, dict[str, bool], bool, tuple[str, ...]], ...] = (
        ("namespaces", {"bubblewrap": apart}, apart, ("bubblewrap",)),
        ("network", {"own namespace": apart, "seccomp: no socket": calls}, apart or calls, ("seccomp", "bubblewrap")),
        ("engine socket", {"not in sight": apart, "seccomp: no socket": calls}, apart or calls, ("seccomp",)),
        ("files and devices", {"own root": apart, landlocked: files}, apart or files, ("landlock", "bubblewrap")),
        ("processes", {"own pids": apart, landlocked: quiet, person: plain}, plain or apart or quiet, ("landlock",)),
        ("memory", {memory: True}, True, ()),
        ("number of processes", {f"rlimit: {PROCESSES}": plain}, plain, ("uid",)),
        ("uid", {person: plain}, plain, ("uid",)),
        ("model-written code", {landlocked: files, "seccomp": calls}, files and calls, ("landlock", "seccomp")),
    )
    lacks = found.lacks | ({} if user is None else {"uid": f"graders run as root: {user}"})
    return tuple(
        Measure(what=what, by=(), lacks=_OWN_COMMAND)
        if command
        else Measure(
            what=what,
            by=tuple(name for name, holds in by.items() if holds),
            lacks=None if enough else "; ".join(lacks[name] for name in needs if name in lacks),
        )
        for what, by, enough, needs in rows
    )


def as_values(measures: Iterable[Measure]) -> dict[str, Any]:
    """For JSON: each promise with what enforces it, and why nothing does or None."""
    return {one.what: {"by": list(one.by), "lacks": one.lacks} for one in measures}


def statement(measures: Iterable[Measure]) -> str | None:
    """One line on what is not enforced and why; None when all is."""
    missing: dict[str, list[str]] = {}
    for one in measures:
        if one.lacks is not None:
            missing.setdefault(one.lacks, []).append(one.what)
    if not missing:
        return None
    return "not enforced for graders: " + "; ".join(f"{', '.join(what)} ({why})" for why, what in missing.items())
