"""The chat template of a checkpoint: where it is kept, and which token it ends an answer with.

In: the checkpoint folder, or a template's text. Out: text; CheckpointError where it can't be read or parsed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from entrypoint.errors import CheckpointError
from entrypoint.json_file import read_object

_ANSWER = "An answer 4711."


def read_template(folder: Path) -> str | None:
    """The default chat template in any of its homes; an empty one counts as none."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            text = file.read_text(encoding="utf-8")
        except ValueError as err:
            raise CheckpointError(f"{file}: can't be read as UTF-8 text ({err}); save the template again") from err
        return text if text.strip() else None
    for name in ("chat_template.json", "tokenizer_config.json"):
        value = _default(read_object(folder, name).get("chat_template"))
        if value is not None:
            _refuse_unstorable(folder / name, value)
            return value
    return None


def _default(value: object) -> str | None:
    """One template, or the one named default of several: `[{"name": …, "template": …}]` or `{name: template}`."""
    if isinstance(value, list):
        value = {str(t.get("name")): t.get("template") for t in value if isinstance(t, dict)}
    if isinstance(value, dict):
        value = value.get("default")
    return value if isinstance(value, str) and value.strip() else None


def _refuse_unstorable(file: Path, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as err:
        raise CheckpointError(f"{file}: chat_template: holds half a character; save the template again") from err


def end_token(template: str, tokens: Iterable[str], variables: Mapping[str, Any]) -> str | None:
    """Which of `tokens` the template writes right after an answer; None where it writes none or can't be tried.

    `variables`: what the template may use beside the messages, such as eos_token.
    """
    from jinja2.exceptions import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    messages = [{"role": "user", "content": "A question."}, {"role": "assistant", "content": _ANSWER}]
    try:
        text = environment.from_string(template).render(
            messages=messages, add_generation_prompt=False, strftime_now=lambda _: "2026-01-01", **variables
        )
    except (
        TemplateError,
        SyntaxError,
        TypeError,
        ValueError,
        LookupError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ):
        return None  # what is wrong with it is said when the prompts are made
    _, found, rest = text.rpartition(_ANSWER)
    places = [(rest.find(token), -len(token), token) for token in tokens if token and found and token in rest]
    return min(places)[2] if places else None
