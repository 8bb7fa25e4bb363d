"""Benchmark code runs in a child of which nothing is left, whatever ended it or us, and whose log is its own.

Incidents: graders that hang after all generation is done, children never reaped (rllm#915); a `kill -9` of the program
left a grader and its child running; a log that was appended to showed the last lines of an earlier run as the reason
of this one's failure. A detached process (`setsid`, double fork) escapes a kill of the process group.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from entrypoint.errors import HarnessError
from entrypoint.sandbox import ChildJob, ChildStopped, ChildTimeout, ask_child, run_child

ROOT = Path(__file__).parents[2]
PYTHON = (sys.executable, "-I", "-S")
# Ignores SIGTERM, as its child and a daemon in a session of its own do; writes the three pids, then `then` happens.
STUBBORN = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
ready, tell = os.pipe()
def stay(): os.write(tell, b"%d\\n" % os.getpid()); [signal.pause() for _ in iter(int, 1)]
if os.fork() == 0: stay()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: stay()
    os._exit(0)
pids = b"%d\\n" % os.getpid()
while pids.count(b"\\n") < 3: pids += os.read(ready, 512)
open(sys.argv[1] + ".new", "wb").write(pids)
os.rename(sys.argv[1] + ".new", sys.argv[1])
"""
STAYS = STUBBORN + "while True: signal.pause()"


def eventually(condition: Callable[[], bool], what: str, timeout_s: float = 15.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    """No process has this pid, not even a zombie."""
    return not Path(f"/proc/{pid}").exists()


def children_of_ours() -> set[int]:
    """Running or zombies."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        if entry.name.isdigit() and int(fields[1]) == os.getpid():
            found.add(int(entry.name))
    return found


class Child:
    """A child's private folder, log and the pids that it wrote."""

    def __init__(self, folder: Path) -> None:
        self.private, self.log, self.pid_file = folder / "private", folder / "logs" / "child.log", folder / "pids"
        self.private.mkdir()

    def run(self, code: str, timeout_s: float | None = 60, stop: threading.Event | None = None) -> int:
        argv = (*PYTHON, "-c", code, str(self.pid_file))
        return run_child(argv, private=self.private, log=self.log, timeout_s=timeout_s, stop=stop)

    def pids(self) -> list[int]:
        eventually(self.pid_file.exists, "the child did not say its pids")
        pids = [int(pid) for pid in self.pid_file.read_text().split()]
        assert len(set(pids)) == 3
        return pids

    def ask(self, code: str, *jobs: ChildJob, command: tuple[str, ...] = ()) -> list[dict[str, Any] | HarnessError]:
        argv = command or (*PYTHON, "-c", code)
        answers = ask_child("grade", jobs, private=self.private, log=self.log, timeout_s=60, command=argv)
        assert all(isinstance(answer, dict | HarnessError) for answer in answers)
        return answers  # type: ignore[return-value]


@pytest.fixture
def child(tmp_path: Path) -> Child:
    return Child(tmp_path)


@pytest.fixture(autouse=True)
def no_child_of_ours_is_left() -> Any:
    before = children_of_ours()
    yield
    assert children_of_ours() <= before


@pytest.mark.parametrize("code", [0, 3, 137])
def test_the_exit_code_is_the_childs(child: Child, code: int) -> None:
    assert child.run(f"raise SystemExit({code})") == code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGPIPE])
def test_a_signal_is_a_negative_exit_code(child: Child, number: int) -> None:
    assert child.run(f"import os, signal; signal.signal(13, signal.SIG_DFL); os.kill(os.getpid(), {number})") == -number


def test_after_the_time_limit_nothing_is_left(child: Child) -> None:
    with pytest.raises(ChildTimeout, match="no end after 3 s"):
        child.run(STAYS, timeout_s=3)
    assert all(map(is_gone, child.pids()))


def test_a_stop_ends_everything_at_once(child: Child) -> None:
    stop, stopped_at = threading.Event(), []

    def stop_it() -> None:
        child.pids()
        stopped_at.append(time.monotonic())
        stop.set()

    thread = threading.Thread(target=stop_it)
    thread.start()
    with pytest.raises(ChildStopped):
        child.run(STAYS, timeout_s=None, stop=stop)
    assert time.monotonic() - stopped_at[0] < 2
    thread.join()
    assert all(map(is_gone, child.pids()))


@pytest.mark.parametrize("code", [0, 7])
def test_what_a_child_leaves_behind_ends_with_it(child: Child, code: int) -> None:
    assert child.run(STUBBORN + f"os._exit({code})") == code
    assert all(map(is_gone, child.pids()))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_when_we_are_ended_everything_is_gone(child: Child, number: int) -> None:
    program = f"""
import pathlib, signal
from entrypoint.sandbox import run_child
def stop(number, frame): raise SystemExit(128 + number)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
argv = {(*PYTHON, "-c", STAYS, str(child.pid_file))!r}
run_child(argv, private=pathlib.Path({str(child.private)!r}), log=pathlib.Path({str(child.log)!r}), timeout_s=60)
"""
    owner = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    try:
        pids = child.pids()
        owner.send_signal(number)
        assert owner.wait(10) == (-number if number == signal.SIGKILL else 128 + number)
    finally:
        owner.kill()
        owner.wait()
    eventually(lambda: all(map(is_gone, pids)), f"of {pids} some live on", 2.0)


