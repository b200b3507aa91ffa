"""Gradient clipping, loss scaling and optimizers as PyTorch's multi-tensor kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .kernels import Kernel, Stream, dtype_bytes, elementwise
from .ops import width
from .plan import Stack, Workload
from .program import Segment
from .tape import Tape, Tensor, rounded

CHUNK_ELEMENTS = 65536
MAX_BLOCKS = 320
MAX_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
"""Limits of one multi_tensor_apply launch (PyTorch ATen/native/cuda/MultiTensorApply.cuh)."""


def launches(sizes: Sequence[int], depth: int, max_tensors: int | None = None) -> list[int]:
    """Elements handled by each launch of a multi-tensor kernel over ``depth`` lists of tensors."""
    limit = max_tensors or MAX_TENSORS[depth]
    result: list[int] = []
    blocks = tensors = elements = 0
    for size in sizes:
        tensors += 1
        left = size
        while left > 0:
            room = (MAX_BLOCKS - blocks) * CHUNK_ELEMENTS
            taken = min(left, room)
            left -= taken
            elements += taken
            blocks += -(-taken // CHUNK_ELEMENTS)
            if blocks == MAX_BLOCKS or (left == 0 and tensors == limit):
                result.append(elements)
                blocks = elements = 0
                tensors = 0 if left == 0 else 1
    return [*result, elements] if elements else result


def multi_tensor(
    kind: str,
    sizes: Sequence[int],
    depth: int,
    reads: int,
    writes: int,
    max_tensors: int | None = None,
) -> list[Kernel]:
    """Kernels of one foreach operator; ``reads`` and ``writes`` are bytes per element."""
    counts = launches(sizes, depth, max_tensors)
    return [elementwise(kind, count, reads, writes) for count in counts]


def clip_gradients(tape: Tape, parameters: Sequence[Tensor]) -> None:
    """``clip_grad_norm_(foreach=True)``: norms of all gradients, total norm, scaling."""
    sizes = [p.elements for p in parameters]
    dtype = parameters[0].dtype
    size, suffix = dtype_bytes(dtype), width(dtype)
    zero = elementwise("fill_float", len(sizes) * 16, 0, 4)
    norm = multi_tensor(f"foreach_norm_{suffix}", sizes, 1, size, 0)
    tape.emit(
        "foreach_norm",
        [zero, *norm, Stream("scalar", len(sizes), 1, 0, 0)],
        host="foreach",
        units=len(sizes),
    )
    stack: list[Kernel] = [Stream("scalar", 1, 1, 0, 0)] * (1 + len(sizes) // 128)
    tape.emit("stack", stack, host="cat")
    tape.emit("linalg_vector_norm", [Stream("scalar", 1, 1, 0, 0)])
    for name in ("add", "reciprocal", "mul", "clamp"):
        tape.emit(name, [Stream("scalar", 1, 1, 0, 0)])
    scale = multi_tensor(f"foreach_mul_{suffix}", sizes, 1, size, size)
    tape.emit("foreach_mul_", scale, host="foreach", units=len(sizes))


def unscale_gradients(tape: Tape, parameters: Sequence[Tensor]) -> None:
    """GradScaler.step: check for infinities while unscaling, then wait for the flag."""
    sizes = [p.elements for p in parameters]
    kernels = multi_tensor("foreach_mul_float", sizes, 1, 4, 4)
    tape.emit("unscale", kernels, host="foreach", units=len(sizes))
    tape.emit("item", [Stream("memset", 1, 1, 4, 4)], host="item", synchronises=True)


def adamw(tape: Tape, parameters: Sequence[Tensor]) -> None:
    """Fused AdamW: step counters, then parameters, gradients and two moments in one pass."""
    sizes = [p.elements for p in parameters]
    dtype = parameters[0].dtype
    size, suffix = dtype_bytes(dtype), width(dtype)
    steps: list[Kernel] = [Stream("scalar", 1, 1, 0, 0)] * (1 + len(sizes) // 110)
    tape.emit("foreach_add_", steps, host="foreach", units=len(sizes))
    update = multi_tensor(f"adamw_{suffix}", sizes, 4, 4 * size, 3 * size, max_tensors=36)
    tape.emit("fused_adamw_", update, host="foreach", units=len(sizes))


def sgd_momentum(tape: Tape, parameters: Sequence[Tensor]) -> None:
    """``SGD(momentum, foreach=True)``: scale momentum, add gradient, update parameters."""
    sizes = [p.elements for p in parameters]
    size = dtype_bytes(parameters[0].dtype)
    suffix = width(parameters[0].dtype)
    for name, kind, depth, reads in (
        ("foreach_mul_", f"foreach_mul_{suffix}", 1, size),
        ("foreach_add_", f"foreach_add_{suffix}", 2, 2 * size),
        ("foreach_add_", f"foreach_add_{suffix}", 2, 2 * size),
    ):
        tape.emit(
            name, multi_tensor(kind, sizes, depth, reads, size), host="foreach", units=len(sizes)
        )


def update_segment(parameters: list[Tensor], stack: Stack, after: tuple[str, ...] = ()) -> Segment:
    """Gradient unscaling or clipping, then the optimizer's kernels over all parameters.

    The first kernel waits for the streams in ``after``, on which gradients are reduced.
    """
    found: list[Segment] = []
    tape = Tape(phase="optimizer")
    with tape.segment("optimizer", found):
        if stack.precision == "amp-fp16":
            unscale_gradients(tape, parameters)
        if stack.grad_clip:
            clip_gradients(tape, parameters)
        if stack.optimizer == "adamw-fused":
            adamw(tape, parameters)
        else:
            sgd_momentum(tape, parameters)
    first, *others = found[0].operators
    return Segment("optimizer", (replace(first, after=after), *others))


def resident_bytes(parameters: list[Tensor], stack: Stack, batch_bytes: int) -> dict[str, int]:
    """Memory that lives through the whole step: parameters, optimizer states and the batch."""
    weights = sum(rounded(p.size) for p in parameters)
    adam = stack.optimizer == "adamw-fused"
    steps = rounded(4) * len(parameters) if adam else 0
    return {
        "parameters": weights,
        "optimizer": (2 if adam else 1) * weights + steps,
        "batch": batch_bytes,
    }


def batch_bytes(workload: Workload) -> int:
    """Memory of a language model's step on one rank: token ids and targets."""
    tokens = workload.micro_batch * workload.grad_accum * (workload.seq_len or 1)
    return 2 * rounded(tokens * dtype_bytes("int64"))
