"""Calibrate the cost models of one GPU from its microbenchmarks and write the result as TOML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from archs.calibration import Calibration, Source, StreamParameters
from archs.errors import InputError
from archs.gpu import Gpu
from simulator.costs.machine import Machine
from workloads.kernels import Attention, Convolution, Gemm

from .fitting import collectives, host, power, samples, stack, streams, tensor
from .fitting.document import as_toml
from .fitting.draft import REFERENCE_CLOCK_HZ, textbook_calibration
from .fitting.least import residual
from .fitting.residuals import stream_residuals, tensor_residuals
from .fitting.samples import DataFile, Row

SHIPPED = Path(__file__).parent / "data" / "h200"
PLAIN = ("add_half", "mul_half", "relu_half", "add_float", "mul_float", "neg_float")
ELEMENT_ENERGY = {
    "rms_norm": "rms_norm", "layer_norm": "rms_norm", "norm_": "rms_norm", "fused_norm": "rms_norm",
    "gelu": "gelu", "fused_gelu": "gelu", "silu": "silu", "fused_swiglu": "silu",
    "log_softmax_backward": "log_softmax_backward", "log_softmax": "log_softmax",
    "adamw": "adamw_fused", "cast_to_float": "cast_to_float", "add_mixed": "cast_to_float",
    "batch_norm": "batch_norm_bf16", "foreach": "add", "add": "add", "mul": "add", "relu": "add",
    "cast_to_half": "add", "transpose": "cast_to_float", "mul_broadcast": "cast_to_float",
    "neg_strided": "cast_to_float", "cat": "add", "max_pool": "batch_norm_bf16",
    "column_sum": "add", "attention": "rms_norm", "fused": "add",
}  # fmt: skip
"""Prefix of a code path to the sustained loop whose energy per element it takes."""


@dataclass(frozen=True)
class Data:
    """The microbenchmark files of one GPU: kernel by kernel, and timed whole with events."""

    kernels: DataFile
    power: DataFile
    sustained: DataFile
    collectives: DataFile
    interference: DataFile
    gemm: DataFile
    attention: DataFile
    held_out: DataFile
    repeatability: Path

    @property
    def files(self) -> tuple[DataFile, ...]:
        """All files, for provenance."""
        return (
            self.kernels, self.power, self.sustained, self.collectives,
            self.interference, self.gemm, self.attention,
            self.held_out,
        )  # fmt: skip


def read_data(folder: Path = SHIPPED) -> Data:
    """The microbenchmarks under a folder laid out as ``validation/data/h200``."""
    names = (
        "kernels/kernels.jsonl.gz", "kernels/power.jsonl", "kernels/sustained.jsonl",
        "micro/collectives.jsonl", "micro/interference.jsonl",
        "micro/gemm.jsonl", "micro/attention.jsonl", "held_out.jsonl",
    )  # fmt: skip
    for name in (*names, "repeatability.jsonl"):
        if not (folder / name).is_file():
            raise InputError("microbenchmark file must exist", name, str(folder))
    kernels, power, sustained, collectives, interference, gemm, attention, held_out = (
        samples.read_rows(folder / name) for name in names
    )
    return Data(
        kernels, power, sustained, collectives, interference, gemm, attention, held_out,
        repeatability=folder / "repeatability.jsonl",
    )  # fmt: skip


def calibrate(gpu: Gpu, data: Data) -> Calibration:
    """Fit every cost model of ``gpu`` to its microbenchmarks, then host overhead and intervals.

    Kernel costs and power see no training run; see ``fitting.stack`` for what the held-out runs,
    which are never scored, are used for.
    """
    found = fit_kernels(gpu, data)
    runs = data.held_out.rows
    factor = stack.step_factor(found, runs)
    host_parameters = found.host.model_copy(update={"step_factor": factor})
    found = found.model_copy(update={"host": host_parameters})
    spread = stack.between_hosts(data.repeatability)
    return found.model_copy(update={"intervals": stack.interval_quantiles(found, runs, spread)})


def fit_kernels(gpu: Gpu, data: Data) -> Calibration:
    """Fit kernel costs, power and tight-loop host costs to microbenchmarks alone."""
    rows = list(data.kernels.rows)
    draft = Machine(gpu, textbook_calibration(gpu), True)
    stream_samples = list(samples.stream_samples(rows))
    groups = streams.by_kind(stream_samples)
    plain = [s for kind in PLAIN for s in groups.get(kind, [])]
    draft = tensor.with_parameters(draft, l2=streams.fit_l2(draft, plain))
    found = {kind: streams.fit_stream(draft, items) for kind, items in sorted(groups.items())}
    found |= _derived(found)
    draft = tensor.with_parameters(draft, streams=found)
    fitted = power.fit_power(list(data.power.rows), gpu.power_limit_w or 700.0, REFERENCE_CLOCK_HZ)
    found = {k: _with_energy(k, p, fitted.element_j) for k, p in found.items()}
    draft = tensor.with_parameters(draft, power=fitted.parameters, streams=found)
    draft = tensor.with_parameters(
        draft, host=draft.calibration.host.model_copy(update={"gap_s": kernel_gap_s(rows)})
    )
    draft = _fit_tensor(draft, [*rows, *data.sustained.rows])
    overhead = event_overhead_s(rows)
    draft = _fit_precisions(draft, data, overhead)
    draft = tensor.with_parameters(
        draft,
        collectives=collectives.fit_collectives(draft, data.collectives.rows),
        interference=collectives.fit_interference(data.interference.rows),
    )
    host_parameters = host.fit_host(
        [r for r in rows if r["kind"].startswith("host")], kernel_gap_s(rows)
    )
    residuals = tensor_residuals(
        draft, [*rows, *data.sustained.rows], data.gemm.rows, data.attention.rows, overhead
    ) | stream_residuals(draft, groups)
    residuals |= collectives.collective_residuals(draft, data.collectives.rows)
    residuals["power"] = residual(1.0 + fitted.errors, np.ones_like(fitted.errors))
    return draft.calibration.model_copy(
        update={
            "host": host_parameters, "residuals": residuals,
            "sources": tuple(
                Source(file=f.path.name, sha256=f.sha256, rows=len(f.rows)) for f in data.files
            ),
            "date": _provenance(rows)["date"], "software": _software(_provenance(rows)),
        }
    )  # fmt: skip


def event_overhead_s(rows: Sequence[Row]) -> float:
    """What CUDA events around one call add to a kernel's own duration.

    From an empty kernel: do_bench reports 5.2 us for an element-wise kernel of 0.9 us.
    """
    small = [r["seconds"] for r in rows if r["kind"] == "elementwise" and r["elements"] == 1 << 14]
    return EVENT_TOTAL_S - float(np.median(small))


EVENT_TOTAL_S = 5.2e-6
"""Median of do_bench over element-wise kernels of 4,096 elements (micro/memory_bound.jsonl)."""


def kernel_gap_s(rows: Sequence[Row]) -> float:
    """Time between consecutive kernels of one stream, from calls that launch several."""
    gaps = [
        (r["span_s"] - r["seconds"]) / (len(r["kernels"]) - 1)
        for r in rows
        if r["kind"] in ("optimizer", "loss", "embedding") and len(r.get("kernels", ())) >= 5
        and r.get("span_s")
    ]  # fmt: skip
    return float(np.quantile(gaps, 0.25)) if gaps else 1.2e-6


def _fit_tensor(draft: Machine, rows: Sequence[Row]) -> Machine:
    dense = list(samples.dense_samples(rows))
    gemms = tensor.own_samples(dense, Gemm, dtype="bf16")
    draft = tensor.with_parameters(draft, gemm=tensor.fit_gemm(draft, gemms))
    for direction in ("forward", "backward"):
        chosen = tensor.own_samples(dense, Attention, direction=direction)
        p = tensor.fit_attention(draft, chosen, direction)
        table = {**draft.calibration.attention, direction: p}
        draft = tensor.with_parameters(draft, attention=table)
    for direction in ("fprop", "dgrad", "wgrad"):
        chosen = tensor.own_samples(dense, Convolution, direction=direction)
        q = tensor.fit_convolution(draft, chosen, direction)
        draft = tensor.with_parameters(
            draft, convolution={**draft.calibration.convolution, direction: q}
        )
    return draft


def _fit_precisions(draft: Machine, data: Data, overhead: float) -> Machine:
    """Rates of fp16, tf32 and fp8 relative to bf16, from products timed with events."""
    table = {"bf16": 1.0}
    events = list(samples.event_gemm_samples(data.gemm.rows))
    for dtype in ("fp16", "tf32", "fp8"):
        chosen = tensor.own_samples(events, Gemm, dtype=dtype)
        if chosen:
            table[dtype] = round(tensor.fit_precision(draft, chosen, overhead), 4)
    gemm = draft.calibration.gemm.model_copy(update={"precision_efficiency": table})
    return tensor.with_parameters(draft, gemm=gemm)


def _with_energy(kind: str, p: StreamParameters, table: dict[str, float] | Any) -> StreamParameters:
    for prefix, loop in ELEMENT_ENERGY.items():
        if kind.startswith(prefix) and loop in table:
            return p.model_copy(update={"element_j": table[loop]})
    return p


def _derived(found: dict[str, StreamParameters]) -> dict[str, StreamParameters]:
    """Code paths that run the same kernels as a measured one."""
    plain, strided = found["add_half"], found["mul_broadcast"]
    floor = StreamParameters(floor_s=1.1e-6, hbm_fraction=0.5)
    return {
        "memset": StreamParameters(floor_s=8e-7, hbm_fraction=0.5),
        "scalar": floor,
        "add_broadcast_half": found["add_strided"], "add_broadcast_float": found["add_strided"],
        "cat_half": plain, "cat_float": found["cat_last"],
        "transpose_copy_float": strided,
        "pad_channels": strided,
        "pool_mean": plain,
        "fused_pointwise": plain, "fused_statistics": plain,
        "fused_rotary": plain, "fused_transpose": plain,
        "fused_column_sum": found["column_sum_half"],
    }  # fmt: skip


def _provenance(rows: Sequence[Row]) -> Row:
    return next((r for r in rows if r["kind"] == "provenance"), {"date": "", "torch": ""})


def _software(p: Row) -> str:
    return (
        f"torch {p.get('torch')}, CUDA {p.get('cuda')}, cuDNN {p.get('cudnn')}, "
        f"{p.get('nvidia_smi')}"
    )


__all__ = ["Data", "as_toml", "calibrate", "read_data"]
