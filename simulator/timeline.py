"""A predicted step as a Chrome trace in kineto's dialect, readable wherever PyTorch profiles are.

The dialect is that of pytorch/kineto, libkineto/src/output_json.cpp: times in microseconds with
three decimals, kernels on (device, stream), operators and launches on the host's thread, linked by
correlation numbers and flows. Starts and ends are rounded to whole nanoseconds.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from archs.reading import write_atomic
from workloads.kernels import Collective, dtype_bytes

from .engine import STREAMS as NAMES
from .engine import Slice
from .result import StepResult
from .scenario import Scenario
from .schedule import Work

DEVICE, HOST, STEP = 0, 1, 1
STREAMS = {name: 7 if index == 0 else 19 + 4 * index for index, name in enumerate(NAMES)}
"""Numbers of the engine's streams as PyTorch has them: 7, then 23, 27, ... of its pool."""

STEP_TRACK = 0

COLLECTIVES = {
    "all_reduce": ("AllReduce", "allreduce"),
    "all_gather": ("AllGather", "_allgather_base"),
    "reduce_scatter": ("ReduceScatter", "_reduce_scatter_base"),
    "all_to_all": ("AllToAll", "all_to_all"),
    "broadcast": ("Broadcast", "broadcast"),
    "send": ("SendRecv", "send"),
}
"""Operation to what NCCL calls its kernel, and to PyTorch's name of the collective."""

DTYPES = {"fp32": "Float", "bf16": "BFloat16", "fp16": "Half", "fp8": "Float8_e4m3fn"}
PS_PER_NS = 1_000
NS_PER_US = 1_000
SETTINGS = ("step_time_s", "peak_memory_bytes", "bound_by", "sm_clock_mhz")
Event = dict[str, Any]
Issue = tuple[Work, int, int]


def write_trace(path: str | Path, result: StepResult, scenario: Scenario) -> None:
    """Write a predicted step as ``.json`` or ``.json.gz`` (by suffix), the whole file or nothing.

    Equal results give equal bytes. Raises InputError when the file cannot be written.
    """
    text = json.dumps(chrome_trace(result, scenario), separators=(",", ":"), allow_nan=False)
    data = text.encode("utf-8")
    zipped = Path(path).suffix == ".gz"
    write_atomic(path, gzip.compress(data, compresslevel=6, mtime=0) if zipped else data)


def chrome_trace(result: StepResult, scenario: Scenario) -> dict[str, Any]:
    """A predicted step as the document that kineto would have written after measuring it.

    Time zero is the start of the step on the host or on the GPU, whichever came first. Kernels
    carry layer, operator, phase and kernel class, and bytes and FLOPs where they are known; those
    of collectives are named and described as NCCL's are. It shows the first rank.
    """
    gpu = scenario.gpu
    return {
        "schemaVersion": 1,
        "deviceProperties": [_device(scenario)],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": scenario.gpus},
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
        "stepsim": {"gpu": gpu.id, **{name: getattr(result, name) for name in SETTINGS}},
        "traceEvents": list(_events(result)),
        "traceName": f"stepsim prediction on {gpu.id}",
    }


def _device(scenario: Scenario) -> dict[str, Any]:
    gpu = scenario.gpu
    found: dict[str, Any] = {
        "id": DEVICE,
        "name": gpu.name,
        "totalGlobalMem": int(gpu.hbm.usable_bytes or gpu.hbm.capacity_bytes),
        "numSms": gpu.sm_count,
    }
    major, dot, minor = (gpu.compute_capability or "").partition(".")
    if dot and major.isdigit() and minor.isdigit():
        found |= {"computeMajor": int(major), "computeMinor": int(minor)}
    return found


def _events(result: StepResult) -> Iterator[Event]:
    timeline = result.timeline
    clock = _Clock(
        min(
            timeline.start_ps,
            *(start for _, start, _ in timeline.host[:1]),
            *(piece.start_ps for piece in timeline.slices),
        )
    )
    yield from _metadata({_stream(piece) for piece in timeline.slices})
    yield from _steps(clock, result)
    yield from _layers(clock, timeline.host)
    yield from _operators(clock, timeline.host, timeline.slices)
    yield from _counters(clock, result)


