"""Error measures of predictions against measurements, on arrays."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def ape(measured: ArrayLike, predicted: ArrayLike) -> Floats:
    """Absolute relative error of each prediction, as a fraction of the measured value.

    Both arguments are positive and of one length and unit; raises ValueError otherwise.
    """
    return np.abs(relative_error(measured, predicted))


def relative_error(measured: ArrayLike, predicted: ArrayLike) -> Floats:
    """Signed relative error (predicted - measured) / measured: positive when predicted too high.

    Both arguments are positive and of one length and unit; raises ValueError otherwise.
    """
    truth, guess = _positive("measured", measured), _positive("predicted", predicted)
    _same_length(truth, guess)
    return np.asarray(guess / truth - 1.0, dtype=np.float64)


def mape(measured: ArrayLike, predicted: ArrayLike) -> float:
    """Mean of `ape`; NaN without values."""
    return _mean(ape(measured, predicted))


def median_ape(measured: ArrayLike, predicted: ArrayLike) -> float:
    """Median of `ape`; NaN without values."""
    return _quantile(ape(measured, predicted), 0.5)


def p90_ape(measured: ArrayLike, predicted: ArrayLike) -> float:
    """90th percentile of `ape`, interpolated linearly between rows; NaN without values."""
    return _quantile(ape(measured, predicted), 0.9)


def bias(measured: ArrayLike, predicted: ArrayLike) -> float:
    """Mean of `relative_error`: positive when predictions are too high; NaN without values."""
    return _mean(relative_error(measured, predicted))


def coverage(measured: ArrayLike, low: ArrayLike, high: ArrayLike) -> float:
    """Share of measured values inside their interval, ends included; NaN without values."""
    truth = _positive("measured", measured)
    lower, upper = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
    _same_length(truth, lower, upper)
    return _mean(((lower <= truth) & (truth <= upper)).astype(np.float64))


def median_interval_width(predicted: ArrayLike, low: ArrayLike, high: ArrayLike) -> float:
    """Median of (high - low) / predicted; NaN without values, infinite when most widths are."""
    guess = _positive("predicted", predicted)
    lower, upper = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
    _same_length(guess, lower, upper)
    return _quantile((upper - lower) / guess, 0.5)


def spearman(measured: ArrayLike, predicted: ArrayLike) -> float:
    """Spearman's rank correlation, ties sharing their mean rank.

    NaN with fewer than three pairs, or when either side is constant.
    """
    truth, guess = _positive("measured", measured), _positive("predicted", predicted)
    _same_length(truth, guess)
    if truth.size < 3 or np.ptp(truth) == 0.0 or np.ptp(guess) == 0.0:
        return math.nan
    x, y = _ranks(truth), _ranks(guess)
    x, y = x - x.mean(), y - y.mean()
    return float(np.clip(x @ y / math.sqrt((x @ x) * (y @ y)), -1.0, 1.0))


def _mean(values: Floats) -> float:
    """The mean, the same whatever the order of the values."""
    return math.fsum(values) / values.size if values.size else math.nan


def _quantile(values: Floats, share: float) -> float:
    if not values.size:
        return math.nan
    with np.errstate(invalid="ignore"):  # an infinite neighbour makes the interpolation undefined
        return float(np.quantile(values, share))


def _ranks(values: Floats) -> Floats:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean_rank = last - (counts - 1) / 2.0
    return np.asarray(mean_rank[inverse], dtype=np.float64)


def _positive(name: str, values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    wrong = array[~((array > 0) & np.isfinite(array))]
    if wrong.size:
        raise ValueError(f"{name} must be positive and finite (got {wrong[0]})")
    return array


def _same_length(first: Floats, *others: Floats) -> None:
    for other in others:
        if other.shape != first.shape:
            raise ValueError(f"arrays must have one shape (got {first.shape} and {other.shape})")
