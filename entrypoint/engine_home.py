"""Where the engine may write and who it is: its home, caches and user name, also for a user id that has none of them.

In: the environment, the program's cache folder. Out: the variables to lay over it. torch asks for the user's name when
it is imported, and a container's `--user` id often has neither name nor home (dynamo#12457, vllm-fork#929).
"""

from __future__ import annotations

import contextlib
import os
import pwd
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from entrypoint.errors import MachineError

# Folders that the engine inherits and writes to.
_WRITTEN = ("XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")
# Folders that are read here at most.
_READ = ("HF_HOME", "HF_DATASETS_CACHE")


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineHome:
    """`env`: laid over what the engine inherits; empty where the environment will do as it is."""

    env: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def find_home(environ: Mapping[str, str], cache: Path) -> EngineHome:
    """What must be added for this user id; MachineError names a variable whose folder can't be written."""
    for name in _WRITTEN:
        if (value := environ.get(name)) and not can_write(Path(value)):
            raise MachineError(
                f"{name}: {value}: can't be written by uid {os.getuid()}, and the engine keeps its compiled kernels "
                "there; make it writable, point the variable elsewhere, or unset it"
            )
    env: dict[str, str] = {}
    warnings = [
        f"{name}: {value} can't be written by uid {os.getuid()}; it is only read"
        for name in _READ
        if (value := environ.get(name)) and not can_write(Path(value))
    ]
    home = environ.get("HOME", "")
    if home in ("", "/") or not can_write(Path(home)):
        env["HOME"] = str(_other_home(cache))
        if home not in ("", "/"):
            warnings.append(f"HOME: {home} can't be written by uid {os.getuid()}; the engine's is {env['HOME']}")
    if not (environ.get("LOGNAME") or environ.get("USER") or _has_entry()):
        env["USER"] = env["LOGNAME"] = f"uid{os.getuid()}"
    return EngineHome(env=env, warnings=tuple(warnings))


def _other_home(cache: Path) -> Path:
    """Under the cache, else under the temporary folder: kernels are compiled anew where it does not stay."""
    places = (cache, Path(tempfile.gettempdir()) / f"evalcrate-{os.getuid()}")
    for place in places:
        if can_write(place):
            return place / "home"
    raise MachineError(
        f"HOME: none that uid {os.getuid()} can write, nor {' nor '.join(map(str, places))}; set EVALCRATE_CACHE to a "
        "writable folder"
    )


def can_write(folder: Path) -> bool:
    """Whether a file can be made in `folder`, or in the first parent that is there; nothing is left behind."""
    place = next((p for p in (folder.absolute(), *folder.absolute().parents) if os.access(p, os.F_OK)), None)
    if place is None or not os.access(place, os.W_OK | os.X_OK):
        return False
    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=place):
        return True
    return False


def _has_entry() -> bool:
    with contextlib.suppress(KeyError):
        return bool(pwd.getpwuid(os.getuid()).pw_name)
    return False
