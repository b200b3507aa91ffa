"""What one training step asks of each kind of rank: operators in issue order, in segments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .kernels import Kernel

MemoryEvent = tuple[str, int]
"""(category, bytes): positive when allocated, negative when freed, in issue order."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One framework operator: the host issues it, the GPU runs its kernels in order.

    ``host`` names the host-cost class. ``memory`` lists allocations and releases in issue order,
    those before the kernels first. ``synchronises`` makes the host wait until the GPU is done;
    ``units`` counts what the host loops over (tensors of a multi-tensor operator).

    The kernels run on ``stream``. The first of them waits for what was issued so far on the streams
    in ``after`` and for the operators that set the ``waits`` marks: a name, and how many layers
    further the one meant is. ``mark`` is the name under which others wait for this operator's last
    kernel. ``meets`` names the message that a point-to-point operator exchanges with its peer.
    """

    name: str
    phase: str
    host: str
    kernels: tuple[Kernel, ...] = ()
    memory: tuple[MemoryEvent, ...] = ()
    synchronises: bool = False
    units: int = 1
    stream: str = "compute"
    after: tuple[str, ...] = ()
    waits: tuple[tuple[str, int], ...] = ()
    mark: str | None = None
    meets: str | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of operators that is issued as a whole and may repeat (one block, the loss, ...)."""

    name: str
    operators: tuple[Operator, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """One occurrence of a segment in a step.

    ``label`` tells which layer and micro-batch, ``index`` numbers its marks and messages.
    """

    segment: Segment
    label: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class Role:
    """One distinct kind of rank; ``ranks`` of them do exactly the same."""

    name: str
    ranks: int
    placements: tuple[Placement, ...]
    resident_bytes: dict[str, int]

    def operators(self) -> Iterator[tuple[str, Operator]]:
        """Every operator of the step in issue order, with its placement's label."""
        for placement in self.placements:
            for operator in placement.segment.operators:
                yield placement.label, operator

    def placed(self) -> Iterator[tuple[Placement, Operator]]:
        """Every operator of the step in issue order, with its placement."""
        for placement in self.placements:
            for operator in placement.segment.operators:
                yield placement, operator


@dataclass(frozen=True, slots=True)
class Program:
    """A lowered step: its roles, the work counted in model FLOPs, and notes for the result."""

    roles: tuple[Role, ...]
    model_flops: float
    hardware_flops: float
    samples: int
    tokens: int
    warnings: tuple[str, ...] = ()
