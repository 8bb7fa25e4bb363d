"""A hub on 127.0.0.1: as much of the Hugging Face hub's API as fetching a data set takes.

Data set information with the file list, small files from `resolve`, large ones by a redirect to a second origin
(`localhost`), Range requests, gated answers. What it was asked is kept in `asked`; its faults are set by attributes.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

REVISION = "a1" * 20


@dataclass(kw_only=True)
class Repo:
    """`large`: paths that are stored by sha256 and served by redirect. `configs`: of the data card."""

    files: dict[str, bytes]
    revision: str = REVISION
    gated: bool = False
    large: tuple[str, ...] = ()
    configs: tuple[Mapping[str, Any], ...] = ()


@dataclass(kw_only=True)
class FakeHub:
    """`break_after`: a large file's connection ends after so many bytes, `breaks` times, or when `stall` is set.

    `forged`: content sent in place of a file's.
    """

    repos: dict[str, Repo]
    token: str = "hf_goodTokenOfTheTests"
    break_after: int | None = None
    breaks: int = 0
    stall: threading.Event | None = None
    forged: dict[str, bytes] = field(default_factory=dict)
    ignores_range: bool = False
    tells: str = ""
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    url: str = ""

    def downloads(self) -> list[str]:
        """The paths of the files that were asked for, in order."""
        return [path for path, _, _ in self.asked if "/resolve/" in path]


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """The tests read `asked`."""

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            self.sent = self.headers.get("Authorization", "")
            hub.asked.append((path, self.headers.get("Range", ""), self.sent))
            parts = path.strip("/").split("/")
            if parts[:2] == ["api", "datasets"]:
                self.information("/".join(parts[2:4]), parts[5] if parts[4:5] == ["revision"] else None)
            elif parts[0] == "cdn":
                self.content(hub.repos["/".join(parts[1:3])], "/".join(parts[3:]))
            else:
                self.resolve("/".join(parts[1:3]), parts[4], "/".join(parts[5:]))

        def information(self, name: str, revision: str | None) -> None:
            repo = hub.repos.get(name)
            if repo is None or revision not in (None, repo.revision):
                return self.error(404, "RepoNotFound" if repo is None else "RevisionNotFound")
            siblings = []
            for path, content in repo.files.items():
                one: dict[str, Any] = {"rfilename": path, "size": len(content), "blobId": git_id(content)}
                if path in repo.large:
                    one["lfs"] = {"sha256": sha256(content), "size": len(content), "pointerSize": 130}
                siblings.append(one)
            card = {"configs": list(repo.configs)} if repo.configs else {}
            body = {"id": name, "sha": repo.revision, "gated": "auto" if repo.gated else False, "siblings": siblings}
            self.answer(200, json.dumps(body | {"cardData": card}).encode(), {"Content-Type": "application/json"})

        def resolve(self, name: str, revision: str, path: str) -> None:
            repo = hub.repos[name]
            if repo.gated and self.sent != f"Bearer {hub.token}":
                return self.error(403 if self.sent else 401, "GatedRepo")
            if path not in repo.files or revision != repo.revision:
                return self.error(404, "EntryNotFound")
            if path in repo.large:
                there = hub.url.replace("127.0.0.1", "localhost")
                return self.answer(302, b"", {"Location": f"{there}/cdn/{name}/{path}"})
            self.content(repo, path)

        def content(self, repo: Repo, path: str) -> None:
            content = hub.forged.get(path, repo.files[path])
            asked = self.headers.get("Range", "")
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and not hub.ignores_range else 0
            headers = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
            if hub.break_after is not None and hub.breaks > 0 and path in repo.large:
                hub.breaks -= 1
                self.begin(206 if start else 200, len(content) - start, headers)
                self.wfile.write(content[start : start + hub.break_after])
                self.wfile.flush()
                if hub.stall is not None:
                    hub.stall.wait(60)
                self.close_connection = True
                return
            self.answer(206 if start else 200, content[start:], headers)

        def error(self, status: int, code: str) -> None:
            told = hub.tells or f"{code} for {self.sent}"  # a proxy that repeats the token must not make us print it
            self.answer(status, b"{}", {"X-Error-Code": code, "X-Error-Message": told})

        def answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
            self.begin(status, len(body), headers)
            self.wfile.write(body)

        def begin(self, status: int, length: int, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(length))
            self.end_headers()

    return Handler


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def git_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
