"""Fit board power: energy per tensor operation, per byte, per element, and its clock exponent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from archs.calibration import PowerParameters
from simulator.costs.attention import pair_count
from workloads.kernels import Attention, Convolution, Gemm

from .least import Vector

ELEMENT_KINDS = ("rms_norm", "gelu", "silu", "log_softmax", "log_softmax_backward", "adamw_fused",
                 "batch_norm_bf16", "batch_norm_fp16", "cast_to_float", "add")  # fmt: skip
"""Sustained loops that give a code path's energy per element."""


@dataclass(frozen=True)
class PowerFit:
    """Fitted power parameters, energy per element by code path, and relative errors."""

    parameters: PowerParameters
    element_j: Mapping[str, float]
    errors: Vector


def work_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Operations of one repetition: tensor flops, HBM bytes, softmax pairs, elements."""
    op = row["op"]
    if op == "gemm":
        gemm = Gemm(row["m"], row["n"], row["k"], "bf16")
        return {"flops": gemm.flops, "bytes": gemm.hbm_bytes}
    if op.startswith("gemm_8192_then"):
        gemm = Gemm(8192, 8192, 8192, "bf16")
        moved = row["copies"] * 2.0 * 2**28
        return {"flops": gemm.flops, "bytes": gemm.hbm_bytes + moved}
    if op.startswith("attention"):
        direction = op.removeprefix("attention_")
        kernel = Attention(2, 4096, 4096, 32, 32, row["head_dim"], True, "bf16", direction)
        pairs = pair_count(kernel)
        return {"flops": kernel.flops, "bytes": kernel.hbm_bytes, f"pairs_{direction}": pairs}
    if op == "conv2d":
        conv = Convolution(256, row["cin"], row["cout"], row["kernel"], 1, row["hw"], "fp16", "fprop")
        return {"flops": conv.flops, "bytes": conv.hbm_bytes}
    if op == "scale":
        return {"bytes": 4.0 * row["elements"]}
    if op == "copy":
        return {"bytes": float(row["bytes"])}
    return _stream_work(row)


def _stream_work(row: Mapping[str, Any]) -> dict[str, float]:
    op = row["op"]
    elements = row.get("elements") or row.get("rows", 0) * row.get("cols", 0)
    if op.startswith("batch_norm"):
        elements = 256 * 256 * 56 * 56
    per_element = {"rms_norm": 4, "gelu": 4, "silu": 4, "add": 6, "log_softmax": 12,
                   "log_softmax_backward": 20, "adamw_fused": 28, "batch_norm_bf16": 6,
                   "batch_norm_fp16": 6, "cast_to_float": 6}.get(op, 0)  # fmt: skip
    return {"bytes": float(elements * per_element), f"elements_{op}": float(elements)}


def fit_power(rows: list[dict[str, Any]], limit_w: float, reference_hz: float) -> PowerFit:
    """Least squares on the measured power of sustained loops at their measured clocks.

    Boards of one product differ: the first board (in order of name) is the reference, each other
    one gets a factor on its dynamic power that is fitted and not used for predictions.
    """
    idle = float(np.mean([r["power_w"] for r in rows if r["op"] == "spin"]))
    boards = sorted({r["board"] for r in rows})
    loops = [r for r in rows if r["op"] != "spin" and r["power_w"]]
    work = [work_of(r) for r in loops]
    names = ["flops", "bytes", "pairs_forward", "pairs_backward"]
    kinds = [k for k in ELEMENT_KINDS if any(f"elements_{k}" in w for w in work)]
    names += [f"elements_{k}" for k in kinds]
    scale = np.array([1e-12, 1e-10, 1e-10, 1e-10, *[3e-10] * len(kinds)])
    amounts = np.array([[w.get(n, 0.0) for n in names] for w in work])
    rate = amounts / np.array([r["seconds"] for r in loops])[:, None]
    clock = np.array([r["sm_clock_mhz"] * 1e6 for r in loops])
    measured = np.array([r["power_w"] for r in loops])
    board = np.array([boards.index(r["board"]) for r in loops])
    count = len(names)

    def predict(x: Vector) -> Vector:
        per_clock = (clock / reference_hz) ** x[count]
        factor = np.concatenate([[1.0], x[count + 1 :]])[board]
        return np.asarray(idle + factor * per_clock * (rate @ (x[:count] * scale)))

    start = np.concatenate([np.full(count, 0.8), [0.5], np.ones(len(boards) - 1)])
    solution = least_squares(
        lambda x: predict(x) / measured - 1.0, start, bounds=(0.0, 20.0)
    ).x
    values = solution[:count] * scale
    limited = measured[clock < 1.95e9]
    parameters = PowerParameters(
        idle_w=round(idle, 1),
        flop_j={"bf16": float(values[0]), "fp16": float(values[0])},
        hbm_byte_j=float(values[1]),
        pair_forward_j=float(values[2]),
        pair_backward_j=float(values[3]),
        reference_clock_hz=reference_hz,
        exponent=float(solution[count]),
        limit_fraction=round(float(np.median(limited)) / limit_w, 4),
        min_clock_hz=3.45e8,
    )
    element_j = {k: float(v) for k, v in zip(kinds, values[4:], strict=True)}
    return PowerFit(parameters, element_j, predict(solution) / measured - 1.0)
