"""The tables behind ``stepsim list``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from archs import hbm, systems
from archs.calibration import calibration_ids, load_calibration
from archs.gpu import Gpu, gpu_ids, load_gpu
from archs.units import format_quantity
from validation.records import MeasuredRun, read_runs
from validation.validate import RUNS
from workloads.catalog import load_model, model_ids, model_source
from workloads.model import ResNet50

from . import text


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its JSON key (which ends in the unit), title, unit and side (``l`` or ``r``)."""

    key: str
    title: str
    unit: str = ""
    side: str = "l"


@dataclass(frozen=True, slots=True)
class Listing:
    """Rows of plain values, None where unknown; the first column is the id."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]

    @property
    def titles(self) -> list[str]:
        """Titles of the columns."""
        return [column.title for column in self.columns]

    @property
    def align(self) -> str:
        """One letter a column, as ``console.table`` takes them."""
        return "".join(column.side for column in self.columns)

    def cells(self) -> Iterator[tuple[str, ...]]:
        """The rows as text, quantities with their units."""
        for row in self.rows:
            yield tuple(_cell(v, c) for v, c in zip(row, self.columns, strict=True))

    def as_dicts(self) -> list[dict[str, Any]]:
        """The rows as JSON objects."""
        keys = [column.key for column in self.columns]
        return [dict(zip(keys, row, strict=True)) for row in self.rows]


def sample(listing: Listing) -> str:
    """The first few ids."""
    names = [str(row[0]) for row in listing.rows[:4]]
    return ", ".join(names) + (", ..." if len(listing.rows) > len(names) else "")


def _cell(value: Any, column: Column) -> str:
    if value is None:
        return text.ABSENT
    if column.unit:
        return format_quantity(value, column.unit)
    return f"{value:,}" if column.side == "r" else text.one_line(value)


def gpus() -> Listing:
    """Every GPU of the catalog."""
    calibrated = set(calibration_ids())
    rows = tuple(_gpu(load_gpu(name), name in calibrated) for name in gpu_ids())
    columns = (
        Column("id", "id"),
        Column("architecture", "architecture"),
        Column("sm_count", "SMs", side="r"),
        Column("half_precision_flops_per_s", "16-bit peak", "FLOP/s", "r"),
        Column("memory_bytes", "memory", "bytes", "r"),
        Column("memory_bytes_per_s", "bandwidth", "bytes/s", "r"),
        Column("power_limit_w", "limit", "W", "r"),
        Column("calibrated", "fitted"),
    )
    return Listing(columns, rows)


def _gpu(gpu: Gpu, calibrated: bool) -> tuple[Any, ...]:
    peak = gpu.tensor_flops_per_s.get("bf16") or gpu.tensor_flops_per_s.get("fp16")
    memory = gpu.hbm
    return (gpu.id, gpu.architecture, gpu.sm_count, peak, memory.capacity_bytes,
            memory.bandwidth_bytes_per_s, gpu.power_limit_w, calibrated)  # fmt: skip


def all_systems() -> Listing:
    """Every system of the catalog."""
    found = [systems.load_system(name) for name in systems.system_ids()]
    rows = tuple((s.id, s.gpu.id, s.gpus, s.gpus_per_node, s.name) for s in found)
    columns = (
        Column("id", "id"),
        Column("gpu", "gpu"),
        Column("gpus", "gpus", side="r"),
        Column("gpus_per_node", "a node", side="r"),
        Column("name", "name"),
    )
    return Listing(columns, rows)


def models() -> Listing:
    """Every model of the catalog."""
    rows = tuple(_model(name) for name in model_ids())
    columns = (
        Column("id", "id"),
        Column("family", "family"),
        Column("parameters", "parameters", side="r"),
        Column("layers", "layers", side="r"),
        Column("hidden", "hidden", side="r"),
        Column("heads", "heads", side="r"),
        Column("source", "source"),
    )
    return Listing(columns, rows)


def _model(name: str) -> tuple[Any, ...]:
    model, source = load_model(name), model_source(name)
    if isinstance(model, ResNet50):
        return name, model.family, model.parameter_count(), None, None, None, source
    return (name, model.family, model.parameter_count(), model.layers, model.hidden, model.heads,
            source)  # fmt: skip


def hbm_generations() -> Listing:
    """Every generation of HBM; the bandwidth is that of one stack at the standard's rate."""
    rows = tuple(
        (g.name, g.standard, g.bus_bits, g.jedec_pin_rate_bits_per_s,
         hbm.stack_bandwidth_bytes_per_s(g) if g.jedec_pin_rate_bits_per_s else None)
        for g in hbm.hbm_generations()
    )  # fmt: skip
    columns = (
        Column("name", "name"),
        Column("standard", "standard"),
        Column("bus_bits", "bus bits", side="r"),
        Column("pin_rate_bits_per_s", "pin rate", "bits/s", "r"),
        Column("stack_bytes_per_s", "a stack", "bytes/s", "r"),
    )
    return Listing(columns, rows)


def calibrations() -> Listing:
    """Every installed calibration."""
    found = [load_calibration(name) for name in calibration_ids()]
    rows = tuple((c.gpu, c.architecture, c.date, sum(s.rows for s in c.sources)) for c in found)
    columns = (
        Column("gpu", "gpu"),
        Column("architecture", "architecture"),
        Column("date", "date"),
        Column("measurements", "measurements", side="r"),
    )
    return Listing(columns, rows)


def runs() -> Listing:
    """Every shipped measured run."""
    rows = tuple(_run(run) for run in read_runs(RUNS))
    columns = (
        Column("id", "id"),
        Column("gpu", "gpu"),
        Column("gpus", "gpus", side="r"),
        Column("execution", "execution"),
        Column("precision", "precision"),
        Column("step_time_s", "step time", "s", "r"),
    )
    return Listing(columns, rows)


def _run(run: MeasuredRun) -> tuple[Any, ...]:
    stack, system = run.stack, run.system
    return (run.id, system.gpu, system.num_gpus, stack.execution, stack.precision,
            run.measured.step_time_s)  # fmt: skip


LISTINGS: dict[str, Callable[[], Listing]] = {
    "gpus": gpus, "systems": all_systems, "models": models, "hbm": hbm_generations,
    "calibrations": calibrations, "runs": runs,
}  # fmt: skip
