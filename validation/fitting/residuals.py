"""Relative errors of a calibration by operator class, over the data that it was fitted to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from archs.calibration import Residual
from simulator.costs.machine import Machine
from workloads.kernels import Attention, Convolution, Gemm

from . import samples, streams, tensor
from .least import residual
from .samples import Row, Sample

LARGE_BYTES = 1e6
"""Memory-bound kernels are scored above this much traffic; below it they are all floor."""


def tensor_residuals(
    machine: Machine,
    rows: Sequence[Row],
    events: Sequence[Row],
    attention_events: Sequence[Row],
    event_overhead_s: float,
) -> dict[str, Residual]:
    """Errors of products, attention and convolutions, kernel by kernel and timed with events."""
    dense = list(samples.dense_samples(rows))
    timed = list(samples.event_gemm_samples(events))
    attention = list(samples.event_attention_samples(attention_events))
    classes: dict[str, tuple[list[Sample], float]] = {
        "gemm_bf16": (tensor.own_samples(dense, Gemm), 0.0),
        "attention_forward": (tensor.own_samples(dense, Attention, direction="forward"), 0.0),
        "attention_backward": (tensor.own_samples(dense, Attention, direction="backward"), 0.0),
        "convolution": (tensor.own_samples(dense, Convolution), 0.0),
        "attention_forward_events": (attention, event_overhead_s),
    }
    for dtype in ("bf16", "fp16", "tf32", "fp8"):
        chosen = tensor.own_samples(timed, Gemm, dtype=dtype)
        classes[f"gemm_{dtype}_events"] = (chosen, event_overhead_s)
    return {
        name: residual(
            tensor.predict(machine, chosen, extra), np.array([s.seconds for s in chosen])
        )
        for name, (chosen, extra) in classes.items()
        if chosen
    }


def stream_residuals(machine: Machine, groups: Mapping[str, list[Sample]]) -> dict[str, Residual]:
    """Errors of every memory-bound code path above ``LARGE_BYTES``, and of all together."""
    found: dict[str, Residual] = {}
    predicted: list[Any] = []
    measured: list[Any] = []
    for kind, items in groups.items():
        large = [s for s in items if s.kernel.hbm_bytes > LARGE_BYTES]
        if not large:
            continue
        seconds = np.array([s.seconds for s in large])
        modelled = streams.predict(machine, machine.calibration.streams[kind], large)
        found[f"stream.{kind}"] = residual(modelled, seconds)
        predicted.append(modelled)
        measured.append(seconds)
    found["memory_bound"] = residual(np.concatenate(predicted), np.concatenate(measured))
    return found
