"""Lower a scenario's workload, plan and stack to a Program: one walk over a symbolic step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from archs.errors import InputError

from . import ddp, optimizer, resnet, transformer
from .compiled import compiled_block
from .kernels import Stream, dtype_bytes
from .model import ResNet50, TransformerModel
from .plan import Plan, Stack, Workload
from .program import Placement, Program, Role, Segment
from .tape import Tape, Tensor, rounded


@dataclass
class Step:
    """The segments of one micro-batch, in the order in which they run.

    ``ready`` holds, by backward segment, the parameters whose gradients it completes, in order.
    """

    forward: list[Segment] = field(default_factory=list)
    backward: list[Segment] = field(default_factory=list)
    ready: dict[str, list[Tensor]] = field(default_factory=dict)


def lower(workload: Workload, plan: Plan, stack: Stack) -> Program:
    """Operators of one training step for every role of the plan.

    Raises InputError when the plan needs something this version cannot lower.
    """
    refuse_unmodelled(workload, plan, stack)
    model = workload.model
    if isinstance(model, ResNet50):
        return resnet.lower(workload, model, stack, plan.dp)
    return _lower_transformer(workload, model, plan, stack)


def refuse_unmodelled(workload: Workload, plan: Plan, stack: Stack) -> None:
    """Nothing is silently ignored: settings without a model, or without effect, are refused."""
    image = isinstance(workload.model, ResNet50)
    rules: tuple[tuple[bool, str, object, str], ...] = (
        (plan.tp != 1, "tp must be 1 for now", plan.tp, "plan.tp"),
        (plan.pp != 1, "pp must be 1 for now", plan.pp, "plan.pp"),
        (plan.cp != 1, "cp must be 1 for now", plan.cp, "plan.cp"),
        (plan.vpp != 1, "vpp must be 1 without pipeline stages", plan.vpp, "plan.vpp"),
        (plan.ep != 1, "ep must be 1 for a dense model", plan.ep, "plan.ep"),
        (plan.schedule is not None, "schedule needs pipeline stages", plan.schedule, "plan"),
        (plan.sharding != "none", "sharding must be none for now", plan.sharding, "plan"),
        (plan.sequence_parallel, "sequence_parallel needs tp > 1", True, "plan"),
        (
            plan.recompute == "selective" or (image and plan.recompute != "none"),
            "recompute must be none or, for a language model, full", plan.recompute, "plan",
        ),
        (
            stack.compile_scope is not None and stack.execution == "eager",
            "compile_scope needs execution = compile", stack.compile_scope, "stack",
        ),
        (
            image and workload.seq_len is not None,
            "seq_len must be left out for images", workload.seq_len, "workload",
        ),
    )  # fmt: skip
    for broken, must, got, where in rules:
        if broken:
            raise InputError(must, got, where)


def _lower_transformer(
    workload: Workload, model: TransformerModel, plan: Plan, stack: Stack
) -> Program:
    seq = workload.seq_len or 1
    first = _Walk(workload, model, plan, stack, accumulate=False).run()
    later = first
    if workload.grad_accum > 1:
        later = _Walk(workload, model, plan, stack, accumulate=True).run()
    placements: list[Placement] = []
    for step in range(workload.grad_accum):
        label = f"micro_batch{step}." if workload.grad_accum > 1 else ""
        reduces = plan.dp > 1 and step == workload.grad_accum - 1
        buckets = ddp.Buckets(plan.dp, stack.param_dtype) if reduces else None
        placements += _unrolled(first if step == 0 else later, model.layers, label, buckets)
    parameters = _all_parameters(model, seq, stack)
    placements.append(Placement(update_segment(parameters, stack, plan.dp), "optimizer"))
    tokens = workload.micro_batch * workload.grad_accum * seq * plan.dp
    forward_flops = tokens * (model.matmul_flops_per_token() + model.attention_flops_per_token(seq))
    recompute = tokens * _recomputed_flops(model, seq) if plan.recompute == "full" else 0.0
    resident = _resident(model, seq, stack, tokens_per_batch=workload.micro_batch * seq)
    if plan.dp > 1:
        resident["gradients"] = sum(p.size for p in parameters)
    role = Role("rank", plan.dp, tuple(placements), resident)
    return Program(
        (role,), 3.0 * forward_flops, 3.0 * forward_flops + recompute,
        workload.global_batch, tokens, _warnings(model, seq),
    )  # fmt: skip


def _recomputed_flops(model: TransformerModel, seq: int) -> float:
    """FLOPs a token of the blocks' second forward: without their last linear, without the head."""
    linear = model.matmul_flops_per_token() - 2.0 * model.hidden * model.vocab
    last = 2.0 * model.layers * model.hidden * model.ffn
    return linear - last + model.attention_flops_per_token(seq)


