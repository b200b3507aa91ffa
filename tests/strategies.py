"""Hypothesis strategies that several test modules share."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from archs.gpu import Gpu, gpu_ids, load_gpu
from archs.system import System
from archs.systems import single_node
from simulator import Scenario
from workloads.kernels import Attention, Convolution, Gemm, Stream
from workloads.model import FAMILY_DEFAULTS, ResNet50, TransformerModel
from workloads.plan import PRECISIONS, Plan, Stack, Workload

SCALED_PATHS = ("hbm.bandwidth_bytes_per_s", "hbm.capacity_bytes", "boost_clock_hz")
HALF_DTYPES = st.sampled_from(("bf16", "fp16"))


def catalog_gpus() -> st.SearchStrategy[Gpu]:
    """Any GPU of the catalog, as it is."""
    return st.sampled_from(gpu_ids()).map(load_gpu)


@st.composite
def gpus(draw: st.DrawFn) -> Gpu:
    """A GPU of the catalog with memory, clock and SM count between half and twice its own."""
    base = draw(catalog_gpus())
    factors = {path: draw(st.floats(0.5, 2.0)) for path in SCALED_PATHS}
    sms = draw(st.integers(max(1, base.sm_count // 2), base.sm_count * 2))
    return base.with_overrides({"sm_count": str(sms)} | _scaled(base, factors))


@st.composite
def systems(draw: st.DrawFn) -> System:
    """One host with one to eight GPUs of any kind."""
    return single_node(draw(gpus()), draw(st.integers(1, 8)))


def _scaled(gpu: Gpu, factors: Mapping[str, float]) -> dict[str, str]:
    return {path: repr(factor * _value(gpu, path)) for path, factor in factors.items()}


def _value(gpu: Gpu, path: str) -> float:
    return float(functools.reduce(getattr, path.split("."), gpu))  # type: ignore[arg-type]


@st.composite
def transformers(draw: st.DrawFn, max_layers: int = 4) -> TransformerModel:
    """A small dense transformer of any family, with heads of 64 or 128 that may share keys."""
    family = draw(st.sampled_from(sorted(FAMILY_DEFAULTS)))
    heads = draw(st.sampled_from((1, 2, 4, 8)))
    shared = draw(st.sampled_from((1, 2))) if family == "llama" else 1
    fields = {
        "family": family,
        "heads": heads,
        "kv_heads": max(1, heads // shared),
        "hidden": heads * draw(st.sampled_from((64, 128))),
        "layers": draw(st.integers(1, max_layers)),
        "ffn": 64 * draw(st.integers(1, 32)),
        "vocab": draw(st.integers(2, 60_000)),
    }
    return TransformerModel.model_validate(fields)


EXECUTIONS = (("eager", None), ("compile", None), ("compile", "block"), ("compile", "full"))
"""How a step may be executed: a scope of compilation needs compilation."""


WHOLE_PRECISIONS = sorted(name for name in PRECISIONS if name != "fsdp-mixed")
"""Precisions of plans that do not shard."""


@st.composite
def stacks(draw: st.DrawFn) -> Stack:
    """Any software stack that a transformer step can be lowered for."""
    execution, scope = draw(st.sampled_from(EXECUTIONS))
    fields = {
        "execution": execution,
        "compile_scope": scope,
        "precision": draw(st.sampled_from(WHOLE_PRECISIONS)),
        "optimizer": draw(st.sampled_from(("adamw-fused", "sgd-momentum"))),
        "grad_clip": draw(st.booleans()),
    }
    return Stack.model_validate(fields)


def plans() -> st.SearchStrategy[Plan]:
    """A plan for one GPU, with or without recomputation."""
    return st.sampled_from((Plan(), Plan(recompute="full")))


@st.composite
def workloads(draw: st.DrawFn, max_tokens: int = 8192) -> Workload:
    """A small language-model step of one to three micro-batches."""
    seq_len = 64 * draw(st.integers(1, 32))
    fields = {
        "model": draw(transformers()),
        "seq_len": seq_len,
        "micro_batch": draw(st.integers(1, max(1, max_tokens // seq_len))),
        "grad_accum": draw(st.integers(1, 3)),
    }
    return Workload.model_validate(fields)


def convolutional_workloads() -> st.SearchStrategy[Workload]:
    """A ResNet-50 step on images of any usual size."""
    model = st.sampled_from((64, 128, 224)).map(
        lambda size: ResNet50(family="resnet50", image_size=size)
    )
    fields = {"model": model, "micro_batch": st.integers(1, 64), "grad_accum": st.integers(1, 2)}
    return st.fixed_dictionaries(fields).map(Workload.model_validate)


def gemms() -> st.SearchStrategy[Gemm]:
    """A matrix product of any shape that occurs in a model, and odd ones."""
    side = st.integers(1, 20_000)
    layouts = st.sampled_from(("nt", "nn", "tn"))
    return st.builds(
        Gemm, side, side, side, HALF_DTYPES, layouts, bias=st.booleans(), batch=st.integers(1, 4)
    )


@st.composite
def attentions(draw: st.DrawFn) -> Attention:
    """Fused attention of either direction, with shared keys, causal or not."""
    seq = draw(st.integers(1, 8192))
    heads = draw(st.integers(1, 64))
    shared = draw(st.sampled_from([n for n in (1, 2, 4, 8) if heads % n == 0]))
    return Attention(
        draw(st.integers(1, 16)), seq, seq, heads, heads // shared,
        draw(st.sampled_from((64, 128))), draw(st.booleans()), draw(HALF_DTYPES),
        draw(st.sampled_from(("forward", "backward"))),
    )  # fmt: skip


def convolutions() -> st.SearchStrategy[Convolution]:
    """A convolution of either direction, of any shape that a residual network has."""
    channels = st.sampled_from((3, 64, 128, 256, 512, 1024, 2048))
    return st.builds(
        Convolution, st.integers(1, 256), channels, channels, st.sampled_from((1, 3, 7)),
        st.sampled_from((1, 2)), st.integers(7, 224), HALF_DTYPES,
        st.sampled_from(("fprop", "dgrad", "wgrad")),
    )  # fmt: skip


@st.composite
def streams(draw: st.DrawFn, kinds: Sequence[str]) -> Stream:
    """A memory-bound kernel of one of ``kinds``: any size from one element to gigabytes."""
    rows, cols = draw(st.integers(1, 100_000)), draw(st.integers(1, 10_000))
    read, write = draw(st.integers(0, 12)), draw(st.integers(0, 12))
    return Stream(draw(st.sampled_from(sorted(kinds))), rows, cols, rows * cols * read,
                  rows * cols * write)  # fmt: skip


def trainable_gpus() -> st.SearchStrategy[Gpu]:
    """Any catalog GPU that multiplies matrices in bf16 or fp16 and has a power limit."""
    return st.sampled_from(trainable_gpu_ids()).map(load_gpu)


@functools.cache
def trainable_gpu_ids() -> tuple[str, ...]:
    """Ids of the catalog's GPUs with a bf16 or fp16 peak and a power limit."""
    loaded = map(load_gpu, gpu_ids())
    return tuple(g.id for g in loaded if {"bf16", "fp16"} & set(g.tensor_flops_per_s)
                 and g.power_limit_w)  # fmt: skip


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """A small training step of any model family on one GPU of the catalog."""
    either = st.one_of(workloads(), convolutional_workloads())
    gpu, workload = draw(trainable_gpus()), draw(either)
    stack = draw(stacks())
    if "bf16" not in map(str, gpu.tensor_flops_per_s):
        stack = stack.model_copy(update={"precision": stack.precision.replace("bf16", "fp16")})
    image = workload.model.family == "resnet50"
    return Scenario(
        system=single_node(gpu, 1), gpu=gpu, gpus=1, workload=workload,
        plan=Plan() if image else draw(plans()),
        stack=stack.model_copy(update={"grad_clip": False} if image else {}),
        power_limit_w=float(gpu.power_limit_w or 0.0),
        host_launch_s=draw(st.floats(1e-6, 30e-6)),
    )  # fmt: skip
