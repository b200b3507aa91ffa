"""High-bandwidth memory generations, and the bandwidth that pins and rates give."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from pydantic import Field, ValidationError

from .catalogs import DIRECTORY
from .errors import InputError, from_validation, unknown_name
from .fields import Bits, BitsPerSecond, Bytes, Count, Text
from .provenance import Frozen, Provenance, lookup, split
from .reading import read_toml
from .units import parse_quantity

TABLE = DIRECTORY / "hbm.toml"
_PLAIN = frozenset({"name", "notes"})


class HbmGeneration(Frozen):
    """One generation of HBM stacks.

    ``bus_bits`` is the width of one stack in data pins, ``jedec_pin_rate_bits_per_s`` the rate of
    one pin in the standard (None where there is no standard), ``shipped_*`` the range that products
    use, ``vendor_pin_rate_bits_per_s`` the range that memory vendors announce above the standard.
    """

    name: Text
    standard: Text
    bus_bits: Count
    channels: Count
    jedec_pin_rate_bits_per_s: BitsPerSecond | None = None
    shipped_pin_rate_bits_per_s: tuple[BitsPerSecond, ...] = ()
    vendor_pin_rate_bits_per_s: tuple[BitsPerSecond, ...] = ()
    shipped_stack_bytes: tuple[Bytes, ...] = ()
    max_stack_bytes: Bytes | None = None
    max_dies_per_stack: Count | None = None
    max_die_bits: Bits | None = None
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, Provenance] = Field(default_factory=dict, repr=False)

    def source_of(self, path: str) -> Provenance:
        """Origin of one value; InputError, with the nearest, for one without."""
        return lookup(self.provenance, path, self.name)


@cache
def hbm_generations() -> tuple[HbmGeneration, ...]:
    """All generations, oldest first."""
    raw = read_toml(TABLE)
    return tuple(
        _generation(entry, {**raw["sources"], **entry.pop("sources")})
        for entry in raw["generations"]
    )


def hbm_generation(name: str) -> HbmGeneration:
    """The generation called ``name`` ("HBM3e", in any case); InputError with the nearest names."""
    known = {generation.name.casefold(): generation for generation in hbm_generations()}
    if name.casefold() not in known:
        raise unknown_name("HBM generation", name, [each.name for each in hbm_generations()])
    return known[name.casefold()]


def stack_bandwidth_bytes_per_s(
    generation: str | HbmGeneration, pin_rate_bits_per_s: str | float | None = None
) -> float:
    """Peak bytes/s of one stack: bus width (bits) x pin rate (bits/s) / 8.

    The pin rate is a number in bits/s, text such as "8 Gb/s", or the standard's when left out.
    Raises InputError for an unknown generation, a rate that is not positive, and a generation
    without a standard rate.
    """
    found = hbm_generation(generation) if isinstance(generation, str) else generation
    rate = found.jedec_pin_rate_bits_per_s if pin_rate_bits_per_s is None else pin_rate_bits_per_s
    if rate is None:
        raise InputError("pin rate must be given where the standard has none", found.name, "hbm")
    pin = parse_quantity(rate, "bits/s", what="pin rate", where="hbm", sign="positive")
    return found.bus_bits * pin / 8.0


def _generation(entry: dict[str, object], sources: dict[str, str]) -> HbmGeneration:
    where = f"{TABLE}:{entry.get('name')}"
    values, provenance = split({**entry, "sources": sources}, _PLAIN, where)
    try:
        return HbmGeneration.model_validate({**values, "provenance": provenance})
    except ValidationError as error:
        raise from_validation(error, where, HbmGeneration) from None
