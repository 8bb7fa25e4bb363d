"""A job on the fake engine: the whole command line in this process, real children, a real HTTP server."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from entrypoint.cli import run_command

ROOT = Path(__file__).parents[2]
STEP_300 = ROOT / "examples/checkpoints/adder/hf/step-300"


@dataclass
class Bench:
    """One result root, one job and one script for the fake engine."""

    folder: Path
    capsys: pytest.CaptureFixture[str]
    script: dict[str, Any] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.script = {"starts": str(self.starts), "bodies": str(self.bodies), **self.script}
        self.job = {
            "experiment": "exp",
            "checkpoint": str(STEP_300),
            "results": str(self.folder / "results"),
            "tasks": ["arithmetic"],
            "seeds": 2,
            "limit": None,
            "sampling": {"max_tokens": 16},
            "engine": {"max_model_len": 512, "command": self.command},
            **self.job,
        }

    @property
    def command(self) -> list[str]:
        return [sys.executable, str(ROOT / "tests/fakes/engine.py"), "--fake", str(self.folder / "script.json")]

    @property
    def starts(self) -> Path:
        return self.folder / "starts"

    @property
    def bodies(self) -> Path:
        return self.folder / "bodies.jsonl"

    @property
    def root(self) -> Path:
        return self.folder / "results" / "exp-step300"

    def write(self, **changes: Any) -> Path:
        """The job file, with `changes` to its top-level keys; and the engine's script beside it."""
        (self.folder / "script.json").write_text(json.dumps(self.script))
        path = self.folder / "job.yaml"
        path.write_text(json.dumps({**self.job, **changes}))
        return path

    def run(self, *arguments: str, command: str = "run", **changes: Any) -> int:
        environ = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
        return run_command([command, str(self.write(**changes)), *arguments], environ)

    def said(self) -> tuple[str, str]:
        """stdout and stderr since the last call."""
        captured = self.capsys.readouterr()
        return captured.out, captured.err

    def asked(self) -> list[dict[str, Any]]:
        """Every body the engine got."""
        return [json.loads(line) for line in self.bodies.read_text().splitlines()] if self.bodies.exists() else []

    def engine_starts(self) -> int:
        return len(self.starts.read_text().splitlines()) if self.starts.exists() else 0

    def published(self) -> list[str]:
        """Every file of the canonical layout, relative to the result folder."""
        files = (p for p in self.root.rglob("*") if p.is_file() and "_work" not in p.relative_to(self.root).parts)
        return sorted(str(p.relative_to(self.root)) for p in files)

    def results(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.root / "results.json").read_bytes())
        return value


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    return Bench(folder=tmp_path, capsys=capsys)


@pytest.fixture
def another_bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str], Bench]:
    def make(name: str) -> Bench:
        (tmp_path / name).mkdir()
        return Bench(folder=tmp_path / name, capsys=capsys)

    return make
