"""Which models the pinned engine can load, and whether a checkpoint's config is one of them.

In: profiles/engine/vllm.json (`make models` writes it from the engine environment) and config.json. Out: refusals and
warnings; a config completed with what its class takes for values that the file leaves out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entrypoint.context import rope_parameters
from entrypoint.errors import CheckpointError
from entrypoint.shape import text_part

_TRUST = "set engine.trust_remote_code: true if you trust that code"


@dataclass(frozen=True, kw_only=True, slots=True)
class Models:
    """What one version of the engine knows.

    `generating`: architectures it has code for; `through_transformers`: those it runs with that library's code;
    `other`: those it knows for another use, with that use; `until`: those it had, with the last version that did.
    `typed_by_architecture`: model types of configs without one. `defaults`: a config class's own values by model type.
    """

    vllm: str
    transformers: str
    generating: frozenset[str]
    through_transformers: frozenset[str]
    other: Mapping[str, str]
    until: Mapping[str, str]
    typed_by_architecture: Mapping[str, str]
    model_types: frozenset[str]
    tokenizer_classes: frozenset[str]
    rope_types: frozenset[str]
    defaults: Mapping[str, Mapping[str, Any]]


def load_models(root: Path) -> Models:
    """The list of the pinned engine, from the program's root folder."""
    listed = json.loads((root / "profiles/engine/vllm.json").read_bytes())
    return Models(
        vllm=listed["vllm"],
        transformers=listed["transformers"],
        generating=frozenset(listed["generating"]),
        through_transformers=frozenset(listed["through_transformers"]),
        other=listed["other"],
        until=listed["until"],
        typed_by_architecture=listed["typed_by_architecture"],
        model_types=frozenset(listed["model_types"]),
        tokenizer_classes=frozenset(listed["tokenizer_classes"]),
        rope_types=frozenset(listed["rope_types"]),
        defaults=listed["defaults"],
    )


def completed(config: Mapping[str, Any], models: Models) -> dict[str, Any]:
    """`config` with the class's own values for what its language part leaves out, where the class is known."""
    text = text_part(config)
    own = models.defaults.get(str(text.get("model_type")), {})
    return _replaced(config, text, {**own, **text})


