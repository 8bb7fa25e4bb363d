"""Shared by all tiers: the guard that keeps unit tests from starting anything, and where things are found."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from entrypoint import source

ROOT = Path(__file__).parent.parent
PATCHES = ROOT / "patches/evalchemy"


@pytest.fixture(autouse=True)
def nothing_starts_in_unit_tests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit test that starts a process or opens a socket is in the wrong folder."""
    if "unit" not in request.path.relative_to(Path(__file__).parent).parts:
        return

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a unit test started a process or opened a socket")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "bind", refuse)


@pytest.fixture(scope="session")
def evalchemy_tree() -> Path:
    """The patched benchmark source; skips where it is not on this machine."""
    tree = source.find_tree(PATCHES, source.cache_root(os.environ))
    if tree is None and os.environ.get("EVALCHEMY_REPO"):
        tree = source.fetch(PATCHES, source.cache_root(os.environ), os.environ["EVALCHEMY_REPO"])
    if tree is None:
        pytest.skip("the benchmark source is not on this machine: set EVALCHEMY_REPO or run `make sources`")
    return tree


@pytest.fixture(scope="session")
def engine_python() -> Path:
    """The interpreter of the engine environment; skips where there is none."""
    python = Path(os.environ.get("EVALCRATE_ENGINE_PYTHON", ROOT / ".venv-engine/bin/python"))
    if not python.exists():
        pytest.skip(f"no engine environment at {python}: run `make engine`")
    return python
