"""Lowered steps against the shipped traces: the same kernels, in the same order.

Kernels are compared by class. Left out are memsets and split-K reductions, which depend on the
tiling that the GEMM library chose and not on the framework. What remains to be explained:

- eager transformers: each class within 6 launches of the trace (copies of the batch and of scalars,
  the sort of the embedding's gradient, a few scalar kernels of the optimizer);
- compiled transformers: point-wise and reducing fused kernels together within 3 percent;
- ResNet-50: the library launches helpers around a convolution that the lowering does not have.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from simulator import Scenario
from simulator.costs.stream import stream_class
from validation import DATA
from validation.records import read_runs, to_plain
from validation.traces import read_trace
from workloads.kernels import Attention, Collective, Convolution, Gemm, Kernel
from workloads.lowering import lower
from workloads.program import Role, Segment

EAGER = ["h200-g124-mb16", "h200-g124-mb4", "h200-l1-s4k-mb2", "h200-l8-s4k-mb1"]
COMPILED = ["h200-g13-mb8-bf16-compile", "h200-l1-s4k-mb4-compile"]
RESNET = "h200-r50-256-fp16"
UNEXPLAINED = 6


@cache
def traced(run_id: str) -> tuple[str, ...]:
    """Classes of the kernels of a traced step in the order they ran."""
    trace = read_trace(DATA / "h200" / "traces" / f"{run_id}.rank0.json.gz")
    kernels = sorted(trace.kernels, key=lambda op: op.start_ps)
    kept = [op for op in kernels if "splitkreduce" not in op.name.lower()]
    return tuple(op.kernel_class for op in kept if op.kernel_class != "memset")


@cache
def lowered(run_id: str) -> Role:
    """The lowered step of a traced run."""
    run = next(r for r in read_runs(DATA / "h200" / "runs.jsonl") if r.id == run_id)
    scenario = Scenario.from_record(to_plain(run))
    return lower(scenario.workload, scenario.plan, scenario.stack).roles[0]


def kernel_class(kernel: Kernel) -> str:
    """The class that a kernel is counted under in a trace."""
    if isinstance(kernel, Gemm):
        return "gemm"
    if isinstance(kernel, Attention):
        return "attention"
    if isinstance(kernel, Collective):
        return "collective"
    return "convolution" if isinstance(kernel, Convolution) else stream_class(kernel.kind)


def classes(segment: Segment) -> tuple[str, ...]:
    """Classes of a segment's kernels in issue order."""
    found = [kernel_class(k) for operator in segment.operators for k in operator.kernels]
    return tuple(name for name in found if name != "memset")


def predicted(run_id: str) -> Counter[str]:
    """Kernels of a lowered step by class."""
    return Counter(name for p in lowered(run_id).placements for name in classes(p.segment))


def occurrences(pattern: tuple[str, ...], sequence: tuple[str, ...]) -> int:
    """How often a pattern occurs in a sequence without overlap."""
    count = index = 0
    while index + len(pattern) <= len(sequence):
        found = sequence[index : index + len(pattern)] == pattern
        count += found
        index += len(pattern) if found else 1
    return count


def blocks(run_id: str) -> list[tuple[Segment, int]]:
    """The forward and the backward segment of a block with how often they are placed."""
    placed = [p.segment for p in lowered(run_id).placements if p.segment.name == "block"]
    forward, backward = placed[0], placed[-1]
    return [(forward, placed.count(forward)), (backward, placed.count(backward))]


@pytest.mark.parametrize("run_id", EAGER)
def test_eager_blocks_are_those_of_the_trace(run_id: str) -> None:
    """Forward and backward of a block occur in the trace, kernel by kernel, once a layer."""
    for segment, layers in blocks(run_id):
        pattern = classes(segment)
        assert len(pattern) > 15
        assert occurrences(pattern, traced(run_id)) == layers


@pytest.mark.parametrize("run_id", COMPILED)
def test_compiled_forward_blocks_are_those_of_the_trace(run_id: str) -> None:
    """The compiled forward of a block occurs in the trace, kernel by kernel, once a layer."""
    segment, layers = blocks(run_id)[0]
    assert len(classes(segment)) > 8
    assert occurrences(classes(segment), traced(run_id)) == layers


@pytest.mark.parametrize("run_id", EAGER)
def test_eager_steps_have_the_kernels_of_the_trace(run_id: str) -> None:
    """Every class has as many kernels as the trace, but for the few that are listed above."""
    ours, theirs = predicted(run_id), Counter(traced(run_id))
    assert set(ours) <= set(theirs)
    off = {name: ours[name] - theirs[name] for name in theirs if ours[name] != theirs[name]}
    assert max(map(abs, off.values())) <= UNEXPLAINED
    exact = {"attention", "normalization", "softmax_loss"}
    assert exact.isdisjoint(off)


@pytest.mark.parametrize("run_id", EAGER + COMPILED)
def test_products_and_attention_are_all_there(run_id: str) -> None:
    """A step has exactly the products of its layers, but for one dot product of the optimizer."""
    ours, theirs = predicted(run_id), Counter(traced(run_id))
    assert ours["attention"] == theirs["attention"]
    assert abs(ours["gemm"] - theirs["gemm"]) <= 1


@pytest.mark.parametrize("run_id", COMPILED)
def test_compiled_steps_have_the_kernels_of_the_trace(run_id: str) -> None:
    """Fused kernels together, and all kernels together, are within 3 percent of the trace."""
    ours, theirs = predicted(run_id), Counter(traced(run_id))
    fused = [sum(c[name] for name in ("elementwise", "reduction")) for c in (ours, theirs)]
    assert fused[0] == pytest.approx(fused[1], rel=0.03)
    assert ours.total() == pytest.approx(theirs.total(), rel=0.03)


def test_resnet_has_the_convolutions_and_norms_of_the_trace() -> None:
    """Batch norms and pooling are exact; each convolution has its main kernel, helpers excepted."""
    ours, theirs = predicted(RESNET), Counter(traced(RESNET))
    for name in ("batch_norm", "gemm", "reduction", "softmax_loss"):
        assert ours[name] == theirs[name]
    assert ours["convolution"] == 3 * 53 - 1 <= theirs["convolution"]
    assert ours["elementwise"] == pytest.approx(theirs["elementwise"], rel=0.03)
