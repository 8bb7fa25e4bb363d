"""Whether tokenizer, config, weights and end tokens of a checkpoint speak of one vocabulary.

In: the facts of each. Out: a CheckpointError where the engine would fail or read another token, else warnings.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from entrypoint.errors import CheckpointError
from entrypoint.template import end_token
from entrypoint.tokenizer import Tokenizer
from entrypoint.weights import Weights

# The input embedding under the names that savers give it; other names are not checked.
_EMBEDDINGS = (
    "model.embed_tokens.weight",
    "language_model.model.embed_tokens.weight",
    "model.language_model.embed_tokens.weight",
    "model.tok_embeddings.weight",
    "transformer.wte.weight",
    "transformer.word_embeddings.weight",
    "gpt_neox.embed_in.weight",
)
_PLAIN = ("BF16", "F16", "F32")


def refuse_outside(
    folder: Path, tokenizer: Tokenizer, template: str | None, weights: Weights, vocab_size: int | None
) -> None:
    """Refuses an embedding of another size than the config says, and tokens that it has no row for."""
    rows = _embedding_rows(weights)
    if rows is not None and vocab_size is not None and rows != vocab_size:
        raise CheckpointError(
            f"{folder}: the embedding has {rows} rows where config.json says vocab_size {vocab_size}; save config and "
            "weights of one model together"
        )
    room = vocab_size if vocab_size is not None else rows
    if room is None:
        return
    if tokenizer.largest_id is not None and tokenizer.largest_id >= room:
        raise CheckpointError(
            f"{folder}: the tokenizer's vocabulary reaches id {tokenizer.largest_id}, the model has {room} tokens; "
            "put the tokenizer that the model was trained with beside it"
        )
    for text, number in _used(tokenizer, template):
        if number >= room:
            raise CheckpointError(
                f"{folder}: {text} has id {number}, the model has {room} tokens; resize the model's embedding, or use "
                "the tokenizer that it was trained with"
            )


def _embedding_rows(weights: Weights) -> int | None:
    for tensor in weights.tensors():
        if tensor.name in _EMBEDDINGS and tensor.dtype in _PLAIN and len(tensor.shape) == 2:
            return tensor.shape[0]
    return None


def _used(tokenizer: Tokenizer, template: str | None) -> Iterator[tuple[str, int]]:
    """The added tokens that prompts are made of: special ones, and those that the template writes."""
    for text, number in {**tokenizer.added, **tokenizer.known}.items():
        special = text in (tokenizer.special.get("bos_token"), tokenizer.special.get("eos_token"))
        if special or (template is not None and text and text in template):
            yield text, number


def vocabulary_notices(
    tokenizer: Tokenizer, template: str | None, eos: tuple[int, ...], vocab_size: int | None
) -> Iterator[str]:
    """Tokens out of the model's reach that no prompt needs, and end tokens that disagree."""
    yield from tokenizer.warnings
    beyond = [text for text, number in tokenizer.added.items() if vocab_size is not None and number >= vocab_size]
    if beyond:
        yield f"added tokens without a row in the model: {len(beyond)}, such as {beyond[0]!r}; no prompt needs them"
    for name, text in tokenizer.special.items():
        if name in ("bos_token", "eos_token") and text not in {**tokenizer.written, **tokenizer.known}:
            yield f"tokenizer_config.json: {name} {text!r} is not in the tokenizer; the model never saw it"
    outside = [number for number in eos if number < 0 or (vocab_size is not None and number >= vocab_size)]
    if outside:
        yield f"eos_token_id {outside[0]} is not a token of the model ({vocab_size} tokens); it can't end an answer"
    ending = _ending(tokenizer, template)
    if ending is not None and ending[1] not in eos:
        text, number, whose = ending
        listed = f"eos_token_id {list(eos)} lacks" if eos else "neither generation_config.json nor config.json names"
        yield f"{listed} {number} ({text}), {whose}; answers may run to max_tokens"


def _ending(tokenizer: Tokenizer, template: str | None) -> tuple[str, int, str] | None:
    """The token that ends an answer: what the template writes after one, else the tokenizer's own."""
    if template is not None:
        ids = {**tokenizer.known, **tokenizer.written}
        text = end_token(template, ids, tokenizer.special)
        if text is not None:
            return text, ids[text], "which ends an answer in the chat template"
    own = tokenizer.eos
    return None if own is None or own[1] is None else (own[0], own[1], "the tokenizer's end token")
