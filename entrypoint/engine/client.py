"""Talk to an OpenAI-compatible server, over a Unix socket or a URL.

In: request bodies as collect wrote them. Out: a checked Completion, or one of two failures: the request's own
fault (never sent again) or the connection's and the engine's (sent again). Neither is ever an answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp

from entrypoint.errors import EngineError, JobError
from entrypoint.plan import Engine
from entrypoint.record import FINISH_REASONS

# vLLM drops an idle connection after 5 s; one that is about to be dropped must not carry a request.
_KEEPALIVE_S = 2.0
_SHORT_TIMEOUT_S = 30.0
_SEND_AGAIN = (408, 425, 429)
_METRIC = re.compile(rb"^vllm:([a-z_]+)(?:\{[^\n]*\})? ([0-9.eE+-]+)$", re.MULTILINE)
METRICS = (
    "generation_tokens_total",
    "prompt_tokens_total",
    "num_requests_running",
    "num_requests_waiting",
    "num_preemptions_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
)


class RequestRefused(Exception):
    """The server can't serve this request, or served another one: sending it again is useless."""


class RequestLost(Exception):
    """No usable answer came back, through no fault of the request: send it again.

    `unreachable`: nothing listens at the address any more.
    """

    def __init__(self, message: str, *, unreachable: bool = False) -> None:
        super().__init__(message)
        self.unreachable = unreachable


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """One checked answer; `token_ids` (when the server gives them) has `completion_tokens` entries."""

    text: str
    token_ids: tuple[int, ...] | None
    finish_reason: str
    stop_reason: int | str | None
    prompt_tokens: int
    completion_tokens: int


class Client:
    """One server. `async with Client(...)`; at most `limit` connections are open at once."""

    def __init__(
        self,
        *,
        socket: str | None = None,
        url: str | None = None,
        model: str | None = None,
        key: str | None = None,
        limit: int = 0,
    ) -> None:
        self.address = socket if socket is not None else str(url)
        self._base = "http://engine" if socket is not None else str(url).rstrip("/").removesuffix("/v1")
        self._socket, self._model, self._limit = socket, model, limit
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._session: aiohttp.ClientSession

    @classmethod
    def to(cls, engine: Engine, socket: str | None = None) -> Self:
        """A client for the plan's engine; `socket` is where a server started here listens."""
        key = None if engine.api_key_env is None else os.environ.get(engine.api_key_env)
        if engine.api_key_env is not None and not key:
            raise JobError(
                f"engine.api_key_env: {engine.api_key_env} is not set: export it, or drop engine.api_key_env"
            )
        place = socket if socket is not None else engine.socket
        return cls(
            socket=place,
            url=None if place is not None else engine.url,
            model=engine.model,
            key=key,
            limit=engine.max_open_requests + 4,
        )

    async def __aenter__(self) -> Self:
        connector: aiohttp.BaseConnector
        if self._socket is not None:
            connector = aiohttp.UnixConnector(self._socket, limit=self._limit, keepalive_timeout=_KEEPALIVE_S)
        else:
            connector = aiohttp.TCPConnector(limit=self._limit, keepalive_timeout=_KEEPALIVE_S)
        self._session = aiohttp.ClientSession(
            connector=connector, headers=self._headers, trust_env=False, timeout=aiohttp.ClientTimeout()
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def complete(self, body: Mapping[str, Any], *, timeout_s: float) -> Completion:
        """The engine's answer to `body`. RequestRefused or RequestLost when there is none that counts."""
        return _completion(await self._post("/v1/completions", body, timeout_s), body)

    async def tokenize(self, prompt: str, add_special_tokens: bool) -> list[int]:
        """Token ids as the server would make them; RequestRefused when it has no /tokenize."""
        body = {"prompt": prompt, "add_special_tokens": add_special_tokens}
        answer = await self._post("/tokenize", body, _SHORT_TIMEOUT_S)
        ids = answer.get("tokens")
        if not isinstance(ids, list) or not all(_is_count(i) for i in ids):
            raise RequestRefused(f"{self.address}/tokenize: the answer holds no token ids")
        return ids

    async def health(self) -> bool:
        """Whether the server says that it is ready (which is not yet that it works)."""
        try:
            status, _ = await self._send("GET", "/health", None, _SHORT_TIMEOUT_S)
        except RequestLost:
            return False
        return status == 200

    async def metrics(self) -> dict[str, float]:
        """The counters of METRICS, summed over engines; empty when the server keeps none."""
        try:
            status, data = await self._send("GET", "/metrics", None, _SHORT_TIMEOUT_S)
        except RequestLost:
            return {}
        sums: Counter[str] = Counter()
        for name, value in _METRIC.findall(data) if status == 200 else ():
            sums[name.decode()] += float(value)  # type: ignore[assignment]
        return {name: float(sums[name]) for name in METRICS if name in sums}

    async def _post(self, path: str, body: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        named = body if self._model is None else {"model": self._model, **body}
        data = json.dumps(named, separators=(",", ":"), allow_nan=False).encode()
        status, answer = await self._send("POST", path, data, timeout_s)
        if status in (401, 403):
            raise EngineError(f"{self.address}: HTTP {status}: the key is refused; check what engine.api_key_env names")
        if 400 <= status < 500 and status not in _SEND_AGAIN:
            raise RequestRefused(f"HTTP {status}: {_message(answer)}")
        if status != 200:
            raise RequestLost(f"HTTP {status}: {_message(answer)}")
        try:
            value = json.loads(answer)
        except ValueError as err:
            raise RequestLost(f"the answer is not JSON: {err}") from err
        if not isinstance(value, dict):
            raise RequestLost("the answer is not a JSON object")
        return value

    async def _send(self, method: str, path: str, data: bytes | None, timeout_s: float) -> tuple[int, bytes]:
        headers = {} if data is None else {"Content-Type": "application/json"}
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session.request(method, self._base + path, data=data, headers=headers) as response,
            ):
                return response.status, await response.read()
        except TimeoutError as err:
            raise RequestLost(f"no answer within {timeout_s:g} s") from err
        except aiohttp.ClientConnectorError as err:
            raise RequestLost(f"{self.address}: can't connect ({err.os_error})", unreachable=True) from err
        except (aiohttp.ClientError, OSError) as err:
            raise RequestLost(f"{self.address}: connection lost ({err or type(err).__name__})") from err


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _message(answer: bytes) -> str:
    """The server's own words from an error answer, on one line of at most 400 characters."""
    text = answer.decode("utf-8", "replace")
    try:
        value = json.loads(answer)
        error = value.get("error", value)
        text = str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, AttributeError):
        pass
    return " ".join(text.split())[:400] or "no message"


