"""Fit the memory-bound code paths: floor, achieved bandwidth, issue work per element and row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from archs.calibration import L2Parameters, StreamParameters
from simulator.costs.machine import Machine
from simulator.costs.stream import traffic_s

from .least import Vector, fit_log
from .samples import Sample

LOWER = (3e-7, 0.05, 0.0, 0.0)
UPPER = (2e-5, 1.0, 2e-8, 1e-5)


def by_kind(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    """Samples of memory-bound kernels grouped by code path."""
    groups: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[sample.kernel.kind].append(sample)  # type: ignore[union-attr]
    return dict(groups)


def predict(machine: Machine, p: StreamParameters, samples: list[Sample]) -> Vector:
    """Durations of the samples' kernels with parameters ``p``."""
    values = []
    for sample in samples:
        kernel = sample.kernel
        work = p.element_s * kernel.elements + p.row_s * kernel.rows  # type: ignore[union-attr]
        moved = traffic_s(machine, p, kernel.hbm_bytes)
        values.append(p.floor_s + max(work / machine.sms, moved))
    return np.array(values)


def fit_stream(machine: Machine, samples: list[Sample]) -> StreamParameters:
    """Parameters of one code path; row work is fitted only where rows vary in width."""
    measured = np.array([s.seconds for s in samples])
    widths = {s.kernel.cols for s in samples}  # type: ignore[union-attr]
    rowwise = len(widths) > 2
    if len(samples) < 4:
        return _scaled(machine, samples)

    def model(x: Vector) -> Vector:
        return predict(machine, _parameters(x, rowwise), samples)

    upper = list(UPPER)
    upper[0] = float(max(3.1e-7, 1.05 * measured.min()))
    best = min(
        (fit_log(model, measured, start, LOWER, upper) for start in starts(machine, samples)),
        key=lambda x: float(np.abs(np.log(model(x) / measured)).mean()),
    )
    return _parameters(best, rowwise)


def starts(machine: Machine, samples: list[Sample]) -> list[list[float]]:
    """Where the fit begins: all time of the largest kernel in traffic, elements, rows, or mixed."""
    large = max(samples, key=lambda s: s.seconds)
    kernel = large.kernel
    floor = 0.8 * min(s.seconds for s in samples)
    traffic = kernel.hbm_bytes / large.seconds / machine.hbm_bytes_per_s
    element = large.seconds * machine.sms / kernel.elements  # type: ignore[union-attr]
    row = large.seconds * machine.sms / kernel.rows  # type: ignore[union-attr]
    return [
        [floor, min(1.0, traffic), 0.01 * element, 0.01 * row],
        [floor, 1.0, element, 0.01 * row],
        [floor, 1.0, 0.5 * element, 0.5 * row],
        [floor, min(1.0, 1.2 * traffic), 0.8 * element, 0.2 * row],
        [floor, 1.0, 0.05 * element, 0.95 * row],
    ]


def _parameters(x: Vector, rowwise: bool) -> StreamParameters:
    return StreamParameters(
        floor_s=float(x[0]), hbm_fraction=float(x[1]), element_s=float(x[2]),
        row_s=float(x[3]) if rowwise else 0.0,
    )  # fmt: skip


def _scaled(machine: Machine, samples: list[Sample]) -> StreamParameters:
    """With too few points for a fit: the floor of a small kernel and one bandwidth."""
    fraction = np.median(
        [s.kernel.hbm_bytes / max(s.seconds - 1e-6, 1e-7) for s in samples]
    ) / machine.hbm_bytes_per_s  # fmt: skip
    return StreamParameters(floor_s=1e-6, hbm_fraction=float(np.clip(fraction, 1e-3, 1.2)))


def fit_l2(machine: Machine, samples: list[Sample]) -> L2Parameters:
    """L2 residency thresholds and speed-up from plain element-wise kernels of many sizes."""
    measured = np.array([s.seconds for s in samples])

    def model(x: Vector) -> Vector:
        l2 = L2Parameters(
            resident_fraction=float(x[0]), gone_fraction=float(x[0] + x[1]), speedup=float(x[2])
        )
        trial = Machine(machine.gpu, machine.calibration.model_copy(update={"l2": l2}), machine.own)
        p = StreamParameters(floor_s=float(x[3]), hbm_fraction=float(x[4]))
        return predict(trial, p, samples)

    x = fit_log(
        model,
        measured,
        [0.5, 1.0, 2.0, 8e-7, 0.9],
        [0.1, 0.1, 1.0, 4e-7, 0.5],
        [2.0, 4.0, 5.0, 2e-6, 1.0],
    )
    return L2Parameters(
        resident_fraction=float(x[0]), gone_fraction=float(x[0] + x[1]), speedup=float(x[2])
    )
