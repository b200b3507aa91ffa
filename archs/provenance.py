"""Where each number of a descriptor comes from.

In a descriptor file every value is a table ``{ value = ..., source = "key", kind = "spec" }`` with
an optional ``note``; ``source`` is a key of the file's ``[sources]`` table. ``split`` turns such a
file into plain values and one ``Provenance`` for each dotted path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .errors import InputError, from_validation, unknown_name

Kind = Literal["spec", "measured", "projected"]


class Frozen(BaseModel):
    """Base of every descriptor: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Provenance(Frozen):
    """Origin of one value.

    ``source`` is the text of the source, ``kind`` how the value came about: "spec" (printed or
    derived from what is printed), "measured" (read from a device) or "projected" (an assumption or
    a figure for a product that is not out); ``note`` says where sources disagree.
    """

    source: str = Field(min_length=1)
    kind: Kind
    note: str | None = None


OVERRIDE = Provenance(source="override", kind="projected")
"""The origin of a value that the user has set."""


class _Entry(Frozen):
    """One value as it stands in a file."""

    value: Any
    source: str
    kind: Kind
    note: str | None = None


class _Splitter:
    """Walks one file's tables; ``plain`` keys may stand without provenance."""

    def __init__(self, sources: Mapping[str, str], plain: frozenset[str], where: str) -> None:
        self.sources = sources
        self.plain = plain
        self.where = where
        self.found: dict[str, Provenance] = {}

    def table(self, raw: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        return {key: self._item(f"{prefix}{key}", item) for key, item in raw.items()}

    def _item(self, path: str, item: Any) -> Any:
        if path in self.plain:
            return item
        if not isinstance(item, Mapping):
            must = f"{path.rpartition('.')[2]} must be a table with value, source and kind"
            raise InputError(must, item, f"{self.where}:{path}")
        if "value" not in item and any(isinstance(inner, Mapping) for inner in item.values()):
            return self.table(item, f"{path}.")
        return self._entry(path, item)

    def _entry(self, path: str, item: Mapping[str, Any]) -> Any:
        place = f"{self.where}:{path}"
        try:
            entry = _Entry.model_validate(item)
        except ValidationError as error:
            found = from_validation(error, None, _Entry)
            raise InputError(found.must, found.got, f"{place}.{found.where}") from None
        if entry.source not in self.sources:
            raise unknown_name("source", entry.source, self.sources, f"{place}.source")
        text = self.sources[entry.source]
        self.found[path] = Provenance(source=text, kind=entry.kind, note=entry.note)
        return entry.value


def split(
    raw: Mapping[str, Any], plain: frozenset[str], where: str
) -> tuple[dict[str, Any], dict[str, Provenance]]:
    """Plain values of a descriptor file, and the provenance of each by dotted path.

    ``plain`` lists the keys that need no provenance (identity). Raises InputError for a value
    without provenance, an unknown source key, or a malformed entry.
    """
    sources = raw.get("sources", {})
    if not isinstance(sources, Mapping) or not all(isinstance(s, str) for s in sources.values()):
        raise InputError("sources must be a table of texts", sources, f"{where}:sources")
    splitter = _Splitter(sources, plain, where)
    rest = {key: item for key, item in raw.items() if key != "sources"}
    return splitter.table(rest), splitter.found


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted path and value of everything in nested tables that is no table itself."""
    for key, item in values.items():
        if isinstance(item, Mapping):
            yield from leaves(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item


def lookup(provenance: Mapping[str, Provenance], path: str, where: str) -> Provenance:
    """The provenance of ``path``; raises InputError with the nearest paths when it has none."""
    if path not in provenance:
        raise unknown_name("path", path, provenance, where)
    return provenance[path]
