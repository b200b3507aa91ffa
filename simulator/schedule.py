"""From a Program to what the engine runs: issue costs and kernel durations at one clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from archs.calibration import HostParameters
from workloads.program import Operator, Role

from .costs import Coster, Launch
from .costs.collective import COLLECTIVE
from .costs.launch import PICOSECONDS


@dataclass(frozen=True, slots=True)
class Work:
    """One operator ready to run: host time to issue it, its launches, whether the host waits."""

    label: str
    operator: Operator
    host_ps: int
    launches: tuple[Launch, ...]
    index: int = 0


@dataclass(frozen=True, slots=True)
class HostModel:
    """Issue time of operators on one host: measured classes scaled by the host's own speed."""

    parameters: HostParameters
    eager_launch_s: float

    @property
    def scale(self) -> float:
        """Cost of an operator in a step on this host relative to the measured loops."""
        p = self.parameters
        return p.step_factor * self.eager_launch_s / p.reference_launch_s

    def seconds(self, operator: Operator) -> float:
        """Host seconds to issue one operator."""
        if operator.host.startswith("none"):
            return 0.0
        p = self.parameters
        base = p.classes.get(operator.host, p.default_s)
        return self.scale * (base + p.unit_s * (operator.units - 1))


def works(role: Role, coster: Coster, host: HostModel) -> list[Work]:
    """Every operator of a role with its costs, in issue order; equal operators are costed once."""
    known: dict[int, tuple[int, tuple[Launch, ...]]] = {}
    found = []
    for placement, operator in role.placed():
        cost = known.get(id(operator))
        if cost is None:
            launches = tuple(x for kernel in operator.kernels for x in coster.launches(kernel))
            host_ps = round(host.seconds(operator) * PICOSECONDS)
            cost = known[id(operator)] = (host_ps, launches)
        found.append(Work(placement.label, operator, *cost, placement.index))
    return found


def all_launches(items: list[Work]) -> Iterator[Launch]:
    """Every kernel launch of a step."""
    for work in items:
        yield from work.launches


def busy_seconds(launches: list[Launch], clock_hz: float, gap_s: float) -> float:
    """Time of a rank's computing kernels back to back, in seconds."""
    computing = (x for x in launches if x.kind != COLLECTIVE)
    return sum(x.seconds(clock_hz) + gap_s for x in computing)


def host_seconds(items: list[Work]) -> float:
    """Time the host needs to issue a step."""
    return sum(work.host_ps for work in items) / PICOSECONDS