def _replaced(config: Mapping[str, Any], old: Mapping[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    if config is old:
        return new
    return {
        key: _replaced(value, old, new) if isinstance(value, Mapping) and _holds(value, old) else value
        for key, value in config.items()
    }


def _holds(config: Mapping[str, Any], part: Mapping[str, Any]) -> bool:
    return config is part or any(isinstance(v, Mapping) and _holds(v, part) for v in config.values())


def refusals(
    folder: Path, config: Mapping[str, Any], tokenizer: Mapping[str, Any], models: Models, *, trust_remote_code: bool
) -> Iterator[CheckpointError]:
    """Why the engine, or the program's own tokenizer library, would refuse these configs."""
    for told in (
        _wrong_type(config, models, trust_remote_code),
        _wrong_architecture(config, models, trust_remote_code),
        _wrong_rope(config, models),
        _wrong_tokenizer(tokenizer, models, trust_remote_code),
        *(_absent_code(folder, name, config, tokenizer) for name in ("config", "tokenizer") if trust_remote_code),
    ):
        if told is not None:
            yield CheckpointError(f"{folder}: {told}")


def _remote(config: Mapping[str, Any], prefix: str) -> str | None:
    """The class of the checkpoint's own code that `auto_map` names for a use."""
    mapped = config.get("auto_map")
    if not isinstance(mapped, Mapping):
        return None
    found = (value for key, value in mapped.items() if key.startswith(prefix))
    named = next(found, None)
    named = next(filter(None, named), None) if isinstance(named, list) else named
    return named if isinstance(named, str) and named else None


def _wrong_type(config: Mapping[str, Any], models: Models, trusted: bool) -> str | None:
    model_type = config.get("model_type")
    if model_type is None and any(name in models.typed_by_architecture for name in architectures_of(config)):
        return None
    if isinstance(model_type, str) and model_type in models.model_types:
        return None
    told = "config.json: no model_type" if model_type is None else f"config.json: model_type {model_type!r} is unknown"
    told += f" to transformers {models.transformers}, which the engine uses"
    if (own := _remote(config, "AutoConfig")) is None:
        return f"{told}; use a program that has a newer engine, or save the model with a type that this one knows"
    return None if trusted else f"{told}; it brings its own code ({own}): {_TRUST}"


def architectures_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The names in `architectures`."""
    named = config.get("architectures")
    names = named if isinstance(named, list) else ()
    return tuple(name for name in names if isinstance(name, str) and name.isprintable())


def _wrong_architecture(config: Mapping[str, Any], models: Models, trusted: bool) -> str | None:
    named = architectures_of(config)
    if not named:
        return "config.json: architectures: names none; add the model's class, such as [Qwen3ForCausalLM]"
    if any(name in models.generating | models.through_transformers for name in named):
        return None
    if use := next((models.other[name] for name in named if name in models.other), None):
        return f"config.json: architectures {list(named)}: the engine knows it for {use} only, not for generating text"
    told = f"config.json: architectures {list(named)}: unknown to vLLM {models.vllm}"
    if last := next((models.until[name] for name in named if name in models.until), None):
        return f"{told}, which had it up to {last}; convert the model to a class that it has"
    if (own := _remote(config, "AutoModel")) is None:
        return f"{told}; use a program that has a newer engine, or save the model as a class that this one knows"
    return None if trusted else f"{told}; it brings its own code ({own}): {_TRUST}"


def _wrong_rope(config: Mapping[str, Any], models: Models) -> str | None:
    """Savers from transformers 5 on keep rope_theta in rope_parameters only, which an older reader passes over."""
    text = text_part(config)
    old = int(models.transformers.partition(".")[0]) < 5
    if old and isinstance(text.get("rope_parameters"), Mapping) and "rope_theta" not in text:
        return (
            "config.json: rope_theta is in rope_parameters only, as transformers 5 saves it; the engine has "
            f"transformers {models.transformers}, which would take 10000: use a program that has 5 or later"
        )
    for rope in rope_parameters(text):
        kind = rope.get("rope_type", rope.get("type", "default"))
        # mrope is the name that older savers give to the default with sections for images.
        if kind not in ("mrope", "su") and (not isinstance(kind, str) or kind not in models.rope_types):
            known = ", ".join(sorted(models.rope_types))
            return f"config.json: rope type {kind!r} is unknown to vLLM {models.vllm}, which knows {known}"
    return None


def _wrong_tokenizer(tokenizer: Mapping[str, Any], models: Models, trusted: bool) -> str | None:
    name, own = tokenizer.get("tokenizer_class"), _remote(tokenizer, "AutoTokenizer")
    if own is None or trusted:
        return None
    known = isinstance(name, str) and ({name, name.removesuffix("Fast")} & models.tokenizer_classes)
    if known or name in ("PreTrainedTokenizerFast", "TokenizersBackend"):
        return None
    return f"tokenizer_config.json: {name or 'no tokenizer_class'} is the checkpoint's own code ({own}): {_TRUST}"


def _absent_code(folder: Path, which: str, config: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> str | None:
    """Trusted code must lie in the folder: nothing is fetched."""
    source, prefixes = (config, ("AutoConfig", "AutoModel")) if which == "config" else (tokenizer, ("AutoTokenizer",))
    for own in filter(None, (_remote(source, prefix) for prefix in prefixes)):
        module = own.partition(".")[0]
        there = bool(re.fullmatch(r"\w+", module)) and (folder / f"{module}.py").is_file()
        if not there:
            return f"auto_map names {own}, and {module}.py is not in the folder; copy it there, nothing is fetched"
    return None


def notices(config: Mapping[str, Any], models: Models) -> Iterator[str]:
    """What a person should know of a config that the engine takes."""
    named = architectures_of(config)
    if not any(name in models.generating for name in named) and set(named) & models.through_transformers:
        yield f"{named[0]}: vLLM {models.vllm} has no code of its own for it and runs it with that of transformers"
    saved = re.match(r"\d+", str(config.get("transformers_version", "")))
    if saved and int(saved[0][:9]) > int(models.transformers.partition(".")[0]):
        yield (
            f"config.json was saved by transformers {config['transformers_version']!r}, the engine has "
            f"{models.transformers}: check that it reads every field"
        )
    text = text_part(config)
    outer = text.get("rope_theta")
    inner = next((r["rope_theta"] for r in rope_parameters(text) if "rope_theta" in r), outer)
    if outer is not None and outer != inner:
        yield f"config.json: rope_theta is {outer!r} and {inner!r} in rope_parameters; the engine takes the latter"
