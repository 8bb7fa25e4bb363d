"""`plan` shows on one screen what a run will do, how much of it is done already, and what stops it.

Incidents: five-shot prompts of 568-1337 tokens in a budget of 512, all cut in silence; protocol drift that nobody saw
before the run (marin#7505, #9193); a model that is asked again for what it has answered (lm-eval#3881).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from entrypoint import shortfall
from tests.fakes.checkpoint import QWEN3_8B, make_checkpoint
from tests.flow.conftest import Bench

ARITHMETIC = 64  # samples of the task


def shown(bench: Bench, *arguments: str, code: int = 0, **changes: Any) -> str:
    """The text of `plan`, which leaves the result folder as it is."""
    before = files(bench)
    bench.said()
    assert bench.run(*arguments, command="plan", **changes) == code, bench.said()
    assert files(bench) == before
    return bench.said()[0]


def files(bench: Bench) -> dict[str, int]:
    folder = bench.folder / "results"
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def expected(bench: Bench, *arguments: str, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(shown(bench, "--json", *arguments, **changes))
    return values


def row(text: str, head: str) -> str:
    (line,) = re.findall(rf"^ *{head} .*(?:\n {{13}}\S.*)*", text, re.MULTILINE)
    return " ".join(str(line).split())


def test_a_suite_takes_one_screen_with_its_requests_and_a_stated_assumption(bench: Bench) -> None:
    data, engine = str(bench.folder), {"command": bench.command}
    text = shown(bench, code=4, suite="math", tasks=[], seeds=None, data=data, sampling={}, engine=engine)
    lines = text.splitlines()
    assert len(lines) <= 50
    assert max(len(line) for line in lines if not line.startswith("warning")) <= 120
    assert row(text, "AIME24") == "AIME24 42…51 (10) 10 x 30 = 300 - in the source tree"
    assert row(text, "MATH500") == "MATH500 42 500 - in the source tree"
    assert row(text, "HMMT") == "HMMT 42…51 (10) 10 x 30 = 300 - absent"
    assert row(text, "sampling").startswith(
        "sampling temperature 0.7, top_p 1.0, max_tokens 32768 seed policy per_sample"
    )
    assert row(text, "expected") == (
        "expected 2,774 answers; 9.1 million to 90.9 million tokens (assumed: a tenth of max_tokens up to max_tokens)"
    )
    assert "(assumed: " in row(text, "time")
    assert "up to 1.8 GB for answers" in row(text, "disk")


def test_requests_and_prompt_tokens_are_known_once_collected(bench: Bench) -> None:
    before = shown(bench)
    assert row(before, "arithmetic") == "arithmetic 42, 43 known after collect - comes with the task"
    assert row(before, "expected") == "expected the requests of arithmetic (known after collect)"
    assert row(shown(bench, limit=5), "arithmetic").startswith("arithmetic 42, 43 at most 2 x 5 = 10")
    assert bench.run(command="collect") == 0
    assert re.fullmatch(
        r"arithmetic 42, 43 2 x 64 = 128 [\d,]{4,} comes with the task", row(shown(bench), "arithmetic")
    )
    values = expected(bench)
    assert values["requests"]["arithmetic"]["to_do"] == 2 * ARITHMETIC
    assert values["expected"]["answers"] == 2 * ARITHMETIC
    assert values["expected"]["tokens"] == [1.6 * 2 * ARITHMETIC, 16 * 2 * ARITHMETIC]


def test_what_is_done_is_shown_as_done_and_the_rest_is_estimated_from_the_run_before(bench: Bench) -> None:
    planned = expected(bench)["plan"]
    assert bench.run() == 0
    text = shown(bench)
    assert row(text, "arithmetic").endswith("complete, skipped")
    assert row(text, "expected") == "expected nothing is left to generate"
    assert expected(bench)["plan"] == planned, "neither state nor time is part of the plan"
    more = shown(bench, seeds=4)
    assert row(more, "arithmetic").endswith("2 of 4 seeds done")
    assert re.match(
        r"expected 128 answers at most, some may be in the journal; [\d,]+ tokens \(as in earlier runs\)",
        row(more, "expected"),
    )
    assert re.match(r"time about \d+ s \([\d,]+ tokens/s in 1 earlier run like this\)", row(more, "time"))
    again = shown(bench, "--force")
    assert row(again, "expected").startswith("expected 128 answers")
    room = re.search(r"(\d+) sequences of 512 tokens at once \((\d+) of (\d+), the expected length\)", again)
    assert room is not None
    assert int(room[1]) < int(room[2])
    assert int(room[3]) < 100, "a prompt of the task with its answer"
    other = expected(bench, experiment="another")["expected"]
    assert other["unknown"] == ["arithmetic"], "its requests are its own, only its speed is known"


def test_a_marker_alone_is_said_to_be_checked_later(bench: Bench) -> None:
    assert bench.run() == 0
    (bench.root / "_work/requests/arithmetic/collect.json").unlink()
    assert row(shown(bench), "arithmetic").endswith("complete before, checked after collect")
    assert row(shown(bench, "--force"), "arithmetic").endswith("comes with the task")


def test_prompts_over_the_budget_refuse_everything_but_collect(bench: Bench) -> None:
    tight = {"engine": {**bench.job["engine"], "max_model_len": 70}}
    assert bench.run(command="collect", **tight) == 0
    assert re.search(r"arithmetic seed 42: \d+ prompts over 54 tokens", bench.said()[1])
    for command in ("plan", "generate", "run"):
        assert bench.run(command=command, **tight) == 2
        err = bench.said()[1]
        assert re.search(r"arithmetic: \d+ of 128 prompts \(longest \d+ tokens, room for 54\)", err), command
    assert bench.engine_starts() == 0


def test_a_disk_that_is_too_small_is_refused_before_the_engine(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench.run(command="collect") == 0
    monkeypatch.setattr(shortfall, "_BYTES_PER_TOKEN", 10**12)
    for command in ("plan", "generate"):
        assert bench.run(command=command) == 4
        assert re.search(r"GB are free on its disk, and up to 2048000.0 GB may be written", bench.said()[1]), command
    assert bench.engine_starts() == 0


def test_the_record_of_speed_says_how_long_answers_were(bench: Bench) -> None:
    assert bench.run() == 0
    speed = json.loads((bench.root / "_work/speed.json").read_bytes())
    rows = [json.loads(line) for path in generations(bench) for line in path.read_text().splitlines()]
    tokens = sum(one["completion_tokens"] for one in rows)
    assert speed["answers"] == len(rows) == 2 * ARITHMETIC
    assert speed["tokens"] == tokens
    assert speed["tasks"] == {"arithmetic": {"answers": len(rows), "tokens": tokens, "max_tokens": 16}}
    assert 0 < speed["seconds"] < 60
    kept = (bench.root / "_work/speed.json").read_bytes()
    assert bench.run() == 0
    assert (bench.root / "_work/speed.json").read_bytes() == kept, "a cached run measured nothing"


def generations(bench: Bench) -> list[Path]:
    return list((bench.root / "_work/generations").glob("*.jsonl"))


QWEN = {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
MLA = {"num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": None}


@pytest.mark.parametrize(
    ("config", "cost"),
    [
        (QWEN, 147456),
        ({**QWEN, "hidden_size": 2560}, 147456),
        ({"text_config": {**QWEN, "hidden_size": 4096}}, 147456),
        ({**MLA, "model_type": "deepseek_v2", "kv_lora_rank": 512, "qk_rope_head_dim": 64, "hidden_size": 2048}, 31104),
        (
            {**QWEN, "num_hidden_layers": 64, "num_key_value_heads": 4, "head_dim": 256, "full_attention_interval": 4},
            65536,
        ),
        (
            {
                **{**QWEN, "head_dim": 64, "num_attention_heads": 64, "sliding_window": 128},
                "layer_types": ["sliding_attention", "full_attention"] * 18,
            },
            73728,
        ),
        ({**QWEN, "head_dim": None}, 147456),
    ],
)
def test_the_cost_of_a_token_is_that_of_the_models_kind(bench: Bench, config: dict[str, Any], cost: int) -> None:
    """jranaraki/vllm-fit#31, LMCache#688, hf-mem#60: wrong by 2 to 25 times for nested, latent and hybrid ones."""
    plain = {name: value for name, value in QWEN3_8B.items() if name not in QWEN}
    config = plain | config if "text_config" not in config else plain | {"text_config": plain | config["text_config"]}
    folder = make_checkpoint(bench.folder / "step-300", config__json=config)
    bench.run("--json", command="plan", checkpoint=str(folder))
    assert json.loads(bench.said()[0])["checkpoint"]["shape"]["kv_bytes_per_token"] == cost
