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
CLOCK_CYCLES = 60_000
HOT_S = 0.01
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Pool:
    """One large random buffer per dtype, handed out as views at moving offsets."""

    def __init__(self, elements: int) -> None:
        self.elements = elements
        self.buffers: dict[torch.dtype, torch.Tensor] = {}
        self.offset = 0

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A view of the buffer, or a tensor of its own when it is larger than the buffer."""
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
    """Per repetition, the spin before it, the kernels that ``run`` launched, the spin after it."""
    from torch.profiler import ProfilerActivity, profile

    for _ in range(3):
        producer()
        run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as session:
        for _ in range(repeats):
            torch.cuda._sleep(CLOCK_CYCLES)
            producer()
            torch.cuda._sleep(max(CLOCK_CYCLES, gap_cycles))
            run()
        torch.cuda._sleep(CLOCK_CYCLES)
        torch.cuda.synchronize()
    events = session.profiler.kineto_results.events()
    rows = sorted(
        (event.start_ns(), event.name(), event.duration_ns() * 1e-9)
        for event in events
        if "CUDA" in str(event.device_type()) and event.duration_ns() > 0
    )
    return grouped(rows)


def grouped(rows: list[Timed]) -> list[list[Timed]]:
    """Kernels from an even spin kernel to the next one, both included: one repetition."""
    groups: list[list[Timed]] = []
    spins = 0
    for row in rows:
        spin = "spin_kernel" in row[1]
        spins += spin
        if spin and spins % 2 == 1 and groups:
            groups[-1].append(row)
        elif spin and spins % 2 == 0:
            groups.append([row])
        elif spins % 2 == 0 and groups:
            groups[-1].append(row)
    return [group for group in groups if len(group) > 2]


def summarise(groups: list[list[Timed]], gap_cycles: int) -> dict[str, Any]:
    """Median total; kernels, span and clock of the repetition that has it.

    The clock is read from the spin kernels on either side, whose cycles are known.
    """
    totals = [sum(seconds for _, _, seconds in group[1:-1]) for group in groups]
    middle = groups[totals.index(sorted(totals)[len(totals) // 2])]
    kernels = middle[1:-1]
    before, after = middle[0][2], middle[-1][2]
    return {
        "seconds": statistics.median(totals),
        "repeats": len(totals),
        "kernels": [{"name": name[:140], "seconds": seconds} for _, name, seconds in kernels],
        "span_s": (kernels[-1][0] - kernels[0][0]) * 1e-9 + kernels[-1][2],
        "clock_before_hz": max(CLOCK_CYCLES, gap_cycles) / before,
        "clock_after_hz": CLOCK_CYCLES / after,
    }


def measure_cool(case: Case) -> dict[str, Any]:
    """Five repetitions, each after an idle spin: the clock stays at its maximum."""
    description, run, producer = case
    groups = kernels_of(run, producer, 5, SPIN_CYCLES)
    return {**description, "condition": "cool", **summarise(groups, SPIN_CYCLES)}


def measure_loaded(case: Case, condition: str, filler: Callable[[], Any]) -> dict[str, Any]:
    """Seven repetitions, each after three times as long of other work.

    ``busy``: memory-bound work, the board stays near its power limit and the clock near its
    maximum. ``hot``: large matrix products, the clock is what the power limit allows.
    """
    description, run, producer = case
    alone = summarise(kernels_of(run, producer, 2, 0), 0)["seconds"]
    once = summarise(kernels_of(filler, lambda: None, 2, 0), 0)["seconds"]
    passes = max(1, math.ceil(3.0 * alone / once))
    if condition == "hot":
        passes = max(passes, math.ceil(HOT_S / once))

    def load() -> None:
        for _ in range(passes):
            filler()
        producer()

    groups = kernels_of(run, load, 7, 0)
    return {**description, "condition": condition, **summarise(groups, 0)}
