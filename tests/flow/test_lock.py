"""Two runs on one result folder would repeat each other's generations and sweep each other's files.

Incident: two engines started at once size each other wrongly (vllm#10533); two writers in one folder lose rows.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from entrypoint import lock
from entrypoint.errors import TransientError
from tests.flow.conftest import ROOT, Bench

HOLD = """
import sys, pathlib
from entrypoint import lock
with lock.held(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_second_run_is_told_who_holds_the_folder_and_a_dead_holder_holds_nothing(bench: Bench) -> None:
    path = bench.root / "_work/lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert bench.run() == 75
    _, err = bench.said()
    assert f"process {holder.pid} on " in err
    assert bench.engine_starts() == 0
    holder.kill()
    holder.communicate()
    with lock.held(path):
        pass


def test_the_lock_is_free_after_its_block(tmp_path: Path) -> None:
    path = tmp_path / "_work/lock"
    with lock.held(path), pytest.raises(TransientError, match="another run works on this folder"), lock.held(path):
        pass
    with lock.held(path):
        pass
