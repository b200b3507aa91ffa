"""A trace in memory: GPU operations, operators, step windows, and where it was taken.

Times are integer picoseconds since the epoch of the file's clock, so that equal inputs give equal
results whatever the order of events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DTYPE_BYTES = {
    "Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2,
    "Byte": 1, "Char": 1, "Bool": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1,
    "Float8_e4m3fnuz": 1, "Float8_e5m2fnuz": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Collective:
    """What a communication kernel did.

    Element counts are those of the in and out tensors of one rank; None where the trace does not
    say. ``inferred`` is True when there were no arguments and ``op`` comes from the kernel's name.
    """

    op: str
    elements_in: int | None = None
    elements_out: int | None = None
    dtype: str | None = None
    group_size: int | None = None
    group_name: str | None = None
    sequence: int | None = None
    inferred: bool = False

    @property
    def bytes_in(self) -> int | None:
        """Bytes of this rank's input tensor, None where elements or dtype are not known."""
        size = DTYPE_BYTES.get(self.dtype or "")
        return None if size is None or self.elements_in is None else size * self.elements_in

    @property
    def bytes_out(self) -> int | None:
        """Bytes of this rank's output tensor, None where elements or dtype are not known."""
        size = DTYPE_BYTES.get(self.dtype or "")
        return None if size is None or self.elements_out is None else size * self.elements_out


@dataclass(frozen=True, slots=True)
class GpuOp:
    """One kernel, copy or memset on a GPU stream.

    ``category`` is ``kernel``, ``gpu_memcpy`` or ``gpu_memset``; ``kernel_class`` one of
    `validation.kernel_classes.CLASSES`; ``op`` the innermost operator that launched it and
    ``launch_ps`` when the host did, both None where the trace does not say.
    """

    category: str
    name: str
    kernel_class: str
    start_ps: int
    duration_ps: int
    device: int
    stream: int
    correlation: int | None = None
    op: str | None = None
    launch_ps: int | None = None
    copied_bytes: int | None = None
    collective: Collective | None = None

    @property
    def end_ps(self) -> int:
        """When the operation ended."""
        return self.start_ps + self.duration_ps


@dataclass(frozen=True, slots=True)
class CpuOp:
    """One operator on a host thread, `aten::mm` for example."""

    name: str
    start_ps: int
    duration_ps: int
    thread: tuple[str, str]
    external_id: int | None = None


@dataclass(frozen=True, slots=True)
class StepWindow:
    """The host's window of one training step, from the annotation `ProfilerStep#number`."""

    number: int
    start_ps: int
    duration_ps: int


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as the trace describes it; None where it does not say."""

    id: int
    name: str
    sm_count: int | None = None
    memory_bytes: int | None = None
    compute_capability: str | None = None


@dataclass(frozen=True, slots=True)
class Distributed:
    """This rank's place in its job; None where the trace does not say."""

    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    nccl_version: str | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """One rank's trace.

    GPU operations are in order of start, device, stream and name. ``unknown_categories`` counts
    the events that the reader kept out because it does not know their category or phase.
    """

    kernels: tuple[GpuOp, ...]
    cpu_ops: tuple[CpuOp, ...]
    steps: tuple[StepWindow, ...]
    devices: tuple[Device, ...]
    distributed: Distributed | None
    versions: Mapping[str, str]
    unknown_categories: Mapping[str, int]

    @property
    def launches(self) -> int:
        """Kernels, copies and memsets that ran on the GPU, graph replays included."""
        return len(self.kernels)
