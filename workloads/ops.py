"""Operators of eager PyTorch on symbolic tensors: which kernels run, what is saved, what is freed.

Every function mirrors one framework operator (torch 2.x, CUDA) and records its forward kernels and
its backward. Kernel lists were read from kineto traces of training steps; see MODELS.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from .kernels import Attention, Gemm, Kernel, Stream, dtype_bytes, elementwise, product
from .tape import Backward, Tape, Tensor

INDEX_LIMIT_BYTES = 2**31 - 1
"""TensorIterator splits a kernel until each operand is addressable with 32-bit offsets."""

MEMSET = Stream("memset", 1, 1, 0, 64)


def width(dtype: str) -> str:
    """``half`` or ``float``: element-wise code paths are alike for all 2-byte formats."""
    return "half" if dtype_bytes(dtype) == 2 else "float"


def pieces(kernel: Stream, largest_operand_bytes: int) -> list[Kernel]:
    """Split an element-wise kernel as 32-bit indexing requires; total traffic is unchanged."""
    parts = 1
    while largest_operand_bytes / parts > INDEX_LIMIT_BYTES:
        parts *= 2
    if parts == 1:
        return [kernel]
    piece = Stream(
        kernel.kind,
        kernel.rows // parts,
        kernel.cols,
        kernel.read_bytes // parts,
        kernel.write_bytes // parts,
    )
    return [piece] * parts


def pointwise(tape: Tape, name: str, inputs: Sequence[Tensor], dtype: str, kind: str) -> Tensor:
    """One element-wise kernel from ``inputs`` to a new tensor shaped as the first."""
    first = inputs[0]
    out = tape.new(first.shape, dtype)
    read = sum(min(t.size, first.elements * dtype_bytes(t.dtype)) for t in inputs)
    kernel = Stream(kind, first.elements, 1, read, out.size)
    tape.emit(name, pieces(kernel, max(out.size, *(t.size for t in inputs))))
    return out


def fill(tape: Tape, shape: tuple[int, ...], dtype: str, category: str = "activations") -> Tensor:
    """A constant tensor."""
    out = tape.new(shape, dtype, category)
    kernel = elementwise(f"fill_{width(dtype)}", out.elements, 0, dtype_bytes(dtype))
    tape.emit("fill", pieces(kernel, out.size))
    return out


def cast_kernel(source: str, target: str, elements: int) -> Stream:
    """The copy kernel of a dtype conversion: to 2 bytes vectorised, to 4 bytes unrolled."""
    kind = "cast_to_half" if dtype_bytes(target) == 2 else "cast_to_float"
    return elementwise(kind, elements, dtype_bytes(source), dtype_bytes(target))


def cast(tape: Tape, x: Tensor, dtype: str) -> Tensor:
    """``x.to(dtype)``; no kernel when the dtype is already right. Backward casts back."""
    if x.dtype == dtype:
        return x
    out = tape.new(x.shape, dtype)
    largest = max(x.size, out.size)
    tape.emit("to", pieces(cast_kernel(x.dtype, dtype, x.elements), largest), host="cast")
    source = x.dtype
    return tape.record(out, [x], lambda dy: [cast(tape, dy, source)])


def autocast_input(tape: Tape, x: Tensor) -> Tensor:
    """``x`` in the autocast dtype; casts of parameters are cached for the whole region."""
    if tape.autocast is None or x.dtype == tape.autocast:
        return x
    if not x.leaf:
        return cast(tape, x, tape.autocast)
    key = id(x)
    if key not in tape.casts:
        tape.casts[key] = cast(tape, x, tape.autocast)
    return tape.casts[key]


def contiguous(tape: Tape, x: Tensor) -> Tensor:
    """A contiguous copy of a strided view; backward passes the gradient through as a view."""
    if not x.strided:
        return x
    out = tape.new(x.shape, x.dtype)
    kind = f"transpose_copy_{width(x.dtype)}"
    tape.emit("contiguous", [Stream(kind, x.elements, 1, x.size, out.size)])
    return tape.record(out, [x], lambda dy: [dy])


def linear(tape: Tape, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``F.linear`` over the last dimension; ``weight`` is [out, in]."""
    x, w = autocast_input(tape, x), autocast_input(tape, weight)
    b = autocast_input(tape, bias) if bias is not None else None
    n, k = weight.shape
    rows = x.elements // k
    out = tape.new((*x.shape[:-1], n), x.dtype)
    kernels: list[Kernel] = [Gemm(rows, n, k, x.dtype, "nt", b is not None)]
    tape.emit("linear", kernels, host="linear_bias" if b is not None else "linear")
    saved = (x.detached() if w.requires_grad else None, w.detached())
    dtype = x.dtype
    inputs = [x, w] if b is None else [x, w, b]
    x_grad, x_shape, w_shape = x.requires_grad, x.shape, weight.shape

    def input_gradient() -> Tensor | None:
        if not x_grad:
            return None
        dx = tape.new(x_shape, dtype)
        dx.view = True
        tape.emit("mm", [Gemm(rows, k, n, dtype, "nn")], host="mm")
        return dx

    def weight_gradient() -> Tensor:
        dw = tape.new(w_shape, dtype)
        tape.emit("mm", [Gemm(n, k, rows, dtype, "tn")], host="mm")
        return dw

    def backward(dy: Tensor) -> list[Tensor | None]:
        dy = contiguous(tape, dy)
        if b is None:
            dw = weight_gradient()
            return [input_gradient(), dw]
        dx, dw = input_gradient(), weight_gradient()
        db = tape.new((n,), dtype)
        column = Stream(f"column_sum_{width(dtype)}", rows, n, dy.size, db.size)
        tape.emit("sum", [MEMSET, column], host="sum")
        return [dx, dw, db]

    return tape.record(out, inputs, holding(backward, saved))


