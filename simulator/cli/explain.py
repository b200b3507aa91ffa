"""``stepsim validate --explain ID``: one measured run beside its prediction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from validation.records import MeasuredRun
from validation.validate import ClassComparison, Explanation, Quantity, explain

from . import text
from .console import table, write, write_json
from .flags import expected
from .report import breakdown, headline

if TYPE_CHECKING:
    from rich.console import RenderableType


def show_explanation(run: MeasuredRun, json: bool) -> float:
    """Write the comparison of one run; returns the absolute relative error of its step time."""
    made = expected(lambda: explain(run))
    if json:
        write_json(as_dict(made))
    else:
        write(*_report(made))
    return abs(made.result.step_time_s / run.measured.step_time_s - 1.0)


def as_dict(made: Explanation) -> dict[str, Any]:
    """The comparison as JSON values: quantities, breakdown, kernel classes."""
    return {
        "id": made.run.id,
        "quantities": [
            {"name": q.name, "unit": q.unit, "predicted": q.predicted, "measured": q.measured,
             "error": q.error}
            for q in made.quantities
        ],
        "breakdown": dict(made.result.breakdown),
        "bound_by": made.result.bound_by,
        "kernel_classes": [
            {"name": c.name, "predicted_count": c.predicted.count,
             "predicted_s": c.predicted.total_s, "measured_count": c.measured.count,
             "measured_s": c.measured.total_s, "error": c.error}
            for c in made.classes
        ],
    }  # fmt: skip


def _report(made: Explanation) -> Iterator[RenderableType]:
    yield f"{made.run.id}: {headline(made.scenario)}"
    rows = [_quantity_cells(each) for each in made.quantities]
    yield table("", "lrrr", ("", "predicted", "measured", "error"), rows)
    yield breakdown(made.result)
    if made.classes:
        columns = ("class", "launches", "in the trace", "predicted", "measured", "error")
        yield table("Kernels", "lrrrrr", columns, [_class_cells(each) for each in made.classes])
    else:
        yield "no trace of this run is shipped, so kernel classes cannot be compared"


def _quantity_cells(quantity: Quantity) -> tuple[str, ...]:
    measured = text.ABSENT if quantity.measured is None else _value(quantity, quantity.measured)
    predicted = _value(quantity, quantity.predicted)
    return quantity.name, predicted, measured, text.signed_percent(quantity.error)


def _value(quantity: Quantity, value: float) -> str:
    shown = {"s": text.seconds, "bytes": text.gigabytes}.get(quantity.unit)
    return shown(value) if shown else text.number(value, quantity.unit)


def _class_cells(each: ClassComparison) -> tuple[str, ...]:
    return (
        each.name, f"{each.predicted.count:,}", f"{each.measured.count:,}",
        text.seconds(each.predicted.total_s), text.seconds(each.measured.total_s),
        text.signed_percent(each.error),
    )  # fmt: skip
