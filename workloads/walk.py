"""One micro-batch of a transformer on the tape, recorded as segments that repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar

from . import transformer
from .autograd import backward
from .compiled import compiled_block
from .kernels import Stream
from .model import TransformerModel
from .plan import Plan, Stack, Workload
from .program import Segment
from .tape import Tape, Tensor

Recorded = TypeVar("Recorded")


@dataclass
class Step:
    """The segments of one micro-batch, in the order in which they run.

    ``ready`` holds, by backward segment, the parameters whose gradients it completes, in order.
    """

    forward: list[Segment] = field(default_factory=list)
    backward: list[Segment] = field(default_factory=list)
    ready: dict[str, list[Tensor]] = field(default_factory=dict)


def micro_batches(walk: Callable[[bool, bool], Recorded], count: int) -> list[Recorded]:
    """One record for each micro-batch; equal ones are walked once.

    ``walk`` is told whether gradients are there to be added to, and whether it is the last one.
    """
    walked = cache(walk)
    return [walked(i > 0, i == count - 1) for i in range(count)]


class Walk:
    """One micro-batch on the tape: embedding, one block for all, head; forward, then backward."""

    def __init__(
        self,
        workload: Workload,
        model: TransformerModel,
        plan: Plan,
        stack: Stack,
        accumulate: bool,
        reduces: bool,
    ) -> None:
        self.workload, self.model, self.stack = workload, model, stack
        self.seq = workload.seq_len or 1
        self.recompute = plan.recompute == "full"
        self.tape = Tape(accumulate=accumulate, bucketed=reduces)
        self.step = Step()
        dtype = stack.param_dtype
        self.outer = transformer.outer_parameters(self.tape, model, dtype, self.seq)
        self.parameters = transformer.block_parameters(self.tape, model, dtype)

    def run(self) -> Step:
        """Walk the whole micro-batch once."""
        self._forward()
        self.tape.phase = "backward"
        with self._backward_segment("head"):
            _loss_backward(self.tape, self.losses.pop())
        with self._backward_segment("block"):
            self._block_backward()
        with self._backward_segment("embedding"):
            backward(self.tape, self.embed_out, taken_gradient(self.block_leaf))
        return self.step

    @contextmanager
    def _backward_segment(self, name: str) -> Iterator[None]:
        """A segment of the backward pass that notes which gradients it completes."""
        ready = self.step.ready[name] = []
        self.tape.on_gradient = ready.append
        with self.tape.segment(name, self.step.backward):
            yield

    def _forward(self) -> None:
        tape, step = self.tape, self.step
        tape.autocast = self.stack.autocast_dtype
        with tape.segment("embedding", step.forward):
            x = transformer.embed(tape, self.outer, self.workload.micro_batch, self.seq)
        self.embed_out = _history(x)
        start, self.block_leaf = tape.boundary(x)
        del x
        with tape.segment("block", step.forward), tape.mode(grad=not self.recompute):
            y = self._block(start, recomputing=False)
        self.checkpoints = [start.detached()] if self.recompute else []
        del start
        self.block_out = _history(y)
        head_start, self.head_leaf = tape.boundary(y)
        del y
        block_casts, tape.casts = tape.casts, {}
        with tape.segment("head", step.forward):
            self.losses = [transformer.head(tape, self.model, self.outer, head_start)]
            del head_start
            tape.casts.clear()
        with tape.segment("autocast_exit", step.forward):
            block_casts.clear()
        tape.autocast = None

    def _block(self, x: Tensor, recomputing: bool) -> Tensor:
        if self.stack.execution == "eager":
            return transformer.block(self.tape, self.model, self.parameters, x, recomputing)
        full = self.stack.compile_scope == "full"
        return compiled_block(self.tape, self.model, self.parameters, x, recomputing, full)

    def _block_backward(self) -> None:
        if self.recompute:
            self._recompute_block()
        backward(self.tape, self.block_out, taken_gradient(self.head_leaf))

    def _recompute_block(self) -> None:
        """Run the block's forward again from its saved input, now with history."""
        start, self.block_leaf = self.tape.boundary(self.checkpoints.pop())
        self.tape.autocast = self.stack.autocast_dtype
        with self.tape.mode(phase="forward"):
            self.block_out = _history(self._block(start, recomputing=True))
        self.tape.casts.clear()
        self.tape.autocast = None


def taken_gradient(leaf: Tensor) -> Tensor:
    """The gradient that reached a segment's boundary, handed over: the leaf keeps none."""
    gradient, leaf.grad = leaf.grad, None
    if gradient is None:
        raise ValueError("a segment's boundary must receive a gradient (got none)")
    return gradient


def _history(output: Tensor) -> Tensor:
    """The autograd history of a segment's output without its memory."""
    return Tensor(output.shape, output.dtype, None, node=output.node)


def _loss_backward(tape: Tape, loss: Tensor) -> None:
    for name in ("ones_like", "div"):
        tape.emit(name, [Stream("scalar", 1, 1, 0, 0)])
    one = tape.new((), "fp32")
    backward(tape, loss, one)
