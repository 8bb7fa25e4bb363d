"""A model's program can neither hang, nor lie, nor escape: it is graded wrong in bounded time, nothing of it is left
running, nothing on disk is changed, and the samples beside it are graded right.

Incidents: model code ran in the checker's own process beside the expected output; a correct program that used one
second of CPU time was graded wrong when 32 ran at once on two cores.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from entrypoint import isolation, syscall_filter
from entrypoint.errors import HarnessError, TransientError
from entrypoint.harness.livecodebench import Judge
from entrypoint.harness.program import Limits
from tests.fakes import hostile
from tests.fakes.judge import stdin_problem

ROOT = Path(__file__).parents[2]
UID = 61000
CALLED = {
    "task_id": "a-function",
    "is_stdin": False,
    "test": [{"input": "3", "output": "6", "testtype": "functional"}],
}
# The interpreter may lie in a folder that is the caller's alone: there, it is all that the other user sees of it.
REVEAL = """
mount --make-rprivate / && mount --bind "$1" "$3" && mount -t tmpfs -o mode=755 tmpfs "$2" && mkdir -p "$1" &&
mount --move "$3" "$1" && shift 3 && exec "$@"
"""


def private_ancestor(path: Path) -> Path | None:
    """The highest folder on the way that other users can't pass."""
    return next((p for p in reversed((path, *path.parents)) if not p.stat().st_mode & 0o001), None)


def as_user(uid: int, argv: Sequence[str], folder: Path) -> list[str]:
    """The command as another user; skips where this one can't become that one."""
    if os.getuid() == uid:
        return list(argv)
    if os.getuid() != 0:
        pytest.skip("only root becomes another user")
    command = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *argv]
    base = Path(sys.base_prefix)
    if hidden := private_ancestor(base):
        place = folder / "interpreter"
        place.mkdir()
        command = ["unshare", "-m", "sh", "-c", REVEAL, "sh", str(base), str(hidden), str(place), *command]
    if subprocess.run([*command[: -len(argv)], sys.executable, "-c", ""], capture_output=True).returncode:
        pytest.skip("the interpreter is out of the other user's reach")
    return command


