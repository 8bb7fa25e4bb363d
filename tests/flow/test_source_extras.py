"""Benchmarks outside the suites: fetched when named, by their own git ids, into a tree of their own.

Must not break: the tree of every day holds only what is always taken; an edited extra is not taken for the pinned one;
a patch that does not apply is found before anybody scores with the rest.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from entrypoint import patch_series, source
from entrypoint.errors import JobError, MachineError

DATA = "eval/chat_benchmarks/Extra/data.json"


def git(*arguments: str, cwd: Path) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    done = subprocess.run(["git", *identity, *arguments], cwd=cwd, check=True, capture_output=True, text=True)
    return done.stdout.strip()


class Upstream:
    """A repository with one pinned file and one extra that has an executable."""

    def __init__(self, folder: Path) -> None:
        self.repo, self.patches, self.cache = folder / "repo", folder / "patches", folder / "cache"
        files = {"eval/task.py": "a\nb\n", "eval/chat_benchmarks/Extra/run.sh": "x\n", DATA: "[]\n"}
        for name, text in files.items():
            (self.repo / name).parent.mkdir(parents=True, exist_ok=True)
            (self.repo / name).write_text(text)
        (self.repo / "eval/chat_benchmarks/Extra/run.sh").chmod(0o755)
        git("init", "--quiet", cwd=self.repo)
        git("add", "-A", cwd=self.repo)
        git("commit", "--quiet", "-m", "pinned", cwd=self.repo)
        extra = "eval/chat_benchmarks/Extra"
        ids = {path: git("rev-parse", f"HEAD:{path}", cwd=self.repo) for path in ("eval/task.py", extra)}
        self.patches.mkdir()
        (self.patches / "UPSTREAM").write_text(
            f"url: https://example.org/x\ncommit: {git('rev-parse', 'HEAD', cwd=self.repo)}\n"
            f"eval/task.py: {ids['eval/task.py']}\n[on demand]\n{extra}: {ids[extra]}\n{extra}/run.sh: 100755\n"
        )
        self.patch("0001-b.patch", "b", "c")

    def patch(self, name: str, old: str, new: str) -> None:
        head = "diff --git a/eval/task.py b/eval/task.py\n--- a/eval/task.py\n+++ b/eval/task.py\n"
        (self.patches / name).write_text(f"{head}@@ -1,2 +1,2 @@\n a\n-{old}\n+{new}\n")
        (self.patches / "series").write_text("".join(f"{one.name}\n" for one in sorted(self.patches.glob("*.patch"))))

    def fetch(self, extra: str | None = None) -> Path:
        return source.fetch(self.patches, self.cache, str(self.repo), extra)


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    return Upstream(tmp_path)


def test_an_extra_lies_only_in_the_tree_that_was_asked_for_it(upstream: Upstream) -> None:
    assert not (upstream.fetch() / DATA).exists()
    assert source.find_tree(upstream.patches, upstream.cache, "Extra") is None
    tree = upstream.fetch("Extra")
    assert (tree / DATA).read_text() == "[]\n"
    assert (tree / "eval/task.py").read_text() == "a\nc\n"
    assert source.find_tree(upstream.patches, upstream.cache, "Extra") == tree


def test_an_edited_extra_is_made_anew_from_what_hashes_to_the_pin(upstream: Upstream) -> None:
    tree = upstream.fetch("Extra")
    (tree / DATA).write_text("[1]\n")
    assert source.find_tree(upstream.patches, upstream.cache, "Extra") == tree
    assert (tree / DATA).read_text() == "[]\n"
    for pristine in (upstream.cache / "evalchemy-extra").iterdir():
        (pristine / DATA).write_text("[1]\n")
    (tree / DATA).write_text("[1]\n")
    assert source.find_tree(upstream.patches, upstream.cache, "Extra") is None


def test_a_repository_that_lacks_the_extras_files_names_them_and_the_command(upstream: Upstream) -> None:
    lost = git("rev-parse", f"HEAD:{DATA}", cwd=upstream.repo)
    (upstream.repo / ".git/objects" / lost[:2] / lost[2:]).unlink()
    assert upstream.fetch().is_dir()
    with pytest.raises(MachineError, match=rf"it lacks {DATA}; run `evalcrate sources Extra`"):
        upstream.fetch("Extra")


def test_an_unknown_extra_names_those_there_are(upstream: Upstream) -> None:
    with pytest.raises(JobError, match=r"Other: the pinned evalchemy has no such benchmark.*it has Extra"):
        upstream.fetch("Other")


def test_a_patch_that_does_not_apply_is_found_and_what_follows_is_not_tried(upstream: Upstream) -> None:
    upstream.fetch()
    upstream.patch("0002-d.patch", "b", "d")
    upstream.patch("0003-e.patch", "c", "e")
    pristine = source.pristine_tree(upstream.patches, upstream.cache)
    faults = patch_series.check(upstream.patches, upstream.repo, pristine).all_faults
    assert any(fault.startswith("0002-d.patch: does not apply to the pinned evalchemy: ") for fault in faults)
    assert "0003-e.patch: not tried, a patch before it fails" in faults
    assert not any(fault.startswith("0001-b.patch: does not apply") for fault in faults)
