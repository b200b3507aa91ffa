"""Operators of convolutional networks in channels-last PyTorch, eager mode."""

from __future__ import annotations

from .kernels import Convolution, Kernel, Stream, dtype_bytes, product
from .ops import MEMSET, autocast_input, cast, holding, width
from .tape import Tape, Tensor


def convolution(tape: Tape, x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """``F.conv2d`` without bias; ``x`` is [batch, channels, size, size], padding keeps the size."""
    x, w = autocast_input(tape, x), autocast_input(tape, weight)
    batch, cin, size, _ = x.shape
    cout, _, kernel, _ = weight.shape
    shape = (batch, cin, cout, kernel, stride, size, x.dtype)
    forward = Convolution(*shape, "fprop")
    out = tape.new((batch, cout, forward.out_size, forward.out_size), x.dtype)
    tape.emit("conv2d", [MEMSET, *_padding(forward), forward], host="convolution")
    saved = (x.detached(), w.detached())
    x_grad, x_shape, dtype = x.requires_grad, x.shape, x.dtype

    def backward(dy: Tensor) -> list[Tensor | None]:
        wgrad = Convolution(*shape, "wgrad")
        kernels: list[Kernel] = []
        dx = tape.new(x_shape, dtype) if x_grad else None
        if dx is not None:
            kernels += [MEMSET, Convolution(*shape, "dgrad")]
        dw = tape.new(weight.shape, dtype)
        kernels += [MEMSET, *_padding(wgrad), wgrad]
        tape.emit("convolution_backward", kernels, host="convolution")
        return [dx, dw]

    return tape.record(out, [x, w], holding(backward, saved))


def _padding(convolution: Convolution) -> list[Kernel]:
    """cuDNN pads three image channels to eight before its tensor-core kernel."""
    if convolution.cin != 3:
        return []
    pixels = convolution.batch * convolution.size**2
    size = dtype_bytes(convolution.dtype)
    return [Stream("pad_channels", pixels, 1, 3 * size * pixels, 8 * size * pixels)]


def batch_norm(tape: Tape, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Training ``batch_norm``: cuDNN for fp16 and fp32, ATen's two kernels for bf16."""
    batch, channels, height, width_ = x.shape
    rows = batch * height * width_
    out = tape.new(x.shape, x.dtype)
    tape.emit("add_", [Stream("scalar", 1, 1, 0, 0)])
    statistics = [tape.new((channels,), "fp32") for _ in range(2)]
    native = x.dtype == "bf16"
    steps = (("statistics", 1, 0), ("transform", 1, 1)) if native else (("forward", 2, 1),)
    tape.emit("batch_norm", _norm_kernels(steps, rows, channels, x), host="norm")
    saved = (x.detached(), statistics)

    def backward(dy: Tensor) -> list[Tensor | None]:
        steps = (("reduce", 2, 0), ("elementwise", 2, 1)) if native else (("backward", 4, 1),)
        dx = tape.new(dy.shape, dy.dtype)
        grads = [tape.new((channels,), "fp32") for _ in range(2)]
        tape.emit("batch_norm_backward", _norm_kernels(steps, rows, channels, dy), host="norm")
        return [dx, *grads]

    return tape.record(out, [x, weight, bias], holding(backward, saved))


def _norm_kernels(
    steps: tuple[tuple[str, int, int], ...], rows: int, cols: int, x: Tensor
) -> list[Kernel]:
    suffix = "native" if x.dtype == "bf16" else f"cudnn_{width(x.dtype)}"
    kernels: list[Kernel] = [
        Stream(f"batch_norm_{step}_{suffix}", rows, cols, reads * x.size, writes * x.size)
        for step, reads, writes in steps
    ]
    return [MEMSET, *kernels]


def relu_(tape: Tape, x: Tensor) -> Tensor:
    """In-place ReLU; the output is saved for backward."""
    kernel = Stream(f"relu_{width(x.dtype)}", x.elements, 1, x.size, x.size)
    tape.emit("clamp_min_", [kernel])
    out = Tensor(x.shape, x.dtype, x.storage)
    saved = out.detached()

    def backward(dy: Tensor) -> list[Tensor | None]:
        dx = tape.new(dy.shape, dy.dtype)
        kind = f"relu_backward_{width(dy.dtype)}"
        tape.emit("threshold_backward", [Stream(kind, dy.elements, 1, 2 * dy.size, dy.size)])
        return [dx]

    return tape.record(out, [x], holding(backward, saved))


def add_(tape: Tape, x: Tensor, y: Tensor) -> Tensor:
    """In-place residual addition; backward hands the gradient to both."""
    tape.emit("add_", [Stream(f"add_{width(x.dtype)}", x.elements, 1, 2 * x.size, x.size)])
    out = Tensor(x.shape, x.dtype, x.storage)
    return tape.record(out, [x, y], lambda dy: [dy, dy])


def max_pool(tape: Tape, x: Tensor, kernel: int, stride: int) -> Tensor:
    """``max_pool2d``; the input and 64-bit indices are saved."""
    batch, channels, size, _ = x.shape
    side = (size + 2 * (kernel // 2) - kernel) // stride + 1
    out = tape.new((batch, channels, side, side), x.dtype)
    index = tape.new(out.shape, "int64")
    rows, shape = batch * side * side, x.shape
    forward = Stream("max_pool", rows, channels, x.size, out.size + index.size)
    tape.emit("max_pool2d", [forward], host="pool")
    saved = (x.detached(), index)

    def backward(dy: Tensor) -> list[Tensor | None]:
        dx = tape.new(shape, dy.dtype)
        read = dy.size + saved[1].size
        step = Stream("max_pool_backward", batch * size * size, channels, read, dx.size)
        tape.emit("max_pool2d_backward", [step], host="pool")
        return [dx]

    return tape.record(out, [x], holding(backward, saved))


def average_pool(tape: Tape, x: Tensor) -> Tensor:
    """Global average pooling to [batch, channels]."""
    batch, channels = x.shape[:2]
    out = tape.new((batch, channels), x.dtype)
    tape.emit("mean", [Stream("pool_mean", batch * channels, 1, x.size, out.size)], host="pool")
    shape, dtype = x.shape, x.dtype

    def backward(dy: Tensor) -> list[Tensor | None]:
        dx = tape.new(shape, dtype)
        kind = f"mul_{width(dtype)}"
        tape.emit("expand_div", [Stream(kind, product(shape), 1, dy.size, dx.size)])
        return [dx]

    return tape.record(out, [x], backward)


def to_float(tape: Tape, x: Tensor) -> Tensor:
    """Logits in fp32 for the loss."""
    return cast(tape, x, "fp32")


def compiled_norm(
    tape: Tape, x: Tensor, weight: Tensor, bias: Tensor, relu: bool, residual: Tensor | None = None
) -> Tensor:
    """Batch norm with its ReLU and residual addition as Inductor fuses them.

    Forward: statistics over the input, then one kernel that normalises, adds and clamps. Backward:
    one reduction over gradient, input and output, then one kernel for the input's gradient.
    """
    batch, channels, height, width_ = x.shape
    rows = batch * height * width_
    statistics = [tape.new((channels,), "fp32") for _ in range(2)]
    tape.emit("bn_statistics", [Stream("fused_statistics", rows, channels, x.size, 0)], "triton")
    tape.emit("bn_statistics", [Stream("scalar", channels, 1, 0, 0)], host="triton")
    out = tape.new(x.shape, x.dtype)
    read = x.size + (residual.size if residual is not None else 0)
    apply = Stream("fused_pointwise", rows, channels, read, out.size)
    tape.emit("bn_apply", [apply], host="triton")
    saved = (x.detached(), out.detached() if relu else None, statistics)
    inputs = [x, weight, bias] if residual is None else [x, weight, bias, residual]
    count = len(inputs)

    def backward(dy: Tensor) -> list[Tensor | None]:
        reads = dy.size * (3 if relu else 2)
        reduce = Stream("fused_statistics", rows, channels, reads, 0)
        tape.emit("bn_backward_reduce", [reduce], host="triton")
        tape.emit("bn_backward_reduce", [Stream("scalar", channels, 1, 0, 0)], host="triton")
        dx = tape.new(dy.shape, dy.dtype)
        grads = [tape.new((channels,), "fp32") for _ in range(2)]
        outputs: list[Tensor | None] = [dx, *grads]
        if count == 4:
            outputs.append(tape.new(dy.shape, dy.dtype))
        writes = dx.size * (len(outputs) - 2)
        apply = Stream("fused_pointwise", rows, channels, reads, writes)
        tape.emit("bn_backward_apply", [apply], host="triton")
        return outputs

    return tape.record(out, inputs, holding(backward, saved))
