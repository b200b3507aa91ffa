"""A symbolic PyTorch: tensors without values, whose operators are recorded on a tape.

Model code written against it reads like model code. Running it once records every kernel, host
call, allocation and release of a step, because autograd order and tensor lifetimes are those of
the framework: a storage is released when its last reference dies (CPython reference counts, as in
PyTorch), and backward nodes run in reverse order of creation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from .kernels import Kernel, dtype_bytes, product
from .program import MemoryEvent, Operator, Segment

ALLOCATION_BYTES = 512
"""Rounding of the CUDA caching allocator (PyTorch: kMinBlockSize)."""


def rounded(size: int) -> int:
    """Bytes that the caching allocator counts for a request of ``size`` bytes."""
    return -(-size // ALLOCATION_BYTES) * ALLOCATION_BYTES


class Storage:
    """Memory of one or more tensors; its death is recorded on the tape."""

    __slots__ = ("category", "size", "tape")

    def __init__(self, tape: Tape, size: int, category: str) -> None:
        self.tape, self.size, self.category = tape, rounded(size), category
        tape.remember((category, self.size))

    def move(self, category: str) -> None:
        """Count the memory under another category from now on."""
        self.tape.remember((self.category, -self.size))
        self.tape.remember((category, self.size))
        self.category = category

    def __del__(self) -> None:
        self.tape.remember((self.category, -self.size))


@dataclass(eq=False, slots=True)
class Tensor:
    """Shape, dtype and storage; ``node`` is its autograd history, ``leaf`` marks a parameter.

    ``strided`` marks a view whose elements are not contiguous (transposed or sliced). A parameter
    is used ``uses`` times in a step; ``arrived`` gradients of it have come.
    """

    shape: tuple[int, ...]
    dtype: str
    storage: Storage | None
    requires_grad: bool = False
    node: Node | None = None
    leaf: bool = False
    grad: Tensor | None = None
    strided: bool = False
    view: bool = False
    boundary: bool = False
    uses: int = 1
    arrived: int = 0
    name: str = ""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return product(self.shape)

    @property
    def size(self) -> int:
        """Bytes of the elements."""
        return self.elements * dtype_bytes(self.dtype)

    def detached(self) -> Tensor:
        """The same storage without history: what autograd saves for backward."""
        return Tensor(self.shape, self.dtype, self.storage, strided=self.strided, name=self.name)

    def viewed(self, *shape: int, strided: bool | None = None) -> Tensor:
        """A view of another shape with the same history (no kernel)."""
        keep = self.strided if strided is None else strided
        return Tensor(
            shape, self.dtype, self.storage, self.requires_grad, self.node, strided=keep, view=True
        )


Backward = Callable[[Tensor], Sequence[Tensor | None]]


@dataclass(eq=False, slots=True)
class Node:
    """One backward step: gradients of ``inputs`` from the gradient of the output."""

    order: int
    inputs: list[tuple[Node | None, Tensor | None]]
    backward: Backward | None
    gradient: Tensor | None = None

    def released(self) -> tuple[Backward, Tensor, list[tuple[Node | None, Tensor | None]]]:
        """The function, its gradient and its edges, handed over: the node keeps nothing alive."""
        if self.backward is None or self.gradient is None:
            raise ValueError("a backward node must hold a gradient and run once (got neither)")
        found = self.backward, self.gradient, self.inputs
        self.backward, self.gradient, self.inputs = None, None, []
        return found


@dataclass
class Tape:
    """Records operators into the current segment and runs backward passes.

    ``autocast`` is the compute dtype inside an autocast region or None; ``casts`` its weight cache.
    ``accumulate`` says that parameters already hold gradients of an earlier micro-batch; ``muted``
    builds history without recording work (what early-stopped recomputation leaves out).
    ``bucketed`` says that gradients are copied into persistent buckets; ``on_gradient`` is called
    when a parameter's gradient is ready.
    """

    autocast: str | None = None
    phase: str = "forward"
    accumulate: bool = False
    grad_enabled: bool = True
    muted: bool = False
    bucketed: bool = False
    on_gradient: Callable[[Tensor], None] | None = None
    recorded: list[Operator] = field(default_factory=list)
    pending: list[MemoryEvent] = field(default_factory=list)
    casts: dict[int, Tensor] = field(default_factory=dict)
    counter: int = 0

    def remember(self, event: MemoryEvent) -> None:
        """Note an allocation or release in issue order."""
        self.pending.append(event)

    def new(self, shape: tuple[int, ...], dtype: str, category: str = "activations") -> Tensor:
        """Allocate a tensor."""
        if self.muted:
            return Tensor(shape, dtype, None)
        return Tensor(shape, dtype, Storage(self, product(shape) * dtype_bytes(dtype), category))

    def boundary(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Cut the graph at ``x``: a segment's new start, and the leaf its gradient lands in."""
        leaf = Tensor(x.shape, x.dtype, None, requires_grad=True, leaf=True, boundary=True)
        start = x.detached()
        self.counter += 1
        start.node = Node(self.counter, [(None, leaf)], lambda dy: [dy])
        start.requires_grad = True
        return start, leaf

    def parameter(self, shape: tuple[int, ...], dtype: str, name: str) -> Tensor:
        """A resident parameter: its memory is counted by the step, not by the tape."""
        return Tensor(shape, dtype, None, requires_grad=True, leaf=True, name=name)

    def emit(
        self,
        name: str,
        kernels: Sequence[Kernel],
        host: str = "op",
        synchronises: bool = False,
        units: int = 1,
    ) -> None:
        """Record one operator of the current phase with what was allocated and freed before it."""
        if self.muted:
            return
        memory, self.pending = tuple(self.pending), []
        cost_class = f"{host}.{self.phase}"
        self.recorded.append(
            Operator(name, self.phase, cost_class, tuple(kernels), memory, synchronises, units)
        )

    @contextmanager
    def segment(self, name: str, into: list[Segment]) -> Iterator[None]:
        """Collect the operators recorded inside the block as one Segment appended to ``into``."""
        outer, self.recorded = self.recorded, []
        yield
        if self.pending:
            self.emit("release", (), host="none")
        into.append(Segment(name, tuple(self.recorded)))
        self.recorded = outer

    @contextmanager
    def mode(
        self, *, phase: str | None = None, grad: bool | None = None, muted: bool | None = None
    ) -> Iterator[None]:
        """Set phase, gradient recording or muting (history without work) inside the block."""
        before = self.phase, self.grad_enabled, self.muted
        self.phase = phase or self.phase
        self.grad_enabled = self.grad_enabled if grad is None else grad
        self.muted = self.muted if muted is None else muted
        yield
        self.phase, self.grad_enabled, self.muted = before

    def record(self, output: Tensor, inputs: Sequence[Tensor], backward: Backward) -> Tensor:
        """Attach autograd history to ``output`` when an input requires a gradient."""
        if not self.grad_enabled or not any(t.requires_grad for t in inputs):
            return output
        self.counter += 1
        edges = [_edge(t) for t in inputs]
        output.node = Node(self.counter, edges, backward)
        output.requires_grad = True
        return output


def _edge(tensor: Tensor) -> tuple[Node | None, Tensor | None]:
    if not tensor.requires_grad:
        return None, None
    return (None, tensor) if tensor.leaf else (tensor.node, None)
