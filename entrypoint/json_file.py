"""JSON files of a checkpoint, read with a refusal for everything that is not one JSON object.

In: a folder and a file name. Out: the object, {} where the file may be absent; CheckpointError says what is wrong.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from entrypoint.errors import CheckpointError

_POINTERS = {
    b"version https://git-lfs": "a Git LFS pointer, not the file itself; run `git lfs pull` where it was cloned",
    b"/annex/objects/": "a git-annex pointer, not the file itself; run `git annex get` where it was cloned",
}


def read_object(folder: Path, name: str, *, required: bool = False) -> dict[str, Any]:
    """The JSON object in `folder`/`name`."""
    file = folder / name
    if not file.is_file():
        if file.is_symlink():
            raise CheckpointError(f"{file}: a link to a file that is not there; copy the checkpoint with its targets")
        if required:
            raise CheckpointError(f"{folder}: no {name}; is this the folder that the trainer saved the model to?")
        return {}
    data = file.read_bytes()
    refuse_pointer(file, data[:200])
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as err:
        raise CheckpointError(
            f"{file}: can't be read as JSON ({err}); wait if it is still being written, else save it again"
        ) from err
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: holds {type(value).__name__}, not a JSON object; save the checkpoint again")
    return value


def refuse_pointer(file: Path, start: bytes) -> None:
    """Refuses a file whose first bytes say that its content is kept elsewhere."""
    for mark, what in _POINTERS.items():
        if start.startswith(mark):
            raise CheckpointError(f"{file}: is {what}")


def whole_number(value: object) -> int | None:
    """`value` if it is an integer of 0 or more (and no bool)."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
