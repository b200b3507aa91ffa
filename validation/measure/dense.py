"""Cases that use the tensor cores: matrix products, attention, convolutions."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from timing import DTYPES, Case, Pool


def gemm_cases(pool: Pool, quick: bool) -> Iterator[Case]:
    """Linear layers of common widths in the three layouts, and square products."""
    hidden = (768, 1024, 1600, 2048, 2560, 3072, 4096, 5120, 8192)
    tokens = (1024, 2048, 4096, 8192, 16384, 32768)
    shapes: set[tuple[int, int, int]] = set()
    for h in hidden:
        widths = [(3 * h, h), (h, h), (4 * h, h), (h, 4 * h), (h // 4, h)]
        if h == 4096:
            widths += [(14336, h), (h, 14336), (1024, h), (11008, h), (h, 11008)]
        if h in (2048, 3072):
            widths += [(8192, h), (h, 8192), (512, h), (1024, h)]
        for t in tokens:
            if t * h <= 32768 * 4096:
                shapes.update((t, n, k) for n, k in widths)
    for h, vocab in (
        (768, 50304),
        (1024, 50304),
        (2048, 50304),
        (2048, 128256),
        (3072, 128256),
        (4096, 128256),
        (4096, 32000),
        (5120, 32000),
    ):
        shapes.update((t, vocab, h) for t in (2048, 4096, 8192, 16384))
    for m in (1024, 1536, 2048, 3072, 4096, 6144, 8192):
        shapes.update({(m, m, m), (m, m, 512), (m, 512, m)})
    ordered = sorted(shapes)[:: 40 if quick else 1]
    for t, n, k in ordered:
        x, w, dy = (pool.take(s, torch.bfloat16) for s in ((t, k), (n, k), (t, n)))
        bias = pool.take((n,), torch.bfloat16)
        fill = pool.take((min(t * k, 1 << 28),), torch.bfloat16)
        base = {"kind": "gemm", "dtype": "bf16"}
        nt = {**base, "layout": "nt", "m": t, "n": n, "k": k, "bias": False}
        yield nt, lambda x=x, w=w: torch.mm(x, w.t()), lambda f=fill: f.mul_(1.0)
        if (n % 3 == 0 and k in (768, 1024, 2048)) or n == k:
            yield (
                {**nt, "bias": True},
                lambda x=x, w=w, b=bias: torch.addmm(b, x, w.t()),
                lambda f=fill: f.mul_(1.0),
            )
        yield (
            {**base, "layout": "nn", "m": t, "n": k, "k": n, "bias": False},
            lambda dy=dy, w=w: torch.mm(dy, w),
            lambda f=fill: f.mul_(1.0),
        )
        yield (
            {**base, "layout": "tn", "m": n, "n": k, "k": t, "bias": False},
            lambda dy=dy, x=x: torch.mm(dy.t(), x),
            lambda f=fill: f.mul_(1.0),
        )


def attention_cases(pool: Pool, quick: bool) -> Iterator[Case]:
    """Causal attention of common head counts and lengths."""
    shapes = [
        (b, s, h, kv, d)
        for h, kv, d in (
            (12, 12, 64),
            (16, 16, 64),
            (32, 8, 64),
            (16, 16, 128),
            (24, 8, 128),
            (32, 8, 128),
            (32, 32, 128),
            (20, 20, 128),
            (25, 25, 64),
        )
        for b, s in (
            (16, 512),
            (2, 1024),
            (4, 1024),
            (16, 1024),
            (1, 2048),
            (4, 2048),
            (8, 2048),
            (1, 4096),
            (2, 4096),
            (4, 4096),
            (1, 8192),
            (2, 8192),
            (1, 16384),
        )
        if b * s * h * d <= 32768 * 4096
    ] + [(1, 32768, 32, 8, 64), (1, 32768, 32, 8, 128)]
    for b, s, h, kv, d in shapes[:: 20 if quick else 1]:
        q = pool.take((b, h, s, d), torch.bfloat16).clone().requires_grad_()
        k = pool.take((b, kv, s, d), torch.bfloat16).clone().requires_grad_()
        v = pool.take((b, kv, s, d), torch.bfloat16).clone().requires_grad_()
        gqa = kv != h
        case = {
            "kind": "attention",
            "dtype": "bf16",
            "batch": b,
            "seq": s,
            "heads": h,
            "kv_heads": kv,
            "head_dim": d,
            "causal": True,
        }

        def forward(q=q, k=k, v=v, gqa=gqa):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=gqa)

        yield {**case, "direction": "forward"}, forward, lambda q=q: q.detach().mul_(1.0)
        out = forward()
        grad = torch.randn_like(out)
        yield (
            {**case, "direction": "backward"},
            lambda o=out, q=q, k=k, v=v, g=grad: torch.autograd.grad(
                o, (q, k, v), g, retain_graph=True
            ),
            lambda g=grad: g.mul_(1.0),
        )


RESNET_CONVS = (
    (3, 64, 7, 2, 224),
    (64, 64, 1, 1, 56),
    (64, 64, 3, 1, 56),
    (64, 256, 1, 1, 56),
    (256, 64, 1, 1, 56),
    (256, 128, 1, 1, 56),
    (128, 128, 3, 2, 56),
    (256, 512, 1, 2, 56),
    (128, 512, 1, 1, 28),
    (512, 128, 1, 1, 28),
    (128, 128, 3, 1, 28),
    (512, 256, 1, 1, 28),
    (256, 256, 3, 2, 28),
    (512, 1024, 1, 2, 28),
    (256, 1024, 1, 1, 14),
    (1024, 256, 1, 1, 14),
    (256, 256, 3, 1, 14),
    (1024, 512, 1, 1, 14),
    (512, 512, 3, 2, 14),
    (1024, 2048, 1, 2, 14),
    (512, 2048, 1, 1, 7),
    (2048, 512, 1, 1, 7),
    (512, 512, 3, 1, 7),
)


def convolution_cases(pool: Pool, quick: bool) -> Iterator[Case]:
    """All distinct convolutions of ResNet-50."""
    torch.backends.cudnn.benchmark = True
    for dtype in ("bf16", "fp16"):
        for batch in (64, 256):
            for cin, cout, kernel, stride, size in RESNET_CONVS[:: 8 if quick else 1]:
                pad, t = kernel // 2, DTYPES[dtype]
                out = (size + 2 * pad - kernel) // stride + 1
                last = torch.channels_last
                x = pool.take((batch, cin, size, size), t).clone(memory_format=last)
                w = pool.take((cout, cin, kernel, kernel), t).clone(memory_format=last)
                dy = pool.take((batch, cout, out, out), t).clone(memory_format=last)
                case = {
                    "kind": "conv2d",
                    "dtype": dtype,
                    "batch": batch,
                    "cin": cin,
                    "cout": cout,
                    "kernel": kernel,
                    "stride": stride,
                    "hw": size,
                }
                args = ([stride] * 2, [pad] * 2, [1, 1], False, [0, 0], 1)
                yield (
                    {**case, "direction": "fprop"},
                    lambda x=x, w=w, s=stride, p=pad: F.conv2d(x, w, None, s, p),
                    lambda x=x: x.mul_(1.0),
                )
                for direction, mask in (
                    ("dgrad", [True, False, False]),
                    ("wgrad", [False, True, False]),
                ):
                    if cin == 3 and direction == "dgrad":
                        continue
                    yield (
                        {**case, "direction": direction},
                        lambda x=x, w=w, dy=dy, a=args, m=mask: torch.ops.aten.convolution_backward(
                            dy, x, w, None, *a, m
                        ),
                        lambda dy=dy: dy.mul_(1.0),
                    )
