"""The two things that training runs may tell a calibration: a stack's host overhead, intervals.

Only runs that are never scored are used (``validation/data/h200/held_out.jsonl``). A run whose id
hashes to an even number fits the overhead; the others, and all GPU-bound ones, which fit nothing,
give the intervals.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from archs.calibration import Calibration
from simulator.costs import Coster
from simulator.intervals import LEVEL
from simulator.scenario import Scenario
from simulator.schedule import HostModel, host_seconds, works
from simulator.simulation import machine_of, simulate
from workloads.lowering import lower

from .samples import read_rows

Run = Mapping[str, Any]


def for_fitting(run_id: str) -> bool:
    """The fixed rule that splits runs: an even sha256 of the id fits, an odd one scores."""
    return int(hashlib.sha256(run_id.encode()).hexdigest(), 16) % 2 == 0


def step_factor(calibration: Calibration, runs: Sequence[Run]) -> float:
    """Median of measured step over issue time of the host-bound runs of the fitting half."""
    ratios = [
        run["measured"]["step_time_s"] / _issue_s(calibration, run)
        for run in runs
        if run["measured"]["host_bound"] and for_fitting(run["id"])
    ]
    return round(float(np.median(ratios)), 3) if ratios else 1.0


def _issue_s(calibration: Calibration, run: Run) -> float:
    """Seconds the host needs to issue the run's step at factor one."""
    scenario = Scenario.from_record(run)
    program = lower(scenario.workload, scenario.plan, scenario.stack)
    host = HostModel(calibration.host, scenario.host_launch_s)
    coster = Coster(machine_of(scenario, calibration))
    return host_seconds(works(program.roles[0], coster, host))


def conformal_quantile(errors: Sequence[float], level: float = LEVEL) -> float | None:
    """Split-conformal quantile of absolute errors; None when too few exist for a finite one."""
    rank = math.ceil((len(errors) + 1) * level)
    return sorted(errors)[rank - 1] if rank <= len(errors) else None


def interval_quantiles(
    calibration: Calibration, runs: Sequence[Run], between_hosts: float
) -> dict[str, float]:
    """Relative half-widths by regime.

    GPU-bound: conformal over held-out runs. Host-bound: ``between_hosts``, how far the same run
    differed between hosts, since too few held-out runs remain for a conformal one.
    """
    errors = []
    for run in runs:
        if not run["measured"]["host_bound"]:
            predicted = simulate(Scenario.from_record(run), calibration).step_time_s
            errors.append(abs(run["measured"]["step_time_s"] / predicted - 1.0))
    found = {"host_bound": round(between_hosts, 4)}
    quantile = conformal_quantile(errors)
    if quantile is not None:
        found["gpu_bound"] = round(quantile, 4)
    return found


def between_hosts(path: Path) -> float:
    """Largest relative difference of one run between two hosts (repeatability.jsonl)."""
    return float(max(abs(row["ratio"] - 1.0) for row in read_rows(path).rows))
