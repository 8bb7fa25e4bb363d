"""What this machine can't do is said before an engine starts, by name and value, through the command line.

Each row is a public report: the card that reports no memory (unslothai/unsloth#10283), the host's mask in a container
(nvidia-docker#907), UUIDs as masks (vllm#13815), a full card (dcgm-exporter#136), two engines on one (vllm#10533),
64 MB of /dev/shm (vllm#1125), a user id without a name (dynamo#12457), heads that do not divide (gpustack#814).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from entrypoint import host
from entrypoint.card_lock import CardLocks
from entrypoint.cli import run_command
from entrypoint.errors import TransientError
from entrypoint.gpu import Gpu
from tests.fakes.checkpoint import make_checkpoint
from tests.flow.conftest import ROOT, Bench

NAMES = {
    "index": 0,
    "uuid": "GPU-8f2a6c1e-0000-0000-0000-000000000000",
    "name": "NVIDIA H100 80GB HBM3",
    "memory.total": 81559,
    "memory.used": 1,
    "memory.free": 80994,
    "driver_version": "580.95.05",
    "compute_cap": "9.0",
    "mig.mode.current": "Disabled",
}
SECOND = "GPU-8c7c9c30-f12f-20bf-e14e-d3c4c965af32"
SLICE = "MIG-377e0049-554c-540b-93c6-d0976f8426cb"
EIGHT = {
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 4096,
}


def card(index: int = 0, **changes: Any) -> dict[str, Any]:
    uuid = f"GPU-{index:08x}-0000-0000-0000-000000000000"
    return {
        **NAMES,
        "index": index,
        "uuid": uuid,
        **{k.replace("_mib", "").replace("__", "."): v for k, v in changes.items()},
    }


def unreported(name: str, marker: str) -> dict[str, Any]:
    return card(name=name, memory__total=marker, memory__used=marker, memory__free=marker)


@dataclass
class Machine:
    """A machine of the test's own: a fake nvidia-smi first on PATH, a GPU engine that never starts, a checkpoint."""

    folder: Path
    capsys: pytest.CaptureFixture[str]
    environ: dict[str, str]

    def has(self, *gpus: dict[str, Any], **say: Any) -> None:
        (self.folder / "bin/nvidia-smi.json").write_text(json.dumps({"gpus": gpus, **say}))

    def job(self, **engine: Any) -> Path:
        path = self.folder / "job.yaml"
        job = {
            "experiment": "exp",
            "checkpoint": str(self.folder / "ckpt/step-300"),
            "results": str(self.folder / "results"),
            "tasks": ["arithmetic"],
            "engine": engine,
        }
        path.write_text(json.dumps(job))
        return path

    def plan(self, *arguments: str, mask: str | None = None, **engine: Any) -> tuple[int, str, str]:
        environ = {**self.environ, **({} if mask is None else {"CUDA_VISIBLE_DEVICES": mask})}
        code = run_command(["plan", str(self.job(**engine)), *arguments], environ)
        captured = self.capsys.readouterr()
        assert "Traceback" not in captured.err
        assert not (self.folder / "results").exists()
        return code, captured.out, captured.err

    def refused(self, *words: str, mask: str | None = None, code: int = 4, **engine: Any) -> str:
        found, out, err = self.plan(mask=mask, **engine)
        assert (found, "arithmetic" in out) == (code, True), err
        for word in words:
            assert word in err
        return err

    def planned(self, *, mask: str | None = None, **engine: Any) -> dict[str, Any]:
        code, out, err = self.plan("--json", mask=mask, **engine)
        assert code == 0, err
        placement: dict[str, Any] = json.loads(out)["plan"]["placement"]
        return placement