class Place:
    """A folder with results and an engine's socket, and a judge that runs as `uid` beside them."""

    def __init__(self, folder: Path, uid: int) -> None:
        self.folder, self.uid = folder, uid
        self.results, self.engine, self.temporary = folder / "results", folder / "engine.sock", folder / "tmp"
        for made in (self.results, self.temporary):
            made.mkdir()
        (self.results / "results.json").write_text('{"accuracy": 0.5}')
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.engine))
        self.listener.listen()
        self.listener.settimeout(0)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, uid, uid)

    def state(self) -> list[tuple[Any, ...]]:
        paths = sorted((self.folder, *self.folder.rglob("*")))
        facts = ((p, p.stat()) for p in paths if p != self.temporary)
        return [(str(p), s.st_mode, s.st_size, s.st_mtime_ns, s.st_uid) for p, s in facts]

    def was_called(self) -> bool:
        try:
            self.listener.accept()
        except BlockingIOError:
            return False
        return True

    def left_running(self) -> list[str]:
        """Processes whose working folder is in ours: those of runners and programs are."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if str((process / "cwd").readlink()).startswith(str(self.folder)):
                    found.append(process.name)
        return found

    def policy(self) -> isolation.Policy:
        """What a grader here may do: read the program, write its temporary folder."""
        grader, program = (isolation.built(calls) for calls in (syscall_filter.GRADER, syscall_filter.PROGRAM))
        assert grader is not None
        assert program is not None
        return isolation.Policy(
            read=(str(ROOT),),
            write=(str(self.temporary),),
            limits={"AS": 8 << 30, "FSIZE": 1 << 30, "CORE": 0, "NOFILE": 1024},
            uid=None,
            past_modes=False,
            landlock=True,
            grader=base64.b64encode(grader).decode(),
            program=base64.b64encode(program).decode(),
        )

    def judge(
        self,
        samples: Sequence[tuple[dict[str, Any], str]],
        *,
        landlock: bool = True,
        cores: int = 2,
        cpu_s: float = 0.5,
        confined: bool = False,
    ) -> list[tuple[bool, str]]:
        """Verdicts and reasons; nothing is left running, and nothing of the folder has changed."""
        limits = {"cpu_per_test_s": cpu_s, "cpu_fixed_s": 0, "memory_bytes": 512 << 20}
        policy = asdict(self.policy()) if confined else None
        told = {"cores": cores, "landlock": landlock, "limits": limits, "policy": policy, "samples": samples}
        argv = as_user(self.uid, [sys.executable, str(ROOT / "tests/fakes/judge.py")], self.folder)
        before = self.state()
        done = subprocess.run(
            argv,
            input=json.dumps(told),
            capture_output=True,
            text=True,
            timeout=240,
            cwd=self.temporary,
            env={"PATH": os.environ["PATH"], "TMPDIR": str(self.temporary)},
        )
        assert done.returncode == 0, done.stderr
        assert not self.left_running()
        assert self.state() == before
        assert not list(self.temporary.iterdir())
        return [(passed, reason) for passed, reason in json.loads(done.stdout)]


@pytest.fixture(params=[0, UID], ids=["root", "ordinary user"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    uid = request.param if os.getuid() == 0 else os.getuid()
    if request.param == 0 and uid != 0:
        pytest.skip("not root here")
    folder = Path(tempfile.mkdtemp(prefix="hostile-", dir="/tmp"))
    made = Place(folder, uid)
    yield made
    made.listener.close()
    shutil.rmtree(folder)


def programs(place: Place, table: dict[str, str]) -> list[str]:
    return [p.replace("RESULTS", str(place.results)).replace("ENGINE", str(place.engine)) for p in table.values()]


@pytest.mark.parametrize("landlock", [True, False], ids=["Landlock", "no Landlock"])
def test_hostile_programs_are_graded_wrong_and_their_neighbours_right(place: Place, landlock: bool) -> None:
    wrong = [(stdin_problem("6", "3\n"), program) for program in programs(place, hostile.STDIN)]
    wrong += [(CALLED, program) for program in hostile.CALLS.values()]
    right = [(stdin_problem("6", "3\n"), program) for program in hostile.RIGHT.values()]
    samples = [sample for n, one in enumerate(wrong) for sample in (one, right[n % len(right)])]
    started = time.monotonic()
    verdicts = place.judge(samples, landlock=landlock)
    names = [*hostile.STDIN, *hostile.CALLS]
    assert [names[n] for n, verdict in enumerate(verdicts[::2]) if verdict[0]] == []
    assert [verdict for verdict in verdicts[1::2] if not verdict[0]] == []
    assert time.monotonic() - started < 120
    assert not place.was_called()


def test_a_judge_that_is_confined_as_a_grader_is_gives_the_same_verdicts(place: Place) -> None:
    """Who can't look how long a program waited for a core is not sure that it was the program that waited."""
    waits = "import time\ntime.sleep(5)\nprint(6)"
    programs = (*hostile.RIGHT.values(), waits, "while True: pass", "open('/etc/hostname')\nprint(6)")
    verdicts = place.judge([(stdin_problem("6", "3\n"), program) for program in programs], confined=True)
    assert verdicts[:-3] == [(True, "")] * len(hostile.RIGHT)
    assert [reason for _, reason in verdicts[-3:]] == [
        "test 1 of 1: it waited for longer than the limit",
        "test 1 of 1: it used more CPU time than the limit",
        "test 1 of 1: it ended with exit status 1",
    ]


def test_programs_find_no_expected_output(place: Place) -> None:
    """Not in files, other processes, their own objects or the memory they were forked with, right after a program that
    printed it."""
    expected = f"expected-{secrets.token_hex(16)}"
    (place.results / "tests.json").write_text(expected)
    (place.results / "results.json").write_text(expected)
    problem = stdin_problem(expected)
    searches = programs(place, hostile.SEARCHES)
    samples = [sample for search in searches for sample in ((problem, f"print({expected!r})"), (problem, search))]
    verdicts = place.judge(samples, cores=1, cpu_s=20)
    assert verdicts[::2] == [(True, "")] * len(searches)
    assert verdicts[1::2] == [(False, "test 1 of 1: wrong answer")] * len(searches)


