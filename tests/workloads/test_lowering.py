"""Lowering a step: memory returns, FLOPs are the analytic ones, every choice has its effect."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings

from archs.errors import InputError
from tests.strategies import (
    WHOLE_PRECISIONS,
    convolutional_workloads,
    plans,
    stacks,
    workloads,
)
from workloads import transformer
from workloads.catalog import load_model
from workloads.kernels import Attention, Convolution, Gemm, Kernel, Stream
from workloads.lowering import lower
from workloads.model import FAMILY_DEFAULTS, TransformerModel
from workloads.plan import Plan, Stack, Workload
from workloads.program import Operator, Program
from workloads.tape import Tape, rounded


def operators(program: Program) -> list[Operator]:
    """All operators of the only role, in issue order."""
    return [operator for _, operator in program.roles[0].operators()]


def kernels(program: Program) -> list[Kernel]:
    """All kernels of the step, in order."""
    return [kernel for operator in operators(program) for kernel in operator.kernels]


def memory_left(program: Program) -> dict[str, int]:
    """Bytes of each category that a step has allocated and not freed."""
    left: Counter[str] = Counter()
    for operator in operators(program):
        for category, change in operator.memory:
            left[category] += change
    return {category: left[category] for category in ("activations", "gradients")}


def peak_bytes(program: Program) -> int:
    """Largest sum of allocations during the step, residents left out."""
    total = peak = 0
    for operator in operators(program):
        for _, change in operator.memory:
            total += change
            peak = max(peak, total)
    return peak


def gradient_bytes(workload: Workload, stack: Stack) -> int:
    """One gradient for each parameter, as the allocator rounds them."""
    model = workload.model
    assert isinstance(model, TransformerModel)
    tape = Tape()
    outer = transformer.outer_parameters(tape, model, stack.param_dtype, workload.seq_len or 1)
    block = transformer.block_parameters(tape, model, stack.param_dtype).tensors()
    return sum(rounded(p.size) for p in [*outer.tensors(), *block * model.layers])


def small(family: str = "gpt", **fields: Any) -> Workload:
    """A step of a small model with three layers; other fields as they are given."""
    shape = {"family": family, "hidden": 256, "layers": 3, "heads": 4, "vocab": 1000}
    model = TransformerModel.model_validate(shape)
    return Workload.model_validate({"model": model, "seq_len": 128, "micro_batch": 2, **fields})


def both(workload: Workload, stack: Stack) -> tuple[Program, Program]:
    """The step without and with recomputation."""
    return lower(workload, Plan(), stack), lower(workload, Plan(recompute="full"), stack)


def tensor_flops(program: Program) -> float:
    """FLOPs of all products, convolutions and attention kernels."""
    return sum(k.flops for k in kernels(program))


@given(workloads(), stacks())
def test_memory_returns_to_its_start_except_gradients(workload: Workload, stack: Stack) -> None:
    """After forward and backward every activation is freed and each parameter has a gradient."""
    program = lower(workload, Plan(), stack)
    expected = {"activations": 0, "gradients": gradient_bytes(workload, stack)}
    assert memory_left(program) == expected


@pytest.mark.parametrize("family", FAMILY_DEFAULTS)
@pytest.mark.parametrize("precision", WHOLE_PRECISIONS)
@pytest.mark.parametrize("execution", ["eager", "compile"])
def test_recomputation_returns_memory_too(family: str, precision: str, execution: str) -> None:
    """With recomputation nothing is left either, for every family, precision and execution."""
    stack = Stack.model_validate({"precision": precision, "execution": execution})
    workload = small(family)
    program = lower(workload, Plan(recompute="full"), stack)
    expected = {"activations": 0, "gradients": gradient_bytes(workload, stack)}
    assert memory_left(program) == expected


@settings(max_examples=15)
@given(convolutional_workloads(), stacks())
def test_convolutional_memory_returns_too(workload: Workload, stack: Stack) -> None:
    """A ResNet step frees its activations and keeps a gradient for each of its parameters."""
    left = memory_left(lower(workload, Plan(), stack))
    assert left["activations"] == 0
    size = 4 if stack.param_dtype == "fp32" else 2
    assert left["gradients"] == pytest.approx(25_557_032 * size, rel=5e-3)


@given(workloads(), plans(), stacks())
def test_memory_is_never_negative(workload: Workload, plan: Plan, stack: Stack) -> None:
    """Nothing is freed before it is allocated, in any category."""
    current: Counter[str] = Counter()
    for operator in operators(lower(workload, plan, stack)):
        for category, change in operator.memory:
            current[category] += change
            assert current[category] >= 0


@given(workloads(), stacks())
def test_kernel_flops_are_the_analytic_ones(workload: Workload, stack: Stack) -> None:
    """Products: three times the forward's; attention: two products forward, five backward."""
    model = workload.model
    assert isinstance(model, TransformerModel)
    assert workload.seq_len is not None
    program = lower(workload, Plan(), stack)
    products = sum(k.flops for k in kernels(program) if isinstance(k, Gemm))
    attention = sum(k.flops for k in kernels(program) if isinstance(k, Attention))
    assert products == 3 * program.tokens * model.matmul_flops_per_token()
    half = program.tokens * model.attention_flops_per_token(workload.seq_len)
    assert attention == 3.5 * half
    assert program.model_flops == products + 3 * half


