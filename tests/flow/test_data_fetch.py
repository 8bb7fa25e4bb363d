"""`data fetch` and `data verify` against a hub on this machine: whole and checked data, or a reason and nothing else.

Incidents: `datasets` 4 refuses script data sets (lm-eval#2126); gated sets that "don't exist" while the suite still
succeeds (lm-eval#1434); half-filled caches (datasets#7551); tokens in logs; downloads that start again from zero.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from entrypoint import prepare
from entrypoint.cli import run_command
from entrypoint.data_fetch import Hub, RemoteFile
from entrypoint.data_folder import DataFolder
from entrypoint.data_lock import read_lock
from entrypoint.errors import TransientError
from entrypoint.lock import held
from tests.fakes.hub import REVISION, FakeHub, Repo, serving, sha256

LOCK = """\
# Comments of the lock stay.
schema: 1
hub:
  - id: some/questions
    config: null
    format: parquet
    tasks: [HMMT]
    gated: false
    revision: null  # not known yet
    splits:
      train: {rows: 3, files: null}
  - id: some/secrets
    config: diamond
    format: csv
    tasks: [GPQADiamond]
    gated: true
    revision: "a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1"
    splits:
      train:
        rows: 2
        files: [{path: diamond.csv}]
  - id: some/programs
    config: release_v2
    format: json
    tasks: [LiveCodeBench]
    gated: false
    revision: "a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1"
    splits:
      test:
        rows: null
        files: [{path: test.jsonl}, {path: test2.jsonl}]
