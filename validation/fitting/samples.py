"""Microbenchmark rows as (kernel, measured seconds) samples of the simulator's vocabulary."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archs.errors import InputError
from workloads.kernels import Attention, Convolution, Gemm, Kernel, Stream
from workloads.optimizer import launches

Row = Mapping[str, Any]
SIZES = {"bf16": 2, "fp16": 2, "fp32": 4, "bfloat16": 2, "float32": 4, "tf32": 4, "fp8": 1}


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured kernel: ``seconds`` of GPU time, ``origin`` the kind of measurement.

    ``origin`` is ``kernel`` (profiler duration of the kernel itself, at the maximum clock),
    ``sustained`` (a loop of calls back to back, at its own measured clock ``clock_hz``) or
    ``event`` (CUDA events around a call, which add a constant overhead).
    """

    kernel: Kernel
    seconds: float
    origin: str
    clock_hz: float | None = None


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file with its rows and hash."""

    path: Path
    rows: tuple[Row, ...]
    sha256: str


def read_rows(path: Path) -> DataFile:
    """Read a .jsonl or .jsonl.gz file of microbenchmarks."""
    raw = path.read_bytes()
    text = gzip.decompress(raw) if path.suffix == ".gz" else raw
    rows = tuple(_rows_of(text.decode(), path))
    return DataFile(path, rows, hashlib.sha256(raw).hexdigest())


def _rows_of(text: str, path: Path) -> Iterator[Row]:
    for number, line in enumerate(text.splitlines(), 1):
        try:
            if line.strip():
                yield json.loads(line)
        except ValueError as error:
            raise InputError("line must be JSON", str(error), f"{path}:{number}") from None


def suffix(dtype: str) -> str:
    """``half`` or ``float`` as in the names of element-wise code paths."""
    return "half" if SIZES[dtype] == 2 else "float"


def named(row: Row, *parts: str) -> float:
    """Seconds of the kernels of a row whose name contains one of ``parts``."""
    return float(sum(k["seconds"] for k in row["kernels"] if any(p in k["name"] for p in parts)))


SHORT_S = 6e-5
"""Longer tensor-core kernels outrun the board's fast power limit, so their clock is not known."""


def dense_samples(rows: Iterable[Row]) -> Iterator[Sample]:
    """Matrix products, attention and convolutions: short ones kernel by kernel, others in loops."""
    for row in rows:
        condition = row.get("condition")
        if "error" in row or condition not in ("busy", "sustained"):
            continue
        kernel = _dense_kernel(row)
        if condition == "sustained" and row["power_w"]:
            if row["kind"] != "attention" or row["direction"] == "forward":
                clock = row["sm_clock_mhz"] * 1e6
                yield Sample(kernel, row["seconds"], "sustained", clock)
        elif condition == "busy" and undisturbed(row):
            seconds = named(row, *MAIN_KERNELS[row["kind"]])
            if 0 < seconds < SHORT_S * (4.0 if row["kind"] != "gemm" else 1.0):
                yield Sample(kernel, seconds, "kernel")


def undisturbed(row: Row) -> bool:
    """Whether the clock right after a kernel was that before it: no fast power limit within."""
    return bool(row["clock_after_hz"] > STEADY_CLOCK * row["clock_before_hz"])


STEADY_CLOCK = 0.985
MAIN_KERNELS = {
    "gemm": ("nvjet", "cutlass", "gemm", "splitK"),
    "attention": ("sdpa", "flash"),
    "conv2d": ("xmma", "cutlass", "nvjet", "implicit", "gemm", "conv", "splitK"),
}


def _dense_kernel(row: Row) -> Kernel:
    if row["kind"] == "gemm":
        return Gemm(row["m"], row["n"], row["k"], row["dtype"], row["layout"], row["bias"])
    if row["kind"] == "attention":
        return attention_of(row, row["direction"])
    return convolution_of(row, row["direction"])


def attention_of(row: Row, direction: str) -> Attention:
    """The attention kernel that a row describes."""
    return Attention(
        row["batch"], row["seq"], row["seq"], row["heads"], row["kv_heads"], row["head_dim"],
        row["causal"], row["dtype"], direction,
    )  # fmt: skip


def convolution_of(row: Row, direction: str) -> Convolution:
    """The convolution that a row describes."""
    return Convolution(
        row["batch"], row["cin"], row["cout"], row["kernel"], row["stride"], row["hw"],
        row["dtype"], direction,
    )  # fmt: skip


def event_gemm_samples(rows: Iterable[Row]) -> Iterator[Sample]:
    """Matrix products timed whole with CUDA events."""
    for row in rows:
        if row["kind"] == "gemm":
            kernel = Gemm(row["m"], row["n"], row["k"], row["dtype"], row["layout"])
            yield Sample(kernel, row["seconds"], "event")


def event_attention_samples(rows: Iterable[Row]) -> Iterator[Sample]:
    """Forward attention timed whole with CUDA events, cuDNN being the default backend."""
    for row in rows:
        if row["backend"] == "cudnn" and row.get("forward_s"):
            yield Sample(attention_of(row, "forward"), row["forward_s"], "event")


