"""StepResult: everything a prediction says, with the JSON keys that others rely on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from .engine import Timeline


@dataclass(frozen=True)
class EngineStatistics:
    """What the simulation cost: events, distinct roles, wall time in seconds."""

    events: int
    roles: int
    wall_time_s: float


@dataclass(frozen=True)
class StepResult:
    """One predicted training step.

    Times in seconds, memory in bytes, power in watts, clock in MHz. ``breakdown`` sums to
    ``step_time_s``; ``step_time_interval_s`` covers the truth with probability ``interval_level``.
    ``timeline`` is the simulated step itself (not part of the JSON).
    """

    step_time_s: float
    step_time_interval_s: tuple[float, float]
    interval_level: float
    tokens_per_s: float | None
    tokens_per_s_per_gpu: float | None
    images_per_s: float | None
    images_per_s_per_gpu: float | None
    model_tflops_per_gpu: float
    mfu: float
    hfu: float
    peak_memory_bytes: int
    fits_in_memory: bool
    memory: Mapping[str, int]
    breakdown: Mapping[str, float]
    bound_by: str
    energy_j: float
    average_power_w: float
    sm_clock_mhz: float
    cost_usd: float | None
    warnings: tuple[str, ...]
    engine: EngineStatistics
    timeline: Timeline

    def as_dict(self) -> dict[str, Any]:
        """The JSON form: plain values, keys as in the contract, absent rates left out."""
        found: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "timeline" or (value is None and item.name != "cost_usd"):
                continue
            if item.name == "engine":
                value = {f.name: getattr(value, f.name) for f in fields(value)}
            elif isinstance(value, tuple):
                value = list(value)
            elif isinstance(value, Mapping):
                value = dict(value)
            found[item.name] = value
        return found
