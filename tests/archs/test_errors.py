"""Bad input is answered with one line that says the rule, the value and the place."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from archs.errors import InputError, StepsimError, from_validation, unknown_name


class Inner(BaseModel):
    """A nested table."""

    model_config = ConfigDict(extra="forbid")

    clock_hz: float = Field(gt=0)


class Outer(BaseModel):
    """A file."""

    model_config = ConfigDict(extra="forbid")

    inner: Inner
    others: dict[str, Inner] | None = None


def _refused(raw: object) -> InputError:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(raw)
    return from_validation(caught.value, "my.toml", Outer)


def test_an_error_reads_rule_value_place() -> None:
    """The three parts stand in one order, and absent parts leave no trace."""
    assert str(InputError("tp must divide heads", 3, "my.toml:plan.tp")) == (
        "tp must divide heads (got 3) in my.toml:plan.tp"
    )
    assert str(InputError("tp must be given")) == "tp must be given"
    assert str(InputError("tp must be given", None)) == "tp must be given (got nothing)"


@given(st.text(), st.text(), st.text())
def test_an_error_is_always_one_line(must: str, got: str, where: str) -> None:
    """Whatever the input holds, the message has no line break."""
    assert len(str(InputError(must, got, where)).splitlines()) <= 1


def test_a_long_value_is_cut() -> None:
    """A value of any length leaves the message readable."""
    assert len(str(InputError("x must be short", "y" * 10_000))) < 200


def test_an_error_survives_a_process_pool() -> None:
    """Pickling keeps the type, the text and the parts."""
    assert issubclass(InputError, StepsimError)
    error = pickle.loads(pickle.dumps(InputError("tp must be 1", 2, "a:b")))  # noqa: S301 - own data
    assert isinstance(error, InputError)
    assert (str(error), error.got) == ("tp must be 1 (got 2) in a:b", 2)


def test_an_unknown_name_gives_the_nearest() -> None:
    """Close names are offered first, in the case they have."""
    message = str(unknown_name("gpu", "H10-sxm", ["h100-sxm", "a100", "t4"], "x.toml"))
    assert message == "gpu must be a known name, nearest: h100-sxm (got H10-sxm) in x.toml"


def test_an_unlike_name_gives_the_choice() -> None:
    """Without a close name the known ones are listed."""
    assert str(unknown_name("mode", "zzz", ["b", "a"])) == "mode must be one of a, b (got zzz)"


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        (
            {"inner": {"clock_hz": -1}},
            "clock_hz must be greater than 0 (got -1) in my.toml:inner.clock_hz",
        ),
        ({"inner": {}}, "clock_hz must be given in my.toml:inner.clock_hz"),
        (
            {"inner": {"clock": 1, "clock_hz": 1}},
            "key must be a known name, nearest: clock_hz (got clock) in my.toml:inner.clock",
        ),
        (
            {"inner": {"clock_hz": 1}, "others": {"a": {"clock_hz": 1, "clok_hz": 1}}},
            "key must be a known name, nearest: clock_hz (got clok_hz) in my.toml:others.a.clok_hz",
        ),
    ],
)
def test_a_validation_error_becomes_one_line(raw: object, line: str) -> None:
    """File, dotted key, rule and value are all there, and an unknown key has its nearest."""
    assert str(_refused(raw)) == line
