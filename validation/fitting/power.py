"""Fit board power: energy per tensor operation, per byte, per element, and its clock exponent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from archs.calibration import PowerParameters
from simulator.costs.attention import pair_count
from workloads.kernels import Gemm

from .least import Vector
from .samples import Row, attention_of, convolution_of

ELEMENT_KINDS = ("rms_norm", "gelu", "silu", "log_softmax", "log_softmax_backward", "adamw_fused",
                 "batch_norm_bf16", "batch_norm_fp16", "cast_to_float", "add")  # fmt: skip
"""Sustained loops that give a code path's energy per element."""


@dataclass(frozen=True)
class PowerFit:
    """Fitted power parameters, energy per element by code path, and relative errors.

    ``boards`` holds, by board, its factors on memory and on core energy.
    """

    parameters: PowerParameters
    element_j: Mapping[str, float]
    boards: Mapping[str, tuple[float, float]]
    errors: Vector

    def of_board(self, board: str) -> PowerParameters:
        """The power parameters of one of the measured boards."""
        memory, core = self.boards[board]
        p = self.parameters
        return p.model_copy(
            update={
                "active_w": core * p.active_w,
                "hbm_byte_j": memory * p.hbm_byte_j,
                "flop_j": {k: core * v for k, v in p.flop_j.items()},
                "pair_forward_j": core * p.pair_forward_j,
                "pair_backward_j": core * p.pair_backward_j,
            }
        )


def work_of(row: Row) -> dict[str, float]:
    """Operations of one repetition: tensor flops, HBM bytes, softmax pairs, elements."""
    op = row.get("op", "")
    if row["kind"] != "power" or op in ("gemm", "conv2d") or op.startswith("attention"):
        return _tensor_work(_as_case(row))
    if op.startswith("gemm_8192_then"):
        gemm = Gemm(8192, 8192, 8192, "bf16")
        return {"flops": gemm.flops, "bytes": gemm.hbm_bytes + row["copies"] * 2.0 * 2**28}
    if op == "copy":
        return {"bytes": float(row["bytes"])}
    return _stream_work(row)


def _as_case(row: Row) -> Row:
    """A power row as the tensor-core case that it repeats."""
    if row["kind"] != "power":
        return row
    if row["op"].startswith("attention"):
        shape = {"batch": 2, "seq": 4096, "heads": 32, "kv_heads": 32, "causal": True}
        direction = row["op"].removeprefix("attention_")
        return {**row, **shape, "kind": "attention", "dtype": "bf16", "direction": direction}
    if row["op"] == "conv2d":
        image = {"batch": 256, "stride": 1, "dtype": "fp16", "direction": "fprop"}
        return {**row, **image, "kind": "conv2d"}
    return {**row, "kind": "gemm", "dtype": "bf16"}


def _tensor_work(row: Row) -> dict[str, float]:
    """Work of a sustained tensor-core loop."""
    if row["kind"] == "gemm":
        gemm = Gemm(row["m"], row["n"], row["k"], row["dtype"])
        return {"flops": gemm.flops, "bytes": gemm.hbm_bytes}
    if row["kind"] == "attention":
        kernel = attention_of(row, row["direction"])
        pairs = {f"pairs_{row['direction']}": pair_count(kernel)}
        return {"flops": kernel.flops, "bytes": kernel.hbm_bytes, **pairs}
    conv = convolution_of(row, row["direction"])
    return {"flops": conv.flops, "bytes": conv.hbm_bytes}


def _stream_work(row: Row) -> dict[str, float]:
    op = row["op"]
    elements = row.get("elements") or row.get("rows", 0) * row.get("cols", 0)
    if op.startswith("batch_norm"):
        elements = 256 * 256 * 56 * 56
    per_element = {"scale": 4, "rms_norm": 4, "gelu": 4, "silu": 4, "add": 6, "log_softmax": 12,
                   "log_softmax_backward": 20, "adamw_fused": 28, "batch_norm_bf16": 6,
                   "batch_norm_fp16": 6, "cast_to_float": 6}.get(op, 0)  # fmt: skip
    return {"bytes": float(elements * per_element), f"elements_{op}": float(elements)}


RESIDENT_BYTES = 2.4e8
"""Products with less traffic (four times the L2) are left out: repeated, they stay partly in L2."""


