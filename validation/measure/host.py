"""Host seconds of framework operators, forward and backward, from chains of tiny operators."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from timing import DEVICE

CHAIN = 100
HALF = torch.bfloat16


def chain_steps() -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """One link of each chain: an operator on a tiny [8, 4, 64] tensor that keeps its shape."""
    w = torch.randn(64, 64, device=DEVICE, dtype=HALF, requires_grad=True)
    wide = torch.randn(64, 64, device=DEVICE, requires_grad=True)
    b = torch.zeros(64, device=DEVICE, dtype=HALF, requires_grad=True)
    g = torch.ones(64, device=DEVICE, dtype=HALF, requires_grad=True)
    other = torch.randn(8, 4, 64, device=DEVICE, dtype=HALF, requires_grad=True)
    cos = torch.randn(1, 1, 32, device=DEVICE)

    def attention(x: torch.Tensor) -> torch.Tensor:
        q = x.view(8, 4, 1, 64).transpose(1, 2)
        return (
            F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).view(8, 4, 64)
        )

    def rotary(x: torch.Tensor) -> torch.Tensor:
        left, right = x.float().chunk(2, dim=-1)
        return torch.cat((left * cos - right * cos, right * cos + left * cos), -1).to(x.dtype)

    def autocast_linear(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=HALF):
            return F.linear(x.float(), wide)

    return {
        "linear": lambda x: F.linear(x, w),
        "linear_bias": lambda x: F.linear(x, w, b),
        "autocast_linear": autocast_linear,
        "gelu": F.gelu,
        "silu": F.silu,
        "mul": lambda x: x * other,
        "add": lambda x: x + other,
        "layer_norm": lambda x: F.layer_norm(x, (64,), g, b),
        "rms_norm": lambda x: F.rms_norm(x, (64,), g),
        "attention": attention,
        "rotary": rotary,
        "cast_there_and_back": lambda x: x.float().to(HALF),
        "transpose_contiguous": lambda x: (
            x.transpose(0, 1).contiguous().transpose(0, 1).contiguous()
        ),
    }


def measure_chains() -> Iterator[dict[str, Any]]:
    """Seconds a link forward and backward; the GPU is never the limit at these sizes."""
    for name, link in chain_steps().items():
        forward, backward = [], []
        for index in range(12):
            x = torch.randn(8, 4, 64, device=DEVICE, dtype=HALF, requires_grad=True)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            y = x
            for _ in range(CHAIN):
                y = link(y)
            middle = time.perf_counter()
            torch.cuda.synchronize()
            gradient = torch.ones_like(y)
            torch.cuda.synchronize()
            again = time.perf_counter()
            torch.autograd.backward(y, gradient)
            end = time.perf_counter()
            torch.cuda.synchronize()
            if index > 2:
                forward.append((middle - begin) / CHAIN)
                backward.append((end - again) / CHAIN)
        yield {
            "kind": "host_chain",
            "op": name,
            "forward_s": statistics.median(forward),
            "backward_s": statistics.median(backward),
        }


def measure_vision_chains() -> Iterator[dict[str, Any]]:
    """Convolution, batch norm and ReLU links on tiny channels-last images under autocast."""
    for dtype in (torch.bfloat16, torch.float16):
        conv = torch.nn.Conv2d(64, 64, 1, bias=False).to(DEVICE, memory_format=torch.channels_last)
        norm = torch.nn.BatchNorm2d(64).to(DEVICE)
        for name, link in (
            ("conv2d", lambda x, c=conv: c(x)),
            ("batch_norm", lambda x, n=norm: n(x)),
            ("relu_", lambda x: F.relu(x * 1.0, inplace=True)),
            ("mul", lambda x: x * 1.0),
        ):
            forward, backward = [], []
            for index in range(12):
                x = (
                    torch.randn(2, 64, 8, 8, device=DEVICE, dtype=dtype)
                    .to(memory_format=torch.channels_last)
                    .requires_grad_()
                )
                torch.cuda.synchronize()
                begin = time.perf_counter()
                y = x
                with torch.autocast("cuda", dtype=dtype):
                    for _ in range(CHAIN):
                        y = link(y)
                middle = time.perf_counter()
                gradient = torch.ones_like(y)
                torch.cuda.synchronize()
                again = time.perf_counter()
                torch.autograd.backward(y, gradient)
                end = time.perf_counter()
                torch.cuda.synchronize()
                if index > 2:
                    forward.append((middle - begin) / CHAIN)
                    backward.append((end - again) / CHAIN)
            yield {
                "kind": "host_chain",
                "op": name,
                "dtype": str(dtype)[6:],
                "forward_s": statistics.median(forward),
                "backward_s": statistics.median(backward),
            }


def measure_optimizer() -> Iterator[dict[str, Any]]:
    """Host seconds of clipping and of one optimizer step by the number of tensors."""
    for tensors in (50, 150, 300):
        params = [torch.randn(64, device=DEVICE, requires_grad=True) for _ in range(tensors)]
        for p in params:
            p.grad = torch.randn_like(p)
        adam = torch.optim.AdamW(params, fused=True)
        sgd = torch.optim.SGD(params, lr=1e-9, momentum=0.9)
        for name, run in (
            ("clip", lambda p=params: torch.nn.utils.clip_grad_norm_(p, 1.0, foreach=True)),
            ("adamw_fused", adam.step),
            ("sgd_momentum", sgd.step),
        ):
            for _ in range(5):
                run()
            torch.cuda.synchronize()
            times = []
            for _ in range(20):
                begin = time.perf_counter()
                run()
                times.append(time.perf_counter() - begin)
                torch.cuda.synchronize()
            yield {
                "kind": "host_step",
                "op": name,
                "tensors": tensors,
                "seconds": statistics.median(times),
            }


def measure_compiled() -> Iterator[dict[str, Any]]:
    """Seconds a kernel of compiled blocks: norm, product, activation, product, addition."""
    w1 = torch.randn(64, 64, device=DEVICE, dtype=HALF, requires_grad=True)
    w2 = torch.randn(64, 64, device=DEVICE, dtype=HALF, requires_grad=True)
    g = torch.ones(64, device=DEVICE, dtype=HALF, requires_grad=True)

    @torch.compile
    def block(x: torch.Tensor) -> torch.Tensor:
        return x + F.linear(F.silu(F.linear(F.rms_norm(x, (64,), g), w1)), w2)

    forward, backward = [], []
    for index in range(15):
        x = torch.randn(8, 4, 64, device=DEVICE, dtype=HALF, requires_grad=True)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        y = x
        for _ in range(CHAIN):
            y = block(y)
        middle = time.perf_counter()
        gradient = torch.ones_like(y)
        torch.cuda.synchronize()
        again = time.perf_counter()
        torch.autograd.backward(y, gradient)
        end = time.perf_counter()
        torch.cuda.synchronize()
        if index > 3:
            forward.append((middle - begin) / CHAIN)
            backward.append((end - again) / CHAIN)
    from torch.profiler import ProfilerActivity, profile

    counts = []
    for part in range(2):
        with profile(activities=[ProfilerActivity.CUDA]) as session:
            y = block(x)
            if part:
                torch.autograd.backward(y, torch.ones_like(y))
            torch.cuda.synchronize()
        events = session.profiler.kineto_results.events()
        counts.append(sum("CUDA" in str(e.device_type()) and e.duration_ns() > 0 for e in events))
    yield {
        "kind": "host_compiled",
        "op": "block",
        "forward_s": statistics.median(forward),
        "backward_s": statistics.median(backward),
        "forward_kernels": counts[0],
        "backward_kernels": counts[1] - counts[0] - 1,
    }


def measure_launch() -> Iterator[dict[str, Any]]:
    """The reference of a host's speed: ``x.add_(1)`` in a loop."""
    x = torch.ones(8, device=DEVICE)
    for _ in range(500):
        x.add_(1.0)
    torch.cuda.synchronize()
    times = []
    for _ in range(9):
        begin = time.perf_counter()
        for _ in range(500):
            x.add_(1.0)
        times.append((time.perf_counter() - begin) / 500)
        torch.cuda.synchronize()
    yield {"kind": "host_launch", "op": "add_", "seconds": statistics.median(times)}


def measure_host() -> Iterator[dict[str, Any]]:
    """All host measurements."""
    yield from measure_launch()
    yield from measure_chains()
    yield from measure_vision_chains()
    yield from measure_optimizer()
    yield from measure_compiled()