def test_when_we_are_killed_before_the_child_has_begun_it_does_not_stay(child: Child) -> None:
    """What we started ends only after all that it started itself."""
    program = f"""
import os, pathlib
from entrypoint import sandbox
def die(process, *_):
    pathlib.Path({str(child.pid_file)!r}).write_text(str(process.pid))
    os.kill(os.getpid(), 9)
sandbox._wait = die
argv, private, log = {(*PYTHON, "-c", STAYS, "never")!r}, {str(child.private)!r}, {str(child.log)!r}
sandbox.run_child(argv, private=pathlib.Path(private), log=pathlib.Path(log), timeout_s=60)
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    started = int(child.pid_file.read_text())
    eventually(lambda: not _runs(started), "what we started lives on", 5.0)


def _runs(pid: int) -> bool:
    """The process is there and not a zombie that its next parent has not looked at yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


class LogOnAFullDisk(type(Path())):  # type: ignore[misc]
    """Closing it fails, as on a network file system over its quota."""

    def open(self, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        handle = super().open(mode, *args, **kwargs)
        return Unclosable(handle) if mode == "ab" else handle


class Unclosable:
    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def __enter__(self) -> Any:
        return self.handle

    def __exit__(self, *_: object) -> None:
        self.handle.close()
        raise OSError(122, "Disk quota exceeded")


def test_an_error_after_the_start_leaves_no_process(child: Child) -> None:
    child.log = LogOnAFullDisk(child.log)
    with pytest.raises(OSError, match="Disk quota exceeded"):
        child.run("")


def test_a_child_gets_no_secret_and_is_kept_offline(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY")
    for name in (*secrets, "SOME_SETTING_OF_MINE", "https_proxy"):
        monkeypatch.setenv(name, "leaks")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    assert child.run("import json, os; print(json.dumps(dict(os.environ)))") == 0
    env = json.loads(child.log.read_text())
    assert "leaks" not in env.values()
    assert (env["HF_HUB_OFFLINE"], env["HF_DATASETS_OFFLINE"], env["CUDA_VISIBLE_DEVICES"]) == ("1", "1", "")
    for name in ("HOME", "TMPDIR", "HF_HOME", "HF_DATASETS_CACHE", "XDG_CACHE_HOME"):
        assert Path(env[name]).parent == child.private
        assert Path(env[name]).is_dir()


def test_stdin_is_empty_and_output_goes_to_the_log(child: Child) -> None:
    code = "import os, sys; print([sys.stdin.read(), *(os.readlink(f'/proc/self/fd/{n}') for n in range(3))])"
    assert child.run(code) == 0
    assert child.log.read_text() == f"{['', '/dev/null', str(child.log), str(child.log)]}\n"


def test_a_log_holds_this_run_only(child: Child) -> None:
    child.run("print('first')")
    child.run("print('second')")
    assert child.log.read_text() == "second\n"


def a_job(child: Child, name: str, *, earlier: str = "") -> ChildJob:
    log = child.log.parent / f"{name}.log"
    log.parent.mkdir(exist_ok=True)
    log.write_text(earlier)
    return ChildJob(task=name, spec={}, log=log)


def test_a_job_without_an_answer_shows_its_own_last_lines_or_else_its_hosts(child: Child) -> None:
    silent, talks = a_job(child, "silent", earlier="long ago\n"), a_job(child, "talks", earlier="long ago\n")
    child.log.write_text("the host, long ago\n")
    code = f"print('no module named x'); open({str(talks.log)!r}, 'a').write('talked\\n'); raise SystemExit(3)"
    errors = [str(error) for error in child.ask(code, silent, talks)]
    assert "exit code 3" in errors[0]
    assert f"{child.log}:\nno module named x" in errors[0]
    assert f"{talks.log}:\ntalked" in errors[1]
    assert not [error for error in errors if "long ago" in error]


def test_a_job_may_share_its_log_with_its_host(child: Child) -> None:
    job = ChildJob(task="shares", spec={}, log=child.log)
    (error,) = child.ask(f"open({str(child.log)!r}, 'a').write('job\\n'); print('host'); raise SystemExit(3)", job)
    assert f"{child.log}:\njob\nhost" in str(error)


def test_a_missing_command_is_named(child: Child) -> None:
    (error,) = child.ask("", a_job(child, "a-task"), command=("/nowhere/grader", "--fast"))
    assert isinstance(error, HarnessError)
    assert "a-task" in str(error)
    assert "can't start /nowhere/grader: No such file or directory" in str(error)


def test_shared_memory_of_a_killed_child_is_removed(child: Child) -> None:
    segment = Path(f"/dev/shm/psm_test{os.getpid()}")
    code = f"""
import mmap, os, signal
with open({str(segment)!r}, "w+b") as file:
    file.truncate(4096)
    mapped = mmap.mmap(file.fileno(), 4096)
if os.fork() == 0:
    signal.pause()
os._exit(0)
"""
    try:
        assert child.run(code) == 0
        assert not segment.exists()
    finally:
        segment.unlink(missing_ok=True)
