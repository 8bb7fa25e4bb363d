"""The benchmark source must be exactly the pinned one, and found again wherever a cache may lie.

A container started as an arbitrary user id has HOME unset or `/` (ai-dynamo/dynamo#12457,
containers/ramalama#2402); a cut-off or edited source tree would give other scores and no error.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import pytest

from entrypoint import source
from entrypoint.errors import EvalcrateError, MachineError

ROOT = Path(__file__).parent.parent.parent
PATCHES = ROOT / "patches/evalchemy"
PIN = "url: https://example.org/x\ncommit: " + "c" * 40 + "\n"
TASKS = (
    "AIME24 AIME25 AIME26 AMC23 GPQADiamond HLE HMMT JEEBench LiveCodeBench LiveCodeBenchv5_official"
    " LiveCodeBenchv6_official MATH500 OlympiadBench OlympiadBench_Physics"
)


def _patches(folder: Path, upstream: str = PIN + "eval: " + "a" * 40, series: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "UPSTREAM").write_text(upstream)
    (folder / "series").write_text(series)
    return folder


def test_the_pin_covers_all_fourteen_tasks_and_what_loads_them() -> None:
    upstream = source.read_upstream(PATCHES)
    assert upstream.url == "https://github.com/teetone/evalchemy"
    assert upstream.commit == "7f241681a98b8d95bccd80dfd86804601eacd8a7"
    folders = [f"eval/chat_benchmarks/{task}" for task in TASKS.split()]
    assert sorted(path for path, _ in upstream.paths) == sorted(
        [*folders, "eval/__init__.py", "eval/constants.py", "eval/task.py"]
    )


@pytest.mark.parametrize(
    "line",
    ["eval: abc", "eval " + "a" * 40, "../eval: " + "a" * 40, "/eval: " + "a" * 40, "commit: " + "d" * 40],
)
def test_a_pin_line_that_is_not_one_path_and_its_id_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    with pytest.raises(EvalcrateError, match=r"UPSTREAM:3: .*" + re.escape(line)):
        source.read_upstream(_patches(tmp_path / "p", PIN + line + "\n"))


def test_a_pin_without_a_commit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvalcrateError, match="UPSTREAM: needs `url`, `commit`"):
        source.read_upstream(_patches(tmp_path / "p", "url: https://example.org/x\n"))


def test_a_missing_patch_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"nowhere/UPSTREAM: can't be read"):
        source.read_upstream(tmp_path / "nowhere")


def test_the_series_digest_follows_pin_order_and_every_patch_byte(tmp_path: Path) -> None:
    patches = _patches(tmp_path / "p", series="a.patch\nb.patch\n")
    (patches / "a.patch").write_text("a")
    (patches / "b.patch").write_text("b")
    digests = [source.series_digest(patches)]
    assert re.fullmatch(r"[0-9a-f]{64}", digests[0])
    (patches / "unused.patch").write_text("not in the series")
    assert source.series_digest(patches) == digests[0]
    for name, text in (
        ("b.patch", "c"),
        ("series", "b.patch\na.patch\n"),
        ("UPSTREAM", PIN + "x: " + "b" * 40),
    ):
        (patches / name).write_text(text)
        digests.append(source.series_digest(patches))
    assert len(set(digests)) == 4


def test_the_cache_is_where_the_nearest_variable_says() -> None:
    home = {"HOME": "/home/u"}
    assert source.cache_root(home) == Path("/home/u/.cache/evalcrate")
    assert source.cache_root(home | {"XDG_CACHE_HOME": "/x"}) == Path("/x/evalcrate")
    assert source.cache_root(home | {"XDG_CACHE_HOME": "relative"}) == Path("/home/u/.cache/evalcrate")
    assert source.cache_root(home | {"XDG_CACHE_HOME": "/x", "EVALCRATE_CACHE": "/c"}) == Path("/c")


def test_a_user_id_without_a_home_gets_a_cache_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    own = Path(tempfile.gettempdir()) / f"evalcrate-{os.getuid()}"
    assert source.cache_root({}) == own
    assert source.cache_root({"HOME": "/"}) == own
    assert source.cache_root({"HOME": ""}) == own


def test_object_ids_are_gits_own(tmp_path: Path) -> None:
    # printf … in an empty repository, then `git rev-parse HEAD^{tree} HEAD:a.txt`
    for name, content in {"a/f": "x\n", "a.txt": "y\n", "a-b": "z\n", "b/c": "w\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert source.object_id(tmp_path) == "d176c8d476c3b0adbc6ea7b94a030b9446d2d8f6"
    assert source.object_id(tmp_path / "a.txt") == "975fbec8256d3e8a3797e7a3611380f27c49f4ac"
    (tmp_path / "a/f").chmod(0o755)
    (tmp_path / "b/__pycache__").mkdir()
    assert source.object_id(tmp_path) == "d176c8d476c3b0adbc6ea7b94a030b9446d2d8f6"


def test_no_tree_is_found_where_nothing_was_fetched(tmp_path: Path) -> None:
    assert source.find_tree(PATCHES, tmp_path / "cache") is None


def test_an_edited_or_cut_off_tree_is_not_taken_for_the_patched_one(tmp_path: Path) -> None:
    patches = _patches(tmp_path / "p")
    tree = tmp_path / "cache/evalchemy-patched" / f"{'c' * 12}-{source.series_digest(patches)[:12]}"
    (tree / "eval").mkdir(parents=True)
    (tree / "eval/task.py").write_text("x = 1\n")
    assert source.find_tree(patches, tmp_path / "cache") is None
    (tree / ".complete").write_text(source.object_id(tree / "eval"))
    assert source.find_tree(patches, tmp_path / "cache") == tree
    (tree / "eval/task.py").write_text("x = 2\n")
    assert source.find_tree(patches, tmp_path / "cache") is None
    (tree / ".complete").write_text("")
    assert source.find_tree(patches, tmp_path / "cache") is None
