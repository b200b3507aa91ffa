"""What a trace adds up to: busy times as unions of intervals, and totals by kernel class."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .kernel_classes import CLASSES
from .trace_model import GpuOp, Trace

PS_PER_S = 1_000_000_000_000
Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ClassTotal:
    """Calls and summed seconds of one kernel class."""

    count: int
    total_s: float


@dataclass(frozen=True, slots=True)
class BusyTimes:
    """Seconds of one device in a window; busy means that at least one operation runs.

    ``gpu_busy_s`` is any operation, ``compute_busy_s`` all but communication (copies included),
    ``copy_busy_s`` copies alone, ``communication_busy_s`` collectives alone;
    ``communication_total_s`` sums collectives whether or not they overlap;
    ``communication_exposed_s`` is communication while nothing else runs; ``idle_s`` is the rest of
    the span from the first start to the last end.
    """

    span_s: float
    gpu_busy_s: float
    compute_busy_s: float
    copy_busy_s: float
    communication_busy_s: float
    communication_total_s: float
    communication_exposed_s: float
    idle_s: float
    launches: int
    streams: int


def class_totals(trace: Trace) -> dict[str, ClassTotal]:
    """Calls and summed durations by kernel class, in the order of `CLASSES`, empty ones left out.

    Concurrent operations count in full, so the total can exceed the busy time.
    """
    counts = dict.fromkeys(CLASSES, 0)
    total_ps = dict.fromkeys(CLASSES, 0)
    for op in trace.kernels:
        counts[op.kernel_class] += 1
        total_ps[op.kernel_class] += op.duration_ps
    return {
        name: ClassTotal(count, total_ps[name] / PS_PER_S)
        for name, count in counts.items()
        if count
    }


def busy_times(ops: Iterable[GpuOp]) -> BusyTimes:
    """Busy times of the GPU operations of one device; all zero without any."""
    kept = list(ops)
    communication = _intervals(kept, is_communication)
    compute = union(_intervals(kept, lambda op: not is_communication(op)))
    everything = union(_intervals(kept, lambda _: True))
    busy_ps, compute_ps = _length(everything), _length(compute)
    span_ps = everything[-1][1] - everything[0][0] if everything else 0
    return BusyTimes(
        span_s=span_ps / PS_PER_S,
        gpu_busy_s=busy_ps / PS_PER_S,
        compute_busy_s=compute_ps / PS_PER_S,
        copy_busy_s=_length(union(_intervals(kept, is_copy))) / PS_PER_S,
        communication_busy_s=_length(union(communication)) / PS_PER_S,
        communication_total_s=_length(communication) / PS_PER_S,
        communication_exposed_s=(busy_ps - compute_ps) / PS_PER_S,
        idle_s=(span_ps - busy_ps) / PS_PER_S,
        launches=len(kept),
        streams=len({(op.device, op.stream) for op in kept}),
    )


def stream_busy_s(ops: Iterable[GpuOp]) -> dict[tuple[int, int], float]:
    """Busy seconds of each (device, stream); operations of one stream may overlap."""
    streams: dict[tuple[int, int], list[Interval]] = {}
    for op in ops:
        streams.setdefault((op.device, op.stream), []).append((op.start_ps, op.end_ps))
    return {key: _length(union(streams[key])) / PS_PER_S for key in sorted(streams)}


def ops_of_step(trace: Trace, number: int) -> list[GpuOp]:
    """GPU operations that the host launched inside `ProfilerStep#number`.

    One whose launch is not in the trace belongs to the window in which it started. Raises
    ValueError when the trace has no such step.
    """
    window = next((step for step in trace.steps if step.number == number), None)
    if window is None:
        known = [step.number for step in trace.steps]
        raise ValueError(f"step must be one of {known} (got {number})")
    end_ps = window.start_ps + window.duration_ps
    return [op for op in trace.kernels if window.start_ps <= _issued_ps(op) < end_ps]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The union of intervals as disjoint ones in order; those that touch are joined."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def is_communication(op: GpuOp) -> bool:
    """Whether an operation is a collective or a send or receive between GPUs."""
    return op.kernel_class == "collective"


def is_copy(op: GpuOp) -> bool:
    """Whether an operation is a copy by the driver (memcpy), on a copy engine or not."""
    return op.category == "gpu_memcpy"


def _issued_ps(op: GpuOp) -> int:
    return op.start_ps if op.launch_ps is None else op.launch_ps


def _intervals(ops: Iterable[GpuOp], wanted: Callable[[GpuOp], bool]) -> list[Interval]:
    return [(op.start_ps, op.end_ps) for op in ops if wanted(op)]


def _length(intervals: Iterable[Interval]) -> int:
    return sum(end - start for start, end in intervals)
