"""Errors that a user can cause, each one line in one style: ``must (got value) in where``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

MAX_SHOWN = 80
MAX_LISTED = 12


class StepsimError(ValueError):
    """Base of every error that stepsim raises on purpose; its text is one line."""


class InputError(StepsimError):
    """Input that breaks a rule, rendered as ``must (got got) in where``.

    ``must`` names the thing and its rule ("tp must divide heads"), ``got`` is the value that broke
    it (leave it out when there is none to show), ``where`` the file, line or dotted key.
    """

    def __init__(self, must: str, got: object = ..., where: str | None = None) -> None:
        super().__init__(must, got, where)
        self.must = must
        self.got = got
        self.where = where

    def __str__(self) -> str:
        parts = [_one_line(self.must)]
        if self.got is not ...:
            parts.append(f"(got {_shown(self.got)})")
        if self.where:
            parts.append(f"in {_one_line(self.where)}")
        return " ".join(parts)


def unknown_name(
    kind: str, name: str, known: Iterable[str], where: str | None = None
) -> InputError:
    """The error for a ``kind`` called ``name`` that is not among ``known``, with the nearest."""
    names = sorted(set(known))
    near = _nearest(name, names)
    if near:
        return InputError(f"{kind} must be a known name, nearest: {', '.join(near)}", name, where)
    listed = ", ".join(names[:MAX_LISTED]) + (", ..." if len(names) > MAX_LISTED else "")
    return InputError(f"{kind} must be one of {listed}", name, where)


def from_validation(
    error: ValidationError, where: str | None = None, model: type[BaseModel] | None = None
) -> InputError:
    """The first problem of a pydantic error as one line whose place is ``where:dotted.key``.

    An unexpected key is told before a missing one, which is usually the same slip, and is answered
    with the nearest known keys when ``model``, the class that was validated, is given.
    """
    detail = _most_telling(error)
    cause = detail.get("ctx", {}).get("error")
    location = tuple(part for part in detail["loc"] if part != "[key]")
    key = ".".join(str(part) for part in location)
    place = ":".join(part for part in (where, key) if part) or None
    if isinstance(cause, InputError):
        return InputError(cause.must, cause.got, cause.where or place)
    name = str(location[-1]) if location else "input"
    if detail["type"] == "extra_forbidden":
        known = _fields(model, location[:-1]) if model else []
        return unknown_name("key", name, known, place) if known else _unexpected(name, place)
    if detail["type"] == "missing":
        return InputError(f"{name} must be given", where=place)
    return InputError(_rule(name, detail["msg"]), detail["input"], place)


def _most_telling(error: ValidationError) -> ErrorDetails:
    details = error.errors(include_url=False)
    unexpected = [each for each in details if each["type"] == "extra_forbidden"]
    return unexpected[0] if unexpected and details[0]["type"] == "missing" else details[0]


def _unexpected(name: str, place: str | None) -> InputError:
    return InputError("key must be a known name", name, place)


def _rule(name: str, message: str) -> str:
    """Pydantic's "Input should be ..." as "name must be ..."; other messages after the name."""
    for start in ("Input should ", "Value error, "):
        if message.startswith(start):
            rest = message.removeprefix(start)
            return f"{name} must {rest}" if start.startswith("Input") else rest
    return f"{name} must be valid: {message[:1].lower()}{message[1:]}"


def _nearest(name: str, known: list[str]) -> list[str]:
    by_folded = {entry.casefold(): entry for entry in known}
    close = get_close_matches(name.casefold(), by_folded, n=3, cutoff=0.6)
    return [by_folded[entry] for entry in close]


def _fields(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Field names (aliases where given) of the nested model that ``location`` leads to."""
    models = [model]
    for part in location:
        models = [inner for outer in models for inner in _below(outer, part)] or models
    fields = (item for each in models for item in each.model_fields.items())
    return sorted({field.alias or name for name, field in fields})


def _below(model: type[BaseModel], part: int | str) -> list[type[BaseModel]]:
    for name, field in model.model_fields.items():
        if part in (name, field.alias):
            return list(_models_in(field.annotation))
    return []


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Model classes inside an annotation such as ``Mapping[str, Gpu] | None``."""
    if get_origin(annotation) in (Union, UnionType) or get_args(annotation):
        for argument in get_args(annotation):
            yield from _models_in(argument)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    text = _one_line(value if isinstance(value, str) and value.strip() else repr(value))
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def _one_line(text: str) -> str:
    return " ".join(str(text).split())
