"""An engine that was started is gone afterwards, with every process, socket and segment, whatever ended us.

Incidents: a killed vLLM server leaves its engine core and workers running with the card's memory (tried on 0.32.0);
a stale socket makes the next start fail; a long TMPDIR makes socket paths longer than the 107 bytes that fit; a
neighbour that frees memory while vLLM profiles makes it die at start (vllm#56830, #45534).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from entrypoint.engine.client import Client
from entrypoint.engine.server import Server
from entrypoint.errors import EngineError, TransientError
from entrypoint.plan import Engine

FAKE = Path(__file__).parents[1] / "fakes" / "engine.py"


def an_engine(tmp_path: Path, script: dict[str, Any] | None = None, **changes: Any) -> Engine:
    path = tmp_path / "script.json"
    path.write_text(json.dumps(script or {}))
    values: dict[str, Any] = {
        "kind": "vllm",
        "version": "fake",
        "argv": (sys.executable, str(FAKE), "--fake", str(path)),
        "env": {},
        "url": None,
        "socket": None,
        "model": None,
        "api_key_env": None,
        "start_timeout_s": 30.0,
        "request_timeout_s": 30.0,
        "shutdown_timeout_s": 10.0,
        "max_open_requests": 8,
    }
    return Engine(**{**values, **changes})


def eventually(condition: Callable[[], bool], what: str, timeout_s: float = 15.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    """No process has this pid, not even a zombie."""
    return not Path(f"/proc/{pid}").exists()


def pid_in(path: Path) -> int:
    eventually(lambda: path.exists() and path.read_text() != "", f"{path.name} was not written")
    return int(path.read_text().split()[-1])


async def visit(engine: Engine, logs: Path) -> Path:
    async with Server.start(engine, logs) as server, Client(socket=str(server.socket)) as client:
        assert await client.health()
        return server.socket


def test_a_server_is_reached_over_a_private_socket_that_is_gone_afterwards(tmp_path: Path) -> None:
    async def look() -> Path:
        async with Server.start(an_engine(tmp_path), tmp_path / "logs") as server:
            assert stat.S_IMODE(server.socket.parent.stat().st_mode) == 0o700
            assert server.exit_status is None
            return server.socket

    assert not asyncio.run(look()).parent.exists()


def test_a_long_tmpdir_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert len(os.fsencode(asyncio.run(visit(an_engine(tmp_path), tmp_path / "logs")))) <= 107


def test_the_child_sees_only_what_the_plan_gives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "VLLM_USE_V2",
        "HF_HOME",
        "PYTHONPATH",
        "CUDA_VISIBLE_DEVICES",
        "https_proxy",
        "OMP_NUM_THREADS",
    ):
        monkeypatch.setenv(name, "leaks")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/kept")
    seen = tmp_path / "seen"
    show = f"import os, json; open({str(seen)!r}, 'w').write(json.dumps(dict(os.environ)))"
    engine = an_engine(
        tmp_path,
        argv=(sys.executable, "-I", "-c", show),
        env={"CUDA_VISIBLE_DEVICES": "1", "VLLM_X": "planned"},
    )
    with pytest.raises(EngineError):
        asyncio.run(visit(engine, tmp_path / "logs"))
    env = json.loads(seen.read_text())
    assert env["CUDA_VISIBLE_DEVICES"] == "1"
    assert env["VLLM_X"] == "planned"
    assert env["LD_LIBRARY_PATH"] == "/kept"
    assert env["TMPDIR"] != os.environ.get("TMPDIR")
    assert "leaks" not in env.values()


def test_a_refused_start_shows_the_last_log_lines_and_where_the_log_is(tmp_path: Path) -> None:
    log = "\n".join(f"line {n}" for n in range(40)) + "\nValueError: no such dtype"
    engine = an_engine(tmp_path, {"refuse_start": {"log": log, "exit_code": 3}})
    with pytest.raises(EngineError) as caught:
        asyncio.run(visit(engine, tmp_path / "logs"))
    message = str(caught.value)
    assert "exit status 3" in message
    assert "ValueError: no such dtype" in message
    assert "line 39" in message
    assert "line 10" not in message
    assert str(tmp_path / "logs" / "engine.log") in message


def test_a_neighbour_that_frees_memory_is_worth_another_try(tmp_path: Path) -> None:
    log = "Error in memory profiling. Initial free memory 82.94 GiB, current free memory 90.17 GiB\n" + "x\n" * 60
    engine = an_engine(tmp_path, {"refuse_start": {"log": log, "exit_code": 1}})
    with pytest.raises(TransientError, match=r"82\.94 GiB, current free memory 90\.17 GiB"):
        asyncio.run(visit(engine, tmp_path / "logs"))


def test_the_last_start_is_shown_and_earlier_logs_are_kept(tmp_path: Path) -> None:
    for text in ("first failure", "second failure"):
        engine = an_engine(tmp_path, {"refuse_start": {"log": text, "exit_code": 1}})
        with pytest.raises(EngineError, match=text) as caught:
            asyncio.run(visit(engine, tmp_path / "logs"))
    assert "first failure" not in str(caught.value)
    assert "first failure" in (tmp_path / "logs" / "engine.log").read_text()


def test_a_command_that_does_not_exist_is_an_engine_error(tmp_path: Path) -> None:
    engine = an_engine(tmp_path, argv=("/nowhere/python", "-m", "vllm"))
    with pytest.raises(EngineError, match=r"/nowhere/python: No such file or directory"):
        asyncio.run(visit(engine, tmp_path / "logs"))


def test_a_server_that_never_gets_healthy_is_given_up_and_ended(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    argv = ("/bin/sh", "-c", f"echo $$ > {starts}; exec sleep 3600")
    engine = an_engine(tmp_path, argv=argv, start_timeout_s=2)
    with pytest.raises(EngineError, match="not ready after 2 s"):
        asyncio.run(visit(engine, tmp_path / "logs"))
    assert is_gone(pid_in(starts))


@pytest.mark.parametrize("detach", [False, True])
def test_children_that_ignore_sigterm_or_leave_the_group_are_ended_and_reaped(tmp_path: Path, detach: bool) -> None:
    child = tmp_path / "child"
    engine = an_engine(tmp_path, {"stubborn_child": str(child), "detach_child": detach})
    asyncio.run(visit(engine, tmp_path / "logs"))
    assert is_gone(pid_in(child))


def test_a_server_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    asyncio.run(visit(an_engine(tmp_path, {"ignore_term": True, "starts": str(starts)}), tmp_path / "logs"))
    assert is_gone(pid_in(starts))


@pytest.mark.parametrize("cancels", [1, 2, 3])
def test_cancelling_ends_everything_before_it_returns(tmp_path: Path, cancels: int) -> None:
    starts, child = tmp_path / "starts", tmp_path / "child"
    script = {"starts": str(starts), "stubborn_child": str(child), "ignore_term": True}

    async def hold() -> None:
        async with Server.start(an_engine(tmp_path, script), tmp_path / "logs"):
            held.set()
            await asyncio.Event().wait()

    async def cancel() -> None:
        task = asyncio.create_task(hold())
        await held.wait()
        for _ in range(cancels):
            task.cancel()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(asyncio.Event().wait()), 0.01)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert is_gone(pid_in(starts))
        assert is_gone(pid_in(child))

    held = asyncio.Event()
    asyncio.run(cancel())


def test_an_error_in_the_body_ends_the_server_and_passes_through(tmp_path: Path) -> None:
    starts = tmp_path / "starts"

    async def fail() -> None:
        async with Server.start(an_engine(tmp_path, {"starts": str(starts)}), tmp_path / "logs"):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(fail())
    assert is_gone(pid_in(starts))


def test_a_dead_server_takes_its_children_with_it_and_is_noticed(tmp_path: Path) -> None:
    starts, child = tmp_path / "starts", tmp_path / "child"

    async def kill() -> int:
        script = {"starts": str(starts), "stubborn_child": str(child)}
        async with Server.start(an_engine(tmp_path, script), tmp_path / "logs") as server:
            os.kill(pid_in(starts), signal.SIGKILL)
            status = await asyncio.wait_for(server.ended(), 15)
            assert is_gone(pid_in(child))
            return status

    assert asyncio.run(kill()) == 128 + signal.SIGKILL


def test_when_we_are_killed_the_engine_and_its_socket_are_gone_too(tmp_path: Path) -> None:
    starts, child, socket = tmp_path / "starts", tmp_path / "child", tmp_path / "socket"
    engine = an_engine(tmp_path, {"starts": str(starts), "stubborn_child": str(child), "detach_child": True})
    program = f"""
import asyncio, pathlib
from entrypoint.engine.server import Server
from entrypoint.plan import Engine
async def hold():
    async with Server.start({engine!r}, pathlib.Path({str(tmp_path / "logs")!r})) as server:
        pathlib.Path({str(socket)!r}).write_text(str(server.socket))
        await asyncio.Event().wait()
asyncio.run(hold())
"""
    owner = subprocess.Popen([sys.executable, "-c", program], cwd=FAKE.parents[2])
    try:
        eventually(lambda: socket.exists() and socket.read_text() != "", "the server did not start")
    finally:
        owner.kill()
        owner.wait()
    for path in (starts, child):
        pid = pid_in(path)
        eventually(lambda pid=pid: is_gone(pid), f"process {pid} lives on")  # type: ignore[misc]
    eventually(lambda: not Path(socket.read_text()).parent.exists(), "the socket's folder is still there")
