"""Predicted and measured seconds by kernel class for the shipped single-GPU traces, as Markdown.

python -m validation.class_table
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from simulator import Scenario, simulate
from simulator.simulation import class_seconds

from . import DATA
from .records import read_runs, to_plain
from .traces import class_totals, read_trace


@dataclass(frozen=True)
class ClassRow:
    """One kernel class of one run: seconds and launches, measured and predicted."""

    run: str
    kernel_class: str
    measured_s: float
    predicted_s: float
    measured_launches: int
    predicted_launches: int


def compare_run(run_id: str) -> list[ClassRow]:
    """Classes of one record that has a shipped trace, largest measured time first."""
    run = next(r for r in read_runs(DATA / "h200" / "runs.jsonl") if r.id == run_id)
    trace = read_trace(DATA / "h200" / "traces" / f"{run_id}.rank0.json.gz")
    measured = class_totals(trace)
    predicted = class_seconds(simulate(Scenario.from_record(to_plain(run))).timeline)
    rows = []
    for name in sorted(set(measured) | set(predicted)):
        count, seconds = predicted.get(name, (0, 0.0))
        known = measured.get(name)
        real = (known.total_s, known.count) if known else (0.0, 0)
        rows.append(ClassRow(run_id, name, real[0], seconds, real[1], count))
    return sorted(rows, key=lambda row: -row.measured_s)


def traced_runs() -> list[str]:
    """Records on one GPU with a shipped trace."""
    folder = DATA / "h200" / "traces"
    return sorted(path.name.split(".")[0] for path in folder.glob("*.rank0.json.gz"))


def markdown(rows: list[ClassRow]) -> str:
    """A table of the classes that take more than 0.1 ms, and a total for each run."""
    lines = [
        "| run | class | measured ms | predicted ms | error | launches measured / predicted |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        if max(row.measured_s, row.predicted_s) < 1e-4:
            continue
        error = f"{row.predicted_s / row.measured_s - 1.0:+.1%}" if row.measured_s else ""
        lines.append(
            f"| {row.run} | {row.kernel_class} | {row.measured_s * 1e3:.2f} | "
            f"{row.predicted_s * 1e3:.2f} | {error} | "
            f"{row.measured_launches} / {row.predicted_launches} |"
        )
    return "\n".join(lines)


def total(rows: list[ClassRow]) -> ClassRow:
    """All classes of one run together."""
    return ClassRow(
        rows[0].run, "all kernels",
        sum(r.measured_s for r in rows), sum(r.predicted_s for r in rows),
        sum(r.measured_launches for r in rows), sum(r.predicted_launches for r in rows),
    )  # fmt: skip


def main() -> None:
    """Print the table of every traced run."""
    found: list[ClassRow] = []
    for run_id in traced_runs():
        rows = compare_run(run_id)
        found += [*rows, total(rows)]
    sys.stdout.write(markdown(found) + "\n")


if __name__ == "__main__":
    main()
