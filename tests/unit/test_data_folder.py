"""What is said of a data folder is true: whole, or which data set is absent, half there, altered or another one.

Incidents: half-filled caches that fail after hours (datasets#6837, #7551); read-only caches refused for a lock file
though all data was there (huggingface_hub#2797).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from entrypoint.data_folder import DataFolder, check_contents, look, refusal
from entrypoint.data_lock import DataLock, HubData, dumps
from entrypoint.data_rows import count_rows
from entrypoint.data_split import files_by_split
from entrypoint.errors import MachineError
from entrypoint.record import digest

REVISION = "a1" * 20


def entry(revision: str | None = REVISION, rows: int | None = 3, known: bool = True) -> HubData:
    import hashlib

    files = [
        {"path": f"test{n}.jsonl", "sha256": hashlib.sha256(text).hexdigest(), "bytes": len(text), "rows": n}
        for n, text in enumerate((b'{"a": 1}\n', b'{"a": 1}\n{"a": 2}\n'), start=1)
    ]
    files = files if known else [{"path": file["path"]} for file in files]
    return HubData.model_validate(
        {
            "id": "some/programs",
            "config": "v2",
            "format": "json",
            "tasks": ["LiveCodeBench"],
            "gated": True,
            "revision": revision,
            "splits": {"test": {"rows": rows, "files": files}},
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    found = DataFolder(path=tmp_path / "data")
    found.files.mkdir(parents=True)
    found.lock_file.write_text(dumps(DataLock(schema=1, hub=(entry(),))))
    for file, text in zip(entry().files, (b'{"a": 1}\n', b'{"a": 1}\n{"a": 2}\n'), strict=True):
        found.file(file.sha256 or "").write_bytes(text)
    return found


def words(folder: DataFolder, wanted: HubData) -> str:
    return look(DataLock(schema=1, hub=(wanted,)), folder, ["LiveCodeBench"])["LiveCodeBench"].words


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (entry(), "present (3 rows, rev a1a1a1a1)"),
        (entry(revision=None, rows=None, known=False), "present (3 rows, rev a1a1a1a1)"),
        (entry(revision="b2" * 20), "another revision: a1a1a1a1 in the folder, b2b2b2b2 wanted"),
        (entry(rows=4), "altered: 3 rows in test, 4 wanted"),
    ],
)
def test_the_folders_lock_is_compared_with_the_programs(folder: DataFolder, wanted: HubData, said: str) -> None:
    assert words(folder, wanted) == said


def test_missing_and_shortened_files_are_counted_and_named(folder: DataFolder) -> None:
    first, second = (folder.file(file.sha256 or "") for file in entry().files)
    content = second.read_bytes()
    second.write_bytes(content[:-1])
    assert words(folder, entry()) == "altered: size differs: test2.jsonl has 17 bytes, 18 wanted"
    second.unlink()
    assert words(folder, entry()) == "incomplete: 1 of 2 files"
    first.unlink()
    assert words(folder, entry()) == "incomplete: 0 of 2 files"
    folder.lock_file.unlink()
    assert words(folder, entry()) == "absent"


def test_a_refusal_names_task_data_command_and_licence(tmp_path: Path) -> None:
    folder = DataFolder(path=tmp_path / "nothing")
    found = look(DataLock(schema=1, hub=(entry(),)), folder, ["LiveCodeBench", "AIME24"])
    error = refusal(found.values(), folder, "--suite code")
    assert isinstance(error, MachineError)
    for part in (
        "LiveCodeBench: some/programs v2 is absent",
        "run `evalcrate data fetch --suite code`",
        "https://huggingface.co/datasets/some/programs: accept the licence there",
        "HF_TOKEN",
    ):
        assert part in str(error)
    assert "AIME24" not in str(error)


def test_the_same_data_elsewhere_is_the_same_to_the_plan(folder: DataFolder, tmp_path: Path) -> None:
    lock = DataLock(schema=1, hub=(entry(),))
    here = look(lock, folder, ["LiveCodeBench"])["LiveCodeBench"]
    folder.path.rename(tmp_path / "moved")
    there = look(lock, DataFolder(path=tmp_path / "moved"), ["LiveCodeBench"])["LiveCodeBench"]
    assert here.digest == there.digest != ""
    assert here.files != there.files
    assert [Path(path).name for path in there.files[0].splits["test"]] == [file.sha256 for file in entry().files]


def test_a_task_by_its_generic_name_reads_the_same_data(folder: DataFolder) -> None:
    lock = DataLock(schema=1, hub=(entry(),))
    found = look(lock, folder, ["LiveCodeBench", "evalchemy:LiveCodeBench"])
    assert found["LiveCodeBench"].files == found["evalchemy:LiveCodeBench"].files


def test_a_broken_lock_in_the_folder_is_told_with_what_to_do(folder: DataFolder) -> None:
    folder.lock_file.write_text("hub: [")
    with pytest.raises(MachineError, match=r"data.lock.yaml.*move it away and run `evalcrate data fetch`"):
        folder.read()


def test_content_is_read_once_and_again_when_the_file_changed(
    folder: DataFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from entrypoint import data_folder

    hashed: list[Path] = []
    real = data_folder.sha256_of
    monkeypatch.setattr(data_folder, "sha256_of", lambda path: hashed.append(path) or real(path))
    data = {"LiveCodeBench": look(DataLock(schema=1, hub=(entry(),)), folder, ["LiveCodeBench"])["LiveCodeBench"].files}
    cache = tmp_path / "hashes.json"
    check_contents(data, cache)
    check_contents(data, cache)
    assert len(hashed) == 2
    victim = hashed[1]
    victim.write_bytes(victim.read_bytes().replace(b"2", b"3"))
    os.utime(victim, ns=(1, 1))
    with pytest.raises(MachineError, match=r"LiveCodeBench: .*its content is not what its name says"):
        check_contents(data, cache)


@pytest.mark.parametrize(
    ("text", "file_format", "rows"),
    [
        (b'q,a\n"two\nlines",1\n\n"x",2\n', "csv", 2),
        (b"\xef\xbb\xbfq,a\n1,2\n", "csv", 1),
        (b'{"a": 1}\n\n{"a": 2}', "json", 2),
        (b'[{"a": 1}, {"a": [2, 3]}, {}]', "json", 3),
    ],
)
def test_rows_are_records_not_lines(tmp_path: Path, text: bytes, file_format: str, rows: int) -> None:
    (tmp_path / "data").write_bytes(text)
    assert count_rows(tmp_path / "data", file_format) == rows


@pytest.mark.parametrize("file_format", ["parquet", "csv", "json"])
def test_a_page_in_place_of_a_file_is_no_data(tmp_path: Path, file_format: str) -> None:
    (tmp_path / "data").write_bytes(b'<html>"sign in')
    with pytest.raises(ValueError, match="not a"):
        count_rows(tmp_path / "data", file_format)


@pytest.mark.parametrize(
    ("paths", "configs", "config", "file_format", "split", "files"),
    [
        (["data/train-00000-of-00001.parquet", "README.md"], {}, None, "parquet", "train",
         ["data/train-00000-of-00001.parquet"]),
        (["test.json", "data.zip", "inference.py"], {}, None, "json", "test", ["test.json"]),
        (["input_data.jsonl", ".gitattributes"], {}, None, "json", "train", ["input_data.jsonl"]),
        (["main/train-00000-of-00001.parquet", "socratic/train-00000-of-00001.parquet"],
         {"main": {"data_files": [{"split": "train", "path": "main/train-*"}]}, "socratic": {}}, "main", "parquet",
         "train", ["main/train-00000-of-00001.parquet"]),
        (["b-2.csv", "b-1.csv", "b-10.csv"], {"default": {"data_files": "b-*.csv"}}, None, "csv", "train",
         ["b-1.csv", "b-10.csv", "b-2.csv"]),
    ],
)  # fmt: skip
def test_files_of_a_split_are_those_that_datasets_takes(
    paths: list[str], configs: dict[str, dict[str, object]], config: str | None, file_format: str, split: str,
    files: list[str],
) -> None:  # fmt: skip
    assert files_by_split(paths, configs, config, file_format)[split] == tuple(files)


def test_a_repository_without_such_files_or_with_odd_paths_is_refused() -> None:
    for paths in (["README.md"], ["../../etc/train.csv"], ["/etc/train.csv"]):
        with pytest.raises(ValueError, match=r"no csv files|leads out"):
            files_by_split(paths, {}, None, "csv")


def test_the_digest_is_of_content_names(folder: DataFolder) -> None:
    found = look(DataLock(schema=1, hub=(entry(),)), folder, ["LiveCodeBench"])["LiveCodeBench"]
    names = [file.sha256 for file in entry().files]
    assert found.digest == digest([["some/programs", "v2", {"test": names}]])
