"""``stepsim validate``: hold predictions against measured runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import say, table, write, write_json
from .text import ABSENT, percent, seconds, signed_percent

if TYPE_CHECKING:
    from rich.console import RenderableType

    from validation.scores import Row, Scores, ValidationResult

Runs = Annotated[
    Path | None,
    typer.Option("--runs", metavar="FILE", help="Measured records (JSONL); else the shipped ones."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON.")]
FailAbove = Annotated[
    str | None,
    typer.Option(
        "--fail-above", metavar="MAPE", help="Exit with 1 when the error is larger: 8% or 0.08."
    ),
]
Explain = Annotated[
    str | None, typer.Option("--explain", metavar="ID", help="One run: predicted beside measured.")
]
COLUMNS = ("group", "n", "MAPE", "median", "p90", "bias", "coverage", "memory MAPE")


def validate(
    runs: Runs = None, json: AsJson = False, fail_above: FailAbove = None, explain: Explain = None
) -> None:
    """Score predictions against measured runs.

    What cannot be simulated is listed as skipped, with the reason.

    \b
    Examples:
      stepsim validate
      stepsim validate --runs my_runs.jsonl --json --fail-above 8%
      stepsim validate --explain h200-l1-s4k-mb2
    """  # noqa: D301 - the backslash is typer's mark for lines that stay as they are
    from validation.records import read_records
    from validation.validate import RUNS, choose_run, validate_runs

    threshold = None if fail_above is None else _share(fail_above)
    records = read_records(runs or RUNS)
    if explain is not None:
        from .explain import show_explanation

        error = show_explanation(choose_run(records, explain), json)
        _judge(error, threshold)
        return
    say(f"simulating {len(records)} records of {(runs or RUNS).name}")
    result = validate_runs(records)
    if json:
        write_json(result.as_dict())
    else:
        write(*_report(result))
    _judge(result.scores.mape, threshold)


def _judge(error: float | None, threshold: float | None) -> None:
    """Exit with 1 when the error is above the threshold, or when there is nothing to judge."""
    if threshold is None or (error is not None and error <= threshold):
        return
    found = "no run that could be simulated" if error is None else percent(error, 2)
    say(f"stepsim: MAPE must be at most {percent(threshold, 2)} (got {found})")
    raise typer.Exit(1)


def _share(value: str) -> float:
    """A share such as "8%" or "0.08"; 1 and more without a percent sign is refused."""
    from archs.errors import InputError
    from archs.units import parse_quantity

    digits = value.strip().removesuffix("%")
    is_percent = digits != value.strip()
    place = {"what": "fail-above", "where": "command line:--fail-above"}
    parsed = parse_quantity(digits.strip(), "", sign="nonnegative", **place)
    if not is_percent and parsed >= 1:
        must = "fail-above must be a share below 1, or a percentage such as 8%"
        raise InputError(must, value, place["where"])
    return parsed / 100 if is_percent else parsed


def _report(result: ValidationResult) -> list[RenderableType]:
    groups = {"all": result.scores, **result.groups}
    parts: list[RenderableType] = [
        table(
            "Scores",
            "l" + 7 * "r",
            COLUMNS,
            [_score_cells(name, each) for name, each in groups.items()],
        ),
        table(
            "Runs, worst first",
            "llrrrrr",
            ("run", "group", "measured", "predicted", "error", "in interval", "memory"),
            [_row_cells(row) for row in sorted(result.rows, key=lambda row: -row.ape)],
        ),
    ]
    if result.skipped:
        rows = [(skipped.id, skipped.reason) for skipped in result.skipped]
        parts.append(table("Skipped", "ll", ("record", "reason"), rows))
    return parts


def _score_cells(name: str, each: Scores) -> tuple[str, ...]:
    errors = (each.mape, each.median_ape, each.p90_ape)
    memory = percent(each.memory_mape)
    return (
        name.replace("_", " "), str(each.n), *map(percent, errors), signed_percent(each.bias),
        percent(each.coverage, 0), memory,
    )  # fmt: skip


def _row_cells(row: Row) -> tuple[str, ...]:
    memory = ABSENT
    if row.measured_bytes and row.predicted_bytes:
        memory = signed_percent(row.predicted_bytes / row.measured_bytes - 1)
    inside = ABSENT
    if row.interval_s:
        inside = "yes" if row.interval_s[0] <= row.measured_s <= row.interval_s[1] else "no"
    return (
        row.id, row.group.replace("_", " "), seconds(row.measured_s), seconds(row.predicted_s),
        signed_percent(row.predicted_s / row.measured_s - 1), inside, memory,
    )  # fmt: skip
