"""A stored generation is paid-for GPU time: none may be lost, doubled, mixed up or read from a torn line.

Incidents: a killed run left half a line and its successor refused the whole file; two processes appended to one file
on a cluster filesystem and their rows interleaved; U+2028 in a model's answer split a record for `splitlines` readers.
"""

from __future__ import annotations

import errno
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entrypoint.engine import journal
from entrypoint.errors import TransientError
from entrypoint.record import Generation, Request, digest, to_line

FINGERPRINT = "f" * 64


def a_request(sample: int = 0, *, seed: int = 42, task: str = "AIME24") -> Request:
    body = {"prompt": [1, 2, sample], "seed": 1000 * seed + sample, "max_tokens": 8}
    return Request(id=digest(body), task=task, seed=seed, sample=sample, prompt="p", body=body)


def an_answer(request: Request, text: str = "ok", finished_at: str = "2026-01-01T00:00:00Z") -> Generation:
    return Generation(
        id=request.id,
        task=request.task,
        seed=request.seed,
        sample=request.sample,
        fingerprint=FINGERPRINT,
        text=text,
        token_ids=(7, 8),
        finish_reason="stop",
        stop_reason=None,
        prompt_tokens=3,
        completion_tokens=2,
        sampler_seed=request.sampler_seed,
        started_at="2026-01-01T00:00:00Z",
        finished_at=finished_at,
        attempt=1,
    )


def write(folder: Path, writer: str, *rows: Generation) -> None:
    with journal.Journal(folder, writer) as rows_of_writer:
        for row in rows:
            rows_of_writer.append(row)


def test_an_absent_folder_is_an_empty_journal(tmp_path: Path) -> None:
    view = journal.read(tmp_path / "nowhere")
    assert len(view) == 0
    assert not view.has(a_request(), FINGERPRINT)


@settings(max_examples=30, deadline=None)
@given(st.text(st.characters(), max_size=40))
def test_any_text_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder, request = tmp_path_factory.mktemp("journal"), a_request()
    row = an_answer(request, text)
    write(folder, "one", row)
    assert journal.read(folder).load(request, FINGERPRINT) == row


@pytest.mark.parametrize("text", ["a\u2028b\x85c\x0bd\re", "lone \ud800 surrogate", "nul \x00", ""])
def test_separators_and_broken_characters_do_not_split_a_row(tmp_path: Path, text: str) -> None:
    first, second = a_request(0), a_request(1)
    write(tmp_path, "one", an_answer(first, text), an_answer(second))
    view = journal.read(tmp_path)
    assert view.load(first, FINGERPRINT).text == text
    assert view.load(second, FINGERPRINT).text == "ok"
    assert not view.problems


def test_a_row_is_readable_before_the_journal_is_closed(tmp_path: Path) -> None:
    request = a_request()
    with journal.Journal(tmp_path, "one") as rows:
        rows.append(an_answer(request))
        assert journal.read(tmp_path).has(request, FINGERPRINT)


@pytest.mark.parametrize("kept", [1, 40, -1])
def test_a_torn_tail_is_ignored_counted_and_left_alone(tmp_path: Path, kept: int) -> None:
    first, second = a_request(0), a_request(1)
    torn = to_line(an_answer(first)) + to_line(an_answer(second))[:kept]
    (tmp_path / "dead.jsonl").write_bytes(torn)
    view = journal.read(tmp_path)
    assert view.has(first, FINGERPRINT)
    assert not view.has(second, FINGERPRINT)
    assert view.problems == {"torn": 1}
    write(tmp_path, "other", an_answer(second))
    assert (tmp_path / "dead.jsonl").read_bytes() == torn


def test_its_own_writer_cuts_a_torn_tail(tmp_path: Path) -> None:
    first, second = a_request(0), a_request(1)
    (tmp_path / "one.jsonl").write_bytes(to_line(an_answer(first)) + b'{"id": "half')
    write(tmp_path, "one", an_answer(second))
    view = journal.read(tmp_path)
    assert view.has(first, FINGERPRINT)
    assert view.has(second, FINGERPRINT)
    assert not view.problems


