"""Timing of the kernels of one operator on a CUDA GPU, without launch gaps."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import torch

Case = tuple[dict[str, Any], Callable[[], Any], Callable[[], Any]]
"""(description, the operator, what leaves its inputs as a training step would)."""

Timed = tuple[int, str, float]
"""(start in ns, kernel name, seconds)."""

SPIN_CYCLES = 400_000
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Pool:
    """One large random buffer per dtype, handed out as views at moving offsets."""

    def __init__(self, elements: int) -> None:
        self.elements = elements
        self.buffers: dict[torch.dtype, torch.Tensor] = {}
        self.offset = 0

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if dtype not in self.buffers:
            buffer = torch.empty(self.elements, dtype=dtype, device=DEVICE)
            step = 1 << 26
            for start in range(0, self.elements, step):
                buffer[start : start + step].normal_()
            self.buffers[dtype] = buffer
        count = math.prod(shape)
        if count > self.elements:
            return torch.randn(shape, dtype=dtype, device=DEVICE)
        if self.offset + count > self.elements:
            self.offset = 0
        view = self.buffers[dtype][self.offset : self.offset + count].view(shape)
        self.offset += (count + 511) // 512 * 512
        return view



def kernels_of(
    run: Callable[[], Any], producer: Callable[[], Any], repeats: int, gap_cycles: int
) -> list[list[Timed]]:
    """Per repetition, the kernels that ``run`` launched after ``producer``."""
    from torch.profiler import ProfilerActivity, profile

    for _ in range(3):
        producer()
        run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as session:
        for _ in range(repeats):
            torch.cuda._sleep(1000)
            producer()
            torch.cuda._sleep(gap_cycles)
            run()
        torch.cuda._sleep(1000)
        torch.cuda.synchronize()
    events = session.profiler.kineto_results.events()
    rows = sorted(
        (event.start_ns(), event.name(), event.duration_ns() * 1e-9)
        for event in events
        if "CUDA" in str(event.device_type()) and event.duration_ns() > 0
    )
    return grouped(rows)


def grouped(rows: list[Timed]) -> list[list[Timed]]:
    """Kernels between an even spin kernel and the next one: those of the measured operator."""
    groups: list[list[Timed]] = []
    spins = 0
    for start, name, seconds in rows:
        if "spin_kernel" in name:
            spins += 1
            if spins % 2 == 0:
                groups.append([])
        elif spins % 2 == 0 and groups:
            groups[-1].append((start, name, seconds))
    return [group for group in groups if group]


def summarise(groups: list[list[Timed]]) -> dict[str, Any]:
    """Median total, and the kernels and the span of the repetition that has it."""
    totals = [sum(seconds for _, _, seconds in group) for group in groups]
    middle = groups[totals.index(sorted(totals)[len(totals) // 2])]
    begin, (last, _, tail) = middle[0][0], middle[-1]
    return {
        "seconds": statistics.median(totals),
        "repeats": len(totals),
        "kernels": [{"name": name[:140], "seconds": seconds} for _, name, seconds in middle],
        "span_s": (last - begin) * 1e-9 + tail,
    }


def measure_cool(case: Case) -> dict[str, Any]:
    """Five repetitions, each after an idle spin: the clock stays at its maximum."""
    description, run, producer = case
    return {**description, **summarise(kernels_of(run, producer, 5, SPIN_CYCLES))}


def measure_busy(case: Case, filler: torch.Tensor) -> dict[str, Any]:
    """Seven repetitions, each after three times as long of memory-bound work.

    The board stays just below its power limit, so the clock is the maximum, and the GPU is as busy
    as in a step: kernels that follow an idle gap are up to 5 % slower.
    """
    description, run, producer = case
    alone = summarise(kernels_of(run, producer, 2, 1000))["seconds"]
    pass_s = 2.0 * filler.nbytes / 4.2e12
    passes = max(1, math.ceil(3.0 * alone / pass_s))

    def busy() -> None:
        for _ in range(passes):
            filler.mul_(1.0)
        producer()

    return {**description, **summarise(kernels_of(run, busy, 7, 1000))}
