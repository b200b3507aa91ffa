"""Intervals: around the prediction, by regime, wide where nothing was measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.intervals import EXTRAPOLATED, interval, regime

QUANTILES = {"gpu_bound": 0.05, "host_bound": 0.2}


@given(st.floats(1e-6, 1e4), st.sampled_from(("gpu_bound", "host_bound", "extrapolated")))
def test_interval_contains_the_prediction(step_s: float, kind: str) -> None:
    """The interval is around the prediction and never reaches below zero."""
    low, high = interval(step_s, QUANTILES, kind)
    assert 0.0 <= low < step_s < high


def test_width_is_the_quantile_of_the_regime() -> None:
    """Each regime has its own relative half-width."""
    assert interval(1.0, QUANTILES, "gpu_bound") == pytest.approx((0.95, 1.05))
    assert interval(1.0, QUANTILES, "host_bound") == pytest.approx((0.8, 1.2))


def test_without_a_quantile_the_interval_is_wide() -> None:
    """A regime without calibration runs has the width of an extrapolation."""
    low, high = interval(1.0, {}, "gpu_bound")
    assert (1 - low, high - 1) == pytest.approx((EXTRAPOLATED, EXTRAPOLATED))


def test_huge_quantile_stops_at_zero() -> None:
    """A relative error above one does not make a negative time."""
    assert interval(1.0, {"host_bound": 3.0}, "host_bound") == (0.0, 4.0)


@pytest.mark.parametrize(
    ("host_bound", "own", "sharded", "expected"),
    [
        (False, True, False, "gpu_bound"), (True, True, False, "host_bound"),
        (False, False, False, "extrapolated"), (True, False, False, "host_bound"),
        (False, True, True, "extrapolated"), (False, False, True, "extrapolated"),
    ],
)  # fmt: skip
def test_regimes(host_bound: bool, own: bool, sharded: bool, expected: str) -> None:
    """The host decides; without calibration or held-out runs a GPU-bound step is extrapolated."""
    assert regime(host_bound, own, sharded) == expected
