#!/usr/bin/env python3
"""A stand-in for the vLLM server: real HTTP on a Unix socket, scripted answers, latencies and faults.

    python tests/fakes/engine.py --uds SOCKET [--model FOLDER] [--fake SCRIPT.json] [vLLM arguments, ignored]

Serves /health, /v1/completions, /v1/models, /tokenize and /metrics as vLLM 0.32 does, as far as this
program looks. The script is the JSON file named by `--fake` or by EVALCRATE_FAKE_ENGINE; every key is optional.

Answers:
    answers         [{"match": TEXT, ...}]: the first rule whose TEXT is in the prompt decides ("" is in all)
                      "text"           a text, or a list of which the request's seed chooses (seed modulo length)
                      "status"         an HTTP error instead, with "message"
                      "finish_reason"  in place of stop or length, e.g. "abort"
                      "latency_s"      seconds before this answer
                      "raw"            the whole answer as it is, e.g. half a JSON object
    default         text when no rule matches; without it, letters drawn from prompt, seed and temperature
    latency_s       seconds before each answer (0)
    ignore_seed     true: drawn letters differ each time (a list gives one per start)
    no_token_ids    true: answers hold no token ids
    no_tokenize     true: /tokenize is 404
    tokenize_shift  added to every id that /tokenize gives (0)
    tokenizer       "model" (tokenizer.json of --model; the default where it is) or "bytes" (ids are UTF-8 bytes)
Faults of single completions:
    error_every       every Nth is an HTTP 500
    disconnect_every  every Nth loses its connection
Faults of the server (numbers count completions since the start; a list gives one per start, the last one for all
later ones, null for never, and needs `starts`):
    die_after       exit with status 1 when one more comes
    hang_after      those that come later are never answered
    start_delay_s   seconds before it is healthy (0)
    refuse_start    {"log": TEXT, "exit_code": N}: print TEXT and exit instead of starting
    ignore_term     true: SIGTERM does nothing
    stubborn_child  file that gets the pid of a child that ignores SIGTERM and never ends by itself
    detach_child    true: that child has a session of its own
Traces:
    starts          file that gets one line (the pid) per start
    masks           file that gets one line per start: CUDA_VISIBLE_DEVICES
    bodies          file that gets one JSON line per completion request: its body
    pids            file that gets one line per completion request: the pid that it came to

Requests with `ignore_eos` (the canary's) count for no fault, are not traced, and are always answered with drawn
letters up to max_tokens. Prompt plus max_tokens over --max-model-len gives fewer tokens and `length`, stop
strings cut the text, n > 1 is refused. On SIGTERM open requests have --shutdown-timeout seconds to finish.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import random
import signal
import string
import sys
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web


class Tokenizer(Protocol):
    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...


class Bytes:
    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8", "surrogatepass"))

    def decode(self, ids: list[int]) -> str:
        return bytes(i for i in ids if i < 256).decode("utf-8", "replace")


class Model:
    """The checkpoint's own tokenizer.json."""

    def __init__(self, folder: str) -> None:
        from tokenizers import Tokenizer as Fast

        self._fast = Fast.from_file(str(Path(folder) / "tokenizer.json"))

    def encode(self, text: str) -> list[int]:
        return list(self._fast.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int]) -> str:
        return str(self._fast.decode(ids, skip_special_tokens=False))


