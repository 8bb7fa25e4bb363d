"""What a process that runs other people's code may still do, and what this machine has to enforce it with.

`enter(policy)` confines the calling process, `enter_program` (one level deeper) one that is about to run a model's
program; neither can be undone, and both hold for everything started later. Each layer stands alone: what the machine
lacks is only that, and `describe` says so. Enforced from outside, by whoever starts the process: see sandbox.py
(namespaces by bubblewrap, clean environment, time limit) and keeper.py (nothing of it is left afterwards).
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import functools
import os
import resource
import signal
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from entrypoint import landlock, syscall_filter

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_PR_SET_KEEPCAPS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 8, 47, 2
_CAPABILITY_VERSION, _DAC_READ_SEARCH = 0x20080522, 2
_told: list[bytes] = []  # the program filter that came with the policy: nothing is built twice
# Programs and libraries, and the few files that Python, libc, OpenSSL and OpenBLAS look at. No /etc as a whole.
SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime",
    "/etc/nsswitch.conf", "/etc/passwd", "/etc/group", "/etc/ssl/openssl.cnf", "/sys/devices/system/cpu",
)  # fmt: skip
_PROC = ("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/version", "/proc/filesystems", "/proc/sys/vm")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def interpreter() -> tuple[str, ...]:
    """The folders of the running Python: its environment and the installation below it."""
    return tuple(dict.fromkeys((sys.prefix, sys.exec_prefix, sys.base_prefix)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What a process that runs benchmark code may do; plain values, so that it can be told in JSON.

    `read`, `write`: absolute paths, the system's, Python's and this program's own come on top of `read`. `limits`:
    RLIMIT_ name -> most. `uid`: the user to become, None to stay; `past_modes`: who still reads what lies in folders of
    others, Landlock's list being the bound. `landlock`: whether files are confined by it.
    `grader`, `program`: the two system call filters in base64, None where they can't be built.
    """

    read: tuple[str, ...]
    write: tuple[str, ...]
    limits: Mapping[str, int]
    uid: int | None
    past_modes: bool
    landlock: bool
    grader: str | None
    program: str | None


def enter(policy: Policy) -> None:
    """Confines the calling process and all that it starts later; OSError when a layer of the policy fails.

    Afterwards it reads only `policy.read` and the system, writes only `policy.write`, has no socket (a stream socket
    pair and pipes do work), no GPU or other device, no new namespace, no capability but to read, no view into
    other processes, and is bound by the limits. Files that are open stay usable.
    """
    for name, most in policy.limits.items():
        _lower(getattr(resource, f"RLIMIT_{name}"), most)
    if policy.uid is not None:
        become(policy.uid, past_modes=policy.past_modes)
    elif os.geteuid() == 0:
        _keep_capabilities(_DAC_READ_SEARCH)
    give_up_privileges()
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # becoming another user has undone it
    if policy.landlock:
        enter_files(policy)
    if policy.grader is not None:
        syscall_filter.install(base64.b64decode(policy.grader))
    if policy.program is not None:
        _told.append(base64.b64decode(policy.program))


def become(uid: int, *, past_modes: bool = False) -> None:
    """Another user without any group; of root's capabilities at most the one to read whatever the modes say."""
    _LIBC.prctl(_PR_SET_KEEPCAPS, int(past_modes), 0, 0, 0)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    if past_modes:
        _keep_capabilities(_DAC_READ_SEARCH)


def view(read: Sequence[str]) -> tuple[str, ...]:
    """All that a process which reads `read` needs to see: with the system's, Python's and this program's own."""
    return (*SYSTEM, *interpreter(), str(Path(__file__).parent), *read)


def enter_files(policy: Policy) -> None:
    """The policy's files by Landlock; needs no_new_privs.

    All of /proc, because a runner looks how long its programs waited for a core; memory and environment of processes
    outside stay closed, since Landlock lets nobody trace what is not inside.
    """
    ruleset = landlock.create(read=("/proc", *view(policy.read)), write=policy.write, use=_DEVICES)
    landlock.restrict(ruleset)
    os.close(ruleset)


def _lower(limit: int, most: int) -> None:
    _, hard = resource.getrlimit(limit)
    value = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(limit, (value, value))


def _keep_capabilities(number: int) -> None:
    """No capability but this one, also in programs started later."""
    bit = 1 << number
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    data = struct.pack("=6I", bit, bit, bit, 0, 0, 0)  # effective, permitted, inheritable
    _LIBC.capset(ctypes.c_char_p(header), ctypes.c_char_p(data))
    _LIBC.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, number, 0, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """The confinement of a model's program, made once and entered many times. None: this machine does not have it."""

    ruleset: int | None
    code: bytes | None


def prepare_program(read: Sequence[str] = (), code: bytes | None = None) -> Program:
    """What `enter_program` enters. `read`: folders to read besides the system's and Python's own.

    To be made in the process that forks the programs' processes: the rule set is a descriptor, inherited by fork but
    not by exec. `code`: the filter from `program_code` of another process; building it takes 75 ms.
    """
    ruleset = None
    if landlock.abi():
        ruleset = landlock.create(read=(*SYSTEM, *_PROC, *interpreter(), *read), write=(), use=_DEVICES)
    return Program(ruleset=ruleset, code=code or program_code())


def program_code() -> bytes | None:
    """The system call filter of a model's program as bytes; None where libseccomp is missing."""
    return _told[0] if _told else built(syscall_filter.PROGRAM)


def enter_program(read: Sequence[str] = (), *, prepared: Program | None = None) -> None:
    """Confines the calling process for a model's program; call it last before the program's first line.

    Afterwards it reads only the system's folders, Python's own and `read` (no private folder, data, expected answers
    or other samples), writes, creates, renames and removes no file, opens no socket or socket pair, starts no process
    (threads do work), runs no other program, signals only itself, shares no memory, and no process of its user can
    read its memory. What is open stays usable: close what the program should not have (0, 1 and 2 are its pipes).
    Works inside `enter`'s confinement and alone. With `prepared` it takes some 1.6 ms, and `read` is what
    `prepare_program` was told. Resource limits are the caller's.
    """
    prepared = prepared or prepare_program(read)
    give_up_privileges()
    if prepared.ruleset is not None:
        landlock.restrict(prepared.ruleset)
        os.close(prepared.ruleset)
    if prepared.code is not None:
        syscall_filter.install(prepared.code)


@functools.cache
def built(refusals: tuple[syscall_filter.Refusal, ...]) -> bytes | None:
    """The filter, made once per process; None where libseccomp is missing."""
    with contextlib.suppress(ImportError, RuntimeError, OSError):
        return syscall_filter.build(refusals)
    return None


def give_up_privileges() -> None:
    """No set-uid program gives more rights, and no process of the same user reads our memory or environment."""
    _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
