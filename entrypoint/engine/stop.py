"""What SIGTERM and SIGINT mean while an engine runs: first an orderly end, then one at once.

In: the task that runs, and a way to drain it. Out: `number`, the first signal that came; the handlers that
were there before are back afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


class Stop:
    """The signals that came so far."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._at_once = False

    @contextlib.contextmanager
    def listening(self, main: asyncio.Task[None], drain: Callable[[], bool]) -> Iterator[None]:
        """The first signal calls `drain`; when that has nothing to wait for, or a second comes, `main` is
        cancelled.

        Outside the main thread, where Python delivers no signals, nothing is listened to.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        for number in before:
            loop.add_signal_handler(number, self._come, number, main, drain)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    def _come(self, number: int, main: asyncio.Task[None], drain: Callable[[], bool]) -> None:
        first, self.number = self.number is None, self.number or number
        if (first and drain()) or self._at_once:
            return
        self._at_once = True
        main.cancel()
