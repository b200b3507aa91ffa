"""Data and pipeline parallelism: buckets, orders of passes, messages, what memory they hold."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import validation
from simulator.scenario import Scenario
from workloads.catalog import load_model
from workloads.ddp import BUCKET_BYTES, FIRST_BUCKET_BYTES
from workloads.kernels import Collective
from workloads.lowering import lower
from workloads.model import TransformerModel
from workloads.pipeline import Stage, schedule, stages_of
from workloads.plan import Plan, Stack, Workload
from workloads.program import Program, Role

RUNS = Path(validation.__file__).parent / "data" / "h200" / "runs.jsonl"


def program(run: str) -> Program:
    """The lowered step of a shipped measured run."""
    found = next(r for r in map(json.loads, RUNS.read_text("utf-8").splitlines()) if r["id"] == run)
    scenario = Scenario.from_record(found)
    return lower(scenario.workload, scenario.plan, scenario.stack)


def collectives(role: Role, op: str) -> list[Collective]:
    """A role's collectives of one kind."""
    kernels = [k for _, operator in role.operators() for k in operator.kernels]
    return [k for k in kernels if isinstance(k, Collective) and k.op == op]


@pytest.mark.parametrize(
    ("run", "count"),
    [("h200-d2-g124-mb16", 13), ("h200-d2-g13-mb4", 73), ("h200-p2d2-l3-ga4", 57)],
)
def test_all_reduces_are_those_of_the_trace(run: str, count: int) -> None:
    """Gradients are all-reduced in as many buckets as the run's profiled step shows."""
    role = program(run).roles[0]
    found = collectives(role, "all_reduce")
    assert len(found) == count
    assert sum(k.size for k in found) == role.resident_bytes["gradients"]
    assert found[0].size >= FIRST_BUCKET_BYTES
    assert all(k.size >= BUCKET_BYTES for k in found[1:-1])


def tiny(layers: int = 6, grad_accum: int = 4, dp: int = 1) -> Workload:
    """A small language model without tied embeddings."""
    model = load_model("llama3.2-1b").model_copy(
        update={"layers": layers, "hidden": 256, "ffn": 512, "heads": 4, "kv_heads": 4,
                "head_dim": 64, "vocab": 1000, "tied_embeddings": False},
    )  # fmt: skip
    return Workload(
        model=model, seq_len=128, micro_batch=2, grad_accum=grad_accum,
        global_batch=2 * grad_accum * dp,
    )  # fmt: skip


@pytest.mark.parametrize("grad_accum", [1, 2, 3])
def test_gradients_are_reduced_once_a_step(grad_accum: int) -> None:
    """Only the last micro-batch's backward pass reduces, each gradient once."""
    (role,) = lower(tiny(2, grad_accum, dp=2), Plan(dp=2), Stack(precision="bf16")).roles
    labels = {
        label for label, op in role.operators()
        if any(isinstance(k, Collective) for k in op.kernels)
    }  # fmt: skip
    assert labels == ({f"micro_batch{grad_accum - 1}.ddp"} if grad_accum > 1 else {"ddp"})
    reduced = sum(k.size for k in collectives(role, "all_reduce"))
    assert reduced == role.resident_bytes["gradients"]


def test_gradients_lie_beside_the_buckets_until_they_are_reduced() -> None:
    """With accumulation a rank holds its gradients twice; without, only in buckets."""

    def most(grad_accum: int) -> int:
        workload = tiny(2, grad_accum, dp=2)
        (role,) = lower(workload, Plan(dp=2), Stack(precision="bf16")).roles
        held = peak = 0
        for _, operator in role.operators():
            for category, change in operator.memory:
                held += change if category == "gradients" else 0
                peak = max(peak, held)
        assert held == 0
        return peak

    assert most(1) == 0
    buckets = lower(tiny(2, 2, 2), Plan(dp=2), Stack(precision="bf16")).roles[0].resident_bytes
    assert most(2) == pytest.approx(buckets["gradients"], rel=0.02)


@given(st.integers(1, 8), st.integers(1, 12), st.sampled_from(("1f1b", "gpipe")))
def test_every_micro_batch_goes_forward_and_back_once(stages: int, count: int, kind: str) -> None:
    """Each stage runs each pass once, forward before backward, micro-batches in order."""
    for index in range(stages):
        order = schedule(Stage(index, stages, 1), count, kind)
        for passes in ("F", "B"):
            assert [i for k, i in order if k == passes] == list(range(count))
        assert all(order.index(("F", i)) < order.index(("B", i)) for i in range(count))


