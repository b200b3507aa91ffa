"""Fit the tensor-core cost models: matrix products, attention, convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from archs.calibration import (
    AttentionParameters,
    ConvolutionParameters,
    GemmParameters,
)
from simulator.costs.coster import Coster
from simulator.costs.launch import Launch
from simulator.costs.machine import Machine
from simulator.power import PowerModel

from .least import Vector, fit_log
from .samples import Sample

TILES = (
    (256, 128), (128, 256), (192, 192), (320, 128), (192, 128), (128, 192), (128, 128),
    (160, 128), (128, 160), (128, 64), (64, 128), (96, 128), (96, 64), (64, 64), (64, 256),
)  # fmt: skip
"""Tile sides (n, m) of cuBLAS's Hopper kernels as seen in profiles of bf16 products."""

COMPUTE_KINDS = ("gemm", "attention", "convolution")


def with_parameters(machine: Machine, **changes: Any) -> Machine:
    """The machine with some of its calibration replaced."""
    return Machine(machine.gpu, machine.calibration.model_copy(update=changes), machine.own)


def predict(machine: Machine, samples: list[Sample], event_overhead_s: float = 0.0) -> Vector:
    """Durations of the samples' kernels at the clock of their measurement.

    An ``event`` sample is repeated with a cache flush between; its clock is what the power limit
    allows that loop, and the events add a constant.
    """
    coster = Coster(machine)
    power = PowerModel(machine, SHORT_LOOP_LIMIT * (machine.gpu.power_limit_w or 1e9))
    values = []
    for sample in samples:
        launches = coster.launches(sample.kernel)
        if sample.clock_hz is not None:
            gaps = len(launches) * machine.calibration.host.gap_s
            values.append(sum(x.seconds(sample.clock_hz) for x in launches) + gaps)
            continue
        main = [x for x in launches if x.kind != "memset"]
        clock, extra = machine.max_clock_hz, 0.0
        if sample.origin == "event":
            clock = power.clock_hz([*launches, scale_filler(machine, FLUSH_S)], 0.0, 0.0)
            extra = event_overhead_s
        values.append(sum(x.seconds(clock) for x in main) + extra)
    return np.array(values)


SHORT_LOOP_LIMIT = 1.1
"""What do_bench's loop of 0.1 s may draw relative to the limit: the limiter needs longer.

From the event-timed products and attention together: at 1.0 long ones are predicted 6 and 10 % too
slow, at 1.2 products 7 % too fast; it concerns only how those files are read.
"""
FLUSH_S = 9e-5
"""Time of do_bench's cache flush between repetitions (256 MB written at 2.9 TB/s)."""


def scale_filler(machine: Machine, seconds: float) -> Launch:
    """Memory-bound work between repetitions: a scaled copy, or do_bench's cache flush."""
    moved = seconds * 0.87 * machine.hbm_bytes_per_s
    return Launch("filler", "filler", 0.0, 0.0, seconds, 0.0, machine.memory_j(moved), 0.0)


def _fit(
    machine: Machine,
    samples: list[Sample],
    update: Callable[[Vector], dict[str, Any]],
    start: list[float],
    lower: list[float],
    upper: list[float],
) -> dict[str, Any]:
    measured = np.array([s.seconds for s in samples])

    def model(x: Vector) -> Vector:
        return predict(with_parameters(machine, **update(x)), samples)

    return update(fit_log(model, measured, start, lower, upper))


def fit_gemm(machine: Machine, samples: list[Sample]) -> GemmParameters:
    """Parameters of the bf16 matrix product, tile choice included."""

    def update(x: Vector) -> dict[str, Any]:
        return {
            "gemm": GemmParameters(
                efficiency=x[0], l2_bytes_per_cycle=x[1], prologue_cycles=x[2],
                epilogue_cycles=x[3], floor_s=x[4], split_sync_s=x[5], hbm_fraction=x[6],
                tiles=TILES, precision_efficiency=machine.calibration.gemm.precision_efficiency,
            )
        }  # fmt: skip

    found = _fit(
        machine, samples, update, [0.88, 70.0, 3000.0, 1000.0, 1e-6, 2e-6, 0.7],
        [0.5, 20.0, 0.0, 0.0, 3e-7, 3e-7, 0.3], [1.0, 200.0, 2e4, 1e4, 5e-6, 1e-5, 1.0],
    )  # fmt: skip
    result: GemmParameters = found["gemm"]
    return result


def fit_precision(machine: Machine, samples: list[Sample], event_overhead_s: float) -> float:
    """Main-loop rate of another precision relative to bf16's share of its own peak."""
    dtype = samples[0].kernel.dtype  # type: ignore[union-attr]
    measured = np.array([s.seconds for s in samples])
    gemm = machine.calibration.gemm

    def model(x: Vector) -> Vector:
        table = {**gemm.precision_efficiency, dtype: float(x[0])}
        trial = gemm.model_copy(update={"precision_efficiency": table})
        return predict(with_parameters(machine, gemm=trial), samples, event_overhead_s)

    return float(fit_log(model, measured, [1.0], [0.2], [1.3])[0])


def fit_attention(machine: Machine, samples: list[Sample], direction: str) -> AttentionParameters:
    """Parameters of fused attention in one direction."""

    def update(x: Vector) -> dict[str, Any]:
        p = AttentionParameters(
            mma=x[0], pair_cycles=x[1], tail=x[2], tile_cycles=x[3], floor_s=x[4]
        )
        return {"attention": {**machine.calibration.attention, direction: p}}

    found = _fit(
        machine, samples, update, [1.2, 0.08, 0.5, 2000.0, 3e-6],
        [0.8, 0.0, 0.0, 0.0, 1e-6], [3.0, 1.0, 1.5, 2e4, 2e-5],
    )  # fmt: skip
    result: AttentionParameters = found["attention"][direction]
    return result


def fit_convolution(
    machine: Machine, samples: list[Sample], direction: str
) -> ConvolutionParameters:
    """Parameters of implicit-GEMM convolution in one direction."""

    def update(x: Vector) -> dict[str, Any]:
        p = ConvolutionParameters(
            efficiency=x[0], hbm_fraction=x[1], tile_cycles=x[2], floor_s=x[3]
        )
        return {"convolution": {**machine.calibration.convolution, direction: p}}

    found = _fit(
        machine, samples, update, [0.8, 0.7, 1500.0, 4e-6],
        [0.1, 0.1, 0.0, 1e-6], [1.2, 1.1, 3e4, 2e-5],
    )  # fmt: skip
    result: ConvolutionParameters = found["convolution"][direction]
    return result


def own_samples(samples: list[Sample], kind: type, **fields: Any) -> list[Sample]:
    """Samples of one kernel type whose fields have the given values."""
    return [
        s for s in samples
        if isinstance(s.kernel, kind)
        and all(getattr(s.kernel, name) == value for name, value in fields.items())
    ]  # fmt: skip
