"""The real vLLM on a CPU does what the plan says: every sampling value, every seed, any order, and nothing is left.

Incidents: the server fills unset sampling values from the checkpoint's generation_config.json (vllm#15281); a harness
seed that never reaches the sampler makes equal "seeds" (vllm#3333); a server killed with requests open leaves an
engine core behind (tried on 0.32.0).
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from entrypoint.engine import journal
from entrypoint.engine.client import Client, Completion, RequestRefused
from entrypoint.engine.server import Server
from entrypoint.generate import PendingTrial, generate
from entrypoint.layout import Layout
from entrypoint.plan import Engine, Evaluation, Placement, Plan
from entrypoint.record import Request, digest

ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT / "examples" / "checkpoints" / "adder" / "hf" / "step-300"
PYTHON = Path(os.environ.get("EVALCRATE_ENGINE_PYTHON") or ROOT / ".venv-engine" / "bin" / "python")
MAX_MODEL_LEN = 128
pytestmark = [
    pytest.mark.skipif(
        not PYTHON.exists(),
        reason=f"no engine environment ({PYTHON}); `make engine` or EVALCRATE_ENGINE_PYTHON",
    ),
    pytest.mark.skipif(not CHECKPOINT.exists(), reason=f"no bundled checkpoint ({CHECKPOINT})"),
]


def the_engine(*more: str) -> Engine:
    argv = (
        str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(CHECKPOINT),
        "--dtype", "bfloat16", "--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", "32",
        "--max-num-batched-tokens", str(MAX_MODEL_LEN), "--no-enable-chunked-prefill", "--enforce-eager",
        "--enable-prefix-caching", "--generation-config", "vllm", "--shutdown-timeout", "60", *more,
    )  # fmt: skip
    env = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_MAX_STOP_STRINGS": "64",
        "HF_HUB_OFFLINE": "1",
        "VLLM_PLUGINS": "",
    }
    return Engine(
        kind="vllm",
        version="0.32.0",
        argv=argv,
        env={**env, "VLLM_DO_NOT_TRACK": "1"},
        url=None,
        socket=None,
        model=None,
        api_key_env=None,
        start_timeout_s=400.0,
        request_timeout_s=120.0,
        shutdown_timeout_s=60.0,
        max_open_requests=32,
    )


def a_plan(engine: Engine) -> Plan:
    blank: dict[str, Any] = dict.fromkeys(Evaluation.__dataclass_fields__)
    evaluation = Evaluation(**{**blank, "on_overlong": "refuse"})
    blank = dict.fromkeys(Placement.__dataclass_fields__)
    placement = Placement(**{**blank, "engine": engine})
    return Plan(
        evaluation=evaluation,
        placement=placement,
        task_timeout_s=None,
        keep_generations=True,
        grader_command=(),
        require_isolation=False,
        warnings=(),
    )


def requests_of(prompts: Sequence[str], ids: Sequence[list[int]], seed: int) -> tuple[Request, ...]:
    """Sampling values that no default has, and that differ from request to request."""
    requests = []
    for sample, (prompt, tokens) in enumerate(zip(prompts, ids, strict=True)):
        body = {
            "prompt": tokens,
            "max_tokens": 16 + sample % 4,
            "temperature": 0.7 + sample / 100,
            "top_p": 0.9 + sample / 1000,
            "seed": 1000 * seed + sample,
            "stop": ["###", "\n\n\n", "a", "b", "c", "d"],
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "return_token_ids": True,
        }
        requests.append(Request(id=digest(body), task="adder", seed=seed, sample=sample, prompt=prompt, body=body))
    return tuple(requests)


@dataclass
class Observed:
    """One engine load, used for everything below (a start takes most of a minute)."""

    trials: tuple[PendingTrial, ...]
    layout: Layout
    outcome: Any
    log: str
    socket_folder: str
    pids: set[int]


PROMPTS = tuple(f"{a}+{b}=" for a in (3, 17, 48) for b in (5, 26, 31, 44))


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    folder = tmp_path_factory.mktemp("vllm")
    layout = Layout(results=folder, experiment="exp", step=300, limit=None, model="adder")
    ids = [_ids(prompt) for prompt in PROMPTS]
    trials = tuple(
        PendingTrial(task="adder", seed=s, requests=requests_of(PROMPTS, ids, s), fingerprint="f" * 64)
        for s in (42, 43)
    )
    pids: set[int] = set()

    def note_processes(_: object) -> None:
        pids.update(_processes_with(str(CHECKPOINT)))

    outcome = generate(
        a_plan(the_engine("--enable-log-requests")),
        layout,
        trials,
        on_trial=note_processes,
        on_progress=note_processes,
    )
    log = (layout.logs / "engine.log").read_text()
    match = re.search(r"--uds (\S+)/engine\.sock", log)
    assert match
    return Observed(trials=trials, layout=layout, outcome=outcome, log=log, socket_folder=match[1], pids=pids)


def _ids(prompt: str) -> list[int]:
    from tokenizers import Tokenizer

    return list(Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json")).encode(prompt).ids)


def _processes_with(text: str) -> set[int]:
    """The engine server's pid and those of its session."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if text in (entry / "cmdline").read_text() and "keeper" not in (entry / "cmdline").read_text():
                    found.add(int(entry.name))
            except OSError:
                continue
    sessions = {os.getsid(pid) for pid in found if Path(f"/proc/{pid}").exists()}
    return found | {
        int(e.name) for e in Path("/proc").iterdir() if e.name.isdigit() and _session(int(e.name)) in sessions
    }


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def test_every_trial_is_complete_and_seeds_are_proved(observed: Observed) -> None:
    assert not observed.outcome.failed
    assert not observed.outcome.notes
    assert observed.outcome.seeds_proved
    assert (observed.outcome.generated, observed.outcome.engine_starts) == (2 * len(PROMPTS), 1)


