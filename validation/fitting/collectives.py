"""Fit collectives inside a node, and how communication and computation slow each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from archs.calibration import CollectiveParameters, InterferenceParameters, Residual
from simulator.costs.collective import collective_seconds
from simulator.costs.machine import Machine
from workloads.kernels import Collective

from .least import Vector, fit_log, residual
from .samples import Row
from .tensor import with_parameters

OPS = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "all_to_all": "all_to_all", "broadcast": "broadcast", "send_pair": "send",
}  # fmt: skip
"""Name of a measured operation to that of the kernel."""

LEAST_BYTES = 4 * 2**20
"""Smaller collectives were limited by the host's launches (validation/data/h200/README.md)."""


def collective_samples(rows: Iterable[Row]) -> list[tuple[Collective, float]]:
    """Collectives large enough to show the links: (kernel, seconds)."""
    return [
        (Collective(OPS[r["op"]], r["bytes"], r["ranks"], r["dtype"]), r["seconds"])
        for r in rows
        if r["op"] in OPS and r["bytes"] >= LEAST_BYTES
    ]


def fit_collectives(machine: Machine, rows: Sequence[Row]) -> dict[str, CollectiveParameters]:
    """Latency, link share and loss at few ranks of each operation."""
    found = {}
    samples = collective_samples(rows)
    for op in OPS.values():
        chosen = [(k, s) for k, s in samples if k.op == op]
        measured = np.array([s for _, s in chosen])

        def model(
            x: Vector, op: str = op, chosen: list[tuple[Collective, float]] = chosen
        ) -> Vector:
            trial = with_parameters(machine, collectives={op: _parameters(x)})
            return np.array([collective_seconds(trial, k) for k, _ in chosen])

        x = fit_log(model, measured, [2e-5, 0.85, 0.3], [3e-6, 0.3, 0.0], [1e-4, 1.0, 1.0])
        found[op] = _parameters(x)
    return found


def collective_residuals(machine: Machine, rows: Sequence[Row]) -> dict[str, Residual]:
    """Relative errors by operation."""
    found = {}
    samples = collective_samples(rows)
    for op in OPS.values():
        chosen = [(k, s) for k, s in samples if k.op == op]
        predicted = np.array([collective_seconds(machine, k) for k, _ in chosen])
        found[f"collective.{op}"] = residual(predicted, np.array([s for _, s in chosen]))
    return found


def _parameters(x: Vector) -> CollectiveParameters:
    return CollectiveParameters(
        latency_s=float(x[0]), link_fraction=float(x[1]), rank_loss=float(x[2])
    )


def fit_interference(rows: Sequence[Row]) -> InterferenceParameters:
    """Mean slow-downs over measured pairs; products of 2,048 were launch-bound and are left out."""
    usable = [r for r in rows if r["compute"] == "copy" or r["mm"] > 2048]

    def factor(kind: str) -> float:
        chosen = [r for r in usable if r["compute"] == kind]
        return float(np.mean([r["compute_with_s"] / r["compute_alone_s"] for r in chosen]))

    mixed = [r["comm_mixed_s"] / r["comm_alone_s"] for r in usable]
    return InterferenceParameters(
        gemm=round(max(1.0, factor("gemm")), 4),
        memory=round(max(1.0, factor("copy")), 4),
        communication=round(float(np.mean(mixed)), 4),
    )
