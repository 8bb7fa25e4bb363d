"""Benchmark code and what it runs can't reach the network, the engine, results, secrets or other processes.

Real children with everything this machine has, without bubblewrap, and both again as an ordinary user. Incidents:
model-written code in an in-process `exec` deleted the folder it ran in; a grader's daemon outlived a kill of its
process group; io_uring opens sockets past a filter; a ban on sockets broke multiprocessing, which graders need.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from entrypoint import enforcement, sandbox
from entrypoint.errors import EvalcrateError
from entrypoint.sandbox import ChildJob, ask_child
from tests.flow.conftest import Bench

ROOT = Path(__file__).parents[2]
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/sys")
# Stands in for the harness child: confined in the same way, then it runs the code it was told and answers `answer`.
HOSTILE = """
import json, os, sys
request = json.load(open(sys.argv[1]))
from entrypoint import isolation
isolation.enter(isolation.Policy(**request["policy"]))
(job,) = request["jobs"]
scope = {"told": job["spec"], "answer": {}}
exec(job["spec"]["code"], scope)
with open(job["answer"], "w") as file:
    json.dump({"ok": True, "value": scope["answer"]}, file)
"""
ATTEMPTS = """
import ctypes, mmap, os, signal, socket
def attempt(what, act):
    try:
        act()
        answer[what] = "done"
    except (OSError, MemoryError, OverflowError) as err:
        answer[what] = type(err).__name__
def connect(family, address):
    with socket.socket(family) as one:
        one.connect(address)
def truncate():
    with open("large", "wb") as file:
        file.truncate((1 << 30) + 1)
