"""Host costs by operator class, from chains of tiny operators on the measured host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from archs.calibration import HostParameters

Row = Mapping[str, Any]


def fit_host(rows: Iterable[Row], gap_s: float) -> HostParameters:
    """Issue time of each operator class and phase; see ``workloads`` for the class names."""
    listed = list(rows)
    chain = {
        (r["op"], r.get("dtype")): r for r in listed if r["kind"] == "host_chain"
    }  # fmt: skip
    launch = next(r["seconds"] for r in listed if r["kind"] == "host_launch")
    forward = {op: r["forward_s"] for (op, _), r in chain.items()}
    backward = {op: r["backward_s"] for (op, _), r in chain.items()}
    classes = _forward(forward) | _backward(forward, backward)
    steps, unit_s = _multi_tensor([r for r in listed if r["kind"] == "host_step"])
    compiled = next(r for r in listed if r["kind"] == "host_compiled")
    for phase in ("forward", "backward"):
        each = compiled[f"{phase}_s"] / compiled[f"{phase}_kernels"]
        classes[f"triton.{phase}"] = classes[f"extern.{phase}"] = each
    classes |= steps
    return HostParameters(
        reference_launch_s=launch,
        step_factor=1.0,
        classes={k: round(v, 9) for k, v in sorted(classes.items())},
        default_s=launch,
        unit_s=unit_s,
        gap_s=gap_s,
    )


def _forward(t: Mapping[str, float]) -> dict[str, float]:
    simple = float(np.mean([t["gelu"], t["silu"], t["mul"], t["add"]]))
    cast = t["cast_there_and_back"] / 2.0
    rotary = t["rotary"] - 2.0 * cast - 2.0 * simple
    return {
        "op.forward": simple, "cast.forward": cast, "linear.forward": t["linear"],
        "linear_bias.forward": t["linear_bias"],
        "norm.forward": 0.5 * (t["layer_norm"] + t["rms_norm"]),
        "attention.forward": t["attention"], "slice.forward": rotary / 5.0,
        "cat.forward": rotary / 5.0, "softmax.forward": simple, "embedding.forward": simple,
        "convolution.forward": t["conv2d"], "pool.forward": simple,
    }  # fmt: skip


def _backward(f: Mapping[str, float], t: Mapping[str, float]) -> dict[str, float]:
    """Backward costs; a link's backward is shared among the operators it becomes."""
    simple = float(np.mean([t["gelu"], t["silu"], t["mul"] / 2.0]))
    cast = t["cast_there_and_back"] / 2.0
    product = t["linear"] / 2.0
    rotary = t["rotary"] - 2.0 * cast
    return {
        "op.backward": simple, "cast.backward": cast, "mm.backward": product,
        "sum.backward": max(simple, t["linear_bias"] - t["linear"]),
        "norm.backward": 0.5 * (t["layer_norm"] + t["rms_norm"]),
        "attention.backward": t["attention"], "slice.backward": rotary / 8.0,
        "cat.backward": rotary / 8.0, "accumulate.backward": 0.5 * f["add"],
        "convolution.backward": t["conv2d"], "pool.backward": simple,
    }  # fmt: skip


def _multi_tensor(rows: list[Row]) -> tuple[dict[str, float], float]:
    """Cost of one multi-tensor operator and of each further tensor, from whole optimizer steps."""
    operators = {"clip": 8, "adamw_fused": 2, "sgd_momentum": 3}
    slopes, bases = [], []
    for op, count in operators.items():
        points = [(r["tensors"], r["seconds"]) for r in rows if r["op"] == op]
        tensors, seconds = (
            np.array(values, dtype=np.float64) for values in zip(*points, strict=True)
        )
        slope, base = np.polyfit(tensors, seconds, 1)
        multi = 2 if op != "sgd_momentum" else 3
        slopes.append(max(float(slope), 0.0) / multi)
        bases.append(max(float(base), 1e-6) / count)
    each = float(np.mean(bases))
    names = ("foreach", "op", "cat", "item")
    return {f"{n}.optimizer": each for n in names}, float(np.mean(slopes))
