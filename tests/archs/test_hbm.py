"""HBM generations and the arithmetic of pins and rates."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archs.errors import InputError
from archs.hbm import hbm_generation, hbm_generations, stack_bandwidth_bytes_per_s

NAMES = [generation.name for generation in hbm_generations()]


def test_generations_are_in_order() -> None:
    """The table runs from the oldest to the newest generation."""
    assert NAMES == ["HBM2", "HBM2e", "HBM3", "HBM3e", "HBM4", "HBM4e"]


def test_hbm4_moves_two_terabytes_a_second() -> None:
    """2,048 pins at 8 Gb/s are 2.048 TB/s, by text, by number and by the standard."""
    assert stack_bandwidth_bytes_per_s("HBM4", "8 Gb/s") == 2.048e12
    assert stack_bandwidth_bytes_per_s("hbm4", 8e9) == 2.048e12
    assert stack_bandwidth_bytes_per_s("HBM4") == 2.048e12


@pytest.mark.parametrize(
    ("name", "rate"),
    [("HBM2", 307.2e9), ("HBM2e", 409.6e9), ("HBM3", 819.2e9), ("HBM4", 2048e9)],
)
def test_the_standards_rates(name: str, rate: float) -> None:
    """Each JEDEC standard's own figure for a stack comes out of its pins and pin rate."""
    assert math.isclose(stack_bandwidth_bytes_per_s(name), rate)


@given(st.sampled_from(NAMES), st.floats(1e8, 1e11))
def test_bandwidth_is_proportional_to_the_pin_rate(name: str, rate: float) -> None:
    """Twice the rate is twice the bandwidth, on every generation."""
    double = stack_bandwidth_bytes_per_s(name, 2 * rate)
    assert double == 2 * stack_bandwidth_bytes_per_s(name, rate)


@pytest.mark.parametrize("name", NAMES)
def test_every_value_has_an_origin(name: str) -> None:
    """Width, rate and capacity each cite a source."""
    generation = hbm_generation(name)
    assert {"bus_bits", "channels", "standard"} <= set(generation.provenance)
    assert generation.source_of("bus_bits").source


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("HBM5", None), "HBM generation must be a known name, nearest: HBM"),
        (("HBM4", 0.0), "pin rate must be greater than 0"),
        (("HBM4", "-1 Gb/s"), "pin rate must be greater than 0"),
        (("HBM4", math.nan), "pin rate must be finite"),
        (("HBM4", "8 GHz"), "pin rate must be a number or a rate"),
        (("HBM3e", None), "pin rate must be given where the standard has none"),
    ],
)
def test_a_bad_request_is_refused(arguments: tuple[str, float | str | None], message: str) -> None:
    """Unknown generations, wrong units and missing or impossible rates are named."""
    with pytest.raises(InputError, match=message):
        stack_bandwidth_bytes_per_s(*arguments)
