"""``stepsim calibrate``: fit the cost models of one GPU to its microbenchmarks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import say, table, write, write_json
from .text import percent, signed_percent

if TYPE_CHECKING:
    from rich.table import Table

    from archs.calibration import Calibration

DataFolder = Annotated[
    Path | None,
    typer.Option("--data", metavar="FOLDER", help="Microbenchmarks; else the shipped H200 ones."),
]
Gpu = Annotated[str, typer.Option("--gpu", help="GPU that was measured.")]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Write the calibration (TOML) here.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Write the residuals as JSON.")]


def calibrate(
    data: DataFolder = None,
    gpu: Gpu = "h200-sxm-141gb",
    out: Out = None,
    json: AsJson = False,
) -> None:
    """Fit one GPU's cost models to measurements.

    The residuals of the fit are shown by operator class.
    Kernel costs and power see microbenchmarks only, never a training run; a few held-out runs,
    which are never scored, set host overhead and intervals. Without --out nothing is written.

    \b
    Example:
      stepsim calibrate --data measurements/h200 --gpu h200-sxm-141gb --out h200.toml
    """  # noqa: D301 - the backslash is typer's mark for lines that stay as they are
    from archs.gpu import load_gpu
    from archs.reading import write_atomic
    from validation import calibrate as fitting

    descriptor = load_gpu(gpu)
    folder = data or fitting.SHIPPED
    say(f"reading {folder}")
    rows = fitting.read_data(folder)
    say(f"fitting {descriptor.id} to {sum(len(f.rows) for f in rows.files):,} measurements")
    begin = time.perf_counter()
    found = fitting.calibrate(descriptor, rows)
    say(f"fitted in {time.perf_counter() - begin:.0f} s")
    if out is not None:
        write_atomic(out, fitting.as_toml(found))
        say(f"wrote {out}")
    if json:
        write_json({name: item.model_dump() for name, item in found.residuals.items()})
    else:
        write(residual_table(found))


def residual_table(found: Calibration) -> Table:
    """Relative errors of the fit by operator class."""
    rows = [
        (
            name,
            str(r.n),
            percent(r.median),
            percent(r.p90),
            percent(r.worst),
            signed_percent(r.bias),
        )
        for name, r in found.residuals.items()
    ]
    columns = ("operator class", "n", "median", "p90", "worst", "bias")
    return table("Residuals", "lrrrrr", columns, rows)
