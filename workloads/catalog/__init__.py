"""Named model shapes shipped with the package."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from archs.errors import from_validation, unknown_name
from archs.reading import read_toml

from ..model import FAMILY_DEFAULTS, Model, ResNet50, TransformerModel

PATH = Path(__file__).parent / "models.toml"
FAMILIES = (*FAMILY_DEFAULTS, "resnet50")


@cache
def _entries() -> dict[str, dict[str, Any]]:
    return dict(read_toml(PATH))


def model_ids() -> list[str]:
    """Names of the catalog's models, in file order."""
    return list(_entries())


def model_source(name: str) -> str:
    """Where a catalog model's shape comes from."""
    return str(_entries()[name]["source"])


def load_model(name: str) -> Model:
    """A catalog model by name; raises InputError with the nearest names for an unknown one."""
    if name not in _entries():
        raise unknown_name("model", name, model_ids(), "workload.model")
    entry = {k: v for k, v in _entries()[name].items() if k != "source"}
    return parse_model({**entry, "name": name}, f"models.toml:{name}")


def parse_model(data: dict[str, Any], where: str) -> Model:
    """A model from its shape fields; raises InputError naming the field that is wrong."""
    family = data.get("family")
    if isinstance(family, str) and family not in FAMILIES:
        raise unknown_name("family", family, FAMILIES, f"{where}:family")
    kind = ResNet50 if family == "resnet50" else TransformerModel
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise from_validation(error, where, kind) from error
