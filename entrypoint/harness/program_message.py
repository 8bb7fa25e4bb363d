"""What the judge's side and the runner of model-written programs say to each other, over a pipe each way.

Binary, since programs, inputs and outputs follow the messages as they are.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import NamedTuple


class Kind(enum.IntEnum):
    """What a request asks for."""

    MAIN = 0  # run the program as __main__: the input is its stdin, the output its stdout
    CALL = 1  # run it as a module, call a function of it: the input is a Call, the output its value (see `plain`)


class Ending(enum.IntEnum):
    """How a program's process ended."""

    EXITED = 0
    SIGNALLED = 1
    CPU = 2
    WAITED = 3
    STARVED = 4
    THREADS = 5
    OUTPUT = 6
    UNREADY = 7  # before the program's first line: our fault


class Request(NamedTuple):
    """Followed by the program's and the input's bytes. Seconds are what the process may still use."""

    kind: int
    cpu_s: float
    idle_s: float
    wall_s: float
    program_bytes: int
    input_bytes: int


class Response(NamedTuple):
    """Followed by the output. `code`: exit status or signal. `sure`: `idle_s` holds no time of waiting for a core."""

    ending: int
    code: int
    sure: bool
    cpu_s: float
    idle_s: float
    peak_bytes: int
    output_bytes: int


REQUEST = struct.Struct("<BdddQQ")
RESPONSE = struct.Struct("<BB?ddQQ")


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """The same for every program: address space, bytes written, threads.

    `landlock`: use it where there is one. `calls`: the system call filter in base64, None where there is none.
    """

    memory_bytes: int
    output_bytes: int
    threads: int
    landlock: bool
    calls: str | None