def add(tape: Tape, x: Tensor, y: Tensor) -> Tensor:
    """``x + y`` with type promotion; backward hands the gradient to both, cast where needed."""
    mixed = x.dtype != y.dtype
    dtype = x.dtype if dtype_bytes(x.dtype) >= dtype_bytes(y.dtype) else y.dtype
    broadcast = y.elements != x.elements
    kind = "add_mixed" if mixed else f"add_broadcast_{width(dtype)}" if broadcast else None
    out = pointwise(tape, "add", [x, y], dtype, kind or f"add_{width(dtype)}")
    x_dtype, y_dtype, y_shape = x.dtype, y.dtype, y.shape

    def backward(dy: Tensor) -> list[Tensor | None]:
        left = cast(tape, dy, x_dtype)
        return [left, reduce_to(tape, cast(tape, dy, y_dtype), y_shape)]

    return tape.record(out, [x, y], backward)


def reduce_to(tape: Tape, gradient: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Sum a gradient over broadcast leading dimensions."""
    if gradient.elements == product(shape):
        return gradient
    out = tape.new(shape, gradient.dtype)
    kind = f"column_sum_{width(gradient.dtype)}"
    rows = gradient.elements // out.elements
    tape.emit("sum", [Stream(kind, rows, out.elements, gradient.size, out.size)], host="sum")
    return out


def activation(tape: Tape, x: Tensor, kind: str) -> Tensor:
    """``gelu``, ``silu`` or ``relu`` out of place; the input is saved for backward."""
    suffix = width(x.dtype)
    out = pointwise(tape, kind, [x], x.dtype, f"{kind}_{suffix}")
    saved = x.detached()

    def backward(dy: Tensor) -> list[Tensor | None]:
        return [
            pointwise(tape, f"{kind}_backward", [dy, saved], dy.dtype, f"{kind}_backward_{suffix}")
        ]

    return tape.record(out, [x], backward)


def multiply(tape: Tape, x: Tensor, y: Tensor) -> Tensor:
    """``x * y``; both are saved for backward."""
    kind = f"mul_{width(x.dtype)}"
    out = pointwise(tape, "mul", [x, y], x.dtype, kind)
    left, right = x.detached(), y.detached()

    def backward(dy: Tensor) -> list[Tensor | None]:
        dy_left = pointwise(tape, "mul", [dy, right], dy.dtype, kind)
        return [dy_left, pointwise(tape, "mul", [dy, left], dy.dtype, kind)]

    return tape.record(out, [x, y], backward)


def normalise(
    tape: Tape, x: Tensor, weight: Tensor, bias: Tensor | None, kind: str = "layer_norm"
) -> Tensor:
    """``layer_norm`` or fused ``rms_norm`` over the last dimension; fp32 statistics are saved."""
    cols = x.shape[-1]
    rows = x.elements // cols
    suffix = width(x.dtype)
    out = tape.new(x.shape, x.dtype)
    statistics = [tape.new((rows,), "fp32") for _ in range(1 if kind == "rms_norm" else 2)]
    kernel = Stream(f"{kind}_{suffix}", rows, cols, x.size, out.size)
    tape.emit(kind, [kernel], host="norm")
    saved = (x.detached(), statistics)
    dtype, shape = x.dtype, x.shape

    def backward(dy: Tensor) -> list[Tensor | None]:
        dx = tape.new(shape, dtype)
        dw = tape.new((cols,), weight.dtype)
        db = tape.new((cols,), weight.dtype) if bias is not None else None
        size = dy.size
        kernels: list[Kernel] = [
            Stream(f"{kind}_backward_input_{suffix}", rows, cols, 2 * size, size),
            Stream(f"norm_backward_weight_{suffix}", rows, cols, 2 * size, dw.size),
        ]
        tape.emit(f"{kind}_backward", kernels, host="norm")
        return [dx, dw] if db is None else [dx, dw, db]

    inputs = [x, weight] if bias is None else [x, weight, bias]
    return tape.record(out, inputs, holding(backward, saved))


def holding(backward: Backward, saved: object) -> Backward:
    """Keep ``saved`` tensors alive exactly as long as the backward function."""

    def run(dy: Tensor) -> Sequence[Tensor | None]:
        result = backward(dy)
        _ = saved
        return result

    return run


def embedding(tape: Tape, rows: tuple[int, ...], weight: Tensor) -> Tensor:
    """``F.embedding`` of integer indices shaped ``rows``."""
    vocab, cols = weight.shape
    count = product(rows)
    out = tape.new((*rows, cols), weight.dtype)
    suffix = width(weight.dtype)
    tape.emit(
        "embedding", [Stream(f"gather_{suffix}", count, cols, out.size, out.size)], host="embedding"
    )

    def backward(dy: Tensor) -> list[Tensor | None]:
        dw = tape.new((vocab, cols), weight.dtype)
        tape.emit("embedding_backward", embedding_backward(count, vocab, cols, weight.dtype))
        return [dw]

    return tape.record(out, [weight], backward)


def embedding_backward(count: int, vocab: int, cols: int, dtype: str) -> list[Kernel]:
    """Kernels of ``embedding_dense_backward``: zero fill, then by index count sorted or not."""
    suffix, size = width(dtype), dtype_bytes(dtype)
    zero = elementwise(f"fill_{suffix}", vocab * cols, 0, size)
    traffic = count * cols * size
    if count <= 3072:
        kernel = Stream(f"embedding_backward_{suffix}", count, cols, traffic, traffic)
        return [zero, kernel]
    sort = [Stream("index_sort", count, 1, 16 * count, 16 * count)] * 12
    partial = Stream(f"embedding_gradient_{suffix}", count, cols, traffic, 4 * count * cols)
    scatter = Stream(f"embedding_scatter_{suffix}", count, cols, 4 * count * cols, traffic)
    return [zero, *sort, partial, scatter]


def attention(tape: Tape, q: Tensor, k: Tensor, v: Tensor, causal: bool = True) -> Tensor:
    """Fused attention on [batch, heads, seq, dim]; saves q, k, v, the output and logsumexp."""
    batch, heads, seq, dim = q.shape
    kv_heads, kv_seq = k.shape[1], k.shape[2]
    out = tape.new(q.shape, q.dtype)
    out.strided = q.strided
    logsumexp = tape.new((batch, heads, seq), "fp32")
    dtype = q.dtype
    shape = (batch, seq, kv_seq, heads, kv_heads, dim, causal, dtype)
    tape.emit("attention", [MEMSET, Attention(*shape, "forward")], host="attention")
    saved = (q.detached(), k.detached(), v.detached(), out.detached(), logsumexp)

    def backward(dy: Tensor) -> list[Tensor | None]:
        held_q, held_k, held_v, held_out, _ = saved
        delta = tape.new((batch, heads, seq), "fp32")
        dq_float = tape.new(held_q.shape, "fp32")
        grads = [tape.new(t.shape, t.dtype) for t in (held_q, held_k, held_v)]
        for grad, like in zip(grads, (held_q, held_k, held_v), strict=True):
            grad.strided = like.strided
        rows = batch * heads * seq
        kernels: list[Kernel] = [
            MEMSET,
            Stream("attention_dot", rows, dim, 2 * held_out.size, delta.size),
            Attention(*shape, "backward"),
            Stream("attention_convert", rows, dim, dq_float.size, held_q.size),
        ]
        if kv_heads != heads:
            expanded = batch * heads * kv_seq * dim * dtype_bytes(dtype)
            reduce = Stream("attention_reduce_heads", rows, dim, expanded, held_k.size)
            kernels += [reduce, reduce]
        scratch = [tape.new(held_q.shape, dtype) for _ in range(2 if kv_heads != heads else 0)]
        tape.emit("attention_backward", kernels, host="attention")
        del scratch, dq_float, delta
        return list(grads)

    return tape.record(out, [q, k, v], backward)


def heads_first(tape: Tape, x: Tensor, heads: int) -> Tensor:
    """View [batch, seq, heads*dim] as [batch, heads, seq, dim]; no kernel either way."""
    batch, seq, hidden = x.shape
    return _transposed(tape, x, (batch, heads, seq, hidden // heads), x.shape)


def heads_last(tape: Tape, x: Tensor) -> Tensor:
    """View [batch, heads, seq, dim] as [batch, seq, heads*dim], copied if not contiguous."""
    batch, heads, seq, dim = x.shape
    return contiguous(tape, _transposed(tape, x, (batch, seq, heads * dim), x.shape))


def _transposed(tape: Tape, x: Tensor, shape: tuple[int, ...], back: tuple[int, ...]) -> Tensor:
    out = Tensor(shape, x.dtype, x.storage, strided=not x.strided, view=True)
    return tape.record(out, [x], lambda dy: [dy.viewed(*back, strided=not dy.strided)])


def split(tape: Tape, x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Slices of the last dimension (views); backward concatenates their gradients."""
    slices = [Tensor((*x.shape[:-1], n), x.dtype, x.storage, view=True) for n in sizes]
    grads: list[Tensor] = []
    count = len(sizes)
    joined = Tensor(x.shape, x.dtype, None)

    def backward(dy: Tensor) -> list[Tensor | None]:
        grads.append(dy)
        if len(grads) < count:
            return [None]
        out = tape.new(joined.shape, joined.dtype)
        size = dtype_bytes(joined.dtype)
        kind = f"cat_{width(joined.dtype)}"
        tape.emit("cat", [elementwise(kind, joined.elements, size, size)], host="cat")
        grads.clear()
        return [out]

    return [tape.record(part, [x], backward) for part in slices]


def rotary(tape: Tape, x: Tensor) -> Tensor:
    """Rotary embedding of [batch, heads, seq, dim] computed in fp32 halves and cast back."""
    out = _rotate(tape, x, backward=False)
    return tape.record(out, [x], lambda dy: [_rotate(tape, dy, backward=True)])


def _rotate(tape: Tape, x: Tensor, backward: bool) -> Tensor:
    """The kernels of a rotation: cast, four products, two sums, concatenation, cast back."""
    wide = _widened(tape, x)
    half = (*x.shape[:-1], x.shape[-1] // 2)
    parts = [_rotated_half(tape, half, negate=backward and not i) for i in range(2)]
    joined = tape.new(x.shape, "fp32")
    tape.emit("cat", [elementwise("cat_last", x.elements, 4, 4)], host="cat")
    del parts, wide
    if x.dtype == "fp32":
        return joined
    out = tape.new(x.shape, x.dtype)
    tape.emit("to", [cast_kernel("fp32", x.dtype, x.elements)], host="cast")
    return out


def _widened(tape: Tape, x: Tensor) -> Tensor:
    if x.dtype == "fp32":
        return x
    wide = tape.new(x.shape, "fp32")
    tape.emit("to", [cast_kernel(x.dtype, "fp32", x.elements)], host="cast")
    return wide


def _rotated_half(tape: Tape, shape: tuple[int, ...], negate: bool) -> Tensor:
    count = product(shape)
    left = tape.new(shape, "fp32")
    tape.emit("mul", [elementwise("mul_broadcast", count, 4, 4)], host="slice")
    right = tape.new(shape, "fp32")
    tape.emit("mul", [elementwise("mul_broadcast", count, 4, 4)], host="slice")
    if negate:
        tape.emit("neg", [elementwise("neg_strided", count, 4, 4)], host="slice")
    out = tape.new(shape, "fp32")
    tape.emit("add", [elementwise("add_float", count, 8, 4)])
    del left, right
    return out


def cross_entropy(tape: Tape, logits: Tensor) -> Tensor:
    """Mean cross entropy of [rows, classes] logits: log-softmax and negative log-likelihood."""
    rows, classes = logits.shape
    size = dtype_bytes(logits.dtype)
    log_probability = tape.new(logits.shape, logits.dtype)
    traffic = rows * classes * size
    kernel = Stream("log_softmax", rows, classes, traffic, traffic)
    tape.emit("log_softmax", [kernel], host="softmax")
    loss = tape.new((), logits.dtype)
    tape.emit("nll_loss", [Stream("nll", rows, 1, 8 * rows, 4)], host="softmax")
    saved = log_probability.detached()
    del log_probability
    dtype, shape = logits.dtype, logits.shape

    def backward(dy: Tensor) -> list[Tensor | None]:
        one_hot = fill(tape, shape, dtype)
        tape.emit("nll_loss_backward", [Stream("nll_backward", rows, 1, 8 * rows, 4 * rows)])
        out = tape.new(shape, dtype)
        kernel = Stream("log_softmax_backward", rows, classes, 2 * traffic, traffic)
        tape.emit("log_softmax_backward", [kernel])
        del one_hot
        return [out]

    return tape.record(loss, [logits], holding(backward, saved))
