"""The cores of this machine, shared among graders: whoever takes some gives them back, first come first served.

In: how many there are. Out: a context in which a grader may keep so many busy.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class Cores:
    """`total` cores; `taken(n)` waits until n of them are free and nobody who asked before is waiting."""

    def __init__(self, total: int) -> None:
        self._total = max(1, total)
        self._free = self._total
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, wanted: int) -> Iterator[int]:
        """How many were taken: `wanted`, between one and all there are."""
        number = min(max(1, wanted), self._total)
        turn = object()
        with self._changed:
            self._waiting.append(turn)
            self._changed.wait_for(lambda: self._waiting[0] is turn and self._free >= number)
            self._waiting.popleft()
            self._free -= number
            self._changed.notify_all()
        try:
            yield number
        finally:
            with self._changed:
                self._free += number
                self._changed.notify_all()
