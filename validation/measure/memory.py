"""Cases bound by memory traffic: element-wise, rows, loss, embedding, optimizer, vision, fused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from timing import DEVICE, DTYPES, Case, Pool


def elementwise_cases(pool: Pool, quick: bool) -> Iterator[Case]:
    """Element-wise operators over seven octaves of size."""
    sizes = [1 << p for p in (14, 17, 20, 22, 23, 24, 25, 26, 27, 28)]
    for n in sizes[:: 5 if quick else 1]:
        for dtype in ("bf16", "fp32"):
            t = DTYPES[dtype]
            a, b, c = (pool.take((n,), t) for _ in range(3))
            other = pool.take((n,), torch.float32 if dtype == "bf16" else torch.bfloat16)
            ops: dict[str, Callable[[], Any]] = {
                "add": lambda a=a, b=b: a + b,
                "add_inplace": lambda a=a, b=b: a.add_(b),
                "mul": lambda a=a, b=b: a * b,
                "gelu": lambda a=a: F.gelu(a),
                "silu": lambda a=a: F.silu(a),
                "relu": lambda a=a: torch.relu(a),
                "neg": lambda a=a: -a,
                "fill": lambda c=c: c.fill_(0.0),
                "gelu_backward": lambda a=a, b=b: torch.ops.aten.gelu_backward(a, b),
                "silu_backward": lambda a=a, b=b: torch.ops.aten.silu_backward(a, b),
                "threshold_backward": lambda a=a, b=b: torch.ops.aten.threshold_backward(a, b, 0),
                "cast": lambda a=a, o=other: a.to(o.dtype),
                "add_mixed": lambda a=a, o=other: (
                    torch.add(o, a) if a.dtype == torch.bfloat16 else torch.add(a, o)
                ),
            }
            for op, run in ops.items():
                yield (
                    {"kind": "elementwise", "op": op, "dtype": dtype, "elements": n},
                    run,
                    lambda a=a: a.mul_(1.0),
                )
        if n >= 1 << 20:
            yield from strided_cases(pool, n)


def strided_cases(pool: Pool, n: int) -> Iterator[Case]:
    """Rotary-embedding and head-transpose shapes: [batch, heads, seq, dim] views."""
    for dim in (64, 128):
        heads, seq = 16, 1024
        batch = max(1, n // (heads * seq * dim))
        x = pool.take((batch, seq, heads, dim), torch.bfloat16)
        f = pool.take((batch, heads, seq, dim), torch.float32)
        cos = pool.take((1, 1, seq, dim // 2), torch.float32)
        left, right = f[..., : dim // 2], f[..., dim // 2 :]
        half = torch.empty(batch, heads, seq, dim // 2, device=DEVICE)
        other = torch.empty_like(half)
        total = batch * heads * seq * dim
        ops: dict[str, tuple[int, Callable[[], Any]]] = {
            "transpose_copy": (total, lambda x=x: x.transpose(1, 2).contiguous()),
            "cast_transposed": (total, lambda x=x: x.transpose(1, 2).float()),
            "mul_broadcast": (total // 2, lambda x=left, c=cos: x * c),
            "neg_strided": (total // 2, lambda x=right: -x),
            "add_strided": (total // 2, lambda x=left, y=right: x + y),
            "cat_last": (total, lambda a=half, b=other: torch.cat((a, b), dim=-1)),
        }
        for op, (elements, run) in ops.items():
            yield (
                {"kind": "strided", "op": op, "elements": elements, "dim": dim},
                run,
                lambda f=f: f.mul_(1.0),
            )


def row_cases(pool: Pool, quick: bool) -> Iterator[Case]:
    """Normalisations and column sums over rows."""
    shapes = [
        (r, c)
        for c in (768, 1024, 1600, 2048, 3072, 4096, 8192)
        for r in (1024, 2048, 4096, 8192, 16384, 32768)
    ]
    for rows, cols in shapes[:: 9 if quick else 1]:
        for dtype in ("bf16", "fp32"):
            t = DTYPES[dtype]
            x = pool.take((rows, cols), t).clone().requires_grad_()
            g = torch.ones(cols, device=DEVICE, dtype=t, requires_grad=True)
            b = torch.zeros(cols, device=DEVICE, dtype=t, requires_grad=True)
            dy = pool.take((rows, cols), t)
            case = {"kind": "row", "dtype": dtype, "rows": rows, "cols": cols}
            for op, run, params in (
                ("layer_norm", lambda x=x, g=g, b=b, c=cols: F.layer_norm(x, (c,), g, b), (g, b)),
                ("rms_norm", lambda x=x, g=g, c=cols: F.rms_norm(x, (c,), g), (g,)),
            ):
                yield {**case, "op": op}, run, lambda x=x: x.detach().mul_(1.0)
                y = run()
                yield (
                    {**case, "op": op + "_backward"},
                    lambda y=y, x=x, p=params, dy=dy: torch.autograd.grad(
                        y, (x, *p), dy, retain_graph=True
                    ),
                    lambda dy=dy: dy.mul_(1.0),
                )
            yield (
                {**case, "op": "column_sum"},
                lambda dy=dy: dy.sum(0),
                lambda dy=dy: dy.mul_(1.0),
            )


def loss_cases(pool: Pool, quick: bool) -> Iterator[Case]:
    """Cross entropy and embedding."""
    shapes = [(r, v) for v in (32000, 50304, 128256) for r in (1024, 2048, 4096, 8192, 16384)]
    for rows, vocab in shapes[:: 6 if quick else 1]:
        logits = pool.take((rows, vocab), torch.float32)
        target = torch.randint(0, vocab, (rows,), device=DEVICE)
        case = {"kind": "loss", "rows": rows, "cols": vocab, "dtype": "fp32"}
        logp = torch.log_softmax(logits, -1)
        one = torch.ones((), device=DEVICE)
        weight = torch.tensor(float(rows), device=DEVICE)
        yield (
            {**case, "op": "log_softmax"},
            lambda x=logits: torch.log_softmax(x, -1),
            lambda x=logits: x.mul_(1.0),
        )
        yield (
            {**case, "op": "log_softmax_backward"},
            lambda x=logits, y=logp: torch.ops.aten._log_softmax_backward_data(
                x, y, -1, torch.float32
            ),
            lambda x=logits: x.mul_(1.0),
        )
        yield (
            {**case, "op": "nll"},
            lambda y=logp, t=target: torch.ops.aten.nll_loss_forward(y, t, None, 1, -100),
            lambda x=logits: None,
        )
        yield (
            {**case, "op": "nll_backward"},
            lambda y=logp, t=target, o=one, w=weight: torch.ops.aten.nll_loss_backward(
                o, y, t, None, 1, -100, w
            ),
            lambda x=logits: None,
        )
    for vocab, cols in ((50304, 768), (50304, 2048), (128256, 2048), (128256, 4096)):
        for rows in (1024, 4096, 8192, 16384, 32768):
            for dtype in ("bf16", "fp32"):
                table = pool.take((vocab, cols), DTYPES[dtype])
                index = torch.randint(0, vocab, (rows,), device=DEVICE)
                grad = pool.take((rows, cols), DTYPES[dtype])
                case = {
                    "kind": "embedding",
                    "dtype": dtype,
                    "rows": rows,
                    "cols": cols,
                    "vocab": vocab,
                }
                yield (
                    {**case, "op": "embedding"},
                    lambda t=table, i=index: F.embedding(i, t),
                    lambda: None,
                )
                yield (
                    {**case, "op": "embedding_backward"},
                    lambda g=grad, i=index, v=vocab: torch.ops.aten.embedding_dense_backward(
                        g, i, v, -1, False
                    ),
                    lambda: None,
                )


def optimizer_cases(pool: Pool, quick: bool) -> Iterator[Case]:
    """Multi-tensor kernels of clipping and optimizers."""
    for dtype in ("bf16", "fp32"):
        for tensors, each in (
            (64, 1 << 10),
            (64, 1 << 16),
            (32, 1 << 20),
            (8, 1 << 24),
            (24, 1 << 24),
        ):
            t = DTYPES[dtype]
            params, grads, first = (
                [pool.take((each,), t) for _ in range(tensors)] for _ in range(3)
            )
            second = [pool.take((each,), t).abs() for _ in range(tensors)]
            steps = [torch.ones((), device=DEVICE) for _ in range(tensors)]
            scale = torch.tensor(1.0, device=DEVICE, dtype=t)
            case = {
                "kind": "optimizer",
                "dtype": dtype,
                "tensors": tensors,
                "elements": tensors * each,
            }
            yield (
                {**case, "op": "adamw_fused"},
                lambda p=params, g=grads, a=first, b=second, s=steps: torch._fused_adamw_(
                    p,
                    g,
                    a,
                    b,
                    [],
                    s,
                    lr=1e-9,
                    beta1=0.9,
                    beta2=0.95,
                    weight_decay=0.1,
                    eps=1e-8,
                    amsgrad=False,
                    maximize=False,
                ),
                lambda: None,
            )
            yield (
                {**case, "op": "foreach_norm"},
                lambda g=grads: torch._foreach_norm(g),
                lambda: None,
            )
            yield (
                {**case, "op": "foreach_mul"},
                lambda g=grads, s=scale: torch._foreach_mul_(g, s),
                lambda: None,
            )
            yield (
                {**case, "op": "foreach_mul_scalar"},
                lambda g=grads: torch._foreach_mul_(g, 1.0),
                lambda: None,
            )
            yield (
                {**case, "op": "foreach_add"},
                lambda g=grads, p=params: torch._foreach_add_(p, g, alpha=1e-9),
                lambda: None,
            )


def vision_cases(pool: Pool, quick: bool) -> Iterator[Case]:
    """Batch norm and pooling."""
    channels = (
        (64, 112),
        (64, 56),
        (256, 56),
        (128, 56),
        (128, 28),
        (512, 28),
        (256, 28),
        (256, 14),
        (1024, 14),
        (512, 14),
        (512, 7),
        (2048, 7),
    )
    for dtype in ("bf16", "fp16"):
        for batch in (64, 256):
            for c, hw in channels[:: 5 if quick else 1]:
                t, last = DTYPES[dtype], torch.channels_last
                x = pool.take((batch, c, hw, hw), t).clone(memory_format=last).requires_grad_()
                g = torch.ones(c, device=DEVICE, requires_grad=True)
                b = torch.zeros(c, device=DEVICE, requires_grad=True)
                mean, var = torch.zeros(c, device=DEVICE), torch.ones(c, device=DEVICE)
                dy = torch.randn_like(x)
                case = {"kind": "batch_norm", "dtype": dtype, "batch": batch, "c": c, "hw": hw}

                def forward(x=x, m=mean, v=var, g=g, b=b):
                    return F.batch_norm(x, m, v, g, b, training=True)

                yield {**case, "op": "forward"}, forward, lambda x=x: x.detach().mul_(1.0)
                y = forward()
                yield (
                    {**case, "op": "backward"},
                    lambda y=y, x=x, g=g, b=b, dy=dy: torch.autograd.grad(
                        y, (x, g, b), dy, retain_graph=True
                    ),
                    lambda dy=dy: dy.mul_(1.0),
                )
            for c, hw in ((64, 112),):
                x = pool.take((batch, c, hw, hw), t).clone(memory_format=last).requires_grad_()
                with torch.no_grad():
                    y, index = F.max_pool2d(x, 3, 2, 1, return_indices=True)
                dy = torch.randn_like(y)
                case = {"kind": "max_pool", "dtype": dtype, "batch": batch, "c": c, "hw": hw}
                yield (
                    {**case, "op": "forward"},
                    lambda x=x: F.max_pool2d(x, 3, 2, 1),
                    lambda x=x: x.detach().mul_(1.0),
                )
                yield (
                    {**case, "op": "backward"},
                    lambda x=x, dy=dy, i=index: torch.ops.aten.max_pool2d_with_indices_backward(
                        dy, x.detach(), [3, 3], [2, 2], [1, 1], [1, 1], False, i
                    ),
                    lambda dy=dy: dy.mul_(1.0),
                )


def fused_cases(pool: Pool, quick: bool) -> Iterator[Case]:
    """Kernels that torch.compile makes of a transformer block's element-wise parts."""

    def add_rms(x, r, g):
        s = x + r
        return s, F.rms_norm(s, (s.shape[-1],), g)

    def add_layer(x, r, g, b):
        s = x + r
        return s, F.layer_norm(s, (s.shape[-1],), g, b)

    compiled_rms, compiled_layer = (torch.compile(fn, dynamic=False) for fn in (add_rms, add_layer))
    swiglu = torch.compile(lambda a, b: F.silu(a) * b, dynamic=False)
    gelu = torch.compile(F.gelu, dynamic=False)
    shapes = ((2048, 2048), (8192, 2048), (16384, 2048), (4096, 4096), (16384, 4096), (16384, 768))
    for rows, cols in shapes[:: 3 if quick else 1]:
        x, r = (pool.take((rows, cols), torch.bfloat16).clone().requires_grad_() for _ in range(2))
        g = torch.ones(cols, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
        b = torch.zeros(cols, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
        case = {"kind": "fused", "dtype": "bf16", "rows": rows, "cols": cols}
        for op, fn, args in (
            ("add_rms_norm", compiled_rms, (x, r, g)),
            ("add_layer_norm", compiled_layer, (x, r, g, b)),
            ("swiglu", swiglu, (x, r)),
            ("gelu", gelu, (x,)),
        ):
            yield {**case, "op": op}, lambda f=fn, a=args: f(*a), lambda x=x: x.detach().mul_(1.0)
            out = fn(*args)
            outs = out if isinstance(out, tuple) else (out,)
            grads = tuple(torch.randn_like(o) for o in outs)

            def both(f=fn, a=args, g=grads):
                found = f(*a)
                found = found if isinstance(found, tuple) else (found,)
                return torch.autograd.grad(found, a, g)

            yield ({**case, "op": op + "_forward_backward"}, both, lambda g=grads: g[0].mul_(1.0))
