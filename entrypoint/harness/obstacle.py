"""Why a benchmark can't run here: errors of its own libraries, put into words for the person who named it.

In: what benchmark code raised or logged. Out: a HarnessError that names what is missing and what to do, or None.
"""

from __future__ import annotations

import re

from entrypoint.errors import HarnessError

_HUB = re.compile(r"Couldn't (?:reach|find cache for|find any data file at|find the dataset) ['\"]?([\w.-]+/[\w.-]+)")
_PACKAGE = re.compile(r"No module named '([\w.]+)'")
_RESOURCE = re.compile(r"Resource '(\w+)' not found")


def obstacle(task: str, error: BaseException | str) -> HarnessError | None:
    """The refusal that fits the error (or what was logged of it), None when it is none of those known here."""
    text = _whole(error)
    if found := _HUB.search(text):
        return HarnessError(
            f"{task}: its data set {found[1]} is not locked: data.lock.yaml lists the ones that can be read, and a "
            "run takes nothing from a network; leave the task out"
        )
    if found := _PACKAGE.search(text):
        return HarnessError(
            f"{task}: needs package {found[1].partition('.')[0]}, which is not in the harness environment "
            "(locks/harness.txt); leave the task out"
        )
    if found := _RESOURCE.search(text):
        return HarnessError(
            f"{task}: its nltk resource {found[1]} is not among its locked data; run `evalcrate data fetch`, or leave "
            "the task out"
        )
    return None


def _whole(error: BaseException | str) -> str:
    """The error's text with those of the errors behind it: libraries wrap a missing file into their own words."""
    parts: list[str] = []
    while isinstance(error, BaseException) and len(parts) < 10:
        parts.append(f"{type(error).__name__}: {error}")
        following = error.__cause__ or error.__context__
        if following is None:
            break
        error = following
    return "\n".join(parts) if parts else str(error)