def usable(row: Row) -> bool:
    """Whether a loop's HBM traffic is known: not a small product repeated on the same operands."""
    if row.get("op") == "spin" or not row["power_w"]:
        return False
    small = row["kind"] in ("gemm", "conv2d") or row.get("op") in ("gemm", "conv2d")
    return not small or work_of(row)["bytes"] > RESIDENT_BYTES


@dataclass(frozen=True)
class _Loops:
    """Sustained loops as arrays: rates of each kind of work, clock, power, board."""

    names: list[str]
    scale: Vector
    rate: Vector
    clock_hz: Vector
    power_w: Vector
    board: NDArray[np.int64]
    boards: list[str]


def _loops(rows: Sequence[Row]) -> _Loops:
    boards = sorted({r["board"] for r in rows})
    chosen = [r for r in rows if usable(r)]
    work = [work_of(r) for r in chosen]
    kinds = [k for k in ELEMENT_KINDS if any(f"elements_{k}" in w for w in work)]
    names = ["bytes", "active", "flops", "pairs_forward", "pairs_backward"]
    names += [f"elements_{k}" for k in kinds]
    seconds = [r["seconds"] for r in chosen]
    amounts = np.array(
        [
            [w.get(n, s if n == "active" else 0.0) for n in names]
            for w, s in zip(work, seconds, strict=True)
        ]
    )
    return _Loops(
        names=names,
        scale=np.array([1e-10, 1e2, 1e-12, 1e-10, 1e-10, *[3e-10] * len(kinds)]),
        rate=amounts / np.array(seconds)[:, None],
        clock_hz=np.array([r["sm_clock_mhz"] * 1e6 for r in chosen]),
        power_w=np.array([r["power_w"] for r in chosen]),
        board=np.array([boards.index(r["board"]) for r in chosen]),
        boards=boards,
    )


def fit_power(rows: Sequence[Row], limit_w: float, reference_hz: float) -> PowerFit:
    """Least squares on the measured power of sustained loops at their measured clocks.

    Memory energy does not depend on the SM clock, that of the SMs does. Boards of one product
    differ: the first (in order of name) is the reference, each other one gets a factor on either
    energy that is fitted and not used for predictions.
    """
    idle = float(np.mean([r["power_w"] for r in rows if r.get("op") == "spin"]))
    loops = _loops(rows)
    count, others = len(loops.names), len(loops.boards) - 1

    def predict(x: Vector) -> Vector:
        energy = x[:count] * loops.scale
        core = (loops.clock_hz / reference_hz) ** x[count] * (loops.rate[:, 1:] @ energy[1:])
        factors = x[count + 1 :].reshape(2, others)
        memory_factor, core_factor = (np.concatenate([[1.0], f])[loops.board] for f in factors)
        return np.asarray(idle + memory_factor * loops.rate[:, 0] * energy[0] + core_factor * core)

    start = np.concatenate([np.full(count, 0.8), [0.5], np.ones(2 * others)])

    def errors(x: Vector) -> Vector:
        return np.asarray(predict(x) / loops.power_w - 1.0)

    solution = least_squares(errors, start, bounds=(0.0, 20.0)).x
    energy = dict(zip(loops.names, solution[:count] * loops.scale, strict=True))
    limited = loops.power_w[loops.clock_hz < 1.95e9]
    parameters = PowerParameters(
        idle_w=round(idle, 1),
        flop_j={"bf16": energy["flops"], "fp16": energy["flops"]},
        active_w=energy["active"],
        hbm_byte_j=energy["bytes"],
        pair_forward_j=energy["pairs_forward"],
        pair_backward_j=energy["pairs_backward"],
        reference_clock_hz=reference_hz,
        exponent=float(solution[count]),
        limit_fraction=round(float(np.median(limited)) / limit_w, 4),
        min_clock_hz=3.45e8,
    )
    element_j = {
        n.removeprefix("elements_"): float(v) for n, v in energy.items() if "elements_" in n
    }
    memory, core = (np.concatenate([[1.0], f]) for f in solution[count + 1 :].reshape(2, others))
    boards = {b: (float(memory[i]), float(core[i])) for i, b in enumerate(loops.boards)}
    return PowerFit(parameters, element_j, boards, errors(solution))
