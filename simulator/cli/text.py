"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ABSENT = "-"


def seconds(value: float | None) -> str:
    """Seconds with a prefix: "183.2 ms"."""
    return _quantity(value, "s")


def gigabytes(value: float | None) -> str:
    """Decimal bytes with a prefix: "42.65 GB"."""
    return _quantity(value, "bytes")


def percent(share: float | None, digits: int = 1) -> str:
    """A fraction in percent: "12.3 %"."""
    return ABSENT if share is None else f"{100 * share:.{digits}f} %"


def signed_percent(share: float | None) -> str:
    """A relative error with its sign: "+1.2 %"."""
    return ABSENT if share is None else f"{100 * share:+.1f} %"


def number(value: float | None, unit: str = "", digits: int = 0) -> str:
    """A number with thousands separated: "12,345 tokens/s"."""
    return ABSENT if value is None else f"{value:,.{digits}f} {unit}".rstrip()


def one_line(value: Any) -> str:
    """Any value of a descriptor on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {one_line(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(one_line, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _quantity(value: float | None, unit: str) -> str:
    from archs.units import format_quantity

    return ABSENT if value is None else format_quantity(value, unit)
