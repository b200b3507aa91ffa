"""What the cost models need to know of one GPU, derived from its descriptor."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from archs.calibration import Calibration
from archs.errors import InputError
from archs.gpu import Gpu

ENERGY_PER_OPERATION = {
    "12": 2.6, "16": 2.6, "7": 1.4, "8": 1.5, "6": 1.25, "5": 1.05, "4": 1.0, "3": 0.7,
}  # fmt: skip
"""Energy of one operation by process node (nm) relative to TSMC 4N, from the foundries' published
power reductions a node at equal speed (N16 to N7 about -45 %, N7 to N5 -30 %, N5 to N3 -30 %)."""


@dataclass(frozen=True)
class Machine:
    """A GPU with the calibration it uses; ``own`` says that it was fitted to this very GPU."""

    gpu: Gpu
    calibration: Calibration
    own: bool

    @cached_property
    def sms(self) -> int:
        """Streaming multiprocessors (compute units)."""
        return self.gpu.sm_count

    @cached_property
    def max_clock_hz(self) -> float:
        """Highest SM clock, in Hz."""
        return self.gpu.boost_clock_hz

    @cached_property
    def hbm_bytes_per_s(self) -> float:
        """Peak memory bandwidth, in bytes/s."""
        return self.gpu.hbm.bandwidth_bytes_per_s

    @cached_property
    def l2_bytes(self) -> float:
        """L2 capacity, in bytes."""
        return float(self.gpu.l2_bytes or 0)

    def flops_per_sm_cycle(self, dtype: str) -> float:
        """Dense tensor-core operations of one SM in one cycle; InputError without such a mode."""
        clock = self.gpu.tensor_peak_clock_hz or self.gpu.boost_clock_hz
        return self.peak_flops_per_s(dtype) / (self.sms * clock)

    def peak_flops_per_s(self, dtype: str) -> float:
        """Dense tensor peak of the GPU at a precision, in FLOP/s; InputError where it has none."""
        peaks = {str(k): v for k, v in self.gpu.tensor_flops_per_s.items()}
        if dtype not in peaks:
            known = ", ".join(sorted(peaks))
            raise InputError(f"precision must be one of {known}", dtype, f"{self.gpu.id}")
        return float(peaks[dtype])

    @cached_property
    def energy_scale(self) -> float:
        """Energy of an operation relative to the calibrated GPU's, by process node."""
        if self.own:
            return 1.0
        digits = "".join(c for c in (self.gpu.process_node or "") if c.isdigit())
        return ENERGY_PER_OPERATION.get(digits, 1.0)

    def memory_j(self, moved_bytes: float) -> float:
        """Energy to move bytes through HBM, in joules."""
        return self.calibration.power.hbm_byte_j * moved_bytes
