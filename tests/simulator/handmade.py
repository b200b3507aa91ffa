"""Hand-made work for tests: operators with round times, so that a step can be done in the head."""

from __future__ import annotations

from archs.calibration import load_calibration
from archs.gpu import load_gpu
from simulator.costs.launch import Launch
from simulator.costs.machine import Machine
from simulator.schedule import Work
from workloads.program import Operator

US = 10**6
"""Picoseconds of a microsecond."""

CLOCK_HZ = 1e9


def launch(microseconds: float, name: str = "kernel") -> Launch:
    """A kernel that takes this long at any clock."""
    return Launch(name, "elementwise", microseconds * 1e-6, 0.0, 0.0, 0.0, 0.0, 0.0)


def compute(cycles: float, core_j: float = 0.0) -> Launch:
    """A kernel that takes ``cycles`` of the SM clock and ``core_j`` at the reference clock."""
    return Launch("compute", "gemm", 0.0, cycles, 0.0, core_j, 0.0, 2.0 * cycles)


def work(
    host_us: float,
    *kernels_us: float,
    name: str = "op",
    phase: str = "forward",
    synchronises: bool = False,
) -> Work:
    """An operator that the host issues in ``host_us`` with kernels of these microseconds."""
    operator = Operator(name, phase, "op.forward", synchronises=synchronises)
    launches = tuple(launch(us) for us in kernels_us)
    return Work(name, operator, round(host_us * US), launches)


def h200() -> Machine:
    """The calibrated GPU."""
    return machine("h200-sxm-141gb")


def machine(name: str, **overrides: str) -> Machine:
    """A catalog GPU with changes ("hbm__bandwidth_bytes_per_s" for a dotted path)."""
    calibration = load_calibration("h200-sxm-141gb")
    changes = {path.replace("__", "."): text for path, text in overrides.items()}
    gpu = load_gpu(name, changes)
    return Machine(gpu, calibration, own=gpu.id == calibration.gpu)