SPENDS = "import time\nwhile time.process_time() < {}: pass\nprint(6)"
IN_THREADS = """
import threading, time
def work():
    end = time.thread_time() + 0.01
    while time.thread_time() < end: pass
for _ in range(20):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
print(6)
"""


def test_a_verdict_is_the_same_alone_and_with_sixteen_times_as_many_as_cores() -> None:
    limits = Limits(cpu_per_test_s=0.5, cpu_fixed_s=0)
    cores = len(os.sched_getaffinity(0))
    right = (SPENDS.format(0.2), IN_THREADS, "import time\ntime.sleep(0.2)\nprint(6)")
    wrong = (SPENDS.format(0.6), "import time\ntime.sleep(1.2)\nprint(6)")
    samples = [(right + wrong)[n % 5] for n in range(16 * cores)]

    def verdicts(at_once: int, programs: Sequence[str]) -> list[bool]:
        with Judge(at_once, limits=limits) as judge, ThreadPoolExecutor(at_once) as pool:
            return [v.passed for v in pool.map(lambda one: judge.verdict(stdin_problem("6"), one), programs)]

    alone = verdicts(1, right + wrong)
    assert alone == [True, True, True, False, False]
    assert verdicts(len(samples), samples) == [alone[n % 5] for n in range(len(samples))]


def test_what_all_tests_of_a_sample_use_counts_together() -> None:
    test = {"input": "", "output": "6", "testtype": "stdin"}
    problem = {"task_id": "three", "is_stdin": True, "test": [test] * 3}
    with Judge(1, limits=Limits(cpu_per_test_s=0.2, cpu_fixed_s=0.0)) as judge:
        assert judge.verdict(problem, SPENDS.format(0.1)).passed
        assert judge.verdict(problem, SPENDS.format(0.25)).reason == "test 3 of 3: it used more CPU time than the limit"


def runners_of(process: int) -> list[int]:
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(pid) for pid in children if b"program_runner" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_a_runner_that_was_killed_is_replaced_and_costs_no_verdict() -> None:
    with Judge(1) as judge:
        assert judge.verdict(stdin_problem("6"), "print(6)").passed
        (runner,) = runners_of(os.getpid())
        os.kill(runner, signal.SIGKILL)
        assert judge.verdict(stdin_problem("6"), "print(6)").passed
        assert not judge.verdict(stdin_problem("6"), "print(7)").passed
    assert not runners_of(os.getpid())


def test_runners_that_do_not_live_are_our_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "runner.py"
    broken.write_text("raise SystemExit(9)")
    monkeypatch.setattr("entrypoint.harness.program._RUNNER", broken)
    with Judge(1) as judge, pytest.raises(HarnessError, match=r"a-problem: test 1 of 1: .* ended \(9\) twice"):
        judge.verdict(stdin_problem("6"), "print(6)")


def test_a_process_that_can_not_be_set_up_is_our_failure() -> None:
    with Judge(1, limits=Limits(memory_bytes=1 << 70)) as judge, pytest.raises(HarnessError, match="can't be set up"):
        judge.verdict(stdin_problem("6"), "print(6)")


def test_a_program_that_gets_no_time_has_no_verdict() -> None:
    limits = Limits(starved_factor=0, starved_s=0.01)
    with Judge(1, limits=limits) as judge, pytest.raises(TransientError, match="next to no CPU time, even alone"):
        judge.verdict(stdin_problem("6"), SPENDS.format(1))


def test_when_the_judge_is_killed_nothing_is_left(place: Place) -> None:
    told = {
        "cores": 2,
        "landlock": True,
        "limits": {},
        "policy": None,
        "samples": [[stdin_problem("6"), SPENDS.format(60)]] * 2,
    }
    argv = [sys.executable, str(ROOT / "tests/fakes/judge.py")]
    environment = {"TMPDIR": str(place.temporary)}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, cwd=place.temporary, env=environment) as judge:
        assert judge.stdin is not None
        judge.stdin.write(json.dumps(told).encode())
        judge.stdin.close()
        deadline = time.monotonic() + 20
        while len(place.left_running()) < 5:  # the judge, two runners, two programs
            assert time.monotonic() < deadline
            time.sleep(0.05)
        judge.kill()
    while place.left_running():
        assert time.monotonic() < deadline
        time.sleep(0.05)
