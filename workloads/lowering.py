"""Lower a scenario's workload, plan and stack to a Program: one walk over a symbolic step."""

from __future__ import annotations

from archs.errors import InputError

from . import fsdp, resnet, transformer
from .model import ResNet50, TransformerModel
from .optimizer import batch_bytes, resident_bytes, update_segment
from .pipeline import Stage, stage_placements, stages_of
from .plan import Plan, Stack, Workload
from .program import Placement, Program, Role
from .tape import Tape, Tensor
from .walk import Step, Walk, micro_batches


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
    layers = getattr(workload.model, "layers", 0)
    rules: tuple[tuple[bool, str, object, str], ...] = (
        (plan.tp != 1, "tp must be 1 for now", plan.tp, "plan.tp"),
        (plan.pp > 1 and image, "pp must be 1 for images", plan.pp, "plan.pp"),
        (
            plan.pp > 1 and getattr(workload.model, "tied_embeddings", False),
            "tied_embeddings must be false with pp > 1 for now", True,
            "workload.model.tied_embeddings",
        ),
        (
            not image and plan.pp > layers,
            f"pp must be at most the number of layers {layers}", plan.pp, "plan.pp",
        ),
        (
            plan.schedule not in (None, "1f1b", "gpipe"),
            "schedule must be 1f1b or gpipe", plan.schedule, "plan.schedule",
        ),
        (plan.cp != 1, "cp must be 1 for now", plan.cp, "plan.cp"),
        (plan.vpp != 1, "vpp must be 1 for now", plan.vpp, "plan.vpp"),
        (plan.ep != 1, "ep must be 1 for a dense model", plan.ep, "plan.ep"),
        (
            plan.schedule is not None and plan.pp == 1,
            "schedule needs pp > 1", plan.schedule, "plan.schedule",
        ),
        (
            plan.sharding == "zero1" or (plan.sharded and (image or plan.pp > 1)),
            "sharding must be none or, for a language model without pipeline, zero2 or zero3",
            plan.sharding, "plan.sharding",
        ),
        (
            plan.sharded and plan.dp == 1,
            "sharding needs dp > 1", plan.sharding, "plan.sharding",
        ),
        (
            (stack.precision == "fsdp-mixed") if not plan.sharded
            else stack.precision.startswith("amp"),
            "precision must be fsdp-mixed, bf16 or fp16 with sharding, and not fsdp-mixed without",
            stack.precision, "stack.precision",
        ),
        (plan.sequence_parallel, "sequence_parallel needs tp > 1", True, "plan.sequence_parallel"),
        (
            plan.recompute == "selective" or (image and plan.recompute != "none"),
            "recompute must be none or, for a language model, full", plan.recompute,
            "plan.recompute",
        ),
        (
            stack.compile_scope is not None and stack.execution == "eager",
            "compile_scope needs execution = compile", stack.compile_scope, "stack.compile_scope",
        ),
        (
            image and workload.seq_len is not None,
            "seq_len must be left out for images", workload.seq_len, "workload.seq_len",
        ),
    )  # fmt: skip
    for broken, must, got, where in rules:
        if broken:
            raise InputError(must, got, where)


def _lower_transformer(
    workload: Workload, model: TransformerModel, plan: Plan, stack: Stack
) -> Program:
    seq = workload.seq_len or 1
    if plan.sharded:
        walk = Walk(workload, model, plan, fsdp.computing(stack), False, False).run()
        steps = [walk] * workload.grad_accum
        roles = [fsdp.role(workload, plan, stack, model.layers, steps)]
    else:
        steps = micro_batches(
            lambda accumulate, last: Walk(
                workload, model, plan, stack, accumulate, plan.dp > 1 and last
            ).run(),
            workload.grad_accum,
        )
        stages = stages_of(model, plan)
        roles = [_stage_role(workload, model, plan, stack, stage, steps) for stage in stages]
    tokens = workload.global_batch * seq
    forward_flops = tokens * (model.matmul_flops_per_token() + model.attention_flops_per_token(seq))
    recompute = tokens * _recomputed_flops(model, seq) if plan.recompute == "full" else 0.0
    return Program(
        tuple(roles), 3.0 * forward_flops, 3.0 * forward_flops + recompute,
        workload.global_batch, tokens, _warnings(model, seq, plan),
    )  # fmt: skip


def _stage_role(
    workload: Workload,
    model: TransformerModel,
    plan: Plan,
    stack: Stack,
    stage: Stage,
    steps: list[Step],
) -> Role:
    """The step of the ranks that hold one pipeline stage."""
    placements = stage_placements(workload, model, plan, stack, stage, steps)
    waits = ("communication",) if plan.dp > 1 else ()
    parameters = _stage_parameters(model, workload.seq_len or 1, stack, stage)
    placements.append(Placement(update_segment(parameters, stack, waits), "optimizer"))
    resident = resident_bytes(parameters, stack, batch_bytes(workload))
    if plan.dp > 1:
        resident["gradients"] = sum(p.size for p in parameters)
    return Role(stage.name, plan.dp, tuple(placements), resident)


def _stage_parameters(
    model: TransformerModel, seq: int, stack: Stack, stage: Stage
) -> list[Tensor]:
    """Parameters of one stage in registration order."""
    tape = Tape()
    outer = transformer.outer_parameters(tape, model, stack.param_dtype, seq)
    block = transformer.block_parameters(tape, model, stack.param_dtype).tensors()
    head = [t for t in (*outer.norm, outer.output) if t is not None]
    embedding = [t for t in (outer.tokens, outer.positions) if t is not None]
    found = [*(embedding if stage.first else []), *block * stage.layers]
    if stage.last:
        found += [t for t in head if not (stage.first and t is outer.tokens)]
    return found


def _recomputed_flops(model: TransformerModel, seq: int) -> float:
    """FLOPs a token of the blocks' second forward: without their last linear, without the head."""
    linear = model.matmul_flops_per_token() - 2.0 * model.hidden * model.vocab
    last = 2.0 * model.layers * model.hidden * model.ffn
    return linear - last + model.attention_flops_per_token(seq)


def _warnings(model: TransformerModel, seq: int, plan: Plan) -> tuple[str, ...]:
    found = []
    have = model.max_positions
    if model.positions == "learned" and 0 < have < seq:
        found.append(f"position table lengthened: seq_len {seq} exceeds {have} positions")
    if model.layers % plan.pp:
        layers = ", ".join(str(stage.layers) for stage in stages_of(model, plan))
        found.append(f"layers spread unevenly over {plan.pp} stages: {layers}")
    return tuple(found)