def test_large_models_do_six_flops_a_parameter_and_token() -> None:
    """For Llama 3 8B at a short sequence the step is 6 N tokens, embeddings left out."""
    model = load_model("llama3-8b")
    assert isinstance(model, TransformerModel)
    workload = Workload(model=model, seq_len=128, micro_batch=1, global_batch=1)
    weights = model.parameter_count() - model.vocab * model.hidden
    program = lower(workload, Plan(), Stack())
    assert program.model_flops == pytest.approx(6 * weights * program.tokens, rel=5e-3)


def test_resnet_does_its_published_work() -> None:
    """4.1 GFLOP (multiply-adds, 8.2 in FLOPs) forward an image; a step is nearly three of them."""
    workload = Workload(model=load_model("resnet50"), micro_batch=2, global_batch=2)
    program = lower(workload, Plan(), Stack(optimizer="sgd-momentum", grad_clip=False))
    assert program.model_flops / program.samples == pytest.approx(3 * 2 * 4.09e9, rel=5e-3)
    first = next(k for k in kernels(program) if isinstance(k, Convolution))
    assert tensor_flops(program) == program.model_flops - first.flops


@given(workloads(), stacks())
def test_recomputation_runs_the_blocks_again(workload: Workload, stack: Stack) -> None:
    """Recomputation adds exactly the forward of each block but its last product."""
    model = workload.model
    assert isinstance(model, TransformerModel)
    plain, again = both(workload, stack)
    assert workload.seq_len is not None
    q = model.heads * model.head_size
    inputs = model.ffn * (2 if model.gated_ffn else 1)
    weights = model.hidden * (2 * q + 2 * model.kv_size + inputs)
    block = 2 * weights * model.layers + model.attention_flops_per_token(workload.seq_len)
    assert tensor_flops(again) - tensor_flops(plain) == plain.tokens * block
    assert again.model_flops == plain.model_flops == plain.hardware_flops
    assert again.hardware_flops == plain.hardware_flops + plain.tokens * block


@pytest.mark.parametrize("family", FAMILY_DEFAULTS)
@pytest.mark.parametrize("execution", ["eager", "compile"])
def test_recomputation_lowers_peak_memory(family: str, execution: str) -> None:
    """Keeping only the input of each block makes the peak smaller and the kernels more."""
    workload = small(family, seq_len=1024, micro_batch=8)
    stack = Stack.model_validate({"execution": execution, "precision": "bf16"})
    plain, again = both(workload, stack)
    assert peak_bytes(again) < 0.8 * peak_bytes(plain)
    assert len(kernels(again)) > len(kernels(plain))
    recomputed = [o for o in operators(again) if o.phase == "forward"]
    assert len(recomputed) > len([o for o in operators(plain) if o.phase == "forward"])


@pytest.mark.parametrize("execution", ["eager", "compile"])
@pytest.mark.parametrize("precision", WHOLE_PRECISIONS)
def test_casts_of_weights_happen_only_under_autocast(execution: str, precision: str) -> None:
    """Mixed precision casts in every block; pure bf16 or fp16 casts nothing but the logits."""
    stack = Stack.model_validate({"execution": execution, "precision": precision})
    found = kernels(lower(small("gpt"), Plan(), stack))
    casts = [k for k in found if isinstance(k, Stream) and k.kind.startswith("cast_")]
    if precision.startswith("amp"):
        assert len(casts) >= 3 * 4
    else:
        assert [k.elements for k in casts] == [2 * 128 * 1000] * 2


