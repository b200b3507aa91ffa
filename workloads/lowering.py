"""Lower a scenario's workload, plan and stack to a Program: one walk over a symbolic step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from . import optimizer, resnet, transformer
from .compiled import compiled_block
from .kernels import Stream, dtype_bytes
from .model import ResNet50, TransformerModel
from .plan import Plan, Stack, Workload
from .program import Placement, Program, Role, Segment
from .tape import Tape, Tensor, rounded

Forward = Callable[[Tensor], Tensor]


@dataclass
class Step:
    """What a step is made of while it is lowered: segments of one micro-batch and the update."""

    tape: Tape
    forward: list[Segment] = field(default_factory=list)
    backward: list[Segment] = field(default_factory=list)


def lower(workload: Workload, plan: Plan, stack: Stack) -> Program:
    """Operators of one training step for every role of the plan.

    Raises ValueError when the plan needs something this version cannot lower.
    """
    if plan.ranks != 1:
        raise ValueError(f"plan must use one GPU for now (got {plan.ranks} ranks)")
    model = workload.model
    if isinstance(model, ResNet50):
        return resnet.lower(workload, model, stack)
    return _lower_transformer(workload, model, plan, stack)


def _lower_transformer(
    workload: Workload, model: TransformerModel, plan: Plan, stack: Stack
) -> Program:
    seq = workload.seq_len or 1
    first = _micro_batch(workload, model, plan, stack, accumulate=False)
    later = first
    if workload.grad_accum > 1:
        later = _micro_batch(workload, model, plan, stack, accumulate=True)
    placements: list[Placement] = []
    for step in range(workload.grad_accum):
        label = f"micro_batch{step}." if workload.grad_accum > 1 else ""
        placements += _unrolled(first if step == 0 else later, model.layers, label)
    placements.append(Placement(_update(model, seq, stack), "optimizer"))
    tokens = workload.micro_batch * workload.grad_accum * seq
    forward_flops = tokens * (
        model.matmul_flops_per_token() + model.attention_flops_per_token(seq)
    )
    recompute = forward_flops if plan.recompute == "full" else 0.0
    resident = _resident(model, seq, stack, tokens_per_batch=workload.micro_batch * seq)
    role = Role("rank", 1, tuple(placements), resident)
    return Program(
        (role,), 3.0 * forward_flops, 3.0 * forward_flops + recompute,
        workload.micro_batch * workload.grad_accum, tokens,
    )  # fmt: skip


def _unrolled(step: Step, layers: int, label: str) -> list[Placement]:
    embed, block, head = step.forward
    head_backward, block_backward, embed_backward = step.backward
    names = [f"{label}layer{i}" for i in range(layers)]
    return [
        Placement(embed, f"{label}embedding"),
        *(Placement(block, name) for name in names),
        Placement(head, f"{label}head"),
        Placement(head_backward, f"{label}head"),
        *(Placement(block_backward, name) for name in reversed(names)),
        Placement(embed_backward, f"{label}embedding"),
    ]


def _micro_batch(
    workload: Workload, model: TransformerModel, plan: Plan, stack: Stack, accumulate: bool
) -> Step:
    """Walk embedding, one block and the head forward, then backward; a block stands for all."""
    seq = workload.seq_len or 1
    tape = Tape(accumulate=accumulate)
    step = Step(tape)
    outer = transformer.outer_parameters(tape, model, stack.param_dtype, seq)
    parameters = transformer.block_parameters(tape, model, stack.param_dtype)
    run_block = _block_function(tape, model, stack, parameters)

    tape.autocast = stack.autocast_dtype
    with tape.segment("embedding", step.forward):
        x = transformer.embed(tape, outer, workload.micro_batch, seq)
    embed_out = x
    start, block_leaf = tape.boundary(x)
    del x
    recompute = plan.recompute == "full"
    with tape.segment("block", step.forward), tape.mode(grad=not recompute):
        y = run_block(start, False)
    checkpoint = [start.detached()] if recompute else []
    tape.casts.clear()
    head_start, head_leaf = tape.boundary(y)
    embed_out, block_out = _history(embed_out), _history(y)
    del start, y
    with tape.segment("head", step.forward):
        loss = transformer.head(tape, model, outer, head_start)
        del head_start
    tape.casts.clear()

    tape.phase, tape.autocast = "backward", None
    with tape.segment("head", step.backward):
        _loss_backward(tape, loss)
        del loss
    with tape.segment("block", step.backward):
        gradient, head_leaf.grad = head_leaf.grad, None
        assert gradient is not None
        if recompute:
            start, block_leaf = tape.boundary(checkpoint.pop())
            tape.autocast = stack.autocast_dtype
            with tape.mode(phase="forward"):
                block_out = run_block(start, True)
            tape.casts.clear()
            tape.autocast = None
            del start
        tape.backward(block_out, gradient)
        del gradient
    with tape.segment("embedding", step.backward):
        gradient, block_leaf.grad = block_leaf.grad, None
        assert gradient is not None
        tape.backward(embed_out, gradient)
        del gradient
    return step


def _block_function(
    tape: Tape, model: TransformerModel, stack: Stack, p: transformer.BlockParameters
) -> Callable[[Tensor, bool], Tensor]:
    if stack.execution == "compile":
        full = stack.compile_scope == "full"
        return lambda x, recomputing: compiled_block(tape, model, p, x, recomputing, full)
    return lambda x, recomputing: transformer.block(tape, model, p, x, recomputing)


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


def _update(model: TransformerModel, seq: int, stack: Stack) -> Segment:
    """Clipping and the optimizer as one segment."""
    return update_segment(_all_parameters(model, seq, stack), stack)


def update_segment(parameters: list[Tensor], stack: Stack) -> Segment:
    """Gradient unscaling or clipping, then the optimizer's kernels over all parameters."""
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
    return found[0]


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
