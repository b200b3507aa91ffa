"""The one place where quantities such as "4.8 TB/s" become numbers, and numbers become text.

Inside stepsim quantities are plain floats in the base unit that the name states: bytes, bytes/s,
FLOP/s, Hz, W, J, s. Bandwidth may be written in bits ("400 Gb/s"), sizes with decimal (GB) or
binary (GiB) prefixes. Case matters where it must: b is a bit and B a byte, m is milli and M mega.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Literal

from .errors import InputError

Sign = Literal["any", "nonnegative", "positive"]

DECIMAL_PREFIXES = {
    "p": 1e-12, "n": 1e-9, "u": 1e-6, "µ": 1e-6, "μ": 1e-6, "m": 1e-3, "": 1.0,
    "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
}  # fmt: skip
BINARY_PREFIXES = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}

_SYMBOLS: dict[str, dict[str, float]] = {
    "": {"": 1.0},
    "bytes": {"B": 1.0, "byte": 1.0, "bytes": 1.0, "b": 0.125, "bit": 0.125, "bits": 0.125},
    "bits": {"b": 1.0, "bit": 1.0, "bits": 1.0, "B": 8.0, "byte": 8.0, "bytes": 8.0},
    "FLOP": {"FLOP": 1.0, "FLOPs": 1.0, "OP": 1.0},
    "FLOP/s": {"FLOP/s": 1.0, "FLOPs/s": 1.0, "FLOPS": 1.0, "OP/s": 1.0, "OPS": 1.0},
    "Hz": {"Hz": 1.0},
    "W": {"W": 1.0},
    "J": {"J": 1.0, "Wh": 3600.0},
    "s": {"s": 1.0},
    "USD": {"USD": 1.0, "$": 1.0},
}
for _size in ("bytes", "bits"):
    _SYMBOLS[f"{_size}/s"] = {
        f"{symbol}{end}": scale
        for symbol, scale in _SYMBOLS[_size].items()
        for end in ("/s", "ps")
        if len(symbol) == 1 or end == "/s"
    }
_UNPREFIXED = {"s": {"min": 60.0, "h": 3600.0, "hour": 3600.0, "hours": 3600.0, "d": 86400.0}}

_SHOWN_PREFIXES: dict[str, tuple[str, ...]] = {
    "s": ("p", "n", "u", "m", ""),
    "": ("", "k", "M", "G", "T"),
    "USD": ("", "k", "M", "G"),
}
_SHOWN_SYMBOL = {"bytes": "B", "bytes/s": "B/s", "bits": "b", "bits/s": "b/s"}
_DEFAULT_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
_SHOWN_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi")

_QUANTITY = re.compile(
    r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:e[+-]?\d+)?|[+-]?(?:nan|inf))\s*(\S*)\s*",
    re.IGNORECASE,
)


def units() -> list[str]:
    """The base units that ``parse_quantity`` and ``format_quantity`` know."""
    return list(_SYMBOLS)


def parse_quantity(
    value: str | float,
    unit: str,
    *,
    what: str = "value",
    where: str | None = None,
    sign: Sign = "any",
) -> float:
    """A quantity in the base ``unit``: text such as "4.8 TB/s" is converted, a number is kept.

    Raises InputError, which calls the quantity ``what`` and its place ``where``, for text that is
    no quantity of this unit, for NaN and infinity, and for a ``sign`` that is not allowed.
    """
    number = _from_text(value, unit, what, where) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise InputError(f"{what} must be a number or {_example(unit)}", value, where)
    rule = _broken_rule(float(number), sign)
    if rule:
        got = value if isinstance(value, str) else f"{value} {unit}".strip()
        raise InputError(f"{what} must be {rule}", got, where)
    return float(number)


def format_quantity(
    value: float | None, unit: str, *, digits: int = 4, binary: bool = False
) -> str:
    """``value`` (in base ``unit``) for a table: "4.8 TB/s", "141 GB"; None becomes "-".

    ``digits`` are significant; ``binary`` asks for KiB, MiB, ... Raises InputError for an unknown
    unit. ``parse_quantity`` reads the text back.
    """
    if value is None:
        return "-"
    symbol = _SHOWN_SYMBOL.get(_known(unit, None), unit)
    prefix, scale = _best_prefix(abs(value), unit, binary=binary)
    number = f"{value / scale:.{digits}g}"
    if "e" in number and digits <= len(f"{abs(value / scale):.0f}") <= 15:
        number = f"{value / scale:.0f}"
    return f"{number} {prefix}{symbol}".strip()


def _from_text(text: str, unit: str, what: str, where: str | None) -> float:
    scales = _scales(_known(unit, where))
    match = _QUANTITY.fullmatch(text)
    if not match or (match[2] and match[2] not in scales):
        raise InputError(f"{what} must be a number or {_example(unit)}", text, where)
    return _times(match[1].replace("_", ""), scales.get(match[2], 1.0))


def _times(digits: str, scale: float) -> float:
    """The float nearest to ``digits`` x ``scale``, so that "7.8 us" is exactly 7.8e-6."""
    number = float(digits)
    if not math.isfinite(number) or number == 0.0:
        return number
    return float(Decimal(digits) * Decimal(repr(scale)))


def _scales(unit: str) -> dict[str, float]:
    """Every accepted spelling of ``unit`` with its factor, prefixed ones included."""
    prefixes = DECIMAL_PREFIXES | (BINARY_PREFIXES if unit.startswith(("bytes", "bits")) else {})
    prefixed = {
        f"{prefix}{symbol}": factor * scale
        for prefix, factor in prefixes.items()
        for symbol, scale in _SYMBOLS[unit].items()
    }
    return prefixed | _UNPREFIXED.get(unit, {})


def _known(unit: str, where: str | None) -> str:
    if unit not in _SYMBOLS:
        raise InputError(f"unit must be one of {', '.join(filter(None, units()))}", unit, where)
    return unit


def _broken_rule(number: float, sign: Sign) -> str | None:
    if not math.isfinite(number):
        return "finite"
    if sign == "positive" and number <= 0:
        return "greater than 0"
    if sign == "nonnegative" and number < 0:
        return "0 or more"
    return None


def _best_prefix(size: float, unit: str, *, binary: bool) -> tuple[str, float]:
    """The largest prefix that leaves at least one whole unit (the smallest for smaller values)."""
    table = BINARY_PREFIXES | {"": 1.0} if binary else DECIMAL_PREFIXES
    names = _SHOWN_BINARY if binary else _SHOWN_PREFIXES.get(unit, _DEFAULT_PREFIXES)
    fitting = [name for name in names if table[name] <= size]
    chosen = (fitting or names[:1])[-1] if size else ""
    return chosen, table[chosen]


def _example(unit: str) -> str:
    examples = {
        "bytes": "a size such as '141 GB'",
        "bytes/s": "a rate such as '4.8 TB/s'",
        "bits/s": "a rate such as '400 Gb/s'",
        "FLOP/s": "a rate such as '989.4 TFLOP/s'",
        "Hz": "a frequency such as '1980 MHz'",
        "W": "a power such as '700 W'",
        "s": "a time such as '7.8 us'",
    }
    return examples.get(unit, f"a quantity in {unit}" if unit else "a plain count such as '132'")
