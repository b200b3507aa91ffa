"""Pipeline stages: which layers each holds, in which order it runs micro-batches, what it sends."""

from __future__ import annotations

from dataclasses import dataclass

from . import ddp
from .kernels import Collective, Stream, dtype_bytes
from .model import TransformerModel
from .ops import width
from .plan import Plan, Stack, Workload
from .program import Operator, Placement, Segment
from .tape import Tensor, rounded
from .walk import Step


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline stage: its place among ``count`` stages and its number of layers."""

    index: int
    count: int
    layers: int

    @property
    def first(self) -> bool:
        """Whether it holds the embedding."""
        return self.index == 0

    @property
    def last(self) -> bool:
        """Whether it holds the output layer."""
        return self.index == self.count - 1

    @property
    def name(self) -> str:
        """Name of its role."""
        return "rank" if self.count == 1 else f"stage{self.index}"


def stages_of(model: TransformerModel, plan: Plan) -> list[Stage]:
    """Layers spread as evenly as possible; where they do not divide, outer stages are lighter."""
    each, extra = divmod(model.layers, plan.pp)
    middle = sorted(range(plan.pp), key=lambda i: (abs(2 * i - plan.pp + 1), i))
    heavier = set(middle[:extra])
    return [Stage(i, plan.pp, each + (i in heavier)) for i in range(plan.pp)]


def schedule(stage: Stage, micro_batches: int, kind: str) -> list[tuple[str, int]]:
    """Order of forward ("F") and backward ("B") passes of a stage.

    ``1f1b`` runs one forward fewer ahead on each later stage (Narayanan et al. 2021, section 2.2);
    ``gpipe`` runs all forward passes first.
    """
    ahead = micro_batches if kind == "gpipe" else min(micro_batches, stage.count - stage.index)
    order = [("F", i) for i in range(ahead)]
    for i in range(micro_batches):
        order.append(("B", i))
        if ahead + i < micro_batches:
            order.append(("F", ahead + i))
    return order


def stage_placements(
    workload: Workload,
    model: TransformerModel,
    plan: Plan,
    stack: Stack,
    stage: Stage,
    steps: list[Step],
) -> list[Placement]:
    """Everything a stage does before its optimizer; ``steps`` has one walk for each micro-batch."""
    count, tokens = workload.grad_accum, workload.micro_batch * (workload.seq_len or 1)
    size = tokens * model.hidden * dtype_bytes(stack.param_dtype)
    messages = _Messages(stage, size, stack.param_dtype)
    output = _Output(tokens * model.vocab, stack, count)
    returns = stage.last and stage.count > 1
    found: list[Placement] = []
    for kind, index in schedule(stage, count, plan.schedule or "1f1b"):
        label = f"micro_batch{index}." if count > 1 else ""
        step = steps[index]
        if kind == "F":
            inner = _forward(step, stage, label)
            if returns:
                inner.append(Placement(output.kept(), label))
            found += messages.around_forward(inner, index)
        else:
            reduces = plan.dp > 1 and index == count - 1
            buckets = ddp.Buckets(plan.dp, stack.param_dtype) if reduces else None
            found += messages.around_backward(_backward(step, stage, label, buckets), index)
    if returns:
        found.append(Placement(output.merged(), "outputs"))
    return found


@dataclass(frozen=True, slots=True)
class _Output:
    """What a pipeline's last stage returns: it keeps every micro-batch's logits for that.

    Known: torch.distributed.pipelining keeps the outputs and concatenates them after the step,
    whether or not the caller wants them.
    """

    elements: int
    stack: Stack
    micro_batches: int

    @property
    def _dtype(self) -> str:
        return self.stack.compute_dtype

    @property
    def _size(self) -> int:
        return self.elements * dtype_bytes(self._dtype)

    def kept(self) -> Segment:
        """One micro-batch's logits, which its backward pass does not release."""
        memory = (("outputs", rounded(self._size)),)
        return Segment("keep_output", (Operator("output", "forward", "none", (), memory),))

    def merged(self) -> Segment:
        """All logits in one tensor; both copies are released with the step."""
        merged = self.micro_batches * self._size
        kept = self.micro_batches * rounded(self._size)
        copy = Stream(
            f"cat_{width(self._dtype)}", self.micro_batches * self.elements, 1, merged, merged
        )
        grow, free = ("outputs", rounded(merged)), ("outputs", -rounded(merged) - kept)
        return Segment(
            "merge_outputs",
            (
                Operator("cat", "backward", "cat.forward", (copy,), (grow,)),
                Operator("release", "backward", "none", (), (free,)),
            ),
        )


