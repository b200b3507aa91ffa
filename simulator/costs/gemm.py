"""Matrix products: tiles in waves over the SMs, main loop at the sustained rate, L2 and HBM."""

from __future__ import annotations

import math
from dataclasses import dataclass

from archs.calibration import GemmParameters
from workloads.kernels import Gemm, dtype_bytes

from .launch import Launch
from .machine import Machine

SPLITS = (1, 2, 4, 8)
MIN_SPLIT_K = 1024
TILE_UNIT = 128 * 128


@dataclass(frozen=True, slots=True)
class Tiling:
    """One way to run a product: tile sides, K splits, and the cycles it takes."""

    tile_n: int
    tile_m: int
    split: int
    waves: int
    cycles: float


def main_loop_cycles(p: GemmParameters, n: int, m: int, rate: float, size: int) -> float:
    """Cycles of one step along K for an n x m tile: tensor cores or loads, whichever is slower.

    ``rate`` is the peak FLOPs per SM and cycle, ``size`` the bytes of an element.
    """
    products = 2.0 * n * m / (rate * p.efficiency)
    loads = (n + m) * size / p.l2_bytes_per_cycle
    return max(products, loads)


def tilings(p: GemmParameters, kernel: Gemm, sms: int, rate: float) -> list[Tiling]:
    """Every tile and K split on offer with its cycles."""
    size = dtype_bytes(kernel.dtype)
    found = []
    for tile_n, tile_m in p.tiles:
        grid = math.ceil(kernel.m / tile_m) * math.ceil(kernel.n / tile_n) * kernel.batch
        step = main_loop_cycles(p, tile_n, tile_m, rate, size)
        finish = p.epilogue_cycles * tile_n * tile_m / TILE_UNIT
        for split in SPLITS:
            if split > 1 and kernel.k / split < MIN_SPLIT_K:
                break
            waves = math.ceil(grid * split / sms)
            cycles = waves * (kernel.k / split * step + finish) + p.prologue_cycles
            found.append(Tiling(tile_n, tile_m, split, waves, cycles))
    return found


def gemm_launches(machine: Machine, kernel: Gemm) -> tuple[Launch, ...]:
    """Launches of one product: tile counters when it takes several waves, main kernel, reduction.

    The fastest tiling is taken, as the library's heuristics aim to.
    """
    p = machine.calibration.gemm
    rate = machine.flops_per_sm_cycle(kernel.dtype)
    rate *= p.precision_efficiency.get(kernel.dtype, 1.0)
    memory_s = kernel.hbm_bytes / (p.hbm_fraction * machine.hbm_bytes_per_s)

    def seconds(tiling: Tiling) -> float:
        main = max(tiling.cycles / machine.max_clock_hz, memory_s)
        return main + _reduction_s(machine, kernel, tiling.split)

    best = min(tilings(p, kernel, machine.sms, rate), key=seconds)
    power = machine.calibration.power
    core_j = (
        machine.energy_scale * kernel.flops * power.flop_j.get(kernel.dtype, power.flop_j["bf16"])
    )
    main = Launch(
        kernel.label, "gemm", p.floor_s, best.cycles, memory_s, core_j,
        machine.memory_j(kernel.hbm_bytes), kernel.flops,
    )  # fmt: skip
    if best.split > 1:
        return main, _reduction(machine, kernel, best.split)
    return (counters(machine), main) if best.waves > 1 else (main,)


def counters(machine: Machine) -> Launch:
    """The memset that clears a persistent kernel's tile counters."""
    floor = machine.calibration.streams["memset"].floor_s
    return Launch("memset", "memset", floor, 0.0, 0.0, 0.0, 0.0, 0.0)


def _reduction_s(machine: Machine, kernel: Gemm, split: int) -> float:
    if split == 1:
        return 0.0
    return _reduction(machine, kernel, split).seconds(machine.max_clock_hz)


def _reduction(machine: Machine, kernel: Gemm, split: int) -> Launch:
    p = machine.calibration.gemm
    moved = kernel.batch * kernel.m * kernel.n * (4.0 * split + dtype_bytes(kernel.dtype))
    seconds = moved / (2.0 * p.hbm_fraction * machine.hbm_bytes_per_s)
    memory_j = machine.memory_j(moved)
    return Launch("split_k_reduce", "gemm", p.split_sync_s, 0.0, seconds, 0.0, memory_j, 0.0)