class _Clock:
    """The trace's time: microseconds since ``zero_ps``, on a grid of nanoseconds."""

    def __init__(self, zero_ps: int) -> None:
        self.zero_ps = zero_ps

    def at(self, ps: int) -> float:
        return self._ns(ps) / NS_PER_US

    def span(self, start_ps: int, end_ps: int) -> dict[str, float]:
        """``ts`` and ``dur`` whose ends both lie on the grid, so that what nests stays nested."""
        duration_ns = self._ns(end_ps) - self._ns(start_ps)
        return {"ts": self.at(start_ps), "dur": duration_ns / NS_PER_US}

    def _ns(self, ps: int) -> int:
        return round((ps - self.zero_ps) / PS_PER_NS)


def _stream(piece: Slice) -> int:
    return STREAMS[piece.work.operator.stream]


def _metadata(streams: Iterable[int]) -> Iterator[Event]:
    """Names and order of processes and tracks."""
    tracks = [(STEP_TRACK, "step"), *((number, f"stream {number} ") for number in sorted(streams))]
    rows = [
        ("process_name", HOST, 0, {"name": "python"}),
        ("process_labels", HOST, 0, {"labels": "CPU"}),
        ("process_sort_index", HOST, 0, {"sort_index": 0}),
        ("thread_name", HOST, HOST, {"name": "thread 1 (python)"}),
        ("process_name", DEVICE, 0, {"name": "python"}),
        ("process_labels", DEVICE, 0, {"labels": f"GPU {DEVICE}"}),
        ("process_sort_index", DEVICE, 0, {"sort_index": 5_000_000 + DEVICE}),
        *(("thread_name", DEVICE, tid, {"name": name}) for tid, name in tracks),
        *(("thread_sort_index", DEVICE, tid, {"sort_index": tid}) for tid, _ in tracks),
    ]
    for name, pid, tid, args in rows:
        yield {"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0.0, "args": args}


def _slice(category: str, name: str, place: tuple[int, int], span: Event, args: Event) -> Event:
    pid, tid = place
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, **span, "args": args}


def _steps(clock: _Clock, result: StepResult) -> Iterator[Event]:
    """The step on the host, up to the end of its last kernel, and the step on the GPU."""
    timeline, name = result.timeline, f"ProfilerStep#{STEP}"
    start, end = timeline.start_ps, timeline.end_ps
    if timeline.host:
        host = clock.span(timeline.host[0][1], max(end, timeline.host[-1][2]))
        yield _slice("user_annotation", name, (HOST, HOST), host, {})
    yield _slice("gpu_user_annotation", name, (DEVICE, STEP_TRACK), clock.span(start, end), {})


def _layers(clock: _Clock, issues: Iterable[Issue]) -> Iterator[Event]:
    """One annotation on the host for each run of operators of one layer and phase."""
    for label, group in groupby(issues, key=lambda issue: _layer(issue[0])):
        inside = list(group)
        span = clock.span(inside[0][1], inside[-1][2])
        yield _slice("user_annotation", label, (HOST, HOST), span, {})


def _layer(work: Work) -> str:
    label, phase = work.label, work.operator.phase
    return label if label == phase else f"{label} {phase}"


def _operators(clock: _Clock, issues: Sequence[Issue], slices: Sequence[Slice]) -> Iterator[Event]:
    """Each operator with its launches on the host, and its kernels on their stream.

    A stream runs kernels in the order in which they were issued to it.
    """
    remaining: dict[str, deque[Slice]] = defaultdict(deque)
    for piece in slices:
        remaining[piece.work.operator.stream].append(piece)
    correlation = len(issues)
    for external, (work, start, end) in enumerate(issues, start=1):
        ids = {"External id": external}
        host = clock.span(start, end)
        yield _slice("cpu_op", work.operator.name, (HOST, HOST), host, ids)
        queue = remaining[work.operator.stream]
        pieces = [queue.popleft() for _ in work.launches]
        for piece, (begin, issued) in zip(pieces, _calls(start, pieces), strict=True):
            correlation += 1
            linked = {**ids, "correlation": correlation}
            yield _call(clock.span(begin, issued), piece, linked)
            yield _kernel(clock, piece, linked)
            yield from _flow(clock, begin, piece, correlation)