def _forward(step: Step, stage: Stage, label: str) -> list[Placement]:
    embed, block, head, autocast_exit = step.forward
    names = [f"{label}layer{i}" for i in range(stage.layers)]
    found = [Placement(embed, f"{label}embedding")] if stage.first else []
    found += [Placement(block, name) for name in names]
    if stage.last:
        found.append(Placement(head, f"{label}head"))
    if autocast_exit.operators:
        found += [Placement(autocast_exit, name) for name in names]
    return found


def _backward(step: Step, stage: Stage, label: str, buckets: ddp.Buckets | None) -> list[Placement]:
    """One backward pass; with ``buckets``, gradients are reduced as they come."""
    head, block, embed = step.backward
    found: list[Placement] = []
    if stage.last:
        found.append(Placement(head, f"{label}head"))
        found += _reduced(buckets, step.ready["head"], label)
    for i in reversed(range(stage.layers)):
        found.append(Placement(block, f"{label}layer{i}"))
        found += _reduced(buckets, step.ready["block"], label)
    if stage.first:
        found.append(Placement(embed, f"{label}embedding"))
        found += _reduced(buckets, step.ready["embedding"], label)
    return [*found, *_reduced(buckets, [], label, last=True)]


def _reduced(
    buckets: ddp.Buckets | None, ready: list[Tensor], label: str, last: bool = False
) -> list[Placement]:
    """All-reduces of the buckets that a segment's gradients fill."""
    if buckets is None:
        return []
    operators = [*buckets.ready(ready), *(buckets.flush() if last else [])]
    return [Placement(Segment("all_reduce", tuple(operators)), f"{label}ddp")] if operators else []


class _Messages:
    """Activations and their gradients between a stage and its neighbours."""

    def __init__(self, stage: Stage, size: int, dtype: str) -> None:
        self.stage, self.size, self.dtype = stage, size, dtype

    def around_forward(self, inner: list[Placement], index: int) -> list[Placement]:
        """Receive the input, run, send the output; the output is kept until its backward."""
        here = self.stage.index
        if not self.stage.first:
            inner.insert(0, self._receive("activation", here - 1, here, index, self.size))
        if not self.stage.last:
            inner.append(self._send("activation", here, here + 1, index, 0))
        return inner

    def around_backward(self, inner: list[Placement], index: int) -> list[Placement]:
        """Receive the output's gradient (the output is released), run, send the input's."""
        here = self.stage.index
        if not self.stage.last:
            inner.insert(0, self._receive("gradient", here + 1, here, index, 0))
        if not self.stage.first:
            inner.append(self._send("gradient", here, here - 1, index, self.size))
        return inner

    def _receive(self, what: str, source: int, target: int, index: int, grows: int) -> Placement:
        memory = (("activations", rounded(grows)),) if grows else ()
        receive = self._operator("receive", what, source, target, memory)
        ready = Operator("wait", _phase(what), "op.forward", after=("receive",))
        return Placement(Segment(f"receive_{what}", (receive, ready)), f"micro_batch{index}", index)

    def _send(self, what: str, source: int, target: int, index: int, shrinks: int) -> Placement:
        memory = (("activations", -rounded(shrinks)),) if shrinks else ()
        send = self._operator("send", what, source, target, memory)
        return Placement(Segment(f"send_{what}", (send,)), f"micro_batch{index}", index)

    def _operator(
        self,
        stream: str,
        what: str,
        source: int,
        target: int,
        memory: tuple[tuple[str, int], ...],
    ) -> Operator:
        return Operator(
            f"{stream}_{what}", _phase(what), "op.forward",
            (Collective("send", self.size, 2, self.dtype),), memory, stream=stream,
            after=("compute",) if stream == "send" else (), meets=f"{what}:{source}->{target}",
        )  # fmt: skip


def _phase(what: str) -> str:
    return "forward" if what == "activation" else "backward"