@given(workloads(), plans(), stacks())
def test_accumulation_repeats_forward_and_backward(
    workload: Workload, plan: Plan, stack: Stack
) -> None:
    """Micro-batches multiply tokens and FLOPs, and there is one update at the end."""
    one = workload.model_copy(update={"grad_accum": 1, "global_batch": workload.micro_batch})
    steps = workload.grad_accum
    single, whole = (lower(w, plan, stack) for w in (one, workload))
    assert (whole.tokens, whole.samples) == (steps * single.tokens, steps * single.samples)
    assert whole.model_flops == pytest.approx(steps * single.model_flops)
    assert tensor_flops(whole) == pytest.approx(steps * tensor_flops(single))
    update = [o.name for o in operators(whole) if o.phase == "optimizer"]
    assert update == [o.name for o in operators(single) if o.phase == "optimizer"]
    assert operators(whole)[-1].phase == "optimizer"


@pytest.mark.parametrize("family", ["gpt", "llama", "mpt"])
def test_later_micro_batches_add_to_gradients_in_place(family: str) -> None:
    """Every parameter's later gradients are added to its first, which needs no more memory."""
    stack = Stack(precision="bf16")
    one, three = (lower(small(family, grad_accum=n), Plan(), stack) for n in (1, 3))
    added = Counter(o.name for o in operators(three))["accumulate_grad"]
    tied = Counter(o.name for o in operators(one))["accumulate_grad"]
    model = small(family).model
    assert isinstance(model, TransformerModel)
    tape = Tape()
    outer = transformer.outer_parameters(tape, model, "bf16", 128).tensors()
    block = transformer.block_parameters(tape, model, "bf16").tensors()
    uses = len(outer) + 3 * len(block) + model.tied_embeddings
    assert tied == model.tied_embeddings
    assert added == tied + 2 * uses
    assert memory_left(three) == memory_left(one)


@given(workloads(), plans(), stacks())
def test_phases_come_in_order(workload: Workload, plan: Plan, stack: Stack) -> None:
    """A step starts forward and ends with the optimizer, which nothing interrupts."""
    phases = [operator.phase for operator in operators(lower(workload, plan, stack))]
    first = phases.index("optimizer")
    assert phases[0] == "forward"
    assert set(phases[:first]) == {"forward", "backward"}
    assert set(phases[first:]) == {"optimizer"}


@given(workloads(), plans(), stacks())
def test_layers_run_forward_then_backward(workload: Workload, plan: Plan, stack: Stack) -> None:
    """Each micro-batch visits the layers up, the head, and the layers down again.

    Where forward saves no cast weights, leaving the autocast region frees each layer's in between.
    """
    placements = lower(workload, plan, stack).roles[0].placements
    found = [(p.segment.name, p.label.split(".")[-1]) for p in placements]
    model = workload.model
    assert isinstance(model, TransformerModel)
    up = [("block", f"layer{i}") for i in range(model.layers)]
    exits = [("autocast_exit", f"layer{i}") for i in range(model.layers)]
    embedding, head = ("embedding", "embedding"), ("head", "head")
    unsaved = stack.autocast_dtype is not None and plan.recompute == "full"
    between = exits if unsaved and stack.execution == "eager" else []
    batch = [embedding, *up, head, *between, head, *reversed(up), embedding]
    assert found == batch * workload.grad_accum + [("optimizer", "optimizer")]


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("precision", WHOLE_PRECISIONS)
def test_copies_of_weights_live_to_the_end_of_the_autocast_region(
    precision: str, recompute: str
) -> None:
    """Recomputation saves no casts: leaving the region frees each layer's, and takes no time."""
    stack = Stack.model_validate({"precision": precision})
    (role,) = lower(small(), Plan.model_validate({"recompute": recompute}), stack).roles
    exits = [p.segment for p in role.placements if p.segment.name == "autocast_exit"]
    if recompute == "none" or not precision.startswith("amp"):
        assert exits == []
        return
    tape = Tape()
    model = small().model
    assert isinstance(model, TransformerModel)
    copies = transformer.block_parameters(tape, model, precision.removeprefix("amp-")).tensors()
    cast = sum(rounded(t.size) for t in copies if "norm" not in t.name)
    for segment in exits:
        assert [(o.name, o.host, o.kernels) for o in segment.operators] == [
            ("release", "none.forward", ())
        ]
        assert sum(change for _, change in segment.operators[0].memory) == -cast
    assert len(exits) == model.layers


@given(workloads(), stacks())
def test_resident_memory_is_parameters_and_states(workload: Workload, stack: Stack) -> None:
    """AdamW keeps two values for each parameter and a step counter, SGD one."""
    resident = lower(workload, Plan(), stack).roles[0].resident_bytes
    weights = gradient_bytes(workload, stack)
    assert resident["parameters"] == weights
    states = resident["optimizer"]
    if stack.optimizer == "sgd-momentum":
        assert states == weights
    else:
        assert 2 * weights < states <= 2 * weights + 512 * 2000