ELEMENTWISE: dict[str, tuple[float, float]] = {
    "add": (2, 1), "add_inplace": (2, 1), "mul": (2, 1), "gelu": (1, 1), "silu": (1, 1),
    "relu": (1, 1), "neg": (1, 1), "fill": (0, 1), "gelu_backward": (2, 1),
    "silu_backward": (2, 1), "threshold_backward": (2, 1),
}  # fmt: skip
"""Operands read and written by element, in units of the element size."""

STRIDED = {
    "transpose_copy": ("transpose_copy_half", 2, 2), "mul_broadcast": ("mul_broadcast", 4, 4),
    "neg_strided": ("neg_strided", 4, 4), "add_strided": ("add_strided", 8, 4),
    "cat_last": ("cat_last", 4, 4),
}  # fmt: skip


def stream_samples(rows: Iterable[Row]) -> Iterator[Sample]:
    """Memory-bound kernels measured one by one."""
    for row in rows:
        if "error" in row or "kernels" not in row:
            continue
        for kernel, seconds in _streams_of(row):
            if seconds > 0:
                yield Sample(kernel, seconds, "kernel")


def _streams_of(row: Row) -> Iterator[tuple[Stream, float]]:
    reader = READERS.get(row["kind"])
    return reader(row) if reader else iter(())


def _whole_elementwise(row: Row) -> Iterator[tuple[Stream, float]]:
    yield _elementwise(row), row["seconds"]


def _strided(row: Row) -> Iterator[tuple[Stream, float]]:
    if row["op"] in STRIDED:
        name, read, write = STRIDED[row["op"]]
        n = row["elements"]
        yield Stream(name, n, 1, n * read, n * write), row["seconds"]


def _elementwise(row: Row) -> Stream:
    n, op, size = row["elements"], row["op"], SIZES[row["dtype"]]
    if op == "cast":
        kind = "cast_to_half" if size == 4 else "cast_to_float"
        return Stream(kind, n, 1, n * size, n * (6 - size))
    if op == "add_mixed":
        return Stream("add_mixed", n, 1, 6 * n, 4 * n)
    read, write = ELEMENTWISE[op]
    name = {"add_inplace": "add_inplace", "threshold_backward": "relu_backward"}.get(op, op)
    kind = f"{name}_{suffix(row['dtype'])}"
    return Stream(kind, n, 1, round(n * size * read), round(n * size * write))


def _rows(row: Row) -> Iterator[tuple[Stream, float]]:
    r, c, end = row["rows"], row["cols"], suffix(row["dtype"])
    size = r * c * SIZES[row["dtype"]]
    op = row["op"]
    if op == "column_sum":
        yield Stream(f"column_sum_{end}", r, c, size, c * SIZES[row["dtype"]]), row["seconds"]
    elif op.endswith("_backward"):
        base = op.removesuffix("_backward")
        seconds = named(row, "grad_input")
        yield Stream(f"{base}_backward_input_{end}", r, c, 2 * size, size), seconds
        weight = row["seconds"] - seconds - named(row, "Memset")
        yield Stream(f"norm_backward_weight_{end}", r, c, 2 * size, 4 * c), weight
    else:
        yield Stream(f"{op}_{end}", r, c, size, size), row["seconds"]


def _loss(row: Row) -> Iterator[tuple[Stream, float]]:
    r, c = row["rows"], row["cols"]
    size = 4 * r * c
    if row["op"] == "log_softmax":
        yield Stream("log_softmax", r, c, size, size), row["seconds"]
    elif row["op"] == "log_softmax_backward":
        yield Stream("log_softmax_backward", r, c, 2 * size, size), row["seconds"]
    elif row["op"] == "nll":
        yield Stream("nll", r, 1, 8 * r, 4), row["seconds"]
    else:
        yield Stream("nll_backward", r, 1, 8 * r, 4 * r), named(row, "nll_loss_backward")


def _embedding(row: Row) -> Iterator[tuple[Stream, float]]:
    r, c, size, end = row["rows"], row["cols"], SIZES[row["dtype"]], suffix(row["dtype"])
    traffic = r * c * size
    if row["op"] == "embedding":
        yield Stream(f"gather_{end}", r, c, traffic, traffic), row["seconds"]
    elif r <= 3072:
        seconds = named(row, "embedding_backward")
        yield Stream(f"embedding_backward_{end}", r, c, traffic, traffic), seconds
    else:
        partial, scatter = named(row, "compute_grad_weight"), named(row, "sum_and_scatter")
        yield Stream(f"embedding_gradient_{end}", r, c, traffic, 4 * r * c), partial
        yield Stream(f"embedding_scatter_{end}", r, c, 4 * r * c, traffic), scatter
        sort = row["seconds"] - partial - scatter - named(row, "Fill")
        yield Stream("index_sort", r, 1, 16 * r, 16 * r), sort / 12.0