@given(st.integers(1, 8), st.integers(1, 24))
def test_1f1b_keeps_at_most_as_many_micro_batches_as_stages_follow(stages: int, count: int) -> None:
    """Micro-batches in flight on stage i of p are at most p - i; with GPipe all of them."""
    for index in range(stages):
        flying = most = 0
        for kind, _ in schedule(Stage(index, stages, 1), count, "1f1b"):
            flying += 1 if kind == "F" else -1
            most = max(most, flying)
        assert most == min(count, stages - index)


@given(st.integers(1, 40), st.integers(1, 40))
def test_layers_are_spread_evenly(layers: int, stages: int) -> None:
    """Stages hold all layers, and no two differ by more than one."""
    plan = Plan(pp=min(layers, stages))
    model = tiny(layers).model
    assert isinstance(model, TransformerModel)
    found = [stage.layers for stage in stages_of(model, plan)]
    assert sum(found) == layers
    assert max(found) - min(found) <= 1


@pytest.mark.parametrize("kind", ["1f1b", "gpipe"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_messages_pair_up_and_memory_returns(kind: str, recompute: str) -> None:
    """Each message has one sender and one receiver; a stage ends the step as it began."""
    plan = Plan.model_validate({"pp": 3, "schedule": kind, "recompute": recompute})
    roles = lower(tiny(), plan, Stack(precision="bf16")).roles
    ends: Counter[tuple[str, int]] = Counter()
    for role in roles:
        held: Counter[str] = Counter()
        for placement, operator in role.placed():
            if operator.meets:
                ends[operator.meets, placement.index] += 1
            for category, change in operator.memory:
                held[category] += change
                assert held[category] >= 0
        held.pop("gradients", None)
        assert not +held
    assert set(ends.values()) == {2}
    assert len(ends) == 2 * 2 * 4


@pytest.mark.parametrize(("run", "gathers"), [("h200-z3x2-l1", 34), ("h200-z2x2-l1", 17)])
def test_sharded_collectives_are_those_of_the_trace(run: str, gathers: int) -> None:
    """Units are gathered and their gradients scattered as often as the profiled step shows."""
    (role,) = program(run).roles
    gathered, scattered = collectives(role, "all_gather"), collectives(role, "reduce_scatter")
    assert (len(gathered), len(scattered)) == (gathers, 17)
    copies = [op for _, op in role.operators() if op.name == "all_gather_copy_in"]
    assert sum(len(op.kernels) for op in copies) == 90 * gathers / 17
    parameters = 1_498_482_688
    assert sum(k.size for k in scattered) == 4 * parameters
    assert sum(k.size for k in gathered) == 2 * parameters * gathers / 17


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
@pytest.mark.parametrize("precision", ["fsdp-mixed", "bf16"])
@pytest.mark.parametrize("grad_accum", [1, 3])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_sharded_memory_returns(
    sharding: str, precision: str, grad_accum: int, recompute: str
) -> None:
    """Buffers and whole parameters are freed; what stays are one rank's gradients."""
    plan = Plan.model_validate({"dp": 4, "sharding": sharding, "recompute": recompute})
    stack = Stack.model_validate({"precision": precision})
    (role,) = lower(tiny(3, grad_accum, dp=4), plan, stack).roles
    held: Counter[str] = Counter()
    for _, operator in role.operators():
        for category, change in operator.memory:
            held[category] += change
            assert held[category] >= 0
    gradients = held.pop("gradients")
    assert not +held
    assert gradients == pytest.approx(role.resident_bytes["parameters"], rel=0.02)


def test_zero3_memory_falls_with_the_ranks() -> None:
    """A rank keeps 1/dp of parameters and optimizer states."""
    stack = Stack(precision="fsdp-mixed")
    kept = []
    for dp in (2, 4, 8):
        plan = Plan(dp=dp, sharding="zero3")
        resident = lower(tiny(4, 1, dp), plan, stack).roles[0].resident_bytes
        kept.append(resident["parameters"] + resident["optimizer"])
    assert kept[0] == pytest.approx(2 * kept[1], rel=0.05)
    assert kept[1] == pytest.approx(2 * kept[2], rel=0.05)
