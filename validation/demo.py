"""``make demo``: predict a measured run, set the measurement beside it, and write a timeline.

Prints the report and writes it to ``out/demo.md``, the timeline to ``out/demo.trace.json.gz``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from archs.errors import InputError, StepsimError
from archs.reading import write_atomic
from archs.units import format_quantity
from simulator.timeline import write_trace

from .validate import Explanation, Quantity, explain, shipped_run

RUN = "h200-l1-s4k-mb2"
"""A 1.5B-parameter Llama, 2 sequences of 4,096 tokens, bf16 and eager on one H200."""

OUT = Path("out")


def main(folder: Path = OUT) -> int:
    """Run the demonstration; returns the exit code."""
    try:
        demonstrate(folder)
    except StepsimError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    return 0


def demonstrate(folder: Path) -> None:
    """Predict ``RUN``, write report and timeline to a folder, and print the report."""
    made = explain(shipped_run(RUN))
    timeline, document = folder / "demo.trace.json.gz", folder / "demo.md"
    _make(folder)
    write_trace(timeline, made.result, made.scenario)
    text = report(made)
    write_atomic(document, text)
    print(text)
    print(f"Report: {document}. Timeline: {timeline} (open it in https://ui.perfetto.dev).")


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("folder must be writable", error.strerror, str(folder)) from None


def report(made: Explanation) -> str:
    """The comparison of one run as a Markdown document."""
    result = made.result
    low, high = result.step_time_interval_s
    parts = [
        f"# {made.run.id}: predicted and measured",
        _sentence(made),
        _table(("", "predicted", "measured", "error"), map(_quantity_cells, made.quantities)),
        f"Interval of the step time ({result.interval_level:.0%}): {_time(low)} to {_time(high)}.",
        "## Where the predicted step goes",
        _table(("part", "time", "share"), _breakdown_cells(made)),
    ]
    if made.classes:
        columns = ("class", "launches", "in the trace", "predicted", "measured", "error")
        parts += ["## Kernel classes, against a profile of the same step",
                  _table(columns, _class_cells(made))]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _sentence(made: Explanation) -> str:
    scenario, workload = made.scenario, made.scenario.workload
    stack = scenario.stack
    return (
        f"{workload.model.family}, {workload.micro_batch} x {workload.seq_len} tokens, "
        f"{stack.precision} {stack.execution} on {scenario.gpus} x {scenario.gpu.name}. "
        f"The step is bound by {made.result.bound_by.replace('_', ' ')}; "
        f"MFU {made.result.mfu:.1%}."
    )


def _quantity_cells(quantity: Quantity) -> Sequence[str]:
    error = quantity.error
    return (
        quantity.name,
        _value(quantity, quantity.predicted),
        "-" if quantity.measured is None else _value(quantity, quantity.measured),
        "-" if error is None else f"{error:+.1%}",
    )


def _value(quantity: Quantity, value: float) -> str:
    if quantity.unit in ("s", "bytes"):
        return format_quantity(value, quantity.unit)
    return f"{value:,.0f} {quantity.unit}".rstrip()


def _breakdown_cells(made: Explanation) -> Iterable[Sequence[str]]:
    step_s = made.result.step_time_s
    for name, part_s in made.result.breakdown.items():
        if part_s:
            yield name.replace("_", " "), _time(part_s), f"{part_s / step_s:.1%}"
    yield "step", _time(step_s), "100.0%"


def _class_cells(made: Explanation) -> Iterable[Sequence[str]]:
    for each in made.classes:
        counts = f"{each.predicted.count:,}", f"{each.measured.count:,}"
        times = _time(each.predicted.total_s), _time(each.measured.total_s)
        yield each.name, *counts, *times, "-" if each.error is None else f"{each.error:+.1%}"


def _time(seconds: float) -> str:
    return format_quantity(seconds, "s")


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table that is aligned as plain text too."""
    body = [tuple(columns), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*body, strict=True)]
    lines = ["| " + " | ".join(_cell(row, widths, i) for i in range(len(widths))) + " |"
             for row in body]  # fmt: skip
    rule = "| " + " | ".join("-" * w if i == 0 else "-" * (w - 1) + ":"
                             for i, w in enumerate(widths)) + " |"  # fmt: skip
    return "\n".join([lines[0], rule, *lines[1:]])


def _cell(row: Sequence[str], widths: Sequence[int], index: int) -> str:
    return row[index].ljust(widths[index]) if index == 0 else row[index].rjust(widths[index])


if __name__ == "__main__":
    sys.exit(main())