def _warnings(model: TransformerModel, seq: int) -> tuple[str, ...]:
    if model.positions != "learned" or not 0 < model.max_positions < seq:
        return ()
    have = model.max_positions
    return (f"position table lengthened: seq_len {seq} exceeds the model's {have} positions",)


def _unrolled(step: Step, layers: int, label: str, buckets: ddp.Buckets | None) -> list[Placement]:
    """One micro-batch in issue order; with ``buckets``, gradients are reduced as they come."""
    embed, block, head, autocast_exit = step.forward
    head_backward, block_backward, embed_backward = step.backward
    names = [f"{label}layer{i}" for i in range(layers)]
    found = [
        Placement(embed, f"{label}embedding"),
        *(Placement(block, name) for name in names),
        Placement(head, f"{label}head"),
        *(Placement(autocast_exit, name) for name in names if autocast_exit.operators),
        Placement(head_backward, f"{label}head"),
        *_reduced(buckets, step.ready["head"], f"{label}head"),
    ]
    for name in reversed(names):
        found.append(Placement(block_backward, name))
        found += _reduced(buckets, step.ready["block"], name)
    found.append(Placement(embed_backward, f"{label}embedding"))
    found += _reduced(buckets, step.ready["embedding"], f"{label}embedding", last=True)
    return found


def _reduced(
    buckets: ddp.Buckets | None, ready: list[Tensor], label: str, last: bool = False
) -> list[Placement]:
    """All-reduces of the buckets that a segment's gradients fill."""
    if buckets is None:
        return []
    operators = [*buckets.ready(ready), *(buckets.flush() if last else [])]
    return [Placement(Segment("all_reduce", tuple(operators)), label)] if operators else []


class _Walk:
    """One micro-batch on the tape: embedding, one block for all, head; forward, then backward."""

    def __init__(
        self,
        workload: Workload,
        model: TransformerModel,
        plan: Plan,
        stack: Stack,
        accumulate: bool,
    ) -> None:
        self.workload, self.model, self.stack = workload, model, stack
        self.seq = workload.seq_len or 1
        self.recompute = plan.recompute == "full"
        self.tape = Tape(accumulate=accumulate, bucketed=plan.dp > 1)
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
            self.tape.backward(self.embed_out, taken_gradient(self.block_leaf))
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
        self.tape.backward(self.block_out, taken_gradient(self.head_leaf))

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
    tape.backward(loss, one)


def _all_parameters(model: TransformerModel, seq: int, stack: Stack) -> list[Tensor]:
    tape = Tape()
    outer = transformer.outer_parameters(tape, model, stack.param_dtype, seq)
    block = transformer.block_parameters(tape, model, stack.param_dtype).tensors()
    first, last = outer.tensors()[:-1], outer.tensors()[-1:]
    return [*first, *block * model.layers, *last]


def update_segment(parameters: list[Tensor], stack: Stack, ranks: int = 1) -> Segment:
    """Gradient unscaling or clipping, then the optimizer's kernels over all parameters.

    With several ranks the first kernel waits for the gradients' all-reduces.
    """
    found: list[Segment] = []
    tape = Tape(phase="optimizer")
    with tape.segment("optimizer", found):
        if stack.precision == "amp-fp16":
            optimizer.unscale_gradients(tape, parameters)
        if stack.grad_clip:
            optimizer.clip_gradients(tape, parameters)
        if stack.optimizer == "adamw-fused":
            optimizer.adamw(tape, parameters)
        else:
            optimizer.sgd_momentum(tape, parameters)
    first, *others = found[0].operators
    if ranks > 1:
        first = replace(first, after=("communication",))
    return Segment("optimizer", (first, *others))


def _resident(
    model: TransformerModel, seq: int, stack: Stack, tokens_per_batch: int
) -> dict[str, int]:
    parameters = _all_parameters(model, seq, stack)
    tokens = 2 * rounded(tokens_per_batch * dtype_bytes("int64"))
    return resident_bytes(parameters, stack, tokens)


def resident_bytes(parameters: list[Tensor], stack: Stack, batch_bytes: int) -> dict[str, int]:
    """Memory that lives through the whole step: parameters, optimizer states and the batch."""
    weights = sum(rounded(p.size) for p in parameters)
    adam = stack.optimizer == "adamw-fused"
    steps = rounded(4) * len(parameters) if adam else 0
    return {
        "parameters": weights,
        "optimizer": (2 if adam else 1) * weights + steps,
        "batch": batch_bytes,
    }
