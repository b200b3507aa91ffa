"""Board power and the clock it allows: one SM clock for the GPU and the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .costs import Launch
from .costs.collective import COLLECTIVE
from .costs.machine import Machine

BISECTIONS = 40
CALIBRATED_LIMIT_W = 700.0
"""Limit of the boards whose idle and active power were measured (H200 SXM)."""


@dataclass(frozen=True, slots=True)
class PowerModel:
    """Energy and power of a step on one machine under a power limit in watts."""

    machine: Machine
    limit_w: float

    @property
    def idle_w(self) -> float:
        """Power without work, scaled to the board by its limit where it was not measured."""
        return self.machine.calibration.power.idle_w * self.board_scale

    @property
    def board_scale(self) -> float:
        """Size of the board relative to the calibrated one, by their power limits."""
        return 1.0 if self.machine.own else self.limit_w / CALIBRATED_LIMIT_W

    def dynamic_j(self, launches: Sequence[Launch], clock_hz: float) -> float:
        """Energy above idle of a set of kernels at an SM clock, in joules."""
        return sum(n * self._launch_j(x, clock_hz) for x, n in _grouped(launches))

    def _launch_j(self, launch: Launch, clock_hz: float) -> float:
        if launch.kind == COLLECTIVE:
            return launch.memory_j
        active = self.machine.calibration.power.active_w * launch.seconds(clock_hz)
        core = launch.core_j + active * self.board_scale
        return self._core_scale(clock_hz) * core + launch.memory_j

    def _core_scale(self, clock_hz: float) -> float:
        p = self.machine.calibration.power
        return float((clock_hz / p.reference_clock_hz) ** p.exponent)

    def clock_hz(self, launches: Sequence[Launch], gap_s: float, host_s: float) -> float:
        """The highest clock at which mean power over the computing time stays within the limit.

        That is the time of the computing kernels with ``gap_s`` between them or, where it is
        longer, the time that the host needs to issue them (``host_s``, 0 to leave it out). At the
        lowest clock the limit may be exceeded.
        """
        p = self.machine.calibration.power
        high = self.machine.max_clock_hz
        low = min(p.min_clock_hz, high)
        budget_w = p.limit_fraction * self.limit_w - self.idle_w
        groups = _grouped(launches)
        computing = [(x, n) for x, n in groups if x.kind != COLLECTIVE]

        def within(clock_hz: float) -> bool:
            busy = sum(n * (x.seconds(clock_hz) + gap_s) for x, n in computing)
            energy = sum(n * self._launch_j(x, clock_hz) for x, n in groups)
            return energy <= budget_w * max(busy, host_s)

        if within(high):
            return high
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if within(middle) else (low, middle)
        return low


def _grouped(launches: Sequence[Launch]) -> list[tuple[Launch, int]]:
    """Distinct launches with their counts."""
    counts: dict[int, int] = {}
    objects: dict[int, Launch] = {}
    for launch in launches:
        counts[id(launch)] = counts.get(id(launch), 0) + 1
        objects[id(launch)] = launch
    return [(objects[key], count) for key, count in counts.items()]
