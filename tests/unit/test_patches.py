"""The patch series says of itself what it must, and nothing in its folder is unused.

Must not break: a patch that can change a score says so in its subject; a patch names a test that exists.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from entrypoint import patch_series

ROOT = Path(__file__).parents[2]
NAME = "0001-Do-it.patch"
GOOD = """From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: evalcrate <evalcrate@localhost>
Date: Mon, 30 Nov 2026 12:00:00 +0000
Subject: [PATCH] Do it

It was not done.

Origin: evalcrate
Forwarded: no
Test: tests/unit/test_x.py::test_it
Drop-When: upstream does it
Last-Update: 2026-11-30
Scores: unchanged

diff --git a/eval/task.py b/eval/task.py
--- a/eval/task.py
+++ b/eval/task.py
@@ -1,2 +1,2 @@
 a
-b
+c
"""


def check(folder: Path, text: str = GOOD, series: str = f"{NAME}\n") -> tuple[str, ...]:
    (folder / "tests/unit").mkdir(parents=True)
    (folder / "tests/unit/test_x.py").write_text("def test_it():\n    pass\n")
    patches = folder / "patches"
    patches.mkdir()
    (patches / "UPSTREAM").write_text(f"url: https://x\ncommit: {'c' * 40}\neval/task.py: {'a' * 40}\n")
    (patches / "series").write_text(series)
    (patches / NAME).write_text(text)
    return patch_series.check(patches, folder, None).all_faults


def test_our_own_series_is_whole() -> None:
    assert patch_series.check(ROOT / "patches/evalchemy", ROOT, None).all_faults == ()


def test_a_whole_patch_has_no_fault(tmp_path: Path) -> None:
    assert check(tmp_path) == ()


def test_without_the_source_it_is_said_what_was_not_looked_at(tmp_path: Path) -> None:
    check(tmp_path)
    (unchecked,) = patch_series.check(tmp_path / "patches", tmp_path, None).unchecked
    assert unchecked.startswith("that the patches apply: the source is not on this machine; run `evalcrate sources`")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("From 0000", "From 1000", "opens with a commit's id"),
        ("12:00:00 +0000", "17:21:09 +0200", "Date: is not noon UTC"),
        ("Drop-When: upstream does it\n", "", "Drop-When: is missing or empty"),
        ("Forwarded: no", "Forwarded:", "Forwarded: is missing or empty"),
        ("It was not done.\n\n", "", "says neither what it does nor why"),
        ("2026-11-30\n", "2026-13-30\n", "Last-Update: 2026-13-30: is not a day"),
        ("::test_it", "::test_other", "the file has no such test"),
        ("test_x.py", "test_y.py", "there is no such file under tests/"),
        ("Scores: unchanged", "Scores: may change (it does)", "Subject and Scores disagree"),
        ("Do it\n", "Do it (can change scores)\n", "Subject and Scores disagree"),
        ("Scores: unchanged", "Scores: perhaps", "is neither `unchanged` nor `may change (why)`"),
        ("eval/task.py", "eval/eval.py", "eval/eval.py: is a path that UPSTREAM does not list"),
        ("-b\n+c\n", "+c\n" * 61, "changes 61 lines, more than 60"),
        ("-b\n+c\n", "", "changes nothing"),
    ],
)
def test_what_a_patch_lacks_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    faults = check(tmp_path, GOOD.replace(old, new))
    assert any(fault.startswith(f"{NAME}: ") and said in fault for fault in faults), faults


@pytest.mark.parametrize(
    ("series", "said"),
    [
        ("", f"{NAME}: is not in series"),
        (f"{NAME}\n{NAME}\n", f"{NAME}: is in series twice"),
        (f"{NAME}\n0002-gone.patch\n", "0002-gone.patch: is in series, but there is no such file"),
        (f"0001-gone.patch\n{NAME}\n", f"{NAME}: is patch 2 of series"),
    ],
)
def test_series_and_folder_name_the_same_patches(tmp_path: Path, series: str, said: str) -> None:
    assert any(said in fault for fault in check(tmp_path, series=series))