class Fake:
    """The scripted server; counters are per start."""

    def __init__(self, script: dict[str, Any], args: argparse.Namespace, start: int) -> None:
        self.script, self.args, self.start = script, args, start
        has_own = bool(args.model) and (Path(args.model) / "tokenizer.json").is_file()
        chosen = script.get("tokenizer", "model" if has_own else "bytes")
        self.tokenizer: Tokenizer = Model(args.model) if chosen == "model" else Bytes()
        self.asked, self.running, self.generated_tokens, self.prompt_tokens = 0, 0, 0, 0
        self.healthy = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self.odd = itertools.count()

    def limit(self, key: str) -> int | None:
        value = self.value(key)
        return None if value is None else int(value)

    def value(self, key: str) -> Any:
        return _of_start(self.script, key, self.start)

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy.is_set() else 503)

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self.args.model, "object": "model"}]})

    async def metrics(self, _: web.Request) -> web.Response:
        values = {
            "generation_tokens_total": self.generated_tokens,
            "prompt_tokens_total": self.prompt_tokens,
            "num_requests_running": self.running,
            "num_requests_waiting": 0,
            "num_preemptions_total": 0,
        }
        label = f'{{engine="0",model_name="{self.args.model}"}}'
        return web.Response(text="".join(f"vllm:{k}{label} {float(v)}\n" for k, v in values.items()))

    async def tokenize(self, request: web.Request) -> web.Response:
        if self.script.get("no_tokenize"):
            raise web.HTTPNotFound
        shift = int(self.script.get("tokenize_shift", 0))
        ids = [i + shift for i in self.tokenizer.encode((await request.json())["prompt"])]
        return web.json_response({"count": len(ids), "max_model_len": self.args.max_model_len, "tokens": ids})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if not body.get("ignore_eos"):
            self._trace(body)
        if (last := self.limit("die_after")) is not None and self.asked > last:
            os._exit(1)
        self.running += 1
        self.idle.clear()
        try:
            if (last := self.limit("hang_after")) is not None and self.asked > last:
                await asyncio.Event().wait()
            return await self._answer(request, body)
        finally:
            self.running -= 1
            if not self.running:
                self.idle.set()

    def _trace(self, body: dict[str, Any]) -> None:
        self.asked += 1
        _append(self.script.get("bodies"), json.dumps(body))
        _append(self.script.get("pids"), str(os.getpid()))

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        counted = not body.get("ignore_eos")
        if counted and _is_nth(self.asked, self.script.get("error_every")):
            return _error(500, "scripted fault")
        if counted and _is_nth(self.asked, self.script.get("disconnect_every")):
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        ids = body["prompt"] if isinstance(body["prompt"], list) else self.tokenizer.encode(body["prompt"])
        rule = self._rule(self.tokenizer.decode(ids))
        latency_s = rule.get("latency_s", self.script.get("latency_s", 0))
        if latency_s:
            await asyncio.sleep(latency_s)
        if "status" in rule:
            return _error(rule["status"], rule.get("message", "scripted refusal"))
        if "raw" in rule:
            return web.Response(text=rule["raw"])
        if refusal := _refusal(body, len(ids), self.args.max_model_len):
            return _error(400, refusal)
        return web.json_response(self._completion(body, ids, rule))

    def _rule(self, prompt: str) -> dict[str, Any]:
        rules = self.script.get("answers", ())
        return next((rule for rule in rules if rule["match"] in prompt), {})

    def _completion(self, body: dict[str, Any], prompt: list[int], rule: dict[str, Any]) -> dict[str, Any]:
        budget = body.get("max_tokens", 16)
        if self.args.max_model_len:
            budget = min(budget, self.args.max_model_len - len(prompt))
        text, reason, stop_reason = self._text(body, prompt, rule), "stop", None
        for stop in body.get("stop") or ():
            if stop in text:
                text, stop_reason = text[: text.index(stop)], stop
        ids = self.tokenizer.encode(text)
        if len(ids) >= budget:
            ids, reason, stop_reason = ids[:budget], "length", None
            text = self.tokenizer.decode(ids)
        self.generated_tokens += len(ids)
        self.prompt_tokens += len(prompt)
        choice = {
            "index": 0,
            "text": text,
            "finish_reason": rule.get("finish_reason", reason),
            "stop_reason": stop_reason,
        }
        if body.get("return_token_ids") and not self.script.get("no_token_ids"):
            choice |= {"token_ids": ids, "prompt_token_ids": prompt}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
        return {"object": "text_completion", "model": self.args.model, "choices": [choice], "usage": usage}

    def _text(self, body: dict[str, Any], prompt: list[int], rule: dict[str, Any]) -> str:
        text = rule.get("text", self.script.get("default"))
        if isinstance(text, list):
            text = text[(body.get("seed") or 0) % len(text)]
        canary = body.get("ignore_eos", False)
        if text is not None and not canary:
            return str(text)
        seed = next(self.odd) if self.value("ignore_seed") else body.get("seed")
        key = json.dumps([prompt, seed if body.get("temperature", 1.0) > 0 else None])
        draw = random.Random(hashlib.sha256(key.encode()).digest())
        length = body.get("max_tokens", 16) if canary else draw.randint(8, 24)
        return "".join(draw.choices(string.ascii_letters + " ", k=length))