def system_call(number, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")
other = told["pid"]
attempt("connect to a port", lambda: connect(socket.AF_INET, ("127.0.0.1", told["port"])))
attempt("connect to the engine", lambda: connect(socket.AF_UNIX, told["engine"]))
attempt("send to a named socket", lambda: socket.socketpair(type=socket.SOCK_DGRAM))
attempt("listen to the kernel", lambda: socket.socket(socket.AF_NETLINK))
attempt("io_uring", lambda: system_call(425, 1, ctypes.create_string_buffer(120)))
attempt("new namespace", lambda: system_call(272, 0x10000000))
attempt("replace a result", lambda: open(told["result"], "w"))
attempt("remove a result", lambda: os.unlink(told["result"]))
attempt("add a result", lambda: open(told["result"] + ".new", "x"))
attempt("change the program", lambda: open(told["program"], "a"))
attempt("read a secret", lambda: open(told["secret"]).read())
attempt("list the root folder", lambda: os.listdir("/"))
attempt("read an environment", lambda: open(f"/proc/{other}/environ").read())
attempt("read memory", lambda: open(f"/proc/{other}/mem").read())
attempt("signal another process", lambda: os.kill(other, 0))
attempt("become root", lambda: os.setuid(0) if os.getuid() else os.listdir("/"))
attempt("take 10 GB", lambda: mmap.mmap(-1, 10 << 30))
attempt("write more than 1 GiB", truncate)
"""
STILL_WORKS = """
import multiprocessing, os, subprocess, tempfile, threading
context = multiprocessing.get_context("fork")
here, there = context.Pipe(duplex=False)
process = context.Process(target=lambda: there.send(6 * 7))
process.start()
answer["fork and pipe"] = here.recv()
process.join()
answer["program"] = subprocess.run(["/bin/echo", "said"], capture_output=True, text=True).stdout
with tempfile.NamedTemporaryFile("w+", delete=False) as file:
    file.write("kept")
os.replace(file.name, "renamed")
answer["file"] = open("renamed").read()
answer["data"] = open(told["data"]).read()
answer["late import"] = __import__("xmlrpc.client").__name__
"""


@pytest.fixture(params=["all", "no bubblewrap"])
def mechanisms(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Everything this machine has, or what is left without bubblewrap."""
    if request.param == "no bubblewrap":
        hide_bubblewrap(monkeypatch, tmp_path)
    enforcement.probe.cache_clear()
    found = enforcement.probe()
    if request.param == "all" and found.bubblewrap is None:
        pytest.skip(found.lacks["bubblewrap"])
    if not (found.landlock and found.grader):
        pytest.skip(str(found.lacks))
    yield request.param
    enforcement.probe.cache_clear()


def hide_bubblewrap(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    tools = folder / "tools"
    tools.mkdir()
    for name in ("git", "nvidia-smi"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(tools))


def run_hostile(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: str, timeout_s: float = 60, **told: Any
) -> dict[str, Any] | EvalcrateError:
    monkeypatch.setattr(sandbox, "_HARNESS", (sys.executable, "-P", "-c", HOSTILE))
    private = folder / "private"
    private.mkdir()
    (folder / "data").write_text("the questions")
    told |= {"code": code, "data": str(folder / "data")}
    job = ChildJob(task="a-task", spec=told, log=folder / "logs" / "job.log")
    (answer,) = ask_child(
        "grade", [job], private=private, log=job.log, timeout_s=timeout_s, read=[str(folder / "data")]
    )
    return answer


def processes_with(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (entry / "cmdline").read_bytes() and int(entry.name) != os.getpid():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_nothing_outside_is_reached_or_changed(
    mechanisms: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sockets, results, secret = tmp_path / "s", tmp_path / "results", tmp_path / "token"
    sockets.mkdir(mode=0o700)
    results.mkdir()
    (results / "results.json").write_text("0.5")
    secret.write_text("hf_secret")
    monkeypatch.chdir(sockets)  # a socket's path has room for 107 bytes
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as engine:
        engine.bind("e")
        engine.listen()
        said = run_hostile(
            tmp_path,
            monkeypatch,
            ATTEMPTS,
            port=tcp.getsockname()[1],
            engine=os.path.relpath(sockets / "e", tmp_path / "private"),
            pid=os.getpid(),
            result=str(results / "results.json"),
            program=str(ROOT / "entrypoint/average.py"),
            secret=str(secret),
        )
    assert isinstance(said, dict), said
    assert len(said) == 18
    assert [what for what, ending in said.items() if ending == "done"] == []
    assert [(file.name, file.read_text()) for file in results.iterdir()] == [("results.json", "0.5")]


def test_what_graders_need_still_works(mechanisms: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = run_hostile(tmp_path, monkeypatch, STILL_WORKS)
    assert said == {
        "fork and pipe": 42,
        "program": "said\n",
        "file": "kept",
        "data": "the questions",
        "late import": "xmlrpc",
    }


def test_a_daemon_ends_with_its_grader(mechanisms: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
import os, signal
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(write, b"1")
        signal.pause()
    os._exit(0)
os.read(read, 1)
"""
    assert run_hostile(tmp_path, monkeypatch, code) == {}
    assert processes_with(str(tmp_path / "private")) == []


def test_forking_without_end_is_bounded_and_all_of_it_ends(
    mechanisms: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
import os, signal
count = 0
try:
    while count < 6000:
        if os.fork() == 0:
            signal.pause()
        count += 1
except OSError as err:
    answer |= {"forked": count, "error": type(err).__name__}
"""
    started = time.monotonic()
    said = run_hostile(tmp_path, monkeypatch, code)
    assert isinstance(said, dict), said
    assert said["error"] == "BlockingIOError"
    assert said["forked"] < enforcement.PROCESSES + 64  # beside what the user runs already
    assert processes_with(str(tmp_path / "private")) == []
    assert time.monotonic() - started < 30


def test_an_answer_that_is_a_link_or_pipe_is_none(
    mechanisms: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.json").write_text(json.dumps({"ok": True, "value": {}}))
    code = f"""
os.symlink({str(tmp_path / "mine.json")!r}, job["answer"])
os._exit(0)
""".replace("job[", "told[").replace('"answer"', '"answer_file"')
    told = {"answer_file": str(tmp_path / "private" / "answer-0.json")}
    said = run_hostile(tmp_path, monkeypatch, "import os" + code, **told)
    assert isinstance(said, EvalcrateError)
    assert "no answer" in str(said)


def test_require_isolation_refuses_the_fall_back_and_says_what_to_do(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hide_bubblewrap(monkeypatch, tmp_path)
    enforcement.probe.cache_clear()
    try:
        assert bench.run(command="plan", grader={"require_isolation": True}) == 4
        said = bench.said()[1]
        assert "grader.require_isolation: not enforced for graders: namespaces (bwrap is not on PATH" in said
        assert "install bubblewrap" in said
        assert bench.run(command="plan", grader={"require_isolation": False}) == 0
    finally:
        enforcement.probe.cache_clear()


def test_a_run_says_and_records_what_is_not_enforced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hide_bubblewrap(monkeypatch, tmp_path)
    enforcement.probe.cache_clear()
    try:
        assert bench.run(limit=2, seeds=1) == 0
    finally:
        enforcement.probe.cache_clear()
    assert "not enforced for graders: namespaces (bwrap is not on PATH" in bench.said()[1]
    (file,) = (bench.folder / "results").glob("*/_work/provenance.json")
    recorded = json.loads(file.read_bytes())["isolation"]
    assert recorded["namespaces"]["lacks"].startswith("bwrap is not on PATH")
    assert recorded["network"] == {"by": ["seccomp: no socket"], "lacks": None}


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("bwrap") is None, reason="needs root and bubblewrap")
def test_all_of_it_holds_for_an_ordinary_user_too(tmp_path: Path) -> None:
    """The same tests in a process of uid 1000, which sees this interpreter wherever it lies."""
    own = tmp_path / "tmp"
    own.mkdir()
    os.chown(own, 1000, 1000)
    see = [word for place in SYSTEM for word in ("--ro-bind-try", place, place)]
    see += ["--bind", "/proc", "/proc", "--dev-bind", "/dev", "/dev", "--bind", str(own), "/tmp"]
    for place in (sys.base_prefix, str(ROOT)):
        see += [word for above in reversed(Path(place).parents) for word in ("--dir", str(above))]
        see += ["--ro-bind", place, place]
    keep = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    user = ["setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups"]
    test = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        __file__,
        "-k",
        "reached or need or daemon or forking",
    ]
    done = subprocess.run(
        ["bwrap", *see, *keep, "--", *user, *test],
        env={**os.environ, "HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 passed" in done.stdout
