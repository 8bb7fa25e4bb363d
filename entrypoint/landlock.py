"""Landlock: the calling process gives up every file it is not allowed here, for good, with all that it starts later.

In: folders and files to read, folders to write. Out: a kernel rule set, entered by `restrict`. Needs no privilege.
Files that are open already stay usable. What the kernel's ABI version lacks is left out, never an error.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from collections.abc import Sequence

_LIBC = ctypes.CDLL(None, use_errno=True)
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG, _MAKE_FIFO, _MAKE_SYM, _REFER = (
    1 << bit for bit in (4, 5, 7, 8, 10, 12, 13)
)
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_WRITE = (  # no device, socket or program is made there
    _READ_FILE | _READ_DIR | _WRITE_FILE | _TRUNCATE | _REMOVE_DIR | _REMOVE_FILE
    | _MAKE_DIR | _MAKE_REG | _MAKE_FIFO | _MAKE_SYM | _REFER
)  # fmt: skip
_OF_FILES = _EXECUTE | _READ_FILE | _WRITE_FILE | _TRUNCATE
_HANDLED = {1: 13, 2: 14, 3: 15, 4: 15}  # number of file rights by ABI; 5 and later: 16
_TCP, _TCP_SINCE = 0b11, 4  # bind and connect
_SCOPES, _SCOPES_SINCE = 0b11, 6  # abstract sockets and signals of processes outside


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("tcp", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def _call(number: int, *arguments: object) -> int:
    result = int(_LIBC.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"Landlock: {os.strerror(error)}")
    return result


def abi() -> int:
    """The kernel's version of Landlock, 0 where there is none."""
    try:
        return _call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    except OSError:
        return 0


def create(*, read: Sequence[str], write: Sequence[str], use: Sequence[str] = ()) -> int:
    """A rule set's descriptor: read and run below `read`, read and change below `write`, read and write files `use`.

    Everything else on file systems is refused to whoever enters it. Paths that don't exist are left out.
    """
    version = abi()
    handled = (1 << _HANDLED.get(version, 16)) - 1
    tcp = _TCP if version >= _TCP_SINCE else 0
    scopes = _SCOPES if version >= _SCOPES_SINCE else 0
    size = 24 if scopes else 16 if tcp else 8
    attributes = _Ruleset(handled, tcp, scopes)
    ruleset = _call(_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), ctypes.c_uint32(0))
    for paths, rights in ((read, _READ), (write, _WRITE), (use, _READ_FILE | _WRITE_FILE)):
        for path in paths:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                _allow(ruleset, path, rights & handled)
    return ruleset


def _allow(ruleset: int, path: str, rights: int) -> None:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _OF_FILES
        rule = _Beneath(rights, place)
        _call(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0))
    finally:
        os.close(place)


def restrict(ruleset: int) -> None:
    """Enters the rule set; the process must have given up gaining privileges (no_new_privs)."""
    _call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
