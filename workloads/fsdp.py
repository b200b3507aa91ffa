"""Fully sharded data parallelism (PyTorch's FSDP2): gathered parameters, scattered gradients.

Every block is a unit; the root unit holds embedding, last norm and output layer. A unit's shards
are copied into a buffer and gathered on the communication stream while the unit before it
computes; its gradients are summed over the ranks, each keeping a part, on the reduction stream
while the next one runs.
``zero3`` frees a unit after its forward pass and gathers it again for the backward pass, one unit
ahead; ``zero2`` keeps it in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .kernels import Collective, Gemm, Stream, dtype_bytes
from .ops import width
from .optimizer import batch_bytes, multi_tensor, resident_bytes, update_segment
from .plan import Plan, Stack, Workload
from .program import Operator, Placement, Role, Segment
from .tape import Tape, Tensor, rounded
from .walk import Step


@dataclass(frozen=True, slots=True)
class Unit:
    """What is gathered at once: 0 is the root, blocks count from 1 in forward order."""

    index: int
    sizes: tuple[int, ...]
    ranks: int
    stack: Stack

    @property
    def elements(self) -> int:
        """Parameters of the unit."""
        return sum(self.sizes)

    @property
    def shards(self) -> list[int]:
        """Elements of each parameter that one rank holds."""
        return [-(-size // self.ranks) for size in self.sizes]

    @property
    def gathered_bytes(self) -> int:
        """Bytes of the whole unit at the precision of computation."""
        return self.elements * dtype_bytes(self.stack.compute_dtype)

    @property
    def reduced_bytes(self) -> int:
        """Bytes of the whole unit's gradients at the precision of their reduction."""
        return self.elements * dtype_bytes(self.stack.param_dtype)

    def gather(self, after: int | None) -> Segment:
        """Copy the shards into a buffer and gather it, after unit ``after`` was copied out."""
        held, used = self.stack.param_dtype, self.stack.compute_dtype
        size = dtype_bytes(used)
        casts = multi_tensor("cast_to_half", self.shards, 2, dtype_bytes(held), size)
        copies = multi_tensor("cat_half", self.shards, 2, size, size)
        kernels = copies if held == used else [*casts, *copies]
        copy = Operator(
            "all_gather_copy_in", "forward", "foreach.forward", tuple(kernels),
            (("buffers", rounded(self.gathered_bytes)),), units=len(self.sizes),
            stream="communication", after=() if after is not None else ("compute",),
            waits=(("copied_out", after - self.index),) if after is not None else (),
        )  # fmt: skip
        gather = Operator(
            "all_gather", "forward", "op.forward",
            (Collective("all_gather", self.gathered_bytes, self.ranks, used),),
            stream="communication", mark="gathered",
        )  # fmt: skip
        return Segment("all_gather", (copy, gather))

    def copy_out(self, freed: Unit | None) -> Segment:
        """Split the gathered buffer into parameters; ``freed`` is whose buffer goes with it."""
        full, size = self.elements, self.gathered_bytes
        memory = [("gathered_parameters", rounded(size))]
        if freed is not None:
            memory.append(("buffers", -rounded(freed.gathered_bytes)))
        split = Operator(
            "split_with_sizes_copy", "forward", "foreach.forward",
            (Stream("cat_half", full, 1, size, size),), tuple(memory), units=len(self.sizes),
            waits=(("gathered", 0),), mark="copied_out",
        )  # fmt: skip
        return Segment("copy_out", (split,))

    def reshard(self) -> Segment:
        """Free the whole parameters."""
        return _freed("gathered_parameters", self.gathered_bytes)

    def reduce(self, before: Unit | None, first: bool) -> Segment:
        """Sum gradients over the ranks, each keeping its part; ``before`` was reduced last.

        ``first`` says that no earlier micro-batch has left gradients.
        """
        whole = rounded(self.gathered_bytes)
        memory = [("buffers", rounded(self.reduced_bytes)), ("gradients", -whole)]
        if before is not None:
            memory.insert(0, ("buffers", -rounded(before.reduced_bytes)))
        copy = Operator(
            "chunk_cat", "backward", "foreach.backward",
            (Stream("cat_half", self.elements, 1, self.gathered_bytes, self.reduced_bytes),),
            tuple(memory), units=len(self.sizes),
            waits=(("reduced", before.index - self.index),) if before is not None else (),
        )  # fmt: skip
        dtype = self.stack.param_dtype
        kept = sum(self.shards) * dtype_bytes(dtype)
        scatter = Operator(
            "reduce_scatter", "backward", "op.backward",
            (Collective("reduce_scatter", self.reduced_bytes, self.ranks, dtype),),
            (("gradients", rounded(kept)),) if first else (),
            stream="reduction", after=("compute",), mark="reduced",
        )  # fmt: skip
        add = Operator(
            "accumulate_grad", "backward", "accumulate.backward",
            (Stream(f"add_{width(dtype)}", sum(self.shards), 1, 2 * kept, kept),),
            stream="reduction",
        )  # fmt: skip
        return Segment("reduce_scatter", (copy, scatter) if first else (copy, scatter, add))


def computing(stack: Stack) -> Stack:
    """The stack as a unit's forward and backward see it: parameters in the compute precision."""
    return stack.model_copy(update={"precision": stack.compute_dtype})


