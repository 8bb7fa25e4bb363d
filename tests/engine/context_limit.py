"""Run by the engine's interpreter: does the engine take a max_model_len for a config? Folders and lengths as argv."""

from __future__ import annotations

import json
import sys

from vllm.config.model import _get_and_verify_max_len
from vllm.transformers_utils.config import get_config, get_hf_text_config
from vllm.transformers_utils.model_arch_config_convertor import (
    MODEL_ARCH_CONFIG_CONVERTORS,
    ModelArchConfigConvertorBase,
)


def takes(folder: str, length: int) -> bool:
    config = get_config(folder, trust_remote_code=False)
    text = get_hf_text_config(config)
    convertor = MODEL_ARCH_CONFIG_CONVERTORS.get(config.model_type, ModelArchConfigConvertorBase)
    try:
        _get_and_verify_max_len(text, convertor(config, text).convert(), None, length, False, None)
    except ValueError:
        return False
    return True


print(json.dumps([takes(folder, int(length)) for folder, length in (a.rsplit(":", 1) for a in sys.argv[1:])]))
