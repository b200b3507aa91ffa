"""Quantities: text becomes numbers in base units at one place, and numbers become text again."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archs.errors import InputError
from archs.units import format_quantity, parse_quantity, units

MAGNITUDES = st.floats(1e-13, 1e20)


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("4.8 TB/s", "bytes/s", 4.8e12),
        ("400 Gb/s", "bytes/s", 50e9),
        ("25Gbps", "bytes/s", 3.125e9),
        ("141 GB", "bytes", 141e9),
        ("60 MiB", "bytes", 60 * 2**20),
        ("143771 MiB", "bytes", 143771 * 2**20),
        ("700 W", "W", 700.0),
        ("10.2 kW", "W", 10200.0),
        ("1980 MHz", "Hz", 1.98e9),
        ("989.4 TFLOP/s", "FLOP/s", 989.4e12),
        ("35 PFLOPS", "FLOP/s", 35e15),
        ("7.8 us", "s", 7.8e-6),
        ("7.8µs", "s", 7.8e-6),
        ("2 h", "s", 7200.0),
        ("8 Gb/s", "bits/s", 8e9),
        ("1 GB/s", "bits/s", 8e9),
        ("1_000", "W", 1000.0),
        ("1e3 W", "W", 1000.0),
        ("80 G", "", 80e9),
        (" 5 ", "s", 5.0),
    ],
)
def test_text_is_read_exactly(text: str, unit: str, value: float) -> None:
    """Each spelling gives exactly the float nearest to the decimal number it says."""
    assert parse_quantity(text, unit) == value


@given(MAGNITUDES, st.sampled_from(units()))
def test_what_is_written_is_read_back(value: float, unit: str) -> None:
    """Formatting with all digits and parsing give the number again, in every unit."""
    text = format_quantity(value, unit, digits=17)
    assert math.isclose(parse_quantity(text, unit), value, rel_tol=1e-15)


@given(MAGNITUDES)
def test_binary_prefixes_are_read_back(value: float) -> None:
    """The same holds for KiB, MiB and their like."""
    text = format_quantity(value, "bytes", digits=17, binary=True)
    assert math.isclose(parse_quantity(text, "bytes"), value, rel_tol=1e-15)


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(units()))
def test_numbers_pass_through(value: float, unit: str) -> None:
    """A number is taken to be in the base unit already."""
    assert parse_quantity(value, unit) == value


@given(st.floats(0.001, 999), st.sampled_from(["k", "M", "G", "T"]))
def test_a_prefix_is_a_thousand(number: float, prefix: str) -> None:
    """Each prefix is a thousand times the one before."""
    smaller = {"k": "", "M": "k", "G": "M", "T": "G"}[prefix]
    larger = parse_quantity(f"{number!r} {prefix}B", "bytes")
    assert math.isclose(larger, 1000 * parse_quantity(f"{number!r} {smaller}B", "bytes"))


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (4.8e12, "bytes/s", "4.8 TB/s"),
        (141e9, "bytes", "141 GB"),
        (7.8e-6, "s", "7.8 us"),
        (90.0, "s", "90 s"),
        (1.98e9, "Hz", "1.98 GHz"),
        (0.0, "W", "0 W"),
        (123456.0, "s", "123456 s"),
        (None, "W", "-"),
    ],
)
def test_tables_show_short_text(value: float | None, unit: str, text: str) -> None:
    """The largest fitting prefix and four digits; a missing value is a dash."""
    assert format_quantity(value, unit) == text


@pytest.mark.parametrize("text", ["700 Watt", "4.8 TB", "fast", "", "4.8 4.8 TB/s", "1__2 GHz/s"])
def test_text_of_another_unit_is_refused(text: str) -> None:
    """The message names the quantity, the rule and the place."""
    with pytest.raises(InputError, match=r"hbm must be a number or a rate .* in a\.toml:hbm"):
        parse_quantity(text, "bytes/s", what="hbm", where="a.toml:hbm")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "nan", "inf", "1e999 W"])
def test_what_is_not_finite_is_refused(value: float | str) -> None:
    """NaN and infinity are refused as numbers and as text."""
    with pytest.raises(InputError, match="limit must be finite"):
        parse_quantity(value, "W", what="limit")


def test_signs_are_refused_where_asked() -> None:
    """Zero and negative values pass unless the caller rules them out."""
    assert parse_quantity("-5 W", "W") == -5.0
    assert parse_quantity(0, "W", sign="nonnegative") == 0.0
    with pytest.raises(InputError, match=r"limit must be greater than 0 \(got 0 W\)"):
        parse_quantity(0, "W", what="limit", sign="positive")
    with pytest.raises(InputError, match=r"limit must be 0 or more \(got -5 W\)"):
        parse_quantity("-5 W", "W", what="limit", sign="nonnegative")


def test_a_truth_value_is_no_number() -> None:
    """TOML's true is not taken for 1."""
    with pytest.raises(InputError, match=r"limit must be a number .*got True"):
        parse_quantity(True, "W", what="limit")


def test_an_unknown_unit_is_refused() -> None:
    """A programming slip in the unit is an error, not a guess."""
    with pytest.raises(InputError, match=r"unit must be one of bytes.*got furlong"):
        parse_quantity("1 W", "furlong")
