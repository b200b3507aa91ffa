"""Prediction intervals: split-conformal quantiles of relative errors by regime."""

from __future__ import annotations

from collections.abc import Mapping

LEVEL = 0.9
EXTRAPOLATED = 0.35
"""Relative half-width where no held-out run backs an interval, so it is wide."""


def regime(host_bound: bool, own_calibration: bool, sharded: bool) -> str:
    """Which quantile applies: ``gpu_bound``, ``host_bound`` or ``extrapolated``.

    The last is for a GPU without calibration, and for sharded plans, of which none was held out. A
    host-bound step depends on the host, whatever the GPU.
    """
    if host_bound:
        return "host_bound"
    return "gpu_bound" if own_calibration and not sharded else "extrapolated"


def interval(step_s: float, quantiles: Mapping[str, float], kind: str) -> tuple[float, float]:
    """The interval around a predicted step time, in seconds.

    ``quantiles`` holds, by regime, the conformal quantile of |measured / predicted - 1| over
    calibration runs that are not scored.
    """
    width = quantiles.get(kind, EXTRAPOLATED)
    return step_s * max(0.0, 1.0 - width), step_s * (1.0 + width)