@pytest.fixture
def machine(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Machine:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvidia-smi").symlink_to(ROOT / "tests/fakes/nvidia_smi")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    packages = tmp_path / "engine/lib/python3.11/site-packages"
    (packages / "vllm-0.32.0.dist-info").mkdir(parents=True)
    (packages / "torch").mkdir()
    (packages / "torch/version.py").write_text("cuda: str = '13.0'\n")
    (tmp_path / "engine/bin").mkdir()
    (tmp_path / "engine/bin/python").symlink_to(sys.executable)
    checkpoint(tmp_path)
    environ = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    environ |= {"EVALCRATE_ENGINE_PYTHON": f"{tmp_path}/engine/bin/python", "EVALCRATE_CACHE": f"{tmp_path}/cache"}
    return Machine(folder=tmp_path, capsys=capsys, environ=environ)


def checkpoint(folder: Path, **shape: int) -> None:
    make_checkpoint(
        folder / "ckpt/step-300",
        config__json={
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "max_position_embeddings": 40960,
            "eos_token_id": 1,
            **EIGHT,
            **shape,
        },
    )


# ---- cards and profiles ----


@pytest.mark.parametrize(
    ("name", "total", "profile"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "h100-80g"),
        ("NVIDIA H100 NVL", 95830, "h100-80g"),
        ("NVIDIA H100 PCIe", 81559, "h100-80g"),
        ("NVIDIA A100 80GB PCIe", 81920, "a100-80g"),
        ("NVIDIA A100-SXM4-40GB", 40960, "a100-40g"),
        ("NVIDIA A100-PCIE-40GB", 40960, "a100-40g"),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 40192, "a100-40g"),
        ("NVIDIA L40S", 46068, "l40s-48g"),
        ("NVIDIA A10", 23028, "a10-24g"),
        ("NVIDIA H200 NVL", 143771, "h200-141g"),
        ("NVIDIA B200", 183359, "b200-180g"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "rtx-pro-6000-96g"),
    ],
)
def test_real_cards_get_the_profile_of_their_kind(machine: Machine, name: str, total: int, profile: str) -> None:
    machine.has(card(name=name, memory__total=total, memory__free=total - 400))
    assert machine.planned()["profile"] == profile


@pytest.mark.parametrize(
    ("name", "total"), [("NVIDIA A10G", 23028), ("NVIDIA H100", 40000), ("Tesla T4", 15360), ("NVIDIA A100X", 81920)]
)
def test_an_unknown_card_is_refused_with_the_profile_to_write(machine: Machine, name: str, total: int) -> None:
    machine.has(card(name=name, memory__total=total, memory__free=total))
    err = machine.refused(f"0 {name}, {total} MiB: no profile", "h100-80g, h20-96g", "--profile FILE")
    written = re.search(r"\{gpu_names.*?\}", err)
    assert written is not None
    own = machine.folder / "mine.yaml"
    own.write_text(written[0].replace("min_gib_per_gpu: 34", "min_gib_per_gpu: 6"))
    code, out, err = machine.plan("--profile", str(own), "--json", dtype="float16")
    placement = json.loads(out)["plan"]["placement"]
    assert (code, placement["profile"], placement["values"]["max_num_seqs"]) == (0, str(own), 16), err


def test_unlike_cards_are_listed_with_their_profiles(machine: Machine) -> None:
    machine.has(card(0), card(1, name="NVIDIA A100-SXM4-40GB", memory__total=40960, memory__free=40000))
    machine.refused("0 NVIDIA H100 80GB HBM3, 81559 MiB: h100-80g", "1 NVIDIA A100-SXM4-40GB, 40960 MiB: a100-40g")
    assert machine.planned(mask="0")["profile"] == "h100-80g"


