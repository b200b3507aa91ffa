"""The cost of one GPU kernel as a function of the SM clock."""

from __future__ import annotations

from dataclasses import dataclass

PICOSECONDS = 10**12


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel on one GPU: ``floor_s`` plus the larger of ``cycles`` / clock and ``memory_s``.

    ``core_j`` is the energy of the SMs at the calibration's reference clock, ``memory_j`` that of
    the memory, ``flops`` its tensor work, ``kind`` the class it is counted under.
    """

    name: str
    kind: str
    floor_s: float
    cycles: float
    memory_s: float
    core_j: float
    memory_j: float
    flops: float

    def seconds(self, clock_hz: float) -> float:
        """Duration at an SM clock, in seconds."""
        return self.floor_s + max(self.cycles / clock_hz, self.memory_s)

    def picoseconds(self, clock_hz: float) -> int:
        """Duration at an SM clock as the engine's integer time."""
        return max(1, round(self.seconds(clock_hz) * PICOSECONDS))
