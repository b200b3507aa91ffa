"""Robust least squares on log durations, and residual statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from archs.calibration import Residual

Vector = NDArray[np.float64]
LOSS_SCALE = 0.05


def fit_log(
    predict: Callable[[Vector], Vector],
    measured: Vector,
    start: Sequence[float],
    lower: Sequence[float],
    upper: Sequence[float],
) -> Vector:
    """Parameters that minimise the soft-L1 log error of predicted durations, within bounds."""

    def errors(p: Vector) -> Vector:
        return np.asarray(np.log(predict(p) / measured), dtype=np.float64)

    scale = np.maximum(np.abs(np.asarray(start, dtype=np.float64)), 1e-12)
    result = least_squares(
        errors, np.clip(start, lower, upper), bounds=(lower, upper), x_scale=scale,
        loss="soft_l1", f_scale=LOSS_SCALE, diff_step=[1e-3] * len(start),
    )  # fmt: skip
    return np.asarray(result.x, dtype=np.float64)


def residual(predicted: Vector, measured: Vector) -> Residual:
    """Relative errors of predictions, as stored in a calibration."""
    relative = predicted / measured - 1.0
    size = np.abs(relative)
    return Residual(
        n=len(size),
        median=round(float(np.median(size)), 4),
        p90=round(float(np.quantile(size, 0.9)), 4),
        worst=round(float(size.max()), 4),
        bias=round(float(relative.mean()), 4),
    )
