"""The pages behind ``stepsim show``: every value of one thing, with where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from archs.calibration import load_calibration
from archs.gpu import load_gpu
from archs.hbm import hbm_generation
from archs.provenance import Provenance, leaves
from archs.systems import load_system
from validation.records import to_plain
from validation.validate import shipped_run
from workloads.catalog import load_model, model_source

from .calibrate import residual_table
from .console import table
from .text import one_line

if TYPE_CHECKING:
    from rich.console import RenderableType

DERIVED = ("provenance",)


@dataclass(frozen=True, slots=True)
class Page:
    """Nested values of one thing and the origin of each by dotted path; ``extra`` follows."""

    title: str
    values: Mapping[str, Any]
    origins: Mapping[str, Provenance] = field(default_factory=dict)
    extra: tuple[RenderableType, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The values as JSON, and their provenance under ``provenance``."""
        origins = {path: origin.model_dump() for path, origin in self.origins.items()}
        return {**self.values, **({"provenance": origins} if origins else {})}


def render(page: Page) -> Iterator[RenderableType]:
    """A page as a table of path, value, kind and source, then its notes."""
    rows = [_row(page, path, value) for path, value in leaves(page.values) if path != "notes"]
    if page.origins:
        yield table(page.title, "llll", ("", "value", "kind", "source"), rows)
    else:
        yield table(page.title, "ll", ("", "value"), [row[:2] for row in rows])
    for path, origin in page.origins.items():
        if origin.note:
            yield f"{path}: {origin.note}"
    for note in page.values.get("notes", ()):
        yield f"note: {note}"
    yield from page.extra


def _row(page: Page, path: str, value: Any) -> tuple[str, str, str, str]:
    origin = page.origins.get(path)
    shown = one_line(value)
    return path, shown, origin.kind if origin else "", origin.source if origin else ""


def _values(thing: BaseModel, leave_out: tuple[str, ...] = DERIVED) -> dict[str, Any]:
    """Nested plain values without what is not given and what is shown elsewhere."""
    dumped = thing.model_dump(mode="json", exclude=set(leave_out), exclude_none=True)
    return {key: value for key, value in dumped.items() if value not in ({}, [])}


def gpu(name: str) -> Page:
    """One GPU; InputError with the nearest names for an unknown one, as in all that follow."""
    found = load_gpu(name)
    return Page(found.name, _values(found), found.provenance)


def system(name: str) -> Page:
    """One system, its GPU by id."""
    found = load_system(name)
    values = {**_values(found, ("provenance", "gpu")), "gpu": found.gpu.id}
    return Page(found.name, values, found.provenance)


def model(name: str) -> Page:
    """One model, with its number of parameters."""
    found = load_model(name)
    values = {**_values(found), "parameters": found.parameter_count()}
    return Page(name, {**values, "source": model_source(name)})


def hbm(name: str) -> Page:
    """One generation of HBM."""
    found = hbm_generation(name)
    return Page(found.name, _values(found), found.provenance)


def calibration(name: str) -> Page:
    """One calibration: data files, parameters, and residuals as a table."""
    found = load_calibration(name)
    values = found.model_dump(mode="json")
    shown = {k: v for k, v in values.items() if k not in ("sources", "residuals", "streams")}
    files = [(source.file, str(source.rows), source.sha256) for source in found.sources]
    extra = (table("Data", "lrl", ("file", "rows", "sha256"), files), residual_table(found))
    return CalibrationPage(f"calibration of {found.gpu}", shown, {}, extra, values)


@dataclass(frozen=True, slots=True)
class CalibrationPage(Page):
    """A calibration shows its parameters only in part; as JSON it is ``complete``."""

    complete: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The whole calibration."""
        return dict(self.complete)


def run(name: str) -> Page:
    """One shipped measured run."""
    found = shipped_run(name)
    return Page(found.id, to_plain(found))


SHOWINGS: dict[str, Callable[[str], Page]] = {
    "gpu": gpu, "system": system, "model": model, "hbm": hbm, "calibration": calibration,
    "run": run,
}  # fmt: skip
