"""Power: the clock settles as high as the limit allows, and no higher."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.costs import Launch
from simulator.power import PowerModel
from tests.simulator.handmade import compute, h200, launch, machine

H200 = h200()
P = H200.calibration.power
MIN_HZ = min(P.min_clock_hz, H200.max_clock_hz)

limits = st.floats(200.0, 1200.0)
steps = st.lists(
    st.one_of(
        st.builds(compute, st.floats(1e4, 1e8), st.floats(0.0, 20.0)),
        st.builds(launch, st.floats(1.0, 1e4)),
    ),
    min_size=1,
    max_size=8,
)


def settled(limit_w: float, step: list[Launch], host_s: float = 0.0) -> float:
    """The clock of a step under a limit."""
    return PowerModel(H200, limit_w).clock_hz(step, 1e-6, host_s)


def busy_s(step: list[Launch], clock_hz: float) -> float:
    """Time of the kernels of a step with their gaps."""
    return sum(x.seconds(clock_hz) + 1e-6 for x in step)


def mean_w(model: PowerModel, step: list[Launch], clock_hz: float, duration_s: float) -> float:
    """Mean board power of a step that lasts ``duration_s``."""
    return model.idle_w + model.dynamic_j(step, clock_hz) / duration_s


@given(limits, steps)
def test_clock_is_within_its_bounds(limit_w: float, step: list[Launch]) -> None:
    """Whatever the limit, the clock is between the board's lowest and highest."""
    assert MIN_HZ <= settled(limit_w, step) <= H200.max_clock_hz


@given(limits, steps, st.floats(1.0, 3.0))
def test_higher_limit_is_never_slower(limit_w: float, step: list[Launch], factor: float) -> None:
    """More power never lowers the clock, and so never lengthens the kernels."""
    low, high = settled(limit_w, step), settled(factor * limit_w, step)
    assert high >= low * (1 - 1e-9)
    assert busy_s(step, high) <= busy_s(step, low) * (1 + 1e-9)


@given(limits, steps)
def test_mean_power_is_within_the_limit(limit_w: float, step: list[Launch]) -> None:
    """Above the lowest clock, the mean power of the step stays within the limit."""
    model = PowerModel(H200, limit_w)
    clock_hz = settled(limit_w, step)
    if clock_hz > MIN_HZ * (1 + 1e-6):
        power_w = mean_w(model, step, clock_hz, busy_s(step, clock_hz))
        assert power_w <= P.limit_fraction * limit_w * (1 + 1e-6)


@given(limits, steps)
def test_a_throttled_step_uses_what_the_limit_gives(limit_w: float, step: list[Launch]) -> None:
    """Between the bounds the mean power is the limit itself, not less."""
    model = PowerModel(H200, limit_w)
    clock_hz = settled(limit_w, step)
    if MIN_HZ * (1 + 1e-6) < clock_hz < H200.max_clock_hz:
        power_w = mean_w(model, step, clock_hz, busy_s(step, clock_hz))
        assert power_w == pytest.approx(P.limit_fraction * limit_w, rel=1e-4)


def test_light_work_runs_at_the_highest_clock() -> None:
    """Kernels that take hardly any energy are not throttled."""
    assert settled(700.0, [launch(100)]) == H200.max_clock_hz


def test_heavy_work_is_throttled() -> None:
    """Kernels that would draw twice the limit run at a lower clock."""
    at_top_s = 1e8 / H200.max_clock_hz
    assert settled(700.0, [compute(1e8, core_j=1400 * at_top_s)]) < 0.95 * H200.max_clock_hz


def test_impossible_limit_gives_the_lowest_clock() -> None:
    """Below what the board needs at its lowest clock, the lowest clock is what remains."""
    assert settled(1.0, [compute(1e8, core_j=100.0)]) == pytest.approx(MIN_HZ)


@given(steps, st.floats(0.0, 10.0))
def test_waiting_for_the_host_never_lowers_the_clock(step: list[Launch], host_s: float) -> None:
    """A step that waits for its host has the same energy over more time: more room, not less."""
    assert settled(500.0, step, host_s) >= settled(500.0, step) * (1 - 1e-9)


def test_idle_step_draws_idle_power() -> None:
    """Without kernels there is no energy above idle."""
    model = PowerModel(H200, 700.0)
    assert model.dynamic_j([], H200.max_clock_hz) == 0.0
    assert model.idle_w == P.idle_w


@given(steps)
def test_energy_falls_with_the_clock(step: list[Launch]) -> None:
    """The energy of the SMs' work does not rise when the clock goes down."""
    work_only = [x for x in step if x.cycles]
    model = PowerModel(H200, 700.0)
    core = [
        sum(x.core_j for x in work_only) * (hz / P.reference_clock_hz) ** P.exponent
        for hz in (MIN_HZ, H200.max_clock_hz)
    ]
    assert core[0] <= core[1]
    assert model.dynamic_j(step, H200.max_clock_hz) >= 0.0


@given(steps, st.integers(2, 5))
def test_energy_is_the_sum_of_the_kernels(step: list[Launch], times: int) -> None:
    """A step repeated n times has n times the energy above idle."""
    model = PowerModel(H200, 700.0)
    once, more = (model.dynamic_j(step * n, 1.5e9) for n in (1, times))
    assert more == pytest.approx(times * once)


def test_other_boards_scale_with_their_limit() -> None:
    """A board that was not measured has the calibrated one's idle share of its limit."""
    half = PowerModel(machine("a100-pcie-80gb"), 350.0)
    assert half.idle_w == pytest.approx(P.idle_w / 2)