LLAMA = small("llama")
RESNET = Workload.model_validate({"model": load_model("resnet50"), "micro_batch": 2})
UNTIED = "tied_embeddings must be false with pp > 1 for now"
SHARDED = "sharding must be none or, for a language model without pipeline, zero2 or zero3"
MIXED = "precision must be fsdp-mixed, bf16 or fp16 with sharding, and not fsdp-mixed without"
ONLY_FULL = "recompute must be none or, for a language model, full"


@pytest.mark.parametrize(
    ("workload", "plan", "line"),
    [
        (LLAMA, {"tp": 2}, "tp must be 1 for now (got 2) in plan.tp"),
        (LLAMA, {"cp": 2}, "cp must be 1 for now (got 2) in plan.cp"),
        (LLAMA, {"ep": 2}, "ep must be 1 for a dense model (got 2) in plan.ep"),
        (LLAMA, {"vpp": 2}, "vpp must be 1 for now (got 2) in plan.vpp"),
        (LLAMA, {"sharding": "zero1"}, f"{SHARDED} (got zero1) in plan.sharding"),
        (RESNET, {"dp": 2, "sharding": "zero3"}, f"{SHARDED} (got zero3) in plan.sharding"),
        (LLAMA, {"dp": 2, "pp": 2, "sharding": "zero2"},
         f"{SHARDED} (got zero2) in plan.sharding"),
        (LLAMA, {"sharding": "zero3"}, "sharding needs dp > 1 (got zero3) in plan.sharding"),
        (LLAMA, {"dp": 2, "sharding": "zero3"}, f"{MIXED} (got amp-bf16) in stack.precision"),
        (LLAMA, {"sequence_parallel": True},
         "sequence_parallel needs tp > 1 (got True) in plan.sequence_parallel"),
        (LLAMA, {"schedule": "1f1b"}, "schedule needs pp > 1 (got 1f1b) in plan.schedule"),
        (LLAMA, {"pp": 2, "schedule": "zigzag"},
         "schedule must be 1f1b or gpipe (got zigzag) in plan.schedule"),
        (LLAMA, {"pp": 4}, "pp must be at most the number of layers 3 (got 4) in plan.pp"),
        (small("gpt"), {"pp": 2},
         f"{UNTIED} (got True) in workload.model.tied_embeddings"),
        (LLAMA, {"recompute": "selective"}, f"{ONLY_FULL} (got selective) in plan.recompute"),
        (RESNET, {"recompute": "selective"}, f"{ONLY_FULL} (got selective) in plan.recompute"),
        (RESNET, {"recompute": "full"}, f"{ONLY_FULL} (got full) in plan.recompute"),
        (RESNET, {"pp": 2}, "pp must be 1 for images (got 2) in plan.pp"),
    ],
    ids=lambda value: " ".join(f"{k}={v}" for k, v in value.items())
    if isinstance(value, dict) else "",
)  # fmt: skip
def test_plans_without_a_model_are_refused(
    workload: Workload, plan: dict[str, object], line: str
) -> None:
    """A plan that nothing would come of is one line with the rule, the value and the key."""
    with pytest.raises(InputError) as caught:
        lower(workload, Plan.model_validate(plan), Stack())
    assert str(caught.value) == line


@pytest.mark.parametrize("scope", ["block", "full"])
def test_a_scope_of_compilation_needs_compilation(scope: str) -> None:
    """With eager execution a scope of compilation is refused, not ignored."""
    stack = Stack.model_validate({"execution": "eager", "compile_scope": scope})
    with pytest.raises(InputError) as caught:
        lower(LLAMA, Plan(), stack)
    line = f"compile_scope needs execution = compile (got {scope}) in stack.compile_scope"
    assert str(caught.value) == line


def test_images_have_no_sequence() -> None:
    """A sequence length for a convolutional network is refused, not ignored."""
    with pytest.raises(InputError) as caught:
        lower(RESNET.model_copy(update={"seq_len": 128}), Plan(), Stack())
    assert str(caught.value) == "seq_len must be left out for images (got 128) in workload.seq_len"


def test_shared_keys_in_a_packed_projection_are_narrow() -> None:
    """With a packed projection and fewer key heads, attention still knows its key heads."""
    shape = {"family": "gpt", "hidden": 256, "layers": 1, "heads": 4, "kv_heads": 2, "vocab": 100}
    workload = Workload.model_validate({"model": shape, "seq_len": 128})
    found = [k for k in kernels(lower(workload, Plan(), Stack())) if isinstance(k, Attention)]
    assert {(k.heads, k.kv_heads, k.head_dim) for k in found} == {(4, 2, 64)}
