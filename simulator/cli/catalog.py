"""``stepsim list`` and ``stepsim show``: what is known, and where each number comes from."""

from __future__ import annotations

from typing import Annotated

import typer

from .console import table, write, write_json

KINDS = ("gpus", "systems", "models", "hbm", "calibrations", "runs")
SHOWN = ("gpu", "system", "model", "hbm", "calibration", "run")

ListKind = Annotated[
    str | None, typer.Argument(metavar="[KIND]", help=f"One of {', '.join(KINDS)}; else counts.")
]
ShowKind = Annotated[str, typer.Argument(metavar="KIND", help=f"One of {', '.join(SHOWN)}.")]
ShowName = Annotated[str, typer.Argument(metavar="NAME", help="An id, see `stepsim list KIND`.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON.")]


def list_(kind: ListKind = None, json: AsJson = False) -> None:
    """List what is known: GPUs, models, runs, ...

    Kinds: gpus, systems, models, hbm, calibrations, runs.
    \b
    Examples:
      stepsim list
      stepsim list gpus --json
    """  # noqa: D301 - the backslash is typer's mark for lines that stay as they are
    from . import listing

    if kind is None:
        found = {name: listing.LISTINGS[name]() for name in KINDS}
        counts = {name: len(each.rows) for name, each in found.items()}
        if json:
            write_json(counts)
        else:
            rows = [(name, str(n), listing.sample(found[name])) for name, n in counts.items()]
            write(table("", "lrl", ("kind", "known", "such as"), rows))
        return
    chosen = listing.LISTINGS[_known(kind, KINDS)]()
    if json:
        write_json(chosen.as_dicts())
    else:
        write(table("", chosen.align, chosen.titles, chosen.cells()))


def show(kind: ShowKind, name: ShowName, json: AsJson = False) -> None:
    """Show one GPU, model, run, ... with its sources.

    Kinds: gpu, system, model, hbm, calibration, run.
    \b
    Examples:
      stepsim show gpu h200-sxm-141gb
      stepsim show calibration h200-sxm-141gb --json
    """  # noqa: D301 - the backslash is typer's mark for lines that stay as they are
    from . import showing

    found = showing.SHOWINGS[_known(kind, SHOWN)](name)
    if json:
        write_json(found.as_dict())
    else:
        write(*showing.render(found))


def _known(kind: str, kinds: tuple[str, ...]) -> str:
    """A kind, also in the other number ("gpu" for "gpus"); raises InputError for another word."""
    from archs.errors import unknown_name

    folded = kind.strip().casefold()
    for name in kinds:
        if folded.removesuffix("s") == name.removesuffix("s"):
            return name
    raise unknown_name("kind", kind, kinds, "command line")