def test_a_torn_tail_longer_than_a_block_is_cut_too(tmp_path: Path) -> None:
    request = a_request()
    (tmp_path / "one.jsonl").write_bytes(to_line(an_answer(request)) + b"x" * 200_000)
    write(tmp_path, "one")
    assert (tmp_path / "one.jsonl").read_bytes() == to_line(an_answer(request))


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"null\n",
        b"[]\n",
        b'"text"\n',
        b"\xff\xfe\x00\n",
        b"{}\n",
        b"9" * 5000 + b"\n",
        b"[" * 20_000 + b"\n",
        to_line(an_answer(a_request(1))).replace(b'"finish_reason":"stop"', b'"finish_reason":"abort"'),
        to_line(an_answer(a_request(1))).replace(b'"completion_tokens":2', b'"completion_tokens":3'),
        to_line(an_answer(a_request(1))).replace(b'"completion_tokens":2', b'"completion_tokens":"2"'),
        to_line(an_answer(a_request(1))).replace(b'"attempt":1', b'"attempt":true'),
        to_line(an_answer(a_request(1))).replace(b'"attempt":1', b'"attempt":1,"extra":0'),
        to_line(an_answer(a_request(1))).replace(b'"text":"ok"', b'"text":null'),
    ],
)
def test_a_line_that_is_no_generation_is_counted_and_skipped(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(line + to_line(an_answer(a_request(0))))
    view = journal.read(tmp_path)
    assert len(view) == 1
    assert view.has(a_request(0), FINGERPRINT)
    assert view.problems == {"corrupt": 1}


def test_of_two_rows_the_one_finished_first_counts_whatever_the_file_names(tmp_path: Path) -> None:
    request = a_request()
    early = an_answer(request, "early", "2026-01-01T00:00:01Z")
    late = an_answer(request, "late", "2026-01-01T00:00:02Z")
    for folder, names in ((tmp_path / "x", ("a", "b")), (tmp_path / "y", ("b", "a"))):
        write(folder, names[0], early)
        write(folder, names[1], late)
        view = journal.read(folder)
        assert view.load(request, FINGERPRINT).text == "early"
        assert view.problems == {"duplicate": 1}


def test_another_fingerprint_or_request_is_not_ours(tmp_path: Path) -> None:
    request = a_request()
    write(tmp_path, "one", replace(an_answer(request), fingerprint="0" * 64), an_answer(a_request(9)))
    view = journal.read(tmp_path, {journal.key_of(request, FINGERPRINT)})
    assert not view.has(request, FINGERPRINT)
    assert view.problems == {"other": 2}
    with pytest.raises(KeyError, match="AIME24 seed 42 sample 0"):
        view.load(request, FINGERPRINT)


def test_a_row_with_another_sampler_seed_does_not_answer_the_request(tmp_path: Path) -> None:
    request = a_request()
    write(tmp_path, "one", replace(an_answer(request), sampler_seed=1))
    assert not journal.read(tmp_path).has(request, FINGERPRINT)


def test_writers_never_share_a_name() -> None:
    names = {journal.new_writer() for _ in range(100)}
    assert len(names) == 100
    assert all(str(os.getpid()) in name for name in names)


def test_a_full_disk_says_where_and_keeps_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = a_request(0), a_request(1)
    real_write = os.write

    def full(fd: int, data: bytes) -> int:
        if len(data) > 20:
            return real_write(fd, bytes(data[:20]))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with journal.Journal(tmp_path, "one") as rows:
        rows.append(an_answer(first))
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(TransientError, match=r"one\.jsonl.*No space left on device"):
                rows.append(an_answer(second))
        rows.append(an_answer(second, "again"))
    view = journal.read(tmp_path)
    assert not view.problems
    assert view.load(first, FINGERPRINT).text == "ok"
    assert view.load(second, FINGERPRINT).text == "again"


def test_rows_reach_the_disk_within_about_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size))
    with journal.Journal(tmp_path, "one") as rows:
        rows.append(an_answer(a_request()))
        size, deadline = rows.path.stat().st_size, time.monotonic() + 5
        while size not in synced:
            assert time.monotonic() < deadline, "not synced while the journal is open"
            rows._closing.wait(0.01)


def test_a_failing_fsync_is_told_at_the_next_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = journal.Journal(tmp_path, "one")

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        rows.append(an_answer(a_request(0)))
        with pytest.raises(TransientError, match="Input/output error"):
            rows.close()
    assert journal.read(tmp_path).has(a_request(0), FINGERPRINT)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TransientError, match="file/generations"):
        journal.Journal(tmp_path / "file" / "generations", "one")