def test_every_sampling_value_reached_the_sampler(observed: Observed) -> None:
    logged = {m["seed"]: m[0] for m in re.finditer(r"SamplingParams\([^\n]*?seed=(?P<seed>\d+)[^\n]*", observed.log)}
    for request in (r for t in observed.trials for r in t.requests):
        line, body = logged[str(request.body["seed"])], request.body
        values = dict(re.findall(r"(\w+)=(\[[^\]]*\]|[^,)]+)", line))
        assert float(values["temperature"]) == body["temperature"]
        assert float(values["top_p"]) == body["top_p"]
        assert int(values["max_tokens"]) == body["max_tokens"]
        assert values["stop"] == repr(body["stop"])
        assert values["skip_special_tokens"] == "False"
        assert values["spaces_between_special_tokens"] == "False"
        assert (values["n"], values["top_k"], values["min_p"], values["min_tokens"]) == ("1", "0", "0.0", "0")
        for penalty, neutral in (("presence", 0), ("frequency", 0), ("repetition", 1)):
            assert float(values[f"{penalty}_penalty"]) == neutral


def test_no_process_socket_or_segment_is_left(observed: Observed) -> None:
    assert len(observed.pids) >= 3, "server, engine core and worker were to be seen"
    assert not [pid for pid in observed.pids if Path(f"/proc/{pid}").exists()]
    assert not Path(observed.socket_folder).exists()


def test_the_same_requests_reversed_and_one_by_one_give_the_same_texts(observed: Observed, tmp_path: Path) -> None:
    requests = [r for t in observed.trials for r in t.requests]

    async def ask() -> tuple[list[Completion], list[Completion], str]:
        engine = the_engine()
        async with Server.start(engine, tmp_path) as server, Client.to(engine, str(server.socket)) as client:
            together = await asyncio.gather(*(client.complete(r.body, timeout_s=120) for r in reversed(requests)))
            singly = [await client.complete(r.body, timeout_s=120) for r in requests[: len(PROMPTS)]]
            with pytest.raises(RequestRefused) as caught:
                await client.complete({**requests[0].body, "max_tokens": MAX_MODEL_LEN + 1, "ignore_eos": True,
                                       "stop": []}, timeout_s=120)  # fmt: skip
            return together[::-1], singly, str(caught.value)

    together, singly, refusal = asyncio.run(ask())
    view = journal.read(observed.layout.generations)
    stored = [view.load(r, "f" * 64) for r in requests]
    assert [a.text for a in together] == [row.text for row in stored]
    assert [a.token_ids for a in together] == [row.token_ids for row in stored]
    assert [a.text for a in singly] == [row.text for row in stored[: len(PROMPTS)]]
    assert "context budget was cut" in refusal or "HTTP 400" in refusal


def test_it_goes_on_from_the_journal_without_an_engine(observed: Observed) -> None:
    outcome = generate(
        a_plan(replace(the_engine(), argv=("/nowhere",))),
        observed.layout,
        observed.trials,
        on_trial=lambda _: None,
        on_progress=lambda _: None,
    )
    assert (outcome.generated, outcome.reused) == (0, 2 * len(PROMPTS))
