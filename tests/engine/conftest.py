"""The real engine: vLLM on CPU with the bundled checkpoint, started through the command line as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.flow.test_run import wait_until

ROOT = Path(__file__).parents[2]
STEP_300 = ROOT / "examples/checkpoints/adder/hf/step-300"
SERVER = ("-m", "vllm.entrypoints.openai.api_server")


def evalcrate(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own, as installed beside this test run."""
    return subprocess.run(
        [sys.executable, "-m", "entrypoint", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


def write_job(path: Path, **keys: Any) -> Path:
    base = {"experiment": "exp", "checkpoint": str(STEP_300), "results": str(path.parent / "results")}
    path.write_text(json.dumps({**base, **keys}))
    return path


@contextmanager
def vllm_server(python: Path, socket: Path, log: Path, *, max_model_len: int) -> Iterator[None]:
    """A vLLM server that logs every request's sampling parameters, for jobs that use it as an endpoint."""
    argv = [
        *(str(python), *SERVER),
        *("--model", str(STEP_300), "--served-model-name", "checkpoint", "--uds", str(socket)),
        *("--dtype", "bfloat16", "--max-model-len", str(max_model_len)),
        *("--max-num-batched-tokens", str(max_model_len), "--max-num-seqs", "32"),
        *("--no-enable-chunked-prefill", "--enforce-eager", "--generation-config", "vllm"),
        "--enable-log-requests",
    ]
    env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_MAX_STOP_STRINGS": "64", "HF_HUB_OFFLINE": "1"}
    with log.open("w") as out:
        server = subprocess.Popen(argv, stdout=out, stderr=out, env=env, start_new_session=True)
    try:
        ready = "Application startup complete"
        wait_until(lambda: server.poll() is not None or ready in log.read_text(), f"the server; see {log}", 300)
        assert server.poll() is None, log.read_text()[-3000:]
        yield
    finally:
        os.killpg(server.pid, 9)
        server.wait()


def rows(folder: Path) -> list[Mapping[str, Any]]:
    """Every generation of a result folder."""
    files = sorted((folder / "_work/generations").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_bytes().splitlines()]
