"""Field types of descriptors: quantities are text with a unit ("700 W") or base-unit numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo

from .units import Sign, parse_quantity


def _reader(unit: str, sign: Sign) -> Callable[[Any, ValidationInfo], float]:
    def read(value: Any, info: ValidationInfo) -> float:
        return parse_quantity(value, unit, what=info.field_name or "value", sign=sign)

    return read


Bytes = Annotated[float, BeforeValidator(_reader("bytes", "positive"))]
Bits = Annotated[float, BeforeValidator(_reader("bits", "positive"))]
BitsPerSecond = Annotated[float, BeforeValidator(_reader("bits/s", "positive"))]
BytesPerSecond = Annotated[float, BeforeValidator(_reader("bytes/s", "positive"))]
FlopsPerSecond = Annotated[float, BeforeValidator(_reader("FLOP/s", "positive"))]
Hertz = Annotated[float, BeforeValidator(_reader("Hz", "positive"))]
Watts = Annotated[float, BeforeValidator(_reader("W", "positive"))]
Seconds = Annotated[float, BeforeValidator(_reader("s", "positive"))]
Dollars = Annotated[float, BeforeValidator(_reader("USD", "positive"))]
Number = Annotated[float, BeforeValidator(_reader("", "positive"))]
Count = Annotated[int, Field(strict=True, gt=0, le=10**18)]
CountOrZero = Annotated[int, Field(strict=True, ge=0)]
Flag = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.+-]*$")]

Precision = Literal[
    "fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp6", "fp4", "int4"
]  # fmt: skip
