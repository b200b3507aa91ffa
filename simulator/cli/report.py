"""A prediction as people read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from simulator import Scenario, StepResult
from simulator.simulation import class_seconds

from . import text
from .console import bar, pairs, table

if TYPE_CHECKING:
    from rich.console import RenderableType


def report(scenario: Scenario, result: StepResult) -> Iterator[RenderableType]:
    """Scenario, headline numbers, where time and memory go, and warnings."""
    yield headline(scenario)
    yield pairs(_numbers(result))
    yield breakdown(result)
    yield _parts("Memory at its peak", result.memory, result.peak_memory_bytes, text.gigabytes)
    yield _classes(result)
    for warning in result.warnings:
        yield f"warning: {warning}"


def headline(scenario: Scenario) -> str:
    """What was asked, on one line."""
    work, stack = scenario.workload, scenario.stack
    inputs = f"{work.micro_batch} x {work.seq_len} tokens" if work.seq_len else (
        f"{work.micro_batch} images"
    )  # fmt: skip
    passes = f" x {work.grad_accum} passes" if work.grad_accum > 1 else ""
    model = work.model.name or work.model.family
    mode = f"{stack.execution} ({stack.compile_scope})" if stack.compile_scope else stack.execution
    return (
        f"{model}, {inputs}{passes}, {stack.name} {mode}, {stack.precision}, "
        f"on {scenario.gpus} x {scenario.gpu.name} at {scenario.power_limit_w:g} W"
    )


def breakdown(result: StepResult) -> RenderableType:
    """Where the step's time goes, as bars that sum to the step."""
    return _parts("Step", result.breakdown, result.step_time_s, text.seconds)


def _numbers(result: StepResult) -> Iterator[tuple[str, str]]:
    low, high = map(text.seconds, result.step_time_interval_s)
    level = text.percent(result.interval_level, 0)
    yield "step time", f"{text.seconds(result.step_time_s)} ({level} interval {low} to {high})"
    if result.tokens_per_s is not None:
        yield "throughput", _rate(result.tokens_per_s, result.tokens_per_s_per_gpu, "tokens/s")
    if result.images_per_s is not None:
        yield "throughput", _rate(result.images_per_s, result.images_per_s_per_gpu, "images/s")
    yield (
        "MFU",
        (
            f"{text.percent(result.mfu)} ({result.model_tflops_per_gpu:.0f} model TFLOP/s a GPU; "
            f"HFU {text.percent(result.hfu)})"
        ),
    )
    fits = "fits" if result.fits_in_memory else "does not fit"
    yield "peak memory", f"{text.gigabytes(result.peak_memory_bytes)} ({fits})"
    yield (
        "power",
        (
            f"{result.average_power_w:.0f} W a GPU at {result.sm_clock_mhz:,.0f} MHz, "
            f"{result.energy_j:,.1f} J a step"
        ),
    )
    cost = result.cost_usd
    yield "cost", "no price for this system" if cost is None else f"{cost:.3g} USD a step"
    yield "bound by", result.bound_by.replace("_", " ")


def _rate(total: float, per_gpu: float | None, unit: str) -> str:
    if per_gpu is None or per_gpu == total:
        return text.number(total, unit)
    return f"{text.number(total, unit)} ({text.number(per_gpu, '')} a GPU)"


def _parts(
    title: str, parts: Mapping[str, float], total: float, show: Callable[[float], str]
) -> RenderableType:
    """Parts that are not zero with their bars, and their total."""
    rows = [
        (name.replace("_", " "), bar(value / total), show(value), text.percent(value / total))
        for name, value in parts.items()
        if value
    ]
    return table(title, "llrr", ("", "", "", ""), [*rows, ("total", "", show(total), "")])


def _classes(result: StepResult) -> RenderableType:
    """Kernel classes, longest first."""
    totals = class_seconds(result.timeline)
    rows: list[Sequence[str]] = [
        (name, f"{count:,}", text.seconds(spent), text.percent(spent / result.step_time_s))
        for name, (count, spent) in sorted(totals.items(), key=lambda item: -item[1][1])
    ]
    return table("Kernels", "lrrr", ("class", "launches", "time", "of the step"), rows)
