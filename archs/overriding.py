"""Changing values of a descriptor by dotted path (``--set path=value``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from .errors import InputError
from .provenance import OVERRIDE, Provenance, leaves
from .reading import set_path


def plain_values(descriptor: BaseModel) -> dict[str, Any]:
    """The nested values of a descriptor without provenance and without what is None."""
    return descriptor.model_dump(exclude={"provenance"}, exclude_none=True)


def apply_overrides(
    values: dict[str, Any], provenance: Mapping[str, Provenance], overrides: Mapping[str, str]
) -> dict[str, Provenance]:
    """Set each path of ``values`` in place; the provenance that results, changed paths marked.

    Raises InputError for a path that names provenance itself or leads through a value.
    """
    changed = dict(provenance)
    for path, text in overrides.items():
        if path.split(".")[0] == "provenance":
            raise InputError("path must name a value, not its provenance", path, "overrides")
        set_path(values, path, text)
        _mark(changed, values, path)
    return changed


def _mark(provenance: dict[str, Provenance], values: dict[str, Any], path: str) -> None:
    """Note that the value at ``path``, or each value of the table there, is the user's."""
    for known in [known for known in provenance if known.startswith(f"{path}.")]:
        del provenance[known]
    item: Any = values
    for part in path.split("."):
        item = item[part.strip()]
    paths = [leaf for leaf, _ in leaves(item, f"{path}.")] if isinstance(item, dict) else [path]
    provenance.update(dict.fromkeys(paths, OVERRIDE))
