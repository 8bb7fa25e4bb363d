"""What a process that runs one model-written program does for it: streams, limits, its run, the way out of its value.

In: the program, and descriptors that are in place. Out: an exit status; a called function's value as JSON. By then the
process is confined, and nothing here is trusted any more: the program can change all of it.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import resource
import sys
import threading
from types import ModuleType
from typing import Any

from entrypoint.harness.program_message import Bounds

ANSWER = 3  # the descriptor that a called function's value is written to
_OPEN_FILES = 64
_DEEPEST = 64
_NATIVE_INT = 1 << 53


def plain(value: Any, depth: int = 0) -> Any:
    """A value as JSON that compares as it does itself with values made of JSON; what equals none of those is `other`.

    dict -> {"dict": [[key, value], ...]}, a large int -> {"int": hexadecimal}, other -> {"other": the type's name}.
    """
    if depth <= _DEEPEST:
        if value is None or value is True or value is False:
            return value
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            number = int.__index__(value)
            return number if abs(number) < _NATIVE_INT else {"int": hex(number)}
        if isinstance(value, float):
            return float.__float__(value)
        if isinstance(value, list):
            return [plain(item, depth + 1) for item in list.__iter__(value)]
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            return {"dict": [[str.__str__(key), plain(item, depth + 1)] for key, item in dict.items(value)]}
        if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
            return plain(value.item(), depth + 1)
    return {"other": type(value).__name__}


def streams() -> None:
    """Standard streams as upstream's checker has them: UTF-8, no newline translation, any code point."""
    names = {"encoding": "utf-8", "errors": "surrogatepass", "newline": "\n", "closefd": False}
    sys.stdin = sys.__stdin__ = open(0, **names)  # type: ignore[call-overload,misc] # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", **names)  # type: ignore[call-overload,misc] # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", **names)  # type: ignore[call-overload,misc] # noqa: SIM115


def run_main(program: str) -> int:
    """The exit status that the interpreter would give: threads awaited, exit handlers run, buffers written."""
    own, main = sys.stdout, ModuleType("__main__")
    sys.modules["__main__"] = main
    sys.argv = ["program.py"]
    status = 0
    try:
        exec(compile(program, "<string>", "exec", dont_inherit=True), main.__dict__)
    except SystemExit as stop:
        status = 0 if stop.code is None else stop.code & 0xFF if isinstance(stop.code, int) else 1
    except BaseException:
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in {id(own): own, id(sys.stdout): sys.stdout}.values():
        if not getattr(stream, "closed", True):
            stream.flush()
    return status


def run_call(program: str, call: dict[str, Any]) -> int:
    """Calls `call["name"]` of the program on `call["args"]` and `call["kwargs"]`; its value goes to ANSWER."""
    namespace: dict[str, Any] = {}
    exec(compile(program, "<string>", "exec", dont_inherit=True), namespace)
    value = namespace[call["name"]](*call["args"], **call["kwargs"])
    answer = memoryview(json.dumps(plain(value)).encode())
    while answer:
        answer = answer[os.write(ANSWER, answer) :]
    return 0


def _limit(name: int, soft: int, hard: int | None = None) -> None:
    """As wanted, or less where we are limited ourselves."""
    hard, ceiling = soft if hard is None else hard, resource.getrlimit(name)[1]
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(name, (soft, hard))


def limits(bounds: Bounds, cpu_s: float) -> None:
    whole_s = max(1, math.ceil(cpu_s))
    _limit(resource.RLIMIT_CPU, whole_s, whole_s + 1)
    _limit(resource.RLIMIT_AS, bounds.memory_bytes)
    _limit(resource.RLIMIT_FSIZE, bounds.output_bytes + 1)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