def role(workload: Workload, plan: Plan, stack: Stack, layers: int, steps: list[Step]) -> Role:
    """One rank's step; ``steps`` has one walk (of ``computing(stack)``) for each micro-batch."""
    ready = steps[0].ready
    root = Unit(0, _sizes(ready["head"] + ready["embedding"]), plan.dp, stack)
    units = [root, *(Unit(i + 1, _sizes(ready["block"]), plan.dp, stack) for i in range(layers))]
    placements: list[Placement] = []
    for index, step in enumerate(steps):
        label = f"micro_batch{index}." if len(steps) > 1 else ""
        reshards = plan.sharding == "zero3"
        placements += _forward(step, units, label, reshards, gathers=reshards or index == 0)
        last = index == len(steps) - 1
        placements += _backward(step, units, label, reshards, index == 0, frees=reshards or last)
    tape = Tape()
    shards = [tape.parameter((n,), stack.param_dtype, "shard") for u in units for n in u.shards]
    update = update_segment(shards, stack, after=("reduction",))
    placements.append(Placement(_with_norm_reduced(update, plan.dp), "optimizer"))
    resident = resident_bytes(shards, stack, batch_bytes(workload))
    return Role("rank", plan.dp, tuple(placements), resident)


def _sizes(parameters: list[Tensor]) -> tuple[int, ...]:
    return tuple(parameter.elements for parameter in parameters)


def _forward(
    step: Step, units: list[Unit], label: str, reshards: bool, gathers: bool
) -> Iterator[Placement]:
    embed, block, head, _ = step.forward
    root, blocks = units[0], units[1:]
    if gathers:
        yield Placement(root.gather(None), f"{label}fsdp", 0)
        yield Placement(root.copy_out(None), f"{label}fsdp", 0)
    yield Placement(embed, f"{label}embedding")
    for unit in blocks:
        before = units[unit.index - 1]
        if gathers:
            yield Placement(unit.gather(before.index), f"{label}fsdp", unit.index)
            yield Placement(unit.copy_out(before), f"{label}fsdp", unit.index)
        yield Placement(block, f"{label}layer{unit.index - 1}")
        if reshards:
            yield Placement(unit.reshard(), f"{label}fsdp")
    logits, loss = _split(head, last=True)
    yield Placement(logits, f"{label}head")
    if reshards:
        yield Placement(root.reshard(), f"{label}fsdp")
    yield Placement(loss, f"{label}head")
    if gathers and not reshards:
        yield Placement(_freed("buffers", units[-1].gathered_bytes), f"{label}fsdp")


def _backward(
    step: Step, units: list[Unit], label: str, gathers: bool, first: bool, frees: bool
) -> Iterator[Placement]:
    head, block, embed = step.backward
    root, top = units[0], units[-1]
    loss, linear = _split(head, last=False)
    yield Placement(loss, f"{label}head")
    if gathers:
        yield Placement(root.gather(top.index), f"{label}fsdp", 0)
        yield Placement(root.copy_out(top), f"{label}fsdp", 0)
        yield Placement(_freed("buffers", root.gathered_bytes), f"{label}fsdp")
        yield Placement(top.gather(0), f"{label}fsdp", top.index)
    yield Placement(linear, f"{label}head")
    before: Unit | None = None
    for unit in reversed(units[1:]):
        if gathers:
            yield Placement(unit.copy_out(unit), f"{label}fsdp", unit.index)
            if unit.index > 1:
                ahead = units[unit.index - 1]
                yield Placement(ahead.gather(unit.index), f"{label}fsdp", ahead.index)
        yield Placement(block, f"{label}layer{unit.index - 1}")
        if frees:
            yield Placement(unit.reshard(), f"{label}fsdp")
        yield Placement(unit.reduce(before, first), f"{label}fsdp", unit.index)
        before = unit
    yield Placement(embed, f"{label}embedding")
    if frees:
        yield Placement(root.reshard(), f"{label}fsdp")
    yield Placement(root.reduce(before, first), f"{label}fsdp", 0)
    end = _freed("buffers", root.reduced_bytes, after=("reduction",))
    yield Placement(end, f"{label}fsdp")


def _freed(category: str, size: int, after: tuple[str, ...] = ()) -> Segment:
    """Free memory once the streams in ``after`` have come this far; it costs no time."""
    memory = ((category, -rounded(size)),)
    return Segment("free", (Operator("free", "backward", "none", (), memory, after=after),))


def _split(segment: Segment, last: bool) -> tuple[Segment, Segment]:
    """A segment cut after its last, or before its first, matrix product."""
    operators = segment.operators
    places = [i for i, o in enumerate(operators) if any(isinstance(k, Gemm) for k in o.kernels)]
    cut = places[-1] + 1 if last else places[0]
    return Segment(segment.name, operators[:cut]), Segment(segment.name, operators[cut:])


def _with_norm_reduced(update: Segment, ranks: int) -> Segment:
    """With clipping, the shards' norm is summed over the ranks before gradients are scaled."""
    total = Operator(
        "all_reduce", "optimizer", "op.optimizer", (Collective("all_reduce", 4, ranks, "fp32"),),
        stream="communication", after=("compute",),
    )  # fmt: skip
    found: list[Operator] = []
    for operator in update.operators:
        reduced = bool(found) and found[-1].name == "all_reduce"
        found.append(replace(operator, after=("communication",)) if reduced else operator)
        if operator.name == "linalg_vector_norm":
            found.append(total)
    return Segment(update.name, tuple(found))