def _completion(answer: Mapping[str, Any], body: Mapping[str, Any]) -> Completion:
    try:
        (choice,) = answer["choices"]
        text, finish_reason = choice["text"], choice["finish_reason"]
        prompt_tokens, completion_tokens = (answer["usage"][k] for k in ("prompt_tokens", "completion_tokens"))
        stop_reason, ids = choice.get("stop_reason"), choice.get("token_ids")
    except (KeyError, TypeError, ValueError, AttributeError) as err:
        raise RequestLost(f"the answer is not a completion: {type(err).__name__} {err}") from err
    if finish_reason not in FINISH_REASONS:
        raise RequestLost(f"finish_reason {finish_reason!r} instead of stop or length")
    if not isinstance(text, str) or not _is_count(prompt_tokens) or not _is_count(completion_tokens):
        raise RequestLost("the answer's text or token counts are missing")
    if ids is not None and (not isinstance(ids, list) or len(ids) != completion_tokens):
        raise RequestLost(f"the answer's token ids are not the {completion_tokens} tokens it counts")
    _check_budget(finish_reason, prompt_tokens, completion_tokens, body)
    return Completion(
        text=text,
        token_ids=None if ids is None else tuple(ids),
        finish_reason=finish_reason,
        stop_reason=stop_reason,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
    )


def _check_budget(finish_reason: str, prompt_tokens: int, tokens: int, body: Mapping[str, Any]) -> None:
    """vLLM answers 200 with fewer tokens when prompt + max_tokens exceed the context: not what was asked."""
    asked = body.get("max_tokens")
    if finish_reason == "length" and asked is not None and tokens != asked:
        raise RequestRefused(f"the context budget was cut: {asked} tokens were asked for, {tokens} given")
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) != prompt_tokens:
        raise RequestRefused(f"the prompt was changed: {len(prompt)} tokens were sent, {prompt_tokens} counted")
