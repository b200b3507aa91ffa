"""``stepsim doctor``: whether this installation is whole."""

from __future__ import annotations

from typing import Annotated

import typer

from .console import table, write, write_json

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON.")]


def doctor(json: AsJson = False) -> None:
    """Check that this installation is whole.

    Versions, the packages' integrity, catalogs, calibrations, measurements.
    Exits with 1 when a check fails.

    \b
    Example:
      stepsim doctor
    """  # noqa: D301 - the backslash is typer's mark for lines that stay as they are
    from .checks import run_checks

    found = run_checks()
    if json:
        write_json([check.as_dict() for check in found])
    else:
        rows = [(check.name, "ok" if check.passed else "FAILED", check.detail) for check in found]
        write(table("", "lll", ("check", "", "what was found"), rows))
    if not all(check.passed for check in found):
        raise typer.Exit(1)
