"""The Hugging Face hub: the file list of a data set at one revision, and its files; the only user of its library.

In: the id of a data set, HF_ENDPOINT and HF_TOKEN. Out: a Listing, and files appended to where they broke off. Every
failure comes out as one of our errors, without the token in it.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

import httpx2
from huggingface_hub import HfApi
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # documented, but not in its __all__
    build_hf_headers,
    hf_raise_for_status,
    http_stream_backoff,
)

from entrypoint.data_lock import HubData
from entrypoint.errors import EvalcrateError, MachineError, TransientError

DEFAULT_ENDPOINT = "https://huggingface.co"
_TIMEOUT_S = 30.0  # for each connect and each read
_BREAKS = 5  # of a transfer in a row, without one byte in between
_FIRST_PAUSE_S = 0.1
_REFUSED = (401, 403)


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteFile:
    """`sha256` is known for large files only; `git_id` is the git id of a small one's content.

    `url`: where it is, when that is not the hub.
    """

    path: str
    bytes: int
    sha256: str | None
    git_id: str | None
    url: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """A data set's repository at one revision; `configs`: what its data card says of each configuration."""

    revision: str
    files: Mapping[str, RemoteFile]
    configs: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Hub:
    """`token` is sent to the endpoint and is in no text that this class gives out."""

    endpoint: str
    token: str | None = field(repr=False)

    @staticmethod
    def of(environ: Mapping[str, str]) -> Hub:
        """MachineError when the environment forbids the network or holds no usable token."""
        if environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
            raise MachineError(
                "HF_HUB_OFFLINE: is set, and fetching needs the network; unset it, or fetch on another machine and "
                "copy the data folder"
            )
        token = environ.get("HF_TOKEN", "").strip() or None
        if token is not None and not re.fullmatch(r"[!-~]+", token):
            raise MachineError("HF_TOKEN: holds a blank or a character that no token has; export it again")
        for name in ("httpx2", "httpcore2", "huggingface_hub", "urllib3"):
            logging.getLogger(name).setLevel(logging.ERROR)  # at debug level some print headers
        return Hub(endpoint=(environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/"), token=token)

    def listing(self, data: HubData, revision: str | None) -> Listing:
        """The repository at `revision`, or at the main branch as it is now."""
        try:
            api = HfApi(endpoint=self.endpoint, token=self.token or False)
            info = api.dataset_info(data.id, revision=revision, files_metadata=True, timeout=_TIMEOUT_S)
        except EvalcrateError:
            raise
        except Exception as error:
            self._fail(data, error)
        if info.sha is None or (revision is not None and info.sha != revision):
            raise TransientError(f"{self._shown()}: gave {data.id} at revision {info.sha}, {revision} was asked for")
        return Listing(
            revision=info.sha,
            files={one.path: one for one in (_remote(sibling) for sibling in info.siblings or ())},
            configs=_configs(info.card_data),
        )

    def download(
        self, data: HubData, revision: str, file: RemoteFile, to: Path, on_bytes: Callable[[int], None]
    ) -> None:
        """Appends to `to` until it has all bytes; what an earlier call wrote is kept and told to `on_bytes`."""
        have, breaks = _size(to), 0
        on_bytes(have)
        while have < file.bytes:
            broken: Exception = httpx2.ReadError(f"{file.path} ends at byte {have} of {file.bytes}")
            try:
                self._append(data, revision, file, to, on_bytes)
            except (httpx2.TransportError, httpx2.StreamError) as error:
                broken = error
            except EvalcrateError:
                raise
            except Exception as error:
                self._fail(data, error)
            before, have = have, _size(to)
            breaks = 0 if have > before else breaks + 1
            if breaks >= _BREAKS:
                self._fail(data, broken)
            if breaks:
                time.sleep(_FIRST_PAUSE_S * 2**breaks)

    def _append(
        self, data: HubData, revision: str, file: RemoteFile, to: Path, on_bytes: Callable[[int], None]
    ) -> None:
        have = _size(to)
        url = file.url or f"{self.endpoint}/datasets/{data.id}/resolve/{revision}/{quote(file.path)}"
        headers = {
            **build_hf_headers(token=(self.token if file.url is None else None) or False),
            "Accept-Encoding": "identity",
        }
        if have:
            headers["Range"] = f"bytes={have}-"
        # Its retries wrap our reading too, where a retry would send the first bytes again.
        with http_stream_backoff(
            "GET", url, headers=headers, timeout=_TIMEOUT_S, max_retries=3, retry_on_exceptions=()
        ) as response:
            if response.status_code == 416:
                on_bytes(-have)
                to.unlink()
                return
            hf_raise_for_status(response)
            goes_on = response.status_code == 206 and f"bytes {have}-" in response.headers.get("Content-Range", "")
            if have and not goes_on:
                on_bytes(-have)
            with to.open("ab" if goes_on else "wb") as out:
                for chunk in response.iter_bytes():
                    out.write(chunk)
                    on_bytes(len(chunk))

    def _fail(self, data: HubData, error: Exception) -> NoReturn:
        """The one of our errors that says what to do; never with a cause, which may hold the request's headers."""
        raise self._ours(data, error) from None

    def _ours(self, data: HubData, error: Exception) -> EvalcrateError:
        where, told = f"{self._shown()}: {data.title}", self._clean(str(error))
        status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
        if isinstance(error, GatedRepoError) or (data.gated and status in _REFUSED):
            had = "the account of HF_TOKEN has no access" if self.token else "HF_TOKEN is not set"
            return gated(data, had)
        if isinstance(error, RevisionNotFoundError):
            return MachineError(f"{where}: has no revision {data.revision}; correct it in data.lock.yaml")
        if isinstance(error, RepositoryNotFoundError) or status in _REFUSED:
            return MachineError(f"{where}: is not there or not open to this account; check HF_ENDPOINT and HF_TOKEN")
        if isinstance(error, OfflineModeIsEnabled):
            return MachineError(f"{where}: HF_HUB_OFFLINE is set, and fetching needs the network; unset it")
        if isinstance(error, OSError) and not isinstance(error, HfHubHTTPError | httpx2.HTTPError):
            return MachineError(f"{error.filename or where}: {error.strerror or told}; mend it and fetch again")
        return TransientError(
            f"{where}: can't be fetched ({type(error).__name__}: {told}); check the network, HF_ENDPOINT for a mirror, "
            "and run the same command again: it goes on where it was"
        )

    def _clean(self, text: str) -> str:
        text = text if self.token is None else text.replace(self.token, "***")
        text = re.sub(r"hf_[A-Za-z0-9]{8,}", "***", re.sub(r"://[^/@\s]+@", "://***@", text))
        return " ".join(text.split())[:300]

    def _shown(self) -> str:
        return self._clean(self.endpoint)


def gated(data: HubData, why: str) -> MachineError:
    """A data set that this person has no access to yet: which tasks need it, and what to do."""
    return MachineError(
        f"{', '.join(data.tasks)}: {data.title} is gated and {why}: accept its licence at {data.licence_page}, then "
        "set HF_TOKEN to a token of the account that did"
    )


def _remote(sibling: Any) -> RemoteFile:
    lfs = sibling.lfs
    return RemoteFile(
        path=sibling.rfilename,
        bytes=sibling.size if lfs is None else lfs.size,
        sha256=None if lfs is None else lfs.sha256,
        git_id=sibling.blob_id if lfs is None else None,
    )


def _configs(card: Any) -> dict[str, Mapping[str, Any]]:
    """The `configs` list of a data card by name; a card without one has none."""
    said = None if card is None else card.get("configs")
    return {one["config_name"]: one for one in said or () if isinstance(one, dict) and "config_name" in one}


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
