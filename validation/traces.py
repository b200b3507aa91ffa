"""Reader of kineto Chrome traces, the profile that `torch.profiler` exports.

Accepts `.json` and `.json.gz`, times since a base or since the epoch, integer or decimal
microseconds, files without distributedInfo, and the category names of the oldest versions.
Categories that it does not know are counted, never fatal.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from archs.errors import InputError

from .kernel_classes import CLASSES, classify
from .trace_format import PS_PER_NS, Document, Event, arguments, read_document, to_ps
from .trace_links import Launch, Links
from .trace_model import Collective, CpuOp, Device, Distributed, GpuOp, StepWindow, Trace
from .trace_times import (
    BusyTimes,
    ClassTotal,
    busy_times,
    class_totals,
    ops_of_step,
    stream_busy_s,
    union,
)

__all__ = [
    "BusyTimes",
    "ClassTotal",
    "Collective",
    "CpuOp",
    "Device",
    "Distributed",
    "GpuOp",
    "StepWindow",
    "Trace",
    "busy_times",
    "class_totals",
    "ops_of_step",
    "read_trace",
    "stream_busy_s",
    "union",
]

GPU_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
LAUNCH_CATEGORIES = frozenset({"cuda_runtime", "cuda_driver"})
OLD_NAMES = {
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Runtime": "cuda_runtime",
    "Operator": "cpu_op",
}
IGNORED_CATEGORIES = frozenset(
    {
        "gpu_user_annotation", "cuda_sync", "cuda_event", "python_function", "overhead", "Trace",
        "cpu_instant_event", "collective_comm", "hardware_counters", "ac2g", "fwdbwd",
    }
)  # fmt: skip
IGNORED_PHASES = frozenset({"M", "s", "t", "f", "i", "I", "C"})
STEP_NAME = re.compile(r"ProfilerStep\s*#(\d+)")
COLLECTIVE_NAMES = {
    "AllReduce": "allreduce",
    "AllGather": "allgather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "SendRecv": "send_recv",
    "AllToAll": "all_to_all",
    "Reduce": "reduce",
}
VERSION_FIELDS = (
    "cuda_driver_version",
    "cuda_runtime_version",
    "cupti_version",
    "hip_driver_version",
    "hip_runtime_version",
)


def read_trace(path: str | Path) -> Trace:
    """Read one rank's trace.

    Raises InputError for a file that cannot be read, for truncated or malformed JSON or gzip data
    (with the byte offset), and for a GPU operation or operator without a usable time.
    """
    document = read_document(Path(path))
    reader = _Reader(document.base_ns * PS_PER_NS)
    for index, event in enumerate(document.events):
        try:
            reader.take(event)
        except (ValueError, ArithmeticError, msgspec.DecodeError) as error:
            where = f"{path}:traceEvents[{index}]"
            raise InputError(f"{event.label}: {error}", where=where) from None
    return reader.finish(document)


@dataclass(slots=True)
class _Reader:
    """Collects events by what they are; the operators behind GPU work are linked at the end."""

    base_ps: int
    gpu: list[tuple[str, Event, dict[str, Any]]] = field(default_factory=list)
    cpu_ops: list[CpuOp] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    steps: set[StepWindow] = field(default_factory=set)
    unknown: Counter[str] = field(default_factory=Counter)

    def take(self, event: Event) -> None:
        """Sort one event into its collection."""
        if event.ph != "X":
            if event.ph not in IGNORED_PHASES:
                self.unknown[f"phase {event.ph}"] += 1
            return
        category = OLD_NAMES.get(event.cat or "", event.cat)
        if category in GPU_CATEGORIES:
            _check_times(event)
            self.gpu.append((str(category), event, arguments(event)))
        elif category in LAUNCH_CATEGORIES:
            self._take_launch(event)
        elif category in ("cpu_op", "user_annotation"):
            self._take_host(event, category)
        elif category not in IGNORED_CATEGORIES:
            self.unknown[category or "none"] += 1

    def _take_launch(self, event: Event) -> None:
        correlation = _integer(arguments(event).get("correlation"))
        if correlation is not None:
            start_ps = self.base_ps + to_ps(event.ts)
            self.launches.append(Launch(correlation, start_ps, _thread(event)))

    def _take_host(self, event: Event, category: str) -> None:
        _check_times(event)
        start_ps, duration_ps = self.base_ps + to_ps(event.ts), to_ps(event.dur)
        step = STEP_NAME.fullmatch(event.label)
        if step:
            self.steps.add(StepWindow(int(step[1]), start_ps, duration_ps))
        elif category == "cpu_op":
            external_id = _integer(arguments(event).get("External id"))
            op = CpuOp(event.label, start_ps, duration_ps, _thread(event), external_id)
            self.cpu_ops.append(op)

    def finish(self, document: Document) -> Trace:
        """Link and order what was collected."""
        self.cpu_ops.sort(key=lambda op: (op.start_ps, -op.duration_ps, op.thread, op.name))
        # Latest first, so that the first launch of a repeated correlation number is the one kept.
        self.launches.sort(key=lambda launch: (-launch.start_ps, launch.correlation))
        links = Links.between(self.cpu_ops, self.launches)
        kernels = [self._gpu_op(*item, links) for item in self.gpu]
        kernels.sort(key=_order)
        return Trace(
            kernels=tuple(kernels),
            cpu_ops=tuple(self.cpu_ops),
            steps=tuple(sorted(self.steps, key=lambda step: (step.number, step.start_ps))),
            devices=tuple(_device(plain) for plain in document.devices),
            distributed=_distributed(document.distributed),
            versions=_versions(document),
            unknown_categories=dict(sorted(self.unknown.items())),
        )

    def _gpu_op(self, category: str, event: Event, args: dict[str, Any], links: Links) -> GpuOp:
        correlation = _integer(args.get("correlation"))
        op = links.operator(correlation, _integer(args.get("External id")))
        kernel_class = _stated_class(args) or classify(event.label, op)
        return GpuOp(
            category=category,
            name=event.label,
            kernel_class=kernel_class,
            start_ps=self.base_ps + to_ps(event.ts),
            duration_ps=to_ps(event.dur),
            device=_first_integer(args.get("device"), event.pid),
            stream=_first_integer(args.get("stream"), event.tid),
            correlation=correlation,
            op=op,
            launch_ps=links.launch_ps(correlation),
            copied_bytes=_integer(args.get("bytes")),
            collective=_collective(event.label, args) if kernel_class == "collective" else None,
        )


def _stated_class(args: dict[str, Any]) -> str | None:
    """The class that the writer of a predicted trace gives; a measured one has none."""
    stated = args.get("kernel class")
    return stated if stated in CLASSES else None


def _order(op: GpuOp) -> tuple[int, int, int, str, int, int]:
    correlation = -1 if op.correlation is None else op.correlation
    return op.start_ps, op.device, op.stream, op.name, op.duration_ps, correlation


def _check_times(event: Event) -> None:
    if event.ts is None:
        raise ValueError("ts must be given")
    if to_ps(event.dur) < 0:
        raise ValueError(f"dur must not be negative (got {event.dur} us)")


def _collective(name: str, args: dict[str, Any]) -> Collective:
    op = args.get("Collective name")
    if not op:
        found = (known for pattern, known in COLLECTIVE_NAMES.items() if pattern in name)
        return Collective(next(found, "unknown"), inferred=True)
    dtype, group = args.get("dtype"), args.get("Process Group Name")
    return Collective(
        op=str(op),
        elements_in=_integer(args.get("In msg nelems", args.get("In msg size"))),
        elements_out=_integer(args.get("Out msg nelems", args.get("Out msg size"))),
        dtype=None if dtype is None else str(dtype),
        group_size=_integer(args.get("Group size")),
        group_name=None if group is None else str(group),
        sequence=_integer(args.get("Seq")),
    )


def _device(plain: dict[str, Any]) -> Device:
    major, minor = plain.get("computeMajor"), plain.get("computeMinor")
    return Device(
        id=_first_integer(plain.get("id")),
        name=str(plain.get("name", "")),
        sm_count=_integer(plain.get("numSms")),
        memory_bytes=_integer(plain.get("totalGlobalMem")),
        compute_capability=None if major is None else f"{major}.{minor}",
    )


def _distributed(plain: dict[str, Any] | None) -> Distributed | None:
    if not plain:
        return None
    backend, version = plain.get("backend"), plain.get("nccl_version")
    return Distributed(
        rank=_integer(plain.get("rank")),
        world_size=_integer(plain.get("world_size")),
        backend=None if backend is None else str(backend),
        nccl_version=None if version is None else str(version),
    )


def _versions(document: Document) -> dict[str, str]:
    values = {name: getattr(document, name) for name in VERSION_FIELDS}
    return {name: str(value) for name, value in values.items() if value is not None}


def _thread(event: Event) -> tuple[str, str]:
    return str(event.pid), str(event.tid)


def _integer(value: object) -> int | None:
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str) and value.lstrip("-").isdigit():
        return int(value)
    return None


def _first_integer(*values: object) -> int:
    """The first value that is a whole number; -1 when none is."""
    return next((number for number in map(_integer, values) if number is not None), -1)
