"""What a machine lacks is told before the engine finds out: memory, open files, disk, the clock.

vllm#1125, #6574 (64 MiB of /dev/shm), vllm's own refusals of bfloat16 and of an old driver come minutes later.
"""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from entrypoint.engine_home import EngineHome
from entrypoint.gpu import HostMemory
from entrypoint.host import Host, InstalledEngine
from entrypoint.shortfall import clock_warning, disk_error, open_files, shortfalls
from tests.unit.test_plan import CPU_HOST, GPU_HOST, H100, job, plan_of

BOTH = (H100, replace(H100, index=1, uuid="GPU-b"))
CUDA = InstalledEngine(python=Path("/opt/engine/bin/python"), package="vllm", version="0.32.0", cuda=(13, 0))


def told(host: Host, *, weights_bytes: int = 1, dtype: str = "bfloat16", **engine: Any) -> list[str]:
    placement = plan_of(job(tasks=["AIME24"], engine=engine), host).placement
    return [str(error) for error in shortfalls(placement, host, dtype, weights_bytes)]


def test_a_machine_that_has_enough_lacks_nothing() -> None:
    roomy = replace(GPU_HOST, gpus=BOTH, engine=CUDA, shared_memory_mib=8192, open_files=4096)
    assert told(roomy, replicas=1) == []
    assert told(replace(CPU_HOST, memory=HostMemory(total_mib=9000, available_mib=9000))) == []


@pytest.mark.parametrize(("driver", "words"), [("550.54.15", "driver 580"), ("580.65.06", ""), ("[N/A]", "")])
def test_the_driver_is_held_against_the_engines_cuda(driver: str, words: str) -> None:
    host = replace(GPU_HOST, gpus=(replace(H100, driver=driver),), engine=CUDA)
    assert bool(told(host)) == bool(words)
    assert words in " ".join(told(host))
    assert told(replace(host, cuda_compat=True)) == []
    assert told(host, command=["/bin/true"]) == []


def test_shared_memory_matters_with_several_cards_only() -> None:
    small = replace(GPU_HOST, gpus=BOTH, shared_memory_mib=64)
    assert "64 MiB are free, and 2 cards" in told(small, replicas=1)[0]
    assert told(small) == []


def test_the_cpu_engine_needs_weights_and_cache_in_memory() -> None:
    host = replace(CPU_HOST, memory=HostMemory(total_mib=9000, available_mib=3000))
    assert "needs 3072 MiB" in told(host, weights_bytes=2 << 30)[0]
    assert told(host, weights_bytes=1 << 30) == []
    two = replace(host, cpus=2)
    assert (
        "2 CPU engines need 4096 MiB for the weights and 1 GiB of KV cache each"
        in (told(two, weights_bytes=1 << 30, replicas=2)[0])
    )


def test_the_limit_of_open_files_covers_every_open_request() -> None:
    placement = plan_of(job(tasks=["AIME24"])).placement
    assert open_files(placement) == 4 * 64 + 256
    two = plan_of(job(tasks=["AIME24"]), replace(GPU_HOST, gpus=BOTH)).placement
    assert open_files(two) == 2 * two.engine.max_open_requests + 256 == 2 * 80 + 256
    assert "over 511, and 512 are needed" in told(replace(GPU_HOST, open_files=511))[0]
    assert told(replace(GPU_HOST, open_files=512)) == []


def test_the_disk_is_held_against_the_longest_answers(tmp_path: Path) -> None:
    state = os.statvfs(tmp_path)
    free = state.f_bavail * state.f_frsize
    assert disk_error(tmp_path / "results/exp", 1000) is None
    assert "may be written" in str(disk_error(tmp_path / "results/exp", free))


def test_a_clock_that_was_never_set_is_told() -> None:
    assert "1970-01-01" in str(clock_warning(datetime(1970, 1, 1, tzinfo=UTC)))
    assert clock_warning(datetime(2026, 11, 1, tzinfo=UTC)) is None


def test_the_engine_gets_the_home_that_was_found_for_it() -> None:
    host = replace(GPU_HOST, home=EngineHome(env={"HOME": "/cache/home", "USER": "uid7"}))
    env = plan_of(job(tasks=["AIME24"]), host).placement.engine.env
    assert (env["HOME"], env["USER"]) == ("/cache/home", "uid7")
