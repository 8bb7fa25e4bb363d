"""A grader that keeps all cores busy must neither run beside another one nor wait for ever behind small ones."""

from __future__ import annotations

import threading

from entrypoint.cores import Cores


def test_never_more_cores_are_taken_than_there_are() -> None:
    cores, busy, most, lock = Cores(3), 0, 0, threading.Lock()

    def work(wanted: int) -> None:
        nonlocal busy, most
        with cores.taken(wanted) as number:
            with lock:
                busy += number
                most = max(most, busy)
            with lock:
                busy -= number

    threads = [threading.Thread(target=work, args=(1 + n % 4,)) for n in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert busy == 0
    assert 0 < most <= 3


def test_more_than_all_is_all_and_less_than_one_is_one() -> None:
    with Cores(2).taken(64) as number:
        assert number == 2
    with Cores(2).taken(0) as number:
        assert number == 1


def test_one_that_wants_all_is_not_overtaken_by_small_ones() -> None:
    cores, order, entered, leave = Cores(2), list[str](), threading.Event(), threading.Event()

    def first() -> None:
        with cores.taken(1):
            entered.set()
            leave.wait(30)

    def later(name: str, wanted: int) -> None:
        with cores.taken(wanted):
            order.append(name)

    holder = threading.Thread(target=first)
    holder.start()
    assert entered.wait(30)
    threads = []
    for name, wanted in (("all", 2), ("small", 1)):
        threads.append(threading.Thread(target=later, args=(name, wanted)))
        threads[-1].start()
        while len(cores._waiting) < len(threads):
            pass
    leave.set()
    for thread in (holder, *threads):
        thread.join(30)
    assert order == ["all", "small"]
