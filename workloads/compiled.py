"""Transformer blocks as torch.compile (Inductor) runs them: fused element-wise parts, cuBLAS GEMMs.

Which element-wise operators fuse, what is saved for backward and the order of the kernels were
read from traces of compiled GPT and Llama blocks (torch 2.11); see MODELS.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from . import ops
from .kernels import Attention, Gemm, Kernel, Stream, dtype_bytes
from .model import TransformerModel
from .tape import Tape, Tensor
from .transformer import BlockParameters


@dataclass(eq=False)
class _Saved:
    """What the compiled forward graph keeps for its backward graph."""

    x: Tensor
    statistics: list[Tensor]
    casts: list[Tensor]
    normed: Tensor
    qkv: list[Tensor]
    out: Tensor
    logsumexp: Tensor
    projected_input: Tensor
    projected: Tensor
    ffn: list[Tensor] = field(default_factory=list)
    hidden: Tensor | None = None


class _Compiled:
    """Emits the two graphs of one compiled block."""

    def __init__(
        self, tape: Tape, model: TransformerModel, p: BlockParameters, fused_edges: bool
    ) -> None:
        self.tape, self.model, self.p, self.fused_edges = tape, model, p, fused_edges
        self.bias = model.bias

    def fused(self, kind: str, rows: int, cols: int, read: int, write: int) -> None:
        """One Triton kernel."""
        self.tape.emit(kind, [Stream(kind, rows, cols, read, write)], host="triton")

    def mm(self, rows: int, n: int, k: int, layout: str, shape: tuple[int, ...]) -> Tensor:
        """One cuBLAS call; a forward bias rides in its epilogue."""
        bias = self.bias and layout == "nt"
        out = self.tape.new(shape, self.dtype)
        gemm = Gemm(rows, n, k, self.dtype, layout, bias)
        self.tape.emit("mm", [gemm], host="extern")
        return out

    def forward(self, x: Tensor, recomputing: bool) -> tuple[Tensor, _Saved]:
        """The forward graph: (output, saved tensors)."""
        self.dtype = self.tape.autocast or x.dtype
        self.rows = x.elements // self.model.hidden
        self.size = dtype_bytes(self.dtype)
        casts = self._cast_weights()
        saved = self._attention_forward(x, casts)
        self._ffn_forward(saved)
        return self._output(saved, recomputing), saved

    def _attention_forward(self, x: Tensor, casts: list[Tensor]) -> _Saved:
        tape, model, h = self.tape, self.model, self.model.hidden
        batch, seq, _ = x.shape
        statistics = [tape.new((self.rows,), "fp32") for _ in range(self._statistics())]
        normed = tape.new(x.shape, self.dtype)
        entry = x.size if self.fused_edges else 0
        self.fused("fused_norm", self.rows, h, x.size + entry, normed.size + entry)
        raw = [
            self.mm(self.rows, w.shape[0], h, "nt", (batch, seq, w.shape[0]))
            for w, _ in self.p.projections
        ]
        qkv = self._rotated(raw)
        del raw
        out, logsumexp = self._attend(batch, seq)
        projected_input = out
        if model.positions == "rotary":
            projected_input = tape.new(out.shape, self.dtype)
            self.fused("fused_transpose", self.rows, h, out.size, out.size)
        q_size = model.heads * model.head_size
        projected = self.mm(self.rows, h, q_size, "nt", x.shape)
        return _Saved(
            x.detached(), statistics, casts, normed, qkv, out, logsumexp, projected_input, projected
        )

    def _ffn_forward(self, s: _Saved) -> None:
        h, model = self.model.hidden, self.model
        normed = self.tape.new(s.x.shape, self.dtype)
        self.fused("fused_norm", self.rows, h, s.x.size + s.projected.size, normed.size)
        wide = (*s.x.shape[:-1], model.ffn)
        pre = [self.mm(self.rows, model.ffn, h, "nt", wide) for _ in self.p.ffn_in]
        hidden = self.tape.new(wide, self.dtype)
        read = sum(t.size for t in pre)
        self.fused(self._activation(), self.rows, model.ffn, read, hidden.size)
        s.ffn = [normed, *pre]
        s.hidden = hidden

    def _output(self, s: _Saved, recomputing: bool) -> Tensor:
        """Output projection and residual addition; the next block's norm adds at fused edges."""
        h = self.model.hidden
        with self.tape.mode(muted=recomputing):
            down = self.mm(self.rows, h, self.model.ffn, "nt", s.x.shape)
            y = self.tape.new(s.x.shape, s.x.dtype)
            if not self.fused_edges:
                read = s.x.size + s.projected.size + down.size
                self.fused("fused_pointwise", self.rows, h, read, y.size)
        return y

    def _statistics(self) -> int:
        return 2 if self.model.norm == "rms_norm" else 4

    def _activation(self) -> str:
        return "fused_swiglu" if self.model.gated_ffn else "fused_gelu"

    def _cast_weights(self) -> list[Tensor]:
        """Under autocast every weight is copied to the compute dtype inside the graph."""
        if self.tape.autocast is None:
            return []
        copies = []
        for tensor in self.p.tensors():
            if len(tensor.shape) < 2:
                continue
            copies.append(self.tape.new(tensor.shape, self.dtype))
            kernel = ops.cast_kernel(tensor.dtype, self.dtype, tensor.elements)
            self.tape.emit("to", [kernel], host="triton")
        return copies

    def _rotated(self, raw: list[Tensor]) -> list[Tensor]:
        """q and k after the fused rotary kernel; v (or a packed qkv) as it is."""
        if self.model.positions != "rotary" or len(raw) != 3:
            return raw
        rotated = []
        for tensor in raw[:2]:
            out = self.tape.new(tensor.shape, self.dtype)
            self.fused("fused_rotary", self.rows, tensor.shape[-1], tensor.size, out.size)
            rotated.append(out)
        return [*rotated, raw[2]]

    def _attend(self, batch: int, seq: int) -> tuple[Tensor, Tensor]:
        model, tape = self.model, self.tape
        out = tape.new((batch, seq, model.heads * model.head_size), self.dtype)
        logsumexp = tape.new((batch, model.heads, seq), "fp32")
        self.shape = (
            batch, seq, seq, model.heads, model.kv_heads, model.head_size, True, self.dtype,
        )  # fmt: skip
        kernels: list[Kernel] = [ops.MEMSET, Attention(*self.shape, "forward")]
        tape.emit("attention", kernels, host="extern")
        return out, logsumexp

    def backward(self, dy: Tensor, s: _Saved) -> list[Tensor | None]:
        """The backward graph: gradients of the input and of every parameter in order."""
        grads: dict[int, Tensor] = {}
        h = self.model.hidden
        half = self._as_compute(dy)
        pre = s.ffn[1:]
        d_hidden = self.mm(self.rows, self.model.ffn, h, "nn", pre[0].shape)
        self._weight(grads, self.p.ffn_out, half)
        del half
        d_pre = [self.tape.new(t.shape, self.dtype) for t in pre]
        read = d_hidden.size + sum(t.size for t in pre)
        write = sum(t.size for t in d_pre)
        kind = self._activation() + "_backward"
        self.fused(kind, self.rows, self.model.ffn, read, write)
        del d_hidden
        d_inputs = self._linear_backward(grads, self.p.ffn_in, d_pre)
        del d_pre
        read = s.x.size + s.projected.size + dy.size + sum(t.size for t in d_inputs)
        dh = self.tape.new(dy.shape, dy.dtype)
        self.fused("fused_norm_backward", self.rows, h, read, dh.size)
        del d_inputs
        self._norm(grads, self.p.ffn_norm)
        half = self._as_compute(dh)
        q_size = self.model.heads * self.model.head_size
        d_out = self.mm(self.rows, q_size, h, "nn", s.out.shape)
        d_qkv = self._attention_backward(s)
        del d_out
        self._weight(grads, self.p.output, half)
        del half
        d_inputs = self._linear_backward(grads, self.p.projections, d_qkv)
        del d_qkv
        dx = self.tape.new(dy.shape, dy.dtype)
        read = s.x.size + 2 * dh.size + sum(t.size for t in d_inputs)
        self.fused("fused_norm_backward", self.rows, h, read, dx.size)
        self._norm(grads, self.p.attention_norm)
        return [dx, *(grads[id(t)] for t in self.p.tensors())]

    def _as_compute(self, gradient: Tensor) -> Tensor:
        """Autocast graphs write a compute-dtype copy of a fp32 gradient from the fused kernel."""
        if gradient.dtype == self.dtype:
            return gradient
        return self.tape.new(gradient.shape, self.dtype)

    def _linear_backward(
        self,
        grads: dict[int, Tensor],
        pairs: tuple[tuple[Tensor, Tensor | None], ...],
        dys: list[Tensor],
    ) -> list[Tensor]:
        d_inputs = []
        for pair, dy in zip(pairs, dys, strict=True):
            n, k = pair[0].shape
            d_inputs.append(self.mm(self.rows, k, n, "nn", (*dy.shape[:-1], k)))
            self._weight(grads, pair, dy)
        return d_inputs

    def _weight(
        self, grads: dict[int, Tensor], pair: tuple[Tensor, Tensor | None], dy: Tensor
    ) -> None:
        """Weight gradient, its bias by a fused column sum, and casts to the parameters' dtype."""
        weight, bias = pair
        n, k = weight.shape
        dw = self.mm(n, k, self.rows, "tn", (n, k))
        grads[id(weight)] = self._to_parameter(dw, weight)
        if bias is not None:
            self.fused("fused_column_sum", self.rows, n, dy.size, 4 * n * 16)
            self.fused("scalar", n, 16, 4 * n * 16, 4 * n)
            grads[id(bias)] = self.tape.new((n,), bias.dtype)

    def _to_parameter(self, gradient: Tensor, parameter: Tensor) -> Tensor:
        if gradient.dtype == parameter.dtype:
            return gradient
        out = self.tape.new(parameter.shape, parameter.dtype)
        kernel = elementwise_cast(gradient, parameter)
        self.tape.emit("to", [kernel], host="triton")
        return out

    def _norm(self, grads: dict[int, Tensor], pair: tuple[Tensor, Tensor | None]) -> None:
        """Norm parameter gradients: partial sums of the fused kernel reduced over rows."""
        partials = max(1, self.rows // 16)
        for parameter in pair:
            if parameter is None:
                continue
            grads[id(parameter)] = self.tape.new(parameter.shape, parameter.dtype)
            cols = parameter.elements
            kernel = Stream("column_sum_float", partials, cols, 4 * partials * cols, 4 * cols)
            self.tape.emit("sum", [ops.MEMSET, kernel], host="extern")
            if parameter.dtype != "fp32":
                self.fused("scalar", cols, 1, 4 * cols, 2 * cols)

    def _attention_backward(self, s: _Saved) -> list[Tensor]:
        batch, seq, _, heads, kv_heads, dim = self.shape[:6]
        tape, rows = self.tape, batch * seq * heads
        q_bytes = rows * dim * self.size
        kv_bytes = q_bytes // heads * kv_heads
        delta = tape.new((rows,), "fp32")
        dq_float = tape.new((rows, dim), "fp32")
        grads = [tape.new(t.shape, self.dtype) for t in s.qkv]
        kernels: list[Kernel] = [
            ops.MEMSET,
            Stream("attention_dot", rows, dim, 2 * q_bytes, delta.size),
            Attention(*self.shape, "backward"),
            Stream("attention_convert", rows, dim, dq_float.size, q_bytes),
        ]
        expanded = []
        if kv_heads != heads:
            reduce = Stream("attention_reduce_heads", rows, dim, q_bytes, kv_bytes)
            kernels += [reduce, reduce]
            expanded = [tape.new((rows, dim), self.dtype) for _ in range(2)]
        tape.emit("attention_backward", kernels, host="extern")
        del delta, dq_float, expanded
        if self.model.positions == "rotary" and len(grads) == 3:
            for gradient in grads[:2]:
                cols = gradient.shape[-1]
                self.fused("fused_rotary", self.rows, cols, gradient.size, gradient.size)
                self.fused("fused_transpose", self.rows, cols, gradient.size, gradient.size)
        elif len(grads) == 1:
            self.fused("fused_pointwise", self.rows, grads[0].shape[-1], q_bytes * 3, q_bytes * 3)
        return grads


def elementwise_cast(gradient: Tensor, parameter: Tensor) -> Stream:
    """The fused kernel that casts a weight gradient to its parameter's dtype."""
    return Stream("fused_pointwise", gradient.elements, 1, gradient.size, parameter.size)


def compiled_block(
    tape: Tape,
    model: TransformerModel,
    p: BlockParameters,
    x: Tensor,
    recomputing: bool,
    fused_edges: bool = False,
) -> Tensor:
    """One compiled block; ``fused_edges`` when the whole model is one graph (scope ``full``)."""
    graph = _Compiled(tape, model, p, fused_edges)
    y, saved = graph.forward(x, recomputing)
    if not tape.grad_enabled:
        return y
    box = [saved]
    del saved

    def backward(dy: Tensor) -> list[Tensor | None]:
        return graph.backward(dy, box.pop())

    return tape.record(y, [x, *p.tensors()], backward)
