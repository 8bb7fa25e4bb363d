"""The kinds of values that people write in our files, and what to say when one of them is wrong.

In: a Document and the model it has to fit. Out: the model, or a JobError that names the place, the key,
the value, the rule and the nearest name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from entrypoint.errors import JobError
from entrypoint.yaml_file import ABSENT, Document, Key, value_at

MAX_INT = 2**31 - 1
Model = TypeVar("Model", bound=BaseModel)


class RuleError(ValueError):
    """A broken rule of a model; `key` leads from the model that found it to the key to blame."""

    def __init__(self, what: str, *key: str | int, show_value: bool = True) -> None:
        super().__init__(what)
        self.key: Key = key
        self.show_value = show_value


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty; write something, or leave the line out")
    if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
        raise ValueError("holds a character that can't be stored; delete it")
    return text


def _line(text: str) -> str:
    if not all(c.isprintable() for c in _text(text)):
        raise ValueError("holds a control or invisible character; delete it")
    return text


def _path(text: str) -> str:
    if text.startswith("~") or re.match(r"\$\w|.*\$\{", _line(text)):
        raise ValueError("~ and $VARIABLES are not expanded in a job file; write the path itself")
    return text


def _name(text: str) -> str:
    """One safe component of a path: experiment and task names become folder names."""
    if set(_line(text)) & set("/\\") or text[0] in "._-" or text != text.strip():
        raise ValueError("becomes a folder name: no / or \\, no blank at an end, and no . _ - as first character")
    if len(text.encode()) > 200:
        raise ValueError("becomes a folder name, which holds at most 200 bytes; write a shorter one")
    return text


Count = Annotated[int, Field(ge=1, le=MAX_INT)]
Size = Annotated[int, Field(ge=0, le=MAX_INT)]
Lax = Field(strict=False)  # files have lists, models have tuples
Positive = Annotated[float, Field(gt=0)]
Text = Annotated[str, AfterValidator(_text)]
Line = Annotated[str, AfterValidator(_line)]
PathText = Annotated[str, AfterValidator(_path)]
Name = Annotated[str, AfterValidator(_name)]
Lines = Annotated[tuple[Line, ...], Lax]


class Section(BaseModel):
    """A mapping in a file: no unknown keys, and no value turned into another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def checked(model: type[Model], document: Document) -> Model:
    """The document as a `model`, or the JobError for one wrong key; an unknown key explains most."""
    try:
        return model.model_validate(document.data)
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False)
    for error in errors:
        if error["type"] == "extra_forbidden":
            raise document.refusal(error["loc"], _unknown_key(model, error["loc"]), show_value=False)
    raise _wrong_value(document, errors)


def nearest(word: str, names: Iterable[str]) -> str | None:
    """The name that `word` is probably a misspelling of, whatever its case and dashes."""
    plain = {name.lower().replace("-", "_"): name for name in names}
    close = difflib.get_close_matches(word.lower().replace("-", "_"), plain, n=1)
    return plain[close[0]] if close else None


def _unknown_key(model: type[BaseModel], key: Key) -> str:
    """What to say about a key its section lacks: the nearest name there, and the sections that have it."""
    *inside, word = [str(part) for part in key if isinstance(part, str)]
    here = model
    for part in inside:
        here = _section(here.model_fields[part].annotation) or here
    names = [one.alias or name for name, one in here.model_fields.items()]
    found = nearest(word, names)
    spelled = bool(found) and found == word.lower().replace("-", "_")
    elsewhere = _homes(model, word) if here is model and not spelled else []
    if here is not model and word in model.model_fields:
        elsewhere = [f"{word} at the top level"]
    offers = ([found] if found else []) + elsewhere
    if offers:
        return f"unknown key; did you mean {' or '.join(offers)}?"
    return f"unknown key; the keys here are {', '.join(names)}"


def _homes(model: type[BaseModel], word: str) -> list[str]:
    """The sections of a model that have a key like `word`; when one has that very key, only such."""
    homes = {}
    for name, each in model.model_fields.items():
        section = _section(each.annotation)
        like = section and nearest(word, section.model_fields)
        if section and like:
            direct = section is each.annotation
            homes[f"{name}.{like}" if direct else f"{like} in an entry of {name}"] = (
                like != word,
                not direct,
            )
    best = sorted(homes, key=lambda home: homes[home])
    exact = [home for home in best if not homes[home][0]]
    return exact or best


def _section(annotation: Any) -> type[BaseModel] | None:
    """The model inside a field's type, if there is one (`tuple[TaskSpec, ...]` gives TaskSpec)."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_section, get_args(annotation))), None)


def _wrong_value(document: Document, errors: Sequence[ErrorDetails]) -> JobError:
    first = errors[0]
    if first["type"] == "missing":
        return document.refusal(first["loc"], "is missing; add it")
    key = _written(document.data, first)
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, RuleError):
        return document.refusal((*key, *cause.key), str(cause), show_value=cause.show_value)
    if cause is not None:
        return document.refusal(key, str(cause))
    same = [_expected(error) for error in errors if _written(document.data, error) == key]
    what = " or ".join(dict.fromkeys(same))
    return document.refusal(key, f"must be {what}{_advice(what, value_at(document.data, key))}")


def _written(data: Any, error: ErrorDetails) -> Key:
    """The key of an error, without the parts pydantic adds for the members of a union."""
    key = error["loc"]
    return next(key[:n] for n in range(len(key), -1, -1) if value_at(data, key[:n]) is not ABSENT)


def _expected(error: ErrorDetails) -> str:
    """What pydantic expected, in the words of the file rather than of Python."""
    text = re.sub("valid dictionary( or instance.*)?", "`key: value` mapping", error["msg"])
    text = re.sub("Tuple should have at least.*", "a list that is not empty", text)
    text = text.replace("valid tuple", "list, as in [one, two]").replace("valid integer", "whole number")
    text = text.replace("a valid string", "text").replace("a valid boolean", "true or false")
    return text.removeprefix("Input should be ").replace("'", "")


def _advice(expected: str, value: Any) -> str:
    """What to do about it, where the type of the value shows what was meant."""
    if value is None:
        return "; give a value, or leave the line out"
    if expected.startswith("text") and isinstance(value, (bool, int, float)):
        return f'; put it in quotes: "{value}"'
    if isinstance(value, float) and value.is_integer():
        return f"; write {int(value)}"
    numeric = isinstance(value, str) and re.fullmatch(r"[-+]?[0-9]*\.?[0-9]+", value)
    return "; write it without quotes" if numeric and "number" in expected else ""