def _is_nth(count: int, every: int | None) -> bool:
    return every is not None and count % every == 0


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "Fake", "code": status}}, status=status)


def _refusal(body: dict[str, Any], prompt_tokens: int, max_model_len: int) -> str | None:
    most = int(os.environ.get("VLLM_MAX_STOP_STRINGS", "4"))
    if len(body.get("stop") or ()) > most:
        return f"stop: at most {most} strings"
    if body.get("n", 1) != 1:
        return "n: only 1 here"
    if max_model_len and prompt_tokens >= max_model_len:
        return f"the prompt has {prompt_tokens} tokens, the context {max_model_len}"
    return None


def _append(path: str | None, line: str) -> None:
    if path is not None:
        with Path(path).open("a") as handle:
            handle.write(line + "\n")


def _of_start(script: dict[str, Any], key: str, start: int) -> Any:
    value = script.get(key)
    return value[min(start, len(value)) - 1] if isinstance(value, list) else value


def _count_start(script: dict[str, Any]) -> int:
    """The number of this start, from 1; several may start at the same time."""
    _append(script.get("masks"), os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    if "starts" not in script:
        return 1
    _append(script["starts"], str(os.getpid()))
    return Path(script["starts"]).read_text().splitlines().index(str(os.getpid())) + 1


def _fork_stubborn(path: str, detach: bool) -> None:
    """Comes back when the child is as stubborn as it will be and its pid is written."""
    ready, tell = os.pipe()
    if os.fork():
        os.close(tell)
        os.read(ready, 1)
        os.close(ready)
        return
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if detach:
        os.setsid()
    Path(path).write_text(str(os.getpid()))
    os.close(tell)
    while True:
        signal.pause()


async def serve(script: dict[str, Any], args: argparse.Namespace, start: int) -> None:
    fake = Fake(script, args, start)
    app = web.Application(client_max_size=1 << 28)
    app.add_routes(
        [
            web.get("/health", fake.health),
            web.get("/metrics", fake.metrics),
            web.get("/v1/models", fake.models),
            web.post("/tokenize", fake.tokenize),
            web.post("/v1/completions", fake.completions),
        ]
    )
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.UnixSite(runner, args.uds, backlog=2048).start()
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    loop.add_signal_handler(signal.SIGTERM, (lambda: None) if script.get("ignore_term") else stop.set)
    loop.call_later(fake.value("start_delay_s") or 0, fake.healthy.set)
    print(f"fake engine, start {fake.start}, on {args.uds}", flush=True)
    await stop.wait()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(fake.idle.wait(), args.shutdown_timeout)
    await runner.cleanup()


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--uds", required=True)
    parser.add_argument("--model", default="fake")
    parser.add_argument("--max-model-len", type=int, default=0)
    parser.add_argument("--shutdown-timeout", type=float, default=0)
    parser.add_argument("--fake", default=os.environ.get("EVALCRATE_FAKE_ENGINE"))
    args, _ = parser.parse_known_args()
    script: dict[str, Any] = json.loads(Path(args.fake).read_text()) if args.fake else {}
    start = _count_start(script)
    if refusal := _of_start(script, "refuse_start", start):
        print(refusal["log"], flush=True)
        return int(refusal["exit_code"])
    if "stubborn_child" in script:
        _fork_stubborn(script["stubborn_child"], bool(script.get("detach_child")))
    asyncio.run(serve(script, args, start))
    return 0


if __name__ == "__main__":
    sys.exit(main())