tree: []
"""
PROGRAMS = [b'{"n": %d, "x": "%s"}\n' % (n, b"y" * 400_000) for n in range(5)]


def parquet(rows: int) -> bytes:
    out = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table({"problem": [f"question {n}" for n in range(rows)]}), out)
    return bytes(out.getvalue())


def repos() -> dict[str, Repo]:
    script = b"raise SystemExit('a script of a data set never runs')"
    return {
        "some/questions": Repo(
            files={"README.md": b"", "data/train-00000-of-00001.parquet": parquet(3)},
            large=("data/train-00000-of-00001.parquet",),
        ),
        "some/secrets": Repo(files={"diamond.csv": b'Question,Answer\n"a\nb",1\nc,2\n'}, gated=True),
        "some/programs": Repo(
            files={
                "code_generation_lite.py": script,
                "test.jsonl": b"".join(PROGRAMS[:3]),
                "test2.jsonl": b"".join(PROGRAMS[3:]),
                "test3.jsonl": b"not wanted",
            },
            large=("test.jsonl", "test2.jsonl", "test3.jsonl"),
        ),
    }


@dataclass
class Desk:
    """A person at a command line, with a hub, a data folder and the program's lock."""

    hub: FakeHub
    folder: Path
    capsys: pytest.CaptureFixture[str]

    @property
    def data(self) -> DataFolder:
        return DataFolder(path=self.folder / "data")

    def run(self, action: str, *arguments: str, **environ: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr; the token is not set unless it is given."""
        env = {"HF_ENDPOINT": self.hub.url, "EVALCRATE_CACHE": str(self.folder / "cache"), "HOME": "/"}
        env |= {"EVALCRATE_DATA_LOCK": os.environ["EVALCRATE_DATA_LOCK"], **environ}
        code = run_command(["data", action, "--data", str(self.data.path), *arguments], env)
        out, err = self.capsys.readouterr()
        return code, out, err

    def fetch(self, *arguments: str, **environ: str) -> tuple[int, str, str]:
        return self.run("fetch", *arguments, **environ)

    def stored(self) -> set[str]:
        return {path.name for path in self.data.files.glob("*")}


def until(condition: Callable[[], bool]) -> None:
    end = monotonic() + 30
    while not condition():
        assert monotonic() < end, "it did not come to that"
        threading.Event().wait(0.02)


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    (tmp_path / "data.lock.yaml").write_text(LOCK)
    monkeypatch.setenv("EVALCRATE_DATA_LOCK", str(tmp_path / "data.lock.yaml"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with serving(FakeHub(repos=repos())) as hub:
        yield Desk(hub=hub, folder=tmp_path, capsys=capsys)


def test_everything_is_fetched_checked_and_named_by_its_content(desk: Desk) -> None:
    code, out, _ = desk.fetch(HF_TOKEN=desk.hub.token)
    assert code == 0, out
    assert f"newly pinned: some/questions at {REVISION}" in out
    contents = [parquet(3), b'Question,Answer\n"a\nb",1\nc,2\n', b"".join(PROGRAMS[:3]), b"".join(PROGRAMS[3:])]
    assert desk.stored() == {sha256(content) for content in contents}
    assert all(sha256(path.read_bytes()) == path.name for path in desk.data.files.iterdir())
    lock = desk.data.read()
    assert [split.rows for one in lock.hub for split in one.splits.values()] == [3, 2, 5]
    programs = lock.entry(("some/programs", "release_v2"))
    assert programs is not None
    assert [file.path for file in programs.files] == ["test.jsonl", "test2.jsonl"]
    assert desk.run("verify")[0] == 0


def test_a_second_fetch_needs_neither_network_nor_token(desk: Desk) -> None:
    desk.fetch(HF_TOKEN=desk.hub.token)
    asked = len(desk.hub.asked)
    code, out, _ = desk.fetch(HF_HUB_OFFLINE="1")
    assert code == 0
    assert len(desk.hub.asked) == asked
    assert "newly pinned" not in out


def test_pin_writes_revision_and_files_into_the_programs_lock_and_keeps_its_comments(desk: Desk) -> None:
    code, out, _ = desk.fetch("--pin", HF_TOKEN=desk.hub.token)
    assert code == 0, out
    text = prepare.lock_file(os.environ).read_text()
    assert "# Comments of the lock stay." in text
    lock = read_lock(prepare.lock_file(os.environ))
    assert all(one.is_fetched for one in lock.hub)
    assert lock.hub == desk.data.read().hub
    assert desk.run("verify")[0] == 0


@pytest.mark.parametrize(("token", "why"), [("", "HF_TOKEN is not set"), ("hf_wrongToken12345", "has no access")])
def test_a_gated_set_is_refused_with_licence_page_and_variable_and_the_rest_is_fetched(
    desk: Desk, token: str, why: str
) -> None:
    code, out, err = desk.fetch(HF_TOKEN=token)
    assert code == 4
    assert "GPQADiamond: some/secrets diamond is gated" in err
    assert why in err
    assert "https://huggingface.co/datasets/some/secrets" in err
    assert "HF_TOKEN" in err
    assert "2 of 3 data sets are whole" in out


def test_the_token_is_printed_nowhere(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    desk.hub.repos["some/questions"].revision = "b2" * 20
    said = ""
    for token in (desk.hub.token, "hf_wrongToken12345", "hf_with a blank", "hf_ünicode"):
        _, out, err = desk.fetch("--log-level", "debug", HF_TOKEN=token)
        said += out + err + caplog.text
        assert token not in said
    folder = [path for path in desk.folder.rglob("*") if path.is_file()]
    assert not any(desk.hub.token.encode() in path.read_bytes() for path in folder)
    assert desk.hub.token not in repr(Hub.of({"HF_TOKEN": desk.hub.token}))
    sent = {auth for path, _, auth in desk.hub.asked if path.startswith("/cdn/")}
    assert sent == {""}, "the token goes to the hub, not to where it redirects"


def test_a_fetch_that_was_cut_off_goes_on_where_it_was(desk: Desk) -> None:
    desk.hub.break_after, desk.hub.breaks = 300_000, 3
    code, _, err = desk.fetch("--task", "LiveCodeBench")
    assert code == 0, err
    ranges = [asked for path, asked, _ in desk.hub.asked if path.endswith("/test.jsonl") and "/cdn/" in path]
    assert ranges == ["", "bytes=300000-", "bytes=600000-", "bytes=900000-"]
    assert "(0.9 from before)" not in err  # of this fetch itself, not of an earlier one


def test_a_killed_fetch_leaves_no_half_file_under_a_name_and_the_next_one_goes_on(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    download = Hub.download

    def killed(hub: Hub, data: Any, revision: str, file: RemoteFile, to: Path, on_bytes: Any) -> None:
        if file.path != "test2.jsonl":
            return download(hub, data, revision, file, to, on_bytes)
        to.write_bytes(desk.hub.repos["some/programs"].files["test2.jsonl"][:123_456])
        raise KeyboardInterrupt

    monkeypatch.setattr(Hub, "download", killed)
    with pytest.raises(KeyboardInterrupt):
        desk.fetch("--task", "LiveCodeBench")
    assert desk.stored() == {sha256(b"".join(PROGRAMS[:3]))}
    assert desk.run("verify", "--task", "LiveCodeBench")[0] == 4
    monkeypatch.setattr(Hub, "download", download)
    desk.hub.asked.clear()
    code, _, err = desk.fetch("--task", "LiveCodeBench")
    assert code == 0, err
    assert [(path.split("/")[-1], asked) for path, asked, _ in desk.hub.asked if "/cdn/" in path] == [
        ("test2.jsonl", "bytes=123456-")
    ]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143)])
def test_a_process_that_is_ended_in_the_middle_is_continued_by_the_same_command(
    desk: Desk, number: signal.Signals, code: int
) -> None:
    desk.hub.break_after, desk.hub.breaks, desk.hub.stall = 300_000, 1, threading.Event()
    program = (
        "import sys, os; from entrypoint.cli import run_command\n"
        f"sys.exit(run_command(['data', 'fetch', '--data', {str(desk.data.path)!r}, '--task', 'LiveCodeBench'], "
        f"os.environ))"
    )
    kept = {name: os.environ[name] for name in ("PATH", "EVALCRATE_DATA_LOCK")}
    environ = {**kept, "HF_ENDPOINT": desk.hub.url, "HOME": str(desk.folder)}
    with subprocess.Popen([sys.executable, "-c", program], env=environ, cwd=prepare.root()) as process:
        try:
            part = desk.data.path / ".fetch" / f"{sha256(b''.join(PROGRAMS[:3]))}.part"
            until(lambda: part.exists() and part.stat().st_size > 200_000)
            assert desk.fetch("--task", "LiveCodeBench")[0] == TransientError.exit_code, "two at once"
            process.send_signal(number)
            assert process.wait(20) == code
        finally:
            desk.hub.stall.set()
            process.kill()
    assert not desk.stored()
    have = part.stat().st_size
    code_after, _, err = desk.fetch("--task", "LiveCodeBench")
    assert code_after == 0, err
    assert f"bytes={have}-" in [asked for path, asked, _ in desk.hub.asked if path.endswith("/test.jsonl")]
    assert "from before)" in err


def test_a_server_without_ranges_is_read_again_from_the_start(desk: Desk) -> None:
    desk.hub.break_after, desk.hub.breaks, desk.hub.ignores_range = 300_000, 2, True
    code, _, err = desk.fetch("--task", "LiveCodeBench")
    assert code == 0, err
    assert desk.run("verify", "--task", "LiveCodeBench")[0] == 0


@pytest.mark.parametrize("path", ["test.jsonl", "diamond.csv"])
def test_other_bytes_than_the_hub_lists_are_thrown_away(desk: Desk, path: str) -> None:
    repo = desk.hub.repos["some/programs" if path == "test.jsonl" else "some/secrets"]
    desk.hub.forged[path] = repo.files[path][:-3] + b"?!\n"
    task = "LiveCodeBench" if path == "test.jsonl" else "GPQADiamond"
    code, _, err = desk.fetch("--task", task, HF_TOKEN=desk.hub.token)
    assert code == TransientError.exit_code
    assert re.search(rf"{path}: what arrived has sha256 [0-9a-f]{{64}}, not that of the file", err)
    assert not desk.stored()
    assert not desk.data.lock_file.exists()
    desk.hub.forged.clear()
    assert desk.fetch("--task", task, HF_TOKEN=desk.hub.token)[0] == 0


def test_another_number_of_rows_is_refused_with_both_numbers(desk: Desk) -> None:
    desk.hub.repos["some/questions"].files["data/train-00000-of-00001.parquet"] = parquet(4)
    code, _, err = desk.fetch("--task", "HMMT")
    assert code == 4
    assert f"HMMT: some/questions train has 4 rows at revision {REVISION}, 3 are expected" in err
    assert not desk.data.read().hub


def test_a_file_with_a_url_comes_from_there_and_gets_no_token(desk: Desk) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("punkt_tab/english.txt", "Dr.\n")
    desk.hub.repos["some/place"] = Repo(files={"punkt.zip": content.getvalue()})
    entry = f"""\
  - id: nltk/punkt
    config: tokenizers
    format: zip
    tasks: [ifeval]
    gated: false
    revision: "{"c3" * 20}"
    splits:
      all:
        rows: null
        files:
          - path: punkt.zip
            url: "{desk.hub.url}/cdn/some/place/punkt.zip"
            sha256: "{sha256(content.getvalue())}"
            bytes: {len(content.getvalue())}
tree: []
"""
    prepare.lock_file(os.environ).write_text(LOCK.replace("tree: []\n", entry))
    code, _, err = desk.fetch("--task", "ifeval", "--pin", HF_TOKEN=desk.hub.token)
    assert code == 0, err
    assert desk.hub.asked == [("/cdn/some/place/punkt.zip", "", "")]
    assert read_lock(prepare.lock_file(os.environ)).of_task("ifeval") == desk.data.read().of_task("ifeval")
    assert desk.run("verify", "--task", "ifeval")[0] == 0


def test_a_lost_revision_or_data_set_is_named(desk: Desk) -> None:
    desk.hub.repos["some/programs"].revision = "b2" * 20
    del desk.hub.repos["some/questions"]
    code, _, err = desk.fetch()
    assert code == 4
    assert "some/programs release_v2: has no revision" in err
    assert "some/questions: is not there" in err


def test_two_fetches_at_once_do_not_meet(desk: Desk) -> None:
    with held(desk.data.path / ".fetch" / "lock"):
        code, _, err = desk.fetch("--task", "HMMT")
    assert code == TransientError.exit_code
    assert "another fetch fills this folder (process" in err
    assert desk.fetch("--task", "HMMT")[0] == 0


def test_a_folder_that_takes_no_data_is_named(desk: Desk) -> None:
    code, _, err = desk.fetch("--task", "HMMT", "--data", "/proc/data")
    assert code == 4
    assert "data: /proc/data: can't be written" in err


def test_without_a_network_it_ends_at_once_with_a_reason(desk: Desk) -> None:
    code, _, err = desk.fetch("--task", "HMMT", HF_ENDPOINT="http://127.0.0.1:9")
    assert code == TransientError.exit_code
    assert "http://127.0.0.1:9: some/questions: can't be fetched" in err
    code, _, err = desk.fetch("--task", "HMMT", HF_HUB_OFFLINE="1")
    assert code == 4
    assert "HF_HUB_OFFLINE" in err


def test_verify_finds_a_changed_byte_and_fetch_mends_it(desk: Desk) -> None:
    desk.fetch(HF_TOKEN=desk.hub.token)
    victim = desk.data.file(sha256(b"".join(PROGRAMS[:3])))
    content = victim.read_bytes()
    victim.chmod(0o644)
    victim.write_bytes(b"[" + content[1:])
    code, out, err = desk.run("verify", "--json")
    assert code == 4
    (bad,) = [row for row in json.loads(out)["data"] if not row["whole"]]
    assert bad["state"] == "altered: content differs: test.jsonl"
    assert "LiveCodeBench" in err
    desk.hub.asked.clear()
    assert desk.fetch(HF_TOKEN=desk.hub.token)[0] == 0
    assert [path.split("/")[-1] for path in desk.hub.downloads()] == ["test.jsonl"]
    assert desk.run("verify")[0] == 0


def test_a_revision_bumped_in_the_lock_is_fetched_anew(desk: Desk) -> None:
    desk.fetch(HF_TOKEN=desk.hub.token)
    desk.hub.repos["some/programs"].revision = "b2" * 20
    prepare.lock_file(os.environ).write_text(
        LOCK.replace(
            'tasks: [LiveCodeBench]\n    gated: false\n    revision: "' + REVISION,
            'tasks: [LiveCodeBench]\n    gated: false\n    revision: "' + "b2" * 20,
        )
    )
    code, out, _ = desk.run("verify", "--task", "LiveCodeBench")
    assert code == 4
    assert "another revision: a1a1a1a1 in the folder, b2b2b2b2 wanted" in out
    asked = len(desk.hub.downloads())
    assert desk.fetch("--task", "LiveCodeBench")[0] == 0
    assert len(desk.hub.downloads()) == asked, "the same content is not fetched twice"
    assert desk.run("verify", "--task", "LiveCodeBench")[0] == 0
