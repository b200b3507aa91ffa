"""Memory-bound kernels: traffic over achieved bandwidth by code path, L2 residency, issue work."""

from __future__ import annotations

from archs.calibration import StreamParameters
from workloads.kernels import Stream

from .launch import Launch
from .machine import Machine

CLASSES = (
    ("memset", "memset"), ("attention", "attention"), ("batch_norm", "batch_norm"),
    ("layer_norm", "normalization"), ("rms_norm", "normalization"), ("norm_", "normalization"),
    ("fused_norm", "normalization"), ("log_softmax", "softmax_loss"), ("nll", "softmax_loss"),
    ("gather", "embedding"), ("embedding", "embedding"), ("index_sort", "embedding"),
    ("adamw", "optimizer"), ("foreach", "optimizer"), ("cat", "copy"),
    ("transpose_copy", "copy"), ("max_pool", "reduction"), ("fused_statistics", "batch_norm"),
    ("column_sum", "reduction"), ("fused_column_sum", "reduction"), ("pool_mean", "reduction"),
)  # fmt: skip
"""Prefix of a code path to the kernel class that it is counted under; others are element-wise."""


def stream_class(kind: str) -> str:
    """Kernel class of a memory-bound code path, as in traces."""
    return next((name for prefix, name in CLASSES if kind.startswith(prefix)), "elementwise")


def stream_launch(machine: Machine, kernel: Stream) -> Launch:
    """The cost of one memory-bound kernel.

    Raises ValueError for a code path that the calibration does not know.
    """
    streams = machine.calibration.streams
    if kernel.kind not in streams:
        raise ValueError(
            f"kernel kind must be calibrated, one of {sorted(streams)} (got {kernel.kind!r})"
        )
    p = streams[kernel.kind]
    work_s = (p.element_s * kernel.elements + p.row_s * kernel.rows) / machine.sms
    memory_s = max(traffic_s(machine, p, kernel.hbm_bytes), work_s)
    core_j = machine.energy_scale * p.element_j * kernel.elements
    return Launch(
        kernel.label, stream_class(kernel.kind), p.floor_s, 0.0, memory_s, core_j,
        machine.memory_j(kernel.hbm_bytes), 0.0,
    )  # fmt: skip


def traffic_s(machine: Machine, p: StreamParameters, moved: float) -> float:
    """Seconds to move ``moved`` bytes, faster while they fit in L2."""
    l2 = machine.calibration.l2
    peak = p.hbm_fraction * machine.hbm_bytes_per_s
    low, high = l2.resident_fraction * machine.l2_bytes, l2.gone_fraction * machine.l2_bytes
    if moved >= high:
        return moved / peak
    hit = 1.0 if moved <= low else (high - moved) / (high - low)
    return moved / peak * (1.0 - hit + hit / l2.speedup)