def _calls(start_ps: int, pieces: Sequence[Slice]) -> list[tuple[int, int]]:
    """When each launch call of an operator began and returned.

    A call returns when its kernel is queued, or, where several are queued at once, when the next
    call begins; the operator's first half goes to the framework, the second to the calls.
    """
    found: list[tuple[int, int]] = []
    following = pieces[-1].issued_ps if pieces else 0
    for index, piece in reversed(list(enumerate(pieces))):
        end = min(piece.issued_ps, following)
        following = max(start_ps, end - max(0, end - start_ps) // (2 * (index + 1)))
        found.append((following, end))
    return found[::-1]


def _call(span: Event, piece: Slice, linked: Event) -> Event:
    name = "cudaMemsetAsync" if piece.launch.kind == "memset" else "cudaLaunchKernel"
    return _slice("cuda_runtime", name, (HOST, HOST), span, linked)


def _kernel(clock: _Clock, piece: Slice, linked: Event) -> Event:
    operator, launch = piece.work.operator, piece.launch
    moved = next((k.hbm_bytes for k in operator.kernels if k.label == launch.name), None)
    collective = next((k for k in operator.kernels if isinstance(k, Collective)), None)
    args = {
        **linked, "device": DEVICE, "stream": _stream(piece), "layer": piece.work.label,
        "operator": operator.name, "phase": operator.phase, "kernel class": launch.kind,
        **({"bytes": round(moved)} if moved else {}),
        **({"flops": launch.flops} if launch.flops else {}),
        **(_collective(collective) if collective else {}),
    }  # fmt: skip
    span = clock.span(piece.start_ps, piece.end_ps)
    category = "gpu_memset" if launch.kind == "memset" else "kernel"
    name = f"{_nccl(collective)}({launch.name})" if collective else launch.name
    return _slice(category, name, (DEVICE, _stream(piece)), span, args)


def _nccl(kernel: Collective) -> str:
    """The name by which tools know a kernel of this collective."""
    name, _ = COLLECTIVES.get(kernel.op, (kernel.op, kernel.op))
    return f"ncclDevKernel_{name}"


def _collective(kernel: Collective) -> Event:
    """Arguments of a communication kernel; elements are those of one rank's tensors."""
    elements = kernel.size // dtype_bytes(kernel.dtype)
    part = elements // kernel.ranks
    return {
        "Collective name": COLLECTIVES.get(kernel.op, (kernel.op, kernel.op))[1],
        "In msg nelems": part if kernel.op == "all_gather" else elements,
        "Out msg nelems": part if kernel.op == "reduce_scatter" else elements,
        "Group size": kernel.ranks,
        "dtype": DTYPES.get(kernel.dtype, kernel.dtype),
    }


def _flow(clock: _Clock, from_ps: int, piece: Slice, correlation: int) -> Iterator[Event]:
    link: Event = {"id": correlation, "cat": "ac2g", "name": "ac2g"}
    start, end = clock.at(from_ps), clock.at(piece.start_ps)
    yield {"ph": "s", **link, "pid": HOST, "tid": HOST, "ts": start}
    yield {"ph": "f", **link, "pid": DEVICE, "tid": _stream(piece), "ts": end, "bp": "e"}


def _counters(clock: _Clock, result: StepResult) -> Iterator[Event]:
    """The SM clock of the step, and allocated memory whenever an operator changed it."""
    timeline = result.timeline
    for ps in (timeline.start_ps, timeline.end_ps):
        yield _counter("SM clock", clock.at(ps), {"MHz": result.sm_clock_mhz})
    for ps, allocated in allocated_bytes(result):
        yield _counter("allocated memory", clock.at(ps), {"bytes": allocated})


def _counter(name: str, ts: float, values: Event) -> Event:
    return {"ph": "C", "name": name, "pid": DEVICE, "tid": 0, "ts": ts, "args": values}


def allocated_bytes(result: StepResult) -> list[tuple[int, int]]:
    """(time in picoseconds, allocated bytes) over a step, in the order of the host.

    An operator that changes memory gives two points: its highest total when the host begins to
    issue it, and what is left when the host is done. The highest point of all is the peak.
    """
    points: list[tuple[int, int]] = []
    total = 0
    for work, start, end in result.timeline.host:
        highest = total
        for _, change in work.operator.memory:
            total += change
            highest = max(highest, total)
        if work.operator.memory:
            points += [(start, highest), (end, total)]
    above = max([0, *(total for _, total in points)])
    return [(ps, result.peak_memory_bytes - above + total) for ps, total in points]
