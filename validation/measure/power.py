"""Power and clock of sustained loops."""

from __future__ import annotations

import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from timing import DEVICE, Case, Pool


class Sampler(threading.Thread):
    """Power (W) and SM clock (MHz) from nvidia-smi every 50 ms while running."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.rows: list[tuple[float, float, float]] = []
        self.process = subprocess.Popen(
            [
                "nvidia-smi",
                "--query-gpu=power.draw.instant,clocks.sm",
                "-i",
                "0",
                "-lms",
                "50",
                "--format=csv,noheader,nounits",
            ],
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self) -> None:
        """Collect samples until the process ends."""
        for line in self.process.stdout or ():
            power, clock = (float(part) for part in line.split(","))
            self.rows.append((time.time(), power, clock))

    def stop(self) -> None:
        """End the sampling process."""
        self.process.terminate()


def power_cases(pool: Pool) -> Iterator[tuple[dict[str, Any], Callable[[], Any]]]:
    """Operators whose sustained power separates tensor, memory, softmax and element energy."""
    half = torch.bfloat16
    big = pool.take((1 << 29,), half)
    mats = {}
    for m, n, k in (
        (8192, 8192, 8192),
        (4096, 4096, 4096),
        (2048, 2048, 2048),
        (8192, 2048, 8192),
        (16384, 768, 3072),
        (4096, 14336, 4096),
        (8192, 128256, 2048),
    ):
        mats[(m, n, k)] = (pool.take((m, k), half), pool.take((n, k), half) * 0.02)
        a, w = mats[(m, n, k)]
        yield {"op": "gemm", "m": m, "n": n, "k": k}, lambda a=a, w=w: torch.mm(a, w.t())
    a, w = mats[(8192, 8192, 8192)]
    small = big[: 1 << 27]
    for copies in (1, 2, 4, 8, 16, 32):

        def mixed(c=copies, a=a, w=w, s=small):
            torch.mm(a, w.t())
            for _ in range(c):
                s.mul_(1.0)

        yield {"op": "gemm_8192_then_scale_256MiB", "copies": copies}, mixed
    yield {"op": "scale", "elements": 1 << 29, "dtype": "bf16"}, lambda b=big: b.mul_(1.0)
    x = pool.take((16384, 4096), half)
    g = torch.ones(4096, device=DEVICE, dtype=half)
    yield (
        {"op": "rms_norm", "rows": 16384, "cols": 4096},
        lambda x=x, g=g: F.rms_norm(x, (4096,), g),
    )
    yield {"op": "gelu", "elements": 1 << 26}, lambda x=x: F.gelu(x)
    logits = pool.take((8192, 128256), torch.float32)
    yield (
        {"op": "log_softmax", "rows": 8192, "cols": 128256},
        lambda x=logits: torch.log_softmax(x, -1),
    )
    for d, h in ((64, 32), (128, 32)):
        q = pool.take((2, h, 4096, d), half).clone().requires_grad_()
        k = pool.take((2, h, 4096, d), half).clone().requires_grad_()
        v = pool.take((2, h, 4096, d), half).clone().requires_grad_()
        yield (
            {"op": "attention_forward", "head_dim": d},
            lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        )
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        grad = torch.randn_like(out)
        yield (
            {"op": "attention_backward", "head_dim": d},
            lambda o=out, q=q, k=k, v=v, g=grad: torch.autograd.grad(
                o, (q, k, v), g, retain_graph=True
            ),
        )
    for cin, cout, kernel, size in ((64, 64, 3, 56), (256, 256, 3, 14), (256, 64, 1, 56)):
        last = torch.channels_last
        x4 = pool.take((256, cin, size, size), torch.float16).clone(memory_format=last)
        w4 = pool.take((cout, cin, kernel, kernel), torch.float16).clone(memory_format=last)
        yield (
            {"op": "conv2d", "cin": cin, "cout": cout, "kernel": kernel, "hw": size},
            lambda x=x4, w=w4, p=kernel // 2: F.conv2d(x, w, None, 1, p),
        )
    w32 = [pool.take((1 << 26,), torch.float32) for _ in range(4)]
    step = [torch.ones((), device=DEVICE)]
    yield (
        {"op": "adamw_fused", "elements": 1 << 26},
        lambda p=w32, s=step: torch._fused_adamw_(
            [p[0]],
            [p[1]],
            [p[2]],
            [p[3]],
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
    )
    y = logits.clone()
    yield (
        {"op": "log_softmax_backward", "rows": 8192, "cols": 128256},
        lambda x=logits, y=y: torch.ops.aten._log_softmax_backward_data(x, y, -1, torch.float32),
    )
    del y
    b4 = pool.take((256, 256, 56, 56), half).clone(memory_format=torch.channels_last)
    ones, zeros = torch.ones(256, device=DEVICE), torch.zeros(256, device=DEVICE)
    for name, x4 in (("batch_norm_bf16", b4), ("batch_norm_fp16", b4.to(torch.float16))):
        yield (
            {"op": name},
            lambda x=x4, o=ones, z=zeros: F.batch_norm(x, None, None, o, z, training=True),
        )
    yield {"op": "cast_to_float", "elements": 1 << 26}, lambda x=x: x.float()
    yield {"op": "silu", "elements": 1 << 26}, lambda x=x: F.silu(x)
    yield {"op": "add", "elements": 1 << 26}, lambda x=x: x + x
    yield {"op": "spin"}, lambda: torch.cuda._sleep(2_000_000)


def measure_power(pool: Pool, seconds: float) -> Iterator[dict[str, Any]]:
    """Power and clock of the loops of ``power_cases``."""
    loops = (({"kind": "power", **case}, run) for case, run in power_cases(pool))
    yield from measure_loops(loops, seconds)


def measure_sustained(
    cases: Iterable[Case], seconds: float, least_flops: float
) -> Iterator[dict[str, Any]]:
    """Tensor-core operators repeated alone until the clock has settled."""
    chosen = (
        ({**case, "condition": "sustained"}, run)
        for case, run, _ in cases
        if work_estimate(case) >= least_flops
    )
    yield from measure_loops(chosen, seconds)


def work_estimate(case: dict[str, Any]) -> float:
    """FLOPs of a tensor-core case, to leave out those too short to be timed back to back."""
    if case["kind"] == "gemm":
        return 2.0 * case["m"] * case["n"] * case["k"]
    if case["kind"] == "attention":
        return 2.0 * case["batch"] * case["heads"] * case["seq"] ** 2 * case["head_dim"]
    out = case["hw"] // case["stride"]
    return 2.0 * case["batch"] * out**2 * case["cin"] * case["cout"] * case["kernel"] ** 2


def measure_loops(
    loops: Iterable[tuple[dict[str, Any], Callable[[], Any]]], seconds: float
) -> Iterator[dict[str, Any]]:
    """Each operator in a loop of ``seconds``; power and clock are those of its second half."""
    sampler = Sampler()
    sampler.start()
    for case, run in loops:
        for _ in range(3):
            run()
        torch.cuda.synchronize()
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin = time.time()
        while time.time() - begin < seconds:
            for _ in range(20):
                run()
            torch.cuda.synchronize()
        end = time.time()
        start.record()
        for _ in range(20):
            run()
        stop.record()
        torch.cuda.synchronize()
        rows = [r for r in sampler.rows if begin + seconds / 2 < r[0] < end]
        yield {
            **case,
            "seconds": start.elapsed_time(stop) * 1e-3 / 20,
            "power_w": statistics.fmean(r[1] for r in rows) if rows else None,
            "sm_clock_mhz": statistics.fmean(r[2] for r in rows) if rows else None,
            "samples": len(rows),
        }
    sampler.stop()
