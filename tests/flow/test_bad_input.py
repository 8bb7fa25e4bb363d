"""Whatever is wrong with a job is said in one paragraph, with the right exit code, before anything is written.

Incidents: a local path that does not exist taken for a hub id (vllm#13724, litgpt#1357); duplicate seeds that count one
run as two (SkyRL#1015); a comma in a path that silently cuts it (lm-eval#1366).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from entrypoint.cli import run_command
from tests.flow.conftest import STEP_300, Bench

WRONG: list[tuple[dict[str, Any], int, str]] = [
    ({"experiment": 3}, 2, "experiment"),
    ({"experiment": "a/b"}, 2, "experiment"),
    ({"experiment": "x-step3"}, 2, "-step3"),
    ({"checkpoint": None}, 2, "checkpoint"),
    ({"checkpoint": "ckpts/step-300"}, 3, "not a directory"),
    ({"checkpoint": "/data/nope/step-300"}, 3, "/data/nope/step-300"),
    ({"checkpoint": "Qwen/Qwen3-8B"}, 3, "a hub id is not fetched"),
    ({"sampling": {"temprature": 0.7}}, 2, "did you mean temperature"),
    ({"sampling": {"temperature": "hot"}}, 2, "sampling.temperature"),
    ({"sampling": {"temperature": True}}, 2, "sampling.temperature"),
    ({"sampling": {"max_tokens": 0}}, 2, "sampling.max_tokens"),
    ({"seeds": [42, 42, 43]}, 2, "seed 42 is given twice"),
    ({"seeds": 0}, 2, "seeds"),
    ({"suite": "maths"}, 2, "math"),
    ({"suite": "math", "suites": ["code"]}, 2, "suite"),
    ({"tasks": ["AIME24", "AIME24"]}, 2, "AIME24"),
    ({"tasks": ["arithmetics"]}, 2, "did you mean arithmetic"),
    ({"tasks": []}, 2, "nothing to evaluate"),
    ({"limit": 0}, 2, "limit"),
    ({"chat_template": "/nope.jinja"}, 2, "chat_template: /nope.jinja"),
    ({"engine": {"profile": "h100"}}, 2, "engine.profile"),
    ({"engine": {"kind": "endpoint"}}, 2, "url and socket"),
    ({"engine": {"replicas": 0}}, 2, "engine.replicas"),
    ({"suite": "science", "data": "/proc/no-data"}, 4, "GPQADiamond"),
]


@pytest.mark.parametrize(("changes", "code", "words"), WRONG, ids=[json.dumps(w[0])[:60] for w in WRONG])
def test_a_wrong_job_is_refused_in_one_paragraph(bench: Bench, changes: dict[str, Any], code: int, words: str) -> None:
    assert bench.run(**changes) == code
    out, err = bench.said()
    assert words in err
    assert "Traceback" not in err
    assert err.count("\n\n") == 0
    assert out == ""
    assert not (bench.folder / "results").exists()
    assert bench.engine_starts() == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("- a\n- b\n", "no `key: value` lines"),
        ("experiment: [\n", "YAML"),
        ("experiment: x\nexperiment: y\n", "duplicate key"),
        ("experiment: no\ncheckpoint: /x\ntasks: [AIME24]\n", "quote"),
        ("experiment: x\ncheckpoint: /x\ntasks: [AIME24]\nsampling: {temperature: 1e-5}\n", "1e-5"),
        ("experiment: x\ncheckpoint: /x\ntasks: [AIME24]\ntask_timeout_s: 12:00:00\n", "12:00:00"),
        ("experiment: 2026_08\ncheckpoint: /x\ntasks: [AIME24]\n", "2026_08"),
        ("\x00\x01", "YAML"),
    ],
)
def test_what_is_no_job_file_is_said_with_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    file = tmp_path / "j.yaml"
    file.write_text(text)
    assert run_command(["run", str(file)], os.environ) == 2
    err = capsys.readouterr().err
    assert "j.yaml" in err
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize(("name", "words"), [("absent.yaml", "absent.yaml"), (".", "is a directory")])
def test_a_job_that_is_no_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    assert run_command(["run", str(tmp_path / name)], os.environ) == 2
    assert words in capsys.readouterr().err


def test_a_results_folder_that_can_not_be_written_is_named(bench: Bench) -> None:
    (bench.folder / "file").write_text("")
    assert bench.run(results=str(bench.folder / "file")) == 4
    _, err = bench.said()
    assert "results:" in err
    assert "Traceback" not in err


def test_a_file_system_that_takes_no_folder_is_named(bench: Bench) -> None:
    assert bench.run(results="/proc/results") == 4
    _, err = bench.said()
    assert "results: /proc/results" in err


def test_of_several_jobs_a_wrong_one_stops_all_before_any_starts(bench: Bench, capsys: Any) -> None:
    good = bench.write()
    bad = bench.folder / "bad.yaml"
    bad.write_text("experiment: x\n")
    assert run_command(["run", str(good), str(bad)], os.environ) == 2
    assert not (bench.folder / "results").exists()


def test_plan_prints_what_it_can_then_what_it_refuses(bench: Bench) -> None:
    assert bench.run(command="plan", suite="math", checkpoint="/nope", tasks=[], seeds=None, data="/proc/no-data") == 4
    out, err = bench.said()
    assert "AIME24" in out
    assert "42…51" in out
    assert "HMMT" in err
    assert "/nope: not a directory" in err
    assert not (bench.folder / "results").exists()


def test_plan_of_a_good_job_names_every_value_with_its_origin(bench: Bench) -> None:
    assert bench.run(command="plan") == 0
    out, _ = bench.said()
    assert str(STEP_300) in out
    assert "max_num_seqs             32  (profile)" in out
    assert bench.run("--json", command="plan") == 0
    out, _ = bench.said()
    assert json.loads(out)["plan"]["evaluation"]["tasks"][0]["name"] == "arithmetic"


def test_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["schema"], {}) == 0
    assert "sampling" in json.loads(capsys.readouterr().out)["properties"]


def test_a_checkpoint_without_a_step_has_none_in_its_folder(bench: Bench) -> None:
    (bench.folder / "final").symlink_to(STEP_300)
    copy = bench.folder / "model"
    copy.mkdir()
    for file in STEP_300.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert bench.run(checkpoint=str(copy), limit=2, seeds=1) == 0
    assert (bench.folder / "results/exp-limit2/results.json").is_file()
    assert bench.run(checkpoint=str(bench.folder / "final"), limit=2, seeds=1) == 0
    assert (bench.folder / "results/exp-step300-limit2/results.json").is_file()
