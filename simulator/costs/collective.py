"""Collectives and messages inside one scale-up domain: latency and wire bytes over link rate."""

from __future__ import annotations

from workloads.kernels import Collective

from .launch import Launch
from .machine import Machine

COLLECTIVE = "collective"


def collective_launch(machine: Machine, kernel: Collective) -> Launch:
    """The kernel of one collective among GPUs that are joined all to all at full bandwidth.

    A collective of one rank takes no time beyond its launch. Raises ValueError for a GPU without
    scale-up links, whose collectives are not modelled.
    """
    if kernel.ranks == 1:
        return Launch(kernel.label, COLLECTIVE, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    seconds = collective_seconds(machine, kernel)
    memory_j = machine.memory_j(kernel.hbm_bytes)
    return Launch(kernel.label, COLLECTIVE, 0.0, 0.0, seconds, 0.0, memory_j, 0.0)


def collective_seconds(machine: Machine, kernel: Collective) -> float:
    """Duration of a collective when all its ranks have arrived, in seconds."""
    p = machine.calibration.collectives[kernel.op]
    link = machine.gpu.scaleup.bandwidth_bytes_per_s if machine.gpu.scaleup else None
    if link is None:
        raise ValueError(
            f"gpu must have scale-up links for collectives (got none on {machine.gpu.id})"
        )
    rate = link * p.link_fraction * (1.0 - p.rank_loss / kernel.ranks)
    return p.latency_s + kernel.wire_bytes / rate