def _optimizer(row: Row) -> Iterator[tuple[Stream, float]]:
    size, end = SIZES[row["dtype"]], suffix(row["dtype"])
    spec = {
        "adamw_fused": (f"adamw_{end}", 4, 3), "foreach_norm": (f"foreach_norm_{end}", 1, 0),
        "foreach_mul": (f"foreach_mul_{end}", 1, 1), "foreach_add": (f"foreach_add_{end}", 2, 1),
    }.get(row["op"])  # fmt: skip
    if spec is None:
        return
    kind, read, write = spec
    mains = [k["seconds"] for k in row["kernels"] if "multi_tensor" in k["name"]]
    sizes = [row["elements"] // row["tensors"]] * row["tensors"]
    depth = {"adamw_fused": 4, "foreach_add": 2}.get(row["op"], 1)
    counts = launches(sizes, depth, 36 if depth == 4 else None)
    if len(counts) != len(mains):
        return
    for n, seconds in zip(counts, mains, strict=True):
        yield Stream(kind, n, 1, n * size * read, n * size * write), seconds


def _batch_norm(row: Row) -> Iterator[tuple[Stream, float]]:
    rows, c = row["batch"] * row["hw"] ** 2, row["c"]
    size = rows * c * 2
    if row["dtype"] == "bf16":
        steps = (
            (("statistics", 1, 0, "collect_statistics"), ("transform", 1, 1, "transform_input"))
            if row["op"] == "forward"
            else (("reduce", 2, 0, "backward_reduce"), ("elementwise", 2, 1, "backward_elemt"))
        )
        for step, read, write, name in steps:
            kind = f"batch_norm_{step}_native"
            yield Stream(kind, rows, c, read * size, write * size), named(row, name)
        return
    step, read, write = ("forward", 2, 1) if row["op"] == "forward" else ("backward", 4, 1)
    kind = f"batch_norm_{step}_cudnn_half"
    yield Stream(kind, rows, c, read * size, write * size), named(row, "batchnorm", "bn_")


def _max_pool(row: Row) -> Iterator[tuple[Stream, float]]:
    batch, c, hw = row["batch"], row["c"], row["hw"]
    out = (hw + 2 - 3) // 2 + 1
    big, small = batch * c * hw * hw * 2, batch * c * out * out
    if row["op"] == "forward":
        yield Stream("max_pool", batch * out * out, c, big, 10 * small), row["seconds"]
    else:
        seconds = named(row, "max_pool_backward")
        yield Stream("max_pool_backward", batch * hw * hw, c, 10 * small, big), seconds


def _attention_helpers(row: Row) -> Iterator[tuple[Stream, float]]:
    if row["direction"] != "backward":
        return
    rows, dim = row["batch"] * row["seq"] * row["heads"], row["head_dim"]
    q = rows * dim * 2
    yield Stream("attention_dot", rows, dim, 2 * q, 4 * rows), named(row, "dot_do_o")
    yield Stream("attention_convert", rows, dim, 2 * q, q), named(row, "convert_dq")
    reduce = named(row, "reduce_head") / 2.0
    kv = q // row["heads"] * row["kv_heads"]
    yield Stream("attention_reduce_heads", rows, dim, q, kv), reduce


FUSED_COLS = 2048
"""The first width measured; in an earlier run the later ones were compiled for dynamic shapes."""


def _fused(row: Row) -> Iterator[tuple[Stream, float]]:
    if row["cols"] != FUSED_COLS:
        return
    r, c = row["rows"], row["cols"]
    size = 2 * r * c
    op = row["op"]
    both = op.endswith("_forward_backward")
    seconds = sum(k["seconds"] for k in row["kernels"] if ("backward" in k["name"]) == both)
    base = op.removesuffix("_forward_backward")
    table = {
        ("add_rms_norm", False): ("fused_norm", 2, 2),
        ("add_layer_norm", False): ("fused_norm", 2, 2),
        ("swiglu", False): ("fused_swiglu", 2, 1),
        ("gelu", False): ("fused_gelu", 1, 1),
        ("swiglu", True): ("fused_swiglu_backward", 3, 2),
        ("gelu", True): ("fused_gelu_backward", 2, 1),
        ("add_rms_norm", True): ("fused_norm_backward", 3, 1),
        ("add_layer_norm", True): ("fused_norm_backward", 3, 1),
    }  # fmt: skip
    kind, read, write = table[(base, both)]
    if both and "norm" in kind:
        seconds = sum(
            k["seconds"] for k in row["kernels"]
            if "triton" in k["name"] and "backward" in k["name"]
        )  # fmt: skip
    yield Stream(kind, r, c, read * size, write * size), seconds


READERS: dict[str, Callable[[Row], Iterator[tuple[Stream, float]]]] = {
    "elementwise": _whole_elementwise,
    "strided": _strided,
    "row": _rows,
    "loss": _loss,
    "embedding": _embedding,
    "optimizer": _optimizer,
    "batch_norm": _batch_norm,
    "max_pool": _max_pool,
    "attention": _attention_helpers,
    "fused": _fused,
}
"""Kind of a measured row to what it says of memory-bound kernels."""
