"""Memory over a step: resident tensors, then allocations and releases in issue order."""

from __future__ import annotations

from dataclasses import dataclass

from workloads.program import Role

CUBLAS_WORKSPACE_BYTES = {"hopper": 32 * 2**20, "blackwell": 32 * 2**20}
"""PyTorch's default cuBLAS workspace per handle (aten/src/ATen/cuda/CublasHandlePool.cpp)."""

CUBLAS_WORKSPACE_OTHER_BYTES = 4096 * 1024 * 2 + 16 * 8 * 1024
CUBLAS_HANDLES = 2
"""The main thread's handle and the autograd thread's."""


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """Peak allocated bytes, what it consists of, and where in the step it is reached."""

    peak_bytes: int
    parts: dict[str, int]
    where: str


def workspace_bytes(architecture: str) -> int:
    """Bytes that cuBLAS keeps allocated through PyTorch's allocator."""
    each = CUBLAS_WORKSPACE_BYTES.get(architecture, CUBLAS_WORKSPACE_OTHER_BYTES)
    return CUBLAS_HANDLES * each


def profile(role: Role, architecture: str) -> MemoryProfile:
    """Replay a role's memory events; the peak is that of allocated (not reserved) memory."""
    current = {**role.resident_bytes, "workspace": workspace_bytes(architecture)}
    total = peak = sum(current.values())
    parts, where = dict(current), "start"
    for label, operator in role.operators():
        for category, change in operator.memory:
            current[category] = current.get(category, 0) + change
            total += change
            if total > peak:
                peak, parts, where = total, dict(current), f"{label} {operator.name}"
    return MemoryProfile(peak, parts, where)
