"""What preflight says of the engine must be what the installed engine does.

Incidents: a context that the engine refuses after the weights were copied to the card, or that preflight refuses
though the engine takes it (rope scaling counted twice); a list of architectures that is of another version.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from entrypoint.architecture import completed, load_models
from entrypoint.context import limit_of

ROOT = Path(__file__).parents[2]
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096}
QWEN3 = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "max_position_embeddings": 40960}
GEMMA3 = {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "max_position_embeddings": 131072}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
PHI3 = {
    "model_type": "phi3",
    "architectures": ["Phi3ForCausalLM"],
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [1.0] * 48},
}
CONFIGS: tuple[dict[str, Any], ...] = (
    LLAMA,
    {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
    {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_positions": 512},
    {**LLAMA, "rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}},
    {**LLAMA, "rope_theta": 1e4, "rope_scaling": {"rope_type": "dynamic", "factor": 2.5}},
    {**LLAMA, "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500000.0}},
    {**LLAMA, "max_position_embeddings": 131072, "rope_theta": 5e5, "rope_scaling": LLAMA3},
    {**QWEN3, "rope_theta": 1e6, "rope_scaling": YARN},
    {**QWEN3, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    PHI3,
    {**GEMMA3, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    {**QWEN3, "seq_length": 2048},
    {**QWEN3, "model_max_length": 99999},
    {
        "model_type": "qwen2_vl",
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "text_config": LLAMA | {"model_type": "qwen2_vl_text"},
    },
)


def test_the_derived_context_is_that_of_the_engine(engine_python: Path, tmp_path: Path) -> None:
    models = load_models(ROOT)
    arguments, expected = [], []
    for n, config in enumerate(CONFIGS):
        (tmp_path / str(n)).mkdir()
        (tmp_path / str(n) / "config.json").write_text(json.dumps(config))
        limit = limit_of(completed(config, models))
        lengths = (limit.tokens, limit.tokens + 1) if limit is not None else (10**6, 10**7)
        arguments += [f"{tmp_path / str(n)}:{length}" for length in lengths]
        expected += [True, limit is None]
    script = Path(__file__).parent / "context_limit.py"
    environ = {"HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [str(engine_python), str(script), *arguments], env=environ, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    taken = json.loads(done.stdout.splitlines()[-1])
    wrong = [(a, e, t) for a, e, t in zip(arguments, expected, taken, strict=True) if e != t]
    assert not wrong, [(CONFIGS[int(Path(a.rsplit(":", 1)[0]).name)], a, e) for a, e, _ in wrong]


def test_the_committed_list_of_models_is_that_of_the_installed_engine(engine_python: Path) -> None:
    done = subprocess.run(
        [str(engine_python), str(ROOT / "locks/list_models.py")], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    file = ROOT / "profiles/engine/vllm.json"  # made by `make models`
    assert file.read_text(encoding="utf-8") == done.stdout
