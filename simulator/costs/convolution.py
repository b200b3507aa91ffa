"""Convolutions as implicit matrix products with their own main-loop rate and traffic."""

from __future__ import annotations

import math

from workloads.kernels import Convolution, dtype_bytes

from .gemm import MIN_SPLIT_K, TILE_UNIT, main_loop_cycles
from .launch import Launch
from .machine import Machine

TILES = ((128, 256), (256, 128), (128, 128), (256, 64), (64, 64), (128, 64), (64, 128))


def convolution_cycles(machine: Machine, kernel: Convolution) -> float:
    """SM cycles of the fastest tile for the equivalent implicit GEMM."""
    p, gemm = machine.calibration.convolution[kernel.direction], machine.calibration.gemm
    rate = machine.flops_per_sm_cycle(kernel.dtype)
    m, n, k = kernel.gemm_shape
    size = dtype_bytes(kernel.dtype)
    best = math.inf
    for tile_n, tile_m in TILES:
        step = main_loop_cycles(gemm, tile_n, tile_m, rate, size) / p.efficiency
        grid = math.ceil(m / tile_m) * math.ceil(n / tile_n)
        finish = p.tile_cycles * tile_n * tile_m / TILE_UNIT
        splits = max(1, min(machine.sms // grid, k // MIN_SPLIT_K)) if grid < machine.sms else 1
        waves = math.ceil(grid * splits / machine.sms)
        best = min(best, waves * (max(k, 64) / splits * step + finish))
    return best


def convolution_launch(machine: Machine, kernel: Convolution) -> Launch:
    """The main kernel of one convolution in one direction."""
    p = machine.calibration.convolution[kernel.direction]
    power = machine.calibration.power
    flop_j = power.flop_j.get(kernel.dtype, power.flop_j["bf16"])
    core_j = machine.energy_scale * flop_j * kernel.flops
    memory_s = kernel.hbm_bytes / (p.hbm_fraction * machine.hbm_bytes_per_s)
    cycles = convolution_cycles(machine, kernel)
    return Launch(
        kernel.label, "convolution", p.floor_s, cycles, memory_s, core_j,
        machine.memory_j(kernel.hbm_bytes), kernel.flops,
    )  # fmt: skip