def test_unified_memory_is_the_hosts_available_memory(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = machine.folder / "meminfo"
    meminfo.write_text("MemTotal:       127601452 kB\nMemFree:         1000000 kB\nMemAvailable:   62914560 kB\n")
    monkeypatch.setattr(host, "_MEMINFO", meminfo)
    monkeypatch.setattr(host, "_CGROUP", machine.folder / "none")
    machine.has(unreported("NVIDIA GB10", "[N/A]"))
    err = machine.refused("0 NVIDIA GB10, 124610 MiB: no profile")
    assert " 0 MiB" not in err
    assert machine.planned(profile="h100-80g")["values"]["gpu_memory_utilization"] == 0.476


@pytest.mark.parametrize("marker", ["[Insufficient Permissions]", "[Not Supported]", "N/A", "ERR!"])
def test_a_card_that_hides_its_memory_is_not_sized_by_its_name(machine: Machine, marker: str) -> None:
    machine.has(unreported("NVIDIA A100-SXM4-80GB", marker))
    for engine in ({}, {"profile": "a100-80g"}):
        err = machine.refused("card 0 (NVIDIA A100-SXM4-80GB)", repr(marker), "MIG or missing permission", **engine)
        assert " 0 MiB" not in err


# ---- which cards ----


@pytest.mark.parametrize("mask", [SECOND, "GPU-8c7c9c30", "1"])
def test_the_engine_gets_exactly_the_card_that_the_mask_names(machine: Machine, mask: str) -> None:
    machine.has(card(0), card(1, uuid=SECOND))
    placement = machine.planned(mask=mask)
    assert placement["engine"]["env"]["CUDA_VISIBLE_DEVICES"] == SECOND
    assert placement["engine"]["env"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert placement["values"]["tensor_parallel_size"] == 1


@pytest.mark.parametrize(("mask", "used"), [("0,-1,1", [0]), ("1,0", [1]), (" 1 , 0 ", [1])])
def test_order_and_end_of_the_mask_are_cudas(machine: Machine, mask: str, used: list[int]) -> None:
    machine.has(card(0), card(1))
    env = machine.planned(mask=mask)["engine"]["env"]
    assert env["CUDA_VISIBLE_DEVICES"] == ",".join(card(n)["uuid"] for n in used)
    both = machine.planned(mask=mask, replicas=1)["engine"]["env"]["CUDA_VISIBLE_DEVICES"].split(",")
    assert both == [card(n)["uuid"] for n in ([0] if used == [0] else [1, 0])]


def test_a_mask_that_leaves_no_card_is_named(machine: Machine) -> None:
    machine.has(card(0), card(1))
    machine.refused("CUDA_VISIBLE_DEVICES=0,0", mask="0,0")
    machine.refused("CUDA_VISIBLE_DEVICES= leaves none of 2 cards", mask="")
    machine.refused("GPU-99", mask="GPU-99")
    machine.refused("h100-80g: is for a GPU, and none is visible", mask="-1", profile="h100-80g")


def test_the_hosts_mask_in_a_container_is_explained(machine: Machine) -> None:
    machine.has(card(0))
    machine.refused("CUDA_VISIBLE_DEVICES=4", "container", "unset it there", mask="4")


def test_a_slice_is_sized_by_itself_or_refused_by_name(machine: Machine) -> None:
    parent = card(name="NVIDIA A100-SXM4-80GB", memory__total=81920, **{"mig.mode.current": "Enabled"})
    part = {"name": "MIG 3g.40gb", "uuid": SLICE}
    machine.has({**parent, "slices": [{**part, "total": "40192 MiB", "free": "40100 MiB"}]})
    placement = machine.planned(mask=SLICE)
    assert placement["profile"] == "a100-40g"
    assert placement["engine"]["env"]["CUDA_VISIBLE_DEVICES"] == SLICE
    machine.has({**parent, "slices": [part]})
    machine.refused("MIG", "not reported", mask=SLICE)
    machine.has(parent)
    machine.refused(SLICE, "MIG slice that nvidia-smi does not list", mask=SLICE)
    machine.refused("is in MIG mode")


# ---- memory ----


def test_free_memory_is_taken_as_reported(machine: Machine) -> None:
    machine.has(card(name="NVIDIA L40S", memory__total=46068, memory__used=3, memory__free=41500))
    placement = machine.planned()
    assert placement["values"]["gpu_memory_utilization"] == 0.856
    assert placement["origins"]["gpu_memory_utilization"] == "clamp"


def test_a_full_card_is_refused_with_who_uses_it(machine: Machine) -> None:
    full = card(memory__free=20000)
    machine.has(full, processes=[[full["uuid"], 4242, "/usr/bin/python3", 61000]])
    machine.refused("card 0", "20000 of 81559 MiB are free", "process 4242 /usr/bin/python3 61000 MiB", "h100-80g")
    assert machine.planned(min_gib_per_gpu=10)["values"]["gpu_memory_utilization"] == 0.22


# ---- how many cards ----


@pytest.mark.parametrize(
    ("count", "name", "total", "heads", "kv_heads", "size"),
    [
        (3, "NVIDIA H100 80GB HBM3", 81559, 32, 8, 2),
        (8, "NVIDIA H100 80GB HBM3", 81559, 28, 4, 4),
        (2, "NVIDIA L40S", 46068, 32, 8, 1),
    ],
)
def test_one_engine_takes_the_most_cards_that_divide_its_heads(
    machine: Machine, count: int, name: str, total: int, heads: int, kv_heads: int, size: int
) -> None:
    checkpoint(machine.folder, num_attention_heads=heads, num_key_value_heads=kv_heads)
    machine.has(*(card(n, name=name, memory__total=total, memory__free=total - 400) for n in range(count)))
    assert machine.planned(replicas=1)["values"]["tensor_parallel_size"] == size


def test_a_size_that_does_not_divide_the_heads_is_refused_with_those_that_do(machine: Machine) -> None:
    checkpoint(machine.folder, num_attention_heads=28, num_key_value_heads=4)
    machine.has(*(card(n) for n in range(8)))
    machine.refused("engine.tensor_parallel_size: 3", "28 heads and 4 KV heads allows 1, 2, 4;", tensor_parallel_size=3)


def masks(placement: dict[str, Any]) -> list[list[str]]:
    """The cards of each engine, by the end of their UUID's first part."""
    own = placement.get("replicas") or [placement["engine"]["env"]]
    return [[uuid.split("-")[1][-1] for uuid in env["CUDA_VISIBLE_DEVICES"].split(",")] for env in own]


@pytest.mark.parametrize(
    ("count", "name", "total", "layers", "engine", "engines"),
    [
        (4, "NVIDIA H100 80GB HBM3", 81559, 36, {}, ["0", "1", "2", "3"]),
        (2, "NVIDIA L40S", 46068, 36, {}, ["0", "1"]),
        (4, "NVIDIA H100 80GB HBM3", 81559, 720, {}, ["01", "23"]),
        (3, "NVIDIA H100 80GB HBM3", 81559, 720, {}, ["01"]),
        (4, "NVIDIA H100 80GB HBM3", 81559, 36, {"replicas": 3}, ["0", "1", "2"]),
        (4, "NVIDIA H100 80GB HBM3", 81559, 36, {"tensor_parallel_size": 2, "replicas": 2}, ["01", "23"]),
        (4, "NVIDIA H100 80GB HBM3", 81559, 36, {"tensor_parallel_size": 1, "replicas": 1}, ["0"]),
    ],
)
def test_an_engine_stands_on_each_group_of_cards_that_the_checkpoint_fits_on(
    machine: Machine, count: int, name: str, total: int, layers: int, engine: dict[str, Any], engines: list[str]
) -> None:
    checkpoint(machine.folder, num_hidden_layers=layers)
    machine.has(*(card(n, name=name, memory__total=total, memory__free=total - 400) for n in range(count)))
    placement = machine.planned(**engine)
    assert ["".join(group) for group in masks(placement)] == engines
    assert placement["engine"]["env"]["CUDA_VISIBLE_DEVICES"].count("GPU-") == len(engines[0])
    assert placement["values"].get("replicas", 1) == len(engines)
    idle = [n for n in range(count) if str(n) not in "".join(engines)]
    _, out, _ = machine.plan(**engine)
    assert ("idle: run another job there" in out) == bool(idle)
    for n in idle:
        assert re.search(rf"warning .*and .*card {n} NVIDIA.* idle", out)


@pytest.mark.parametrize(
    ("count", "engine", "words"),
    [
        (4, {"replicas": 5}, "tensor_parallel_size 1 (checkpoint), each on cards of its own; use 1, 2, 3, 4 or auto"),
        (4, {"replicas": 3, "tensor_parallel_size": 2}, "up to 2 engines of tensor_parallel_size 2 (job)"),
        (1, {"replicas": 2}, "1 visible cards carry 1 engine of tensor_parallel_size 1 (checkpoint)"),
    ],
)
def test_more_engines_than_cards_are_refused_with_how_many_there_may_be(
    machine: Machine, count: int, engine: dict[str, Any], words: str
) -> None:
    machine.has(*(card(n) for n in range(count)))
    machine.refused(f"engine.replicas: {engine['replicas']}: {count} visible cards", words, **engine)


def test_every_card_of_every_engine_has_to_have_room(machine: Machine) -> None:
    machine.has(card(0), card(1, memory__free=60000), card(2))
    assert machine.planned()["values"]["gpu_memory_utilization"] == 0.71
    machine.has(card(0), card(1), card(2, memory__free=20000))
    machine.refused("card 2", "20000 of 81559 MiB are free")
    assert len(machine.planned(mask="0,1")["replicas"]) == 2


def test_the_plan_tells_the_cards_of_each_engine(machine: Machine) -> None:
    machine.has(*(card(n) for n in range(2)))
    code, out, _ = machine.plan()
    assert code == 0
    assert "card         0 NVIDIA H100 80GB HBM3, 81559 MiB" in out
    assert re.search(r"replicas +2  \(cards\)", out)
    for n in range(2):
        assert f"engine {n + 1}: CUDA_VISIBLE_DEVICES {card(n)['uuid']}" in out


# ---- nvidia-smi itself ----


def test_a_warning_among_good_rows_is_told_and_counts_as_no_card(machine: Machine) -> None:
    said = "WARNING: infoROM is corrupted at gpu 0000:B3:00.0"
    for code in (0, 14):
        machine.has(card(0), card(1), lines=[said], code=code)
        found, out, _ = machine.plan()
        assert found == 0
        assert f"nvidia-smi: {said}" in out
        assert out.count("\ncard ") == 2


@pytest.mark.parametrize(
    ("say", "words"),
    [
        ({"rows": ["No devices were found"]}, "no GPU"),
        ({"rows": ["WARNING: infoROM is corrupted"], "code": 14}, "no GPU"),
        ({"rows": [], "code": 18, "stderr": "Failed to initialize NVML: Driver/library version mismatch"}, "mismatch"),
        ({"rows": [], "code": 255, "stderr": "Failed to initialize NVML: Unknown Error"}, "Failed to initialize NVML"),
        ({"rows": ["0, GPU-aa, NVIDIA H100 80GB HBM3, 81559"]}, "the row is not whole"),
        ({"rows": [], "code": 0}, "it said nothing"),
        ({"rows": ["Unable to determine the device handle for GPU 0000:B3:00.0"], "code": 0}, "Unable to determine"),
    ],
)
def test_what_nvidia_smi_says_instead_of_cards_is_repeated(machine: Machine, say: dict[str, Any], words: str) -> None:
    machine.has(**say)
    machine.refused(words)


def test_doctor_shows_the_rest_of_the_machine_all_the_same(machine: Machine) -> None:
    machine.has(rows=[], code=18, stderr="Driver/library version mismatch")
    assert run_command(["doctor"], machine.environ) == 4
    out, err = machine.capsys.readouterr()
    assert "engine       vllm 0.32.0 for CUDA 13.0" in out
    assert "memory " in out
    assert "version mismatch" in err
    machine.has(card(0), card(1, name="NVIDIA A10G", memory__total=23028, memory__free=23000))
    assert run_command(["doctor", "--json"], machine.environ) == 0
    found = json.loads(machine.capsys.readouterr().out)
    assert [gpu["profile"] for gpu in found["gpus"]] == ["h100-80g", None]


# ---- the rest of the machine ----


def test_a_driver_too_old_for_the_engines_cuda_is_told_with_the_one_it_needs(machine: Machine) -> None:
    machine.has(card(driver_version="550.54.15"), unknown_fields=["compute_cap"])
    said = machine.refused("driver 550.54.15", "CUDA 13.0", "driver 580 or newer")
    assert run_command(["doctor"], machine.environ) == 4
    assert said.splitlines()[0] in machine.capsys.readouterr().err


def test_a_card_without_bfloat16_is_told(machine: Machine) -> None:
    machine.has(card(compute_cap="7.5"))
    machine.refused("engine.dtype: bfloat16", "compute capability 7.5", "float16")


def test_a_plan_of_two_cards_needs_shared_memory(machine: Machine) -> None:
    machine.has(card(0), card(1))
    plan = f"{sys.executable} -m entrypoint plan {machine.job(replicas=1)}"
    mount = "mount -t tmpfs -o size=64m tmpfs /dev/shm"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("a small /dev/shm can't be mounted here")
    environ = {**machine.environ, "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    argv = ["unshare", "-m", "sh", "-c", f"{mount} && {plan}"]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 4
    assert "/dev/shm: 64 MiB are free, and 2 cards" in done.stderr
    assert "ipc: host or shm_size: 8g" in done.stderr


@dataclass
class Nobody:
    """Runs commands as a user id that no passwd file knows, in a folder that everybody can read."""

    folder: Path

    # Python itself may lie where only root can read: one run as root imports everything, the second one counts.
    program = """
import contextlib, io, os, sys
from entrypoint.cli import run_command
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    run_command(sys.argv[1:], os.environ)
os.setgroups([])
os.setgid(12345)
os.setuid(12345)
sys.exit(run_command(sys.argv[1:], os.environ))
"""

    def plan(self, **variables: str) -> subprocess.CompletedProcess[str]:
        job = {
            "experiment": "exp",
            "checkpoint": str(self.folder / "ckpt/step-300"),
            "results": str(self.folder / "own/results"),
            "tasks": ["arithmetic"],
            "engine": {"profile": "cpu", "command": ["/bin/false"]},
        }
        (self.folder / "job.yaml").write_text(json.dumps(job))
        kept = {k: v for k, v in os.environ.items() if k not in ("HOME", "USER", "LOGNAME", "XDG_CACHE_HOME")}
        environ = {**kept, "PYTHONPATH": str(ROOT), "EVALCRATE_CACHE": str(self.folder / "own"), **variables}
        argv = [sys.executable, "-c", self.program, "plan", "--json", str(self.folder / "job.yaml")]
        return subprocess.run(argv, env=environ, cwd="/", capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def nobody() -> Iterator[Nobody]:
    if os.getuid() != 0:
        pytest.skip("takes another user id, which only root can")
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # pytest closes its own base folder to others
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "own").mkdir()
        (folder / "own").chmod(0o777)
        checkpoint(folder)
        (folder / "closed").mkdir(mode=0o555)
        yield Nobody(folder=folder)


@pytest.mark.parametrize("variables", [{}, {"HOME": "/"}])
def test_a_user_id_without_name_or_home_gets_them_for_the_engine(nobody: Nobody, variables: dict[str, str]) -> None:
    done = nobody.plan(**variables)
    assert done.returncode == 0, done.stderr
    env = json.loads(done.stdout)["plan"]["placement"]["engine"]["env"]
    assert env["USER"] == env["LOGNAME"] == "uid12345"
    assert Path(env["HOME"]).is_relative_to(nobody.folder / "own")


def test_a_cache_that_can_not_be_written_is_named_with_the_user_id(nobody: Nobody) -> None:
    closed = str(nobody.folder / "closed")
    done = nobody.plan(TRITON_CACHE_DIR=closed)
    assert done.returncode == 4
    assert f"TRITON_CACHE_DIR: {closed}: can't be written by uid 12345" in done.stderr
    done = nobody.plan(HF_HOME=closed, HOME=closed)
    assert done.returncode == 0, done.stderr
    warnings = " ".join(json.loads(done.stdout)["plan"]["warnings"])
    assert f"HF_HOME: {closed} can't be written by uid 12345; it is only read" in warnings
    assert f"HOME: {closed} can't be written by uid 12345" in warnings


# ---- one engine per card ----


def held(machine: Machine) -> CardLocks:
    return CardLocks(machine.folder / "cache")


GPU = Gpu(index=0, uuid=str(card(0)["uuid"]), name="NVIDIA H100 80GB HBM3", total_mib=81559, free_mib=1, driver="")


def test_a_second_run_on_a_card_is_told_who_has_it(machine: Machine) -> None:
    machine.has(card(0))
    locks = held(machine)
    locks.take([GPU])
    err = machine.refused("card 0", f"process {os.getpid()}", "CUDA_VISIBLE_DEVICES", code=75)
    assert "another run of this program has it" in err
    assert run_command(["run", str(machine.job())], machine.environ) == 75
    locks.close()
    assert machine.planned()["profile"] == "h100-80g"


def test_a_run_holds_its_card_from_before_memory_is_measured_until_generation_ends(
    machine: Machine, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from entrypoint import run as module

    machine.has(card(0))
    seen = []
    generate = module.generate

    def look(*arguments: Any, **keys: Any) -> Any:
        with pytest.raises(TransientError):
            held(machine).refuse_held([GPU])
        seen.append((machine.folder / "bin/asked").read_text().count("--query-gpu"))
        return generate(*arguments, **keys)

    monkeypatch.setattr(module, "generate", look)
    path = bench.write(limit=2, seeds=1)
    assert run_command(["run", str(path)], machine.environ) == 0
    assert seen == [2]
    held(machine).refuse_held([GPU])
    plan = json.loads((bench.folder / "results/exp-step300-limit2/_work/plan.json").read_text())
    assert plan["placement"]["profile"] == "h100-80g"


def test_a_neighbour_that_frees_memory_while_the_engine_starts_is_no_fault_of_the_checkpoint(
    machine: Machine, bench: Bench
) -> None:
    machine.has(card(0))
    said = "Error in memory profiling. Initial free memory 82.94 GiB, current free memory 90.17 GiB"
    command = ["/bin/sh", "-c", f"echo '{said}' >&2; exit 1", "engine"]
    path = bench.write(limit=2, seeds=1, engine={"command": command, "max_model_len": 512})
    assert run_command(["run", str(path)], machine.environ) == 75
    err = machine.capsys.readouterr().err
    assert "nothing is wrong with the checkpoint" in err
    assert not list((bench.folder / "results").rglob("results_*.json"))
    assert not list((bench.folder / "results").rglob("*.complete.json"))


def test_a_refusal_takes_less_than_two_seconds(machine: Machine) -> None:
    machine.has(card(memory__free=100))
    machine.refused("card 0")
    began = time.process_time()
    machine.refused("card 0")
    assert time.process_time() - began < 2
