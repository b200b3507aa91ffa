"""The descriptor of one GPU: plain numbers in base units, each with its provenance."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from .catalogs import Catalog
from .errors import InputError, from_validation
from .fields import (
    Bytes,
    BytesPerSecond,
    Count,
    CountOrZero,
    Flag,
    FlopsPerSecond,
    Hertz,
    Name,
    Number,
    Precision,
    Text,
    Watts,
)
from .overriding import apply_overrides, plain_values
from .provenance import OVERRIDE, Frozen, Provenance, lookup, split
from .reading import read_toml
from .units import format_quantity

CATALOG = Catalog("gpu", "gpus")
PLAIN_KEYS = frozenset({"id", "aliases", "name", "vendor", "architecture", "status", "notes"})
"""Keys of a GPU file that need no provenance: they name the product."""


class Hbm(Frozen):
    """Device memory (HBM or GDDR).

    ``capacity_bytes`` is the label in decimal bytes, ``usable_bytes`` what the driver reports.
    """

    memory_type: Text
    capacity_bytes: Bytes
    bandwidth_bytes_per_s: BytesPerSecond
    usable_bytes: Bytes | None = None
    stacks: Count | None = None
    bus_bits: Count | None = None


class Scaleup(Frozen):
    """Links between the GPUs of one scale-up domain (NVLink, Infinity Fabric, UALink).

    ``bandwidth_bytes_per_s`` is one direction of a whole GPU, all links together; without
    ``switched`` one peer gets only the links that lead to it. ``in_switch_reduction`` is NVLS.
    """

    kind: Text
    switched: Flag
    in_switch_reduction: Flag
    max_domain_gpus: Count
    generation: Count | None = None
    links: Count | None = None
    bandwidth_bytes_per_s: BytesPerSecond | None = None
    topology: Text | None = None


class Pcie(Frozen):
    """The link to the host; ``bandwidth_bytes_per_s`` is one direction."""

    generation: Count | None = None
    lanes: Count | None = None
    bandwidth_bytes_per_s: BytesPerSecond | None = None


class Gpu(Frozen):
    """What one GPU can do; a value that no source gives is None.

    Tensor peaks are dense and hold at ``tensor_peak_clock_hz``; ``sparse_tensor_flops_per_s`` are
    the 2:4 peaks. An SM is a compute unit on AMD. Bandwidths are one direction.
    ``provenance`` gives the origin of every value by dotted path ("hbm.bandwidth_bytes_per_s").
    """

    id: Name
    aliases: tuple[str, ...] = ()
    name: Text
    vendor: Text
    architecture: Name
    status: Text
    notes: tuple[str, ...] = ()

    sm_count: Count
    boost_clock_hz: Hertz
    base_clock_hz: Hertz | None = None
    tensor_peak_clock_hz: Hertz | None = None
    tensor_flops_per_s: Mapping[Precision, FlopsPerSecond] = Field(min_length=1)
    sparse_tensor_flops_per_s: Mapping[Precision, FlopsPerSecond] = Field(default_factory=dict)
    vector_flops_per_s: Mapping[Precision, FlopsPerSecond] = Field(default_factory=dict)

    l2_bytes: Bytes | None = None
    last_level_cache_bytes: Bytes | None = None
    shared_memory_per_sm_bytes: Bytes | None = None
    l1_and_shared_memory_per_sm_bytes: Bytes | None = None
    register_file_per_sm_bytes: Bytes | None = None
    tensor_memory_per_sm_bytes: Bytes | None = None

    hbm: Hbm
    scaleup: Scaleup | None = None
    pcie: Pcie | None = None
    c2c_bandwidth_bytes_per_s: BytesPerSecond | None = None
    power_limit_w: Watts | None = None

    mig_max_instances: CountOrZero | None = None
    confidential_computing: Flag | None = None
    form_factor: Text | None = None
    codename: Text | None = None
    compute_capability: Text | None = None
    launch_date: Text | None = None
    process_node: Text | None = None
    transistors: Number | None = None
    die_area_mm2: Number | None = None
    sm_count_full_die: Count | None = None

    provenance: Mapping[str, Provenance] = Field(default_factory=dict, repr=False)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.base_clock_hz and self._judge("base_clock_hz", "boost_clock_hz"):
            self._at_most("base_clock_hz", self.base_clock_hz, self.boost_clock_hz, "Hz")
        for precision, sparse in self.sparse_tensor_flops_per_s.items():
            dense = self.tensor_flops_per_s.get(precision, 0.0)
            key = f"tensor_flops_per_s.{precision}"
            if self._judge(key, f"sparse_{key}"):
                self._at_most(key, dense, sparse, "FLOP/s")
        return self

    def _judge(self, first: str, second: str) -> bool:
        """Whether two values should agree: not when the user has changed only one of them."""
        overridden = [self.provenance.get(path) == OVERRIDE for path in (first, second)]
        return overridden[0] == overridden[1]

    @staticmethod
    def _at_most(name: str, value: float, limit: float, unit: str) -> None:
        if value > limit:
            other = "boost_clock_hz" if unit == "Hz" else f"sparse_{name}"
            must = f"{name} must be at most {other}, {format_quantity(limit, unit)}"
            raise InputError(must, format_quantity(value, unit))

    def source_of(self, path: str) -> Provenance:
        """Origin of the value at a dotted path; InputError, with the nearest, for one without."""
        return lookup(self.provenance, path, self.id)

    def with_overrides(self, overrides: Mapping[str, str]) -> Gpu:
        """A copy with values changed: dotted path to text, such as {"sm_count": "144"}.

        Each changed value becomes "projected" with source "override". A changed ``sm_count`` scales
        the peaks that are not changed themselves: the SMs are of the same strength. Raises
        InputError for an unknown path or a value that is not allowed.
        """
        values = plain_values(self)
        provenance = apply_overrides(values, self.provenance, overrides)
        changed = validate_gpu(values, provenance, f"overrides of {self.id}")
        if changed.sm_count == self.sm_count:
            return changed
        _scale_peaks(values, provenance, changed.sm_count / self.sm_count)
        return validate_gpu(values, provenance, f"overrides of {self.id}")


PEAKS = ("tensor_flops_per_s", "sparse_tensor_flops_per_s", "vector_flops_per_s")
"""Tables of peaks that are proportional to the number of SMs."""


def _scale_peaks(values: dict[str, Any], provenance: dict[str, Provenance], factor: float) -> None:
    """Multiply every peak that the user did not set, in place, and mark it as derived."""
    origin = Provenance(source="override", kind="projected", note="scaled with sm_count")
    for table in PEAKS:
        for precision in values.get(table) or {}:
            path = f"{table}.{precision}"
            if provenance.get(path) != OVERRIDE:
                values[table][precision] *= factor
                provenance[path] = origin


def gpu_ids() -> list[str]:
    """Ids of the GPUs in the catalog, sorted."""
    return CATALOG.ids()


def load_gpu(name_or_path: str | Path, overrides: Mapping[str, str] | None = None) -> Gpu:
    """The GPU with this id or alias (in any case), or of the TOML file at this path.

    ``overrides`` change values by dotted path, see ``Gpu.with_overrides``. Raises InputError for an
    unknown name (with the nearest), a malformed file, and every value that breaks a rule.
    """
    path = CATALOG.path(name_or_path)
    found = _read_shipped(path) if CATALOG.holds(path) else read_gpu(path)
    return found.with_overrides(overrides) if overrides else found


@cache
def _read_shipped(path: Path) -> Gpu:
    return read_gpu(path)


def read_gpu(path: Path) -> Gpu:
    """The GPU of one TOML file; raises InputError with file and key."""
    values, provenance = split(read_toml(path), PLAIN_KEYS, str(path))
    return validate_gpu(values, provenance, str(path))


def validate_gpu(
    values: Mapping[str, Any], provenance: Mapping[str, Provenance], where: str
) -> Gpu:
    """A Gpu from plain values; raises InputError that names ``where`` and the dotted key."""
    try:
        return Gpu.model_validate({**values, "provenance": provenance})
    except ValidationError as error:
        raise from_validation(error, where, Gpu) from None
