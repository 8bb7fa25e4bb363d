"""The lock names every data set once, survives being written, and its digest is about contents alone.

Incidents: data sets that changed under a name (no revision pinned); a lock that lost its comments at every bump.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from entrypoint.catalog import load_catalog
from entrypoint.data_lock import DataLock, HubData, LockedFile, digest_of, dumps, pinned, read_lock
from entrypoint.errors import JobError

ROOT = Path(__file__).parents[2]
FILE = ROOT / "data.lock.yaml"
LOCK = read_lock(FILE)
REVISION = "0123456789" * 4


def fetched(entry: HubData) -> HubData:
    """The entry as a fetch would leave it: two files of five rows per split."""
    splits = {}
    for name, split in entry.splits.items():
        names = [file.path for file in split.files or ()] or ["a.parquet", "b.parquet"]
        files = [{"path": path, "sha256": f"{n:064x}", "bytes": 3 * 2**30, "rows": 5} for n, path in enumerate(names)]
        splits[name] = {"rows": 5 * len(files), "files": files}
    return HubData.model_validate(entry.model_dump() | {"revision": REVISION, "splits": splits})


def test_the_lock_covers_exactly_the_tasks_of_the_suites_that_have_outside_data() -> None:
    catalog = load_catalog(ROOT)
    facts = {name: catalog.task(name) for name in catalog.task_names()}
    hub = {name for name, task in facts.items() if task is not None and task.data == "hub"}
    tree = {name for name, task in facts.items() if task is not None and task.data == "tree"}
    assert {task for one in LOCK.hub for task in one.tasks} >= hub
    assert {one.task for one in LOCK.tree} == tree
    assert not {task for one in LOCK.hub for task in one.tasks} & tree


def test_the_known_row_counts_are_expected() -> None:
    rows = {one.tasks[0]: [split.rows for split in one.splits.values()] for one in LOCK.hub}
    assert (rows["HMMT"], rows["GPQADiamond"], rows["JEEBench"]) == ([30], [198], [515])
    in_tree = {one.task: one.rows for one in LOCK.tree}
    assert (in_tree["AIME24"], in_tree["AMC23"], in_tree["MATH500"]) == (30, 40, 500)
    assert (in_tree["OlympiadBench"], in_tree["OlympiadBench_Physics"]) == (674, 236)


def test_livecodebench_reads_the_first_files_of_its_release_and_no_script() -> None:
    for release, count in (("release_v2", 2), ("release_v5", 5), ("release_v6", 6)):
        entry = LOCK.entry(("livecodebench/code_generation_lite", release))
        assert entry is not None
        assert [file.path for file in entry.files] == ["test.jsonl", *(f"test{n}.jsonl" for n in range(2, count + 1))]


def test_a_pinned_lock_reads_back_the_same_and_keeps_every_comment() -> None:
    entries = [fetched(one) for one in LOCK.hub]
    text = pinned(FILE.read_text(), entries)
    comments = [line.strip() for line in FILE.read_text().splitlines() if line.strip().startswith("#")]
    assert [line.strip() for line in text.splitlines() if line.strip().startswith("#")] == comments
    assert pinned(text, entries) == text
    lines = text.splitlines()
    assert lines[lines.index("# Files of the pinned evalchemy tree (patches/evalchemy/UPSTREAM).") + 1] == "tree:"
    script = next(n for n, line in enumerate(lines) if "A script data set" in line)
    assert lines[script + 2] == "  - id: livecodebench/code_generation_lite"


def test_pinning_changes_the_lines_of_what_was_fetched_only(tmp_path: Path) -> None:
    entry = fetched(LOCK.of_task("GPQADiamond")[0])
    (tmp_path / "lock.yaml").write_text(pinned(FILE.read_text(), [entry]))
    lock = read_lock(tmp_path / "lock.yaml")
    assert lock.entry(entry.key) == entry
    assert [one for one in lock.hub if one.key != entry.key] == [one for one in LOCK.hub if one.key != entry.key]
    before, after = FILE.read_text().splitlines(), (tmp_path / "lock.yaml").read_text().splitlines()
    assert (
        len([line for line in after if line not in before]) == 6
    )  # the revision, the rows and the four facts of one file


def test_a_folders_lock_reads_back_the_same(tmp_path: Path) -> None:
    lock = DataLock(schema=1, hub=tuple(fetched(one) for one in LOCK.hub))
    (tmp_path / "lock.yaml").write_text(dumps(lock))
    assert read_lock(tmp_path / "lock.yaml") == lock


def test_the_digest_follows_content_and_split_but_neither_revision_nor_size_nor_path() -> None:
    one = fetched(LOCK.of_task("gsm8k")[0])
    elsewhere = one.model_copy(update={"revision": "f" * 40, "gated": True})
    assert digest_of([one]) == digest_of([elsewhere])
    other = LockedFile(path="a.parquet", sha256="e" * 64, bytes=1, rows=5)
    train = one.splits["train"].model_copy(update={"files": (other,)})
    assert digest_of([one]) != digest_of([one.model_copy(update={"splits": one.splits | {"train": train}})])
    swapped = {"train": one.splits["test"], "test": train}
    assert digest_of([one]) != digest_of([one.model_copy(update={"splits": swapped})])
    assert digest_of([]) == ""


def test_one_id_has_one_revision() -> None:
    entries = list(LOCK.hub)
    bumped = fetched(LOCK.of_task("LiveCodeBench")[0])
    kept = DataLock(schema=1, hub=tuple(entries)).with_entries([bumped])
    assert [one.key for one in kept.hub if one.id == bumped.id] == [bumped.key]
    with pytest.raises(ValueError, match="has another revision above"):
        DataLock(schema=1, hub=(*entries[:4], bumped, *entries[5:]))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('revision: "633f5ee89ab8', 'revision: "main', r"data.lock.yaml:\d+: hub\[1\].revision"),
        ("    gated: true\n", "    gatde: true\n", r"unknown key; did you mean gated\?"),
        ("config: release_v5", "config: release_v2", "is listed twice"),
        ("format: csv", "format: xls", "hub\\[1\\].format"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    (tmp_path / "data.lock.yaml").write_text(FILE.read_text().replace(old, new, 1))
    with pytest.raises(JobError) as caught:
        read_lock(tmp_path / "data.lock.yaml")
    assert re.search(message, str(caught.value))
