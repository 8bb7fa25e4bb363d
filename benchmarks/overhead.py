"""What the program itself costs, beside the engine: run by hand, never as a test.

    .venv/bin/python benchmarks/overhead.py [--generations 2000] [--tokens 300]

Prints, for each figure, the median of several runs in wall seconds: the command line's start, a plan, collecting the
seven evalchemy tasks with ten seeds each (needs `make sources`), a cached run, and the client's and journal's CPU time,
for which the fake engine runs in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from entrypoint.engine.client import Client  # noqa: E402
from entrypoint.engine.journal import Journal, new_writer  # noqa: E402
from entrypoint.record import Generation  # noqa: E402

SEVEN = ("AIME24", "AIME25", "AIME26", "AMC23", "MATH500", "OlympiadBench", "OlympiadBench_Physics")
STEP_300 = ROOT / "examples/checkpoints/adder/hf/step-300"


def evalcrate(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "entrypoint", *arguments], cwd=ROOT, check=True, capture_output=True)


def median_s(work: Callable[[], None], runs: int) -> float:
    def once() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return statistics.median(once() for _ in range(runs))


def job(folder: Path, name: str, **keys: object) -> str:
    base = {"experiment": "bench", "checkpoint": str(STEP_300), "results": str(folder / name)}
    path = folder / f"{name}.json"
    path.write_text(json.dumps({**base, **keys}))
    return str(path)


def collect_seven(folder: Path) -> float:
    """Wall seconds of one collect of seven tasks with ten seeds each, nothing collected before."""
    tasks = [{"name": task, "seeds": 10} for task in SEVEN]
    path = job(folder, "seven", tasks=tasks, engine={"max_model_len": 40960})
    return median_s(lambda: evalcrate("collect", path), 1)


def own_cpu_per_generation_ms(folder: Path, generations: int, tokens: int) -> float:
    """CPU milliseconds of this process per generation: one request sent and read, one row journalled."""
    socket, script = folder / "s", folder / "script.json"
    script.write_text(json.dumps({"default": "x" * tokens}))
    argv = [sys.executable, str(ROOT / "tests/fakes/engine.py"), "--uds", str(socket), "--fake", str(script)]
    server = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    try:
        while not socket.exists():
            time.sleep(0.05)
        start = time.process_time()
        asyncio.run(_send_all(socket, folder / "journal", generations, tokens))
        return 1000 * (time.process_time() - start) / generations
    finally:
        server.kill()
        server.wait()


async def _send_all(socket: Path, folder: Path, generations: int, tokens: int) -> None:
    body = {"prompt": list(b"What is 1 + 1?"), "max_tokens": tokens, "temperature": 0.7, "seed": 1, "stop": []}
    gate = asyncio.Semaphore(64)
    with Journal(folder, new_writer()) as journal:
        async with Client(socket=str(socket), limit=64) as client:

            async def one(sample: int) -> None:
                async with gate:
                    answer = await client.complete({**body, "seed": sample}, timeout_s=60)
                journal.append(
                    Generation(
                        id="0" * 64,
                        task="bench",
                        seed=42,
                        sample=sample,
                        fingerprint="f" * 64,
                        text=answer.text,
                        token_ids=answer.token_ids,
                        finish_reason=answer.finish_reason,
                        stop_reason=answer.stop_reason,
                        prompt_tokens=answer.prompt_tokens,
                        completion_tokens=answer.completion_tokens,
                        sampler_seed=sample,
                        started_at="2026-01-01T00:00:00Z",
                        finished_at="2026-01-01T00:00:01Z",
                        attempt=1,
                    )
                )

            await asyncio.gather(*(one(sample) for sample in range(generations)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--generations", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=300)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = job(folder, "plan", tasks=["AIME24"])
        print(f"evalcrate --help            {median_s(lambda: evalcrate('--help'), 5):6.2f} s")
        print(f"evalcrate plan              {median_s(lambda: evalcrate('plan', plan), 5):6.2f} s")
        print(f"collect, 7 tasks x 10 seeds {collect_seven(folder):6.2f} s")
        engine = {"max_model_len": 512, "command": [sys.executable, str(ROOT / "tests/fakes/engine.py")]}
        cached = job(folder, "cached", tasks=["arithmetic"], seeds=3, sampling={"max_tokens": 16}, engine=engine)
        evalcrate("run", cached)
        print(f"a cached run                {median_s(lambda: evalcrate('run', cached), 5):6.2f} s")
        own = own_cpu_per_generation_ms(folder, arguments.generations, arguments.tokens)
        print(f"client and journal          {own:6.2f} ms of CPU per generation of {arguments.tokens} tokens")


if __name__ == "__main__":
    main()
