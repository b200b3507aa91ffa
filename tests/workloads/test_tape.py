"""The tape: tensors die with their last reference, and backward runs in autograd's order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads import autograd, ops
from workloads.kernels import Gemm, Stream
from workloads.program import Segment
from workloads.tape import ALLOCATION_BYTES, Tape, Tensor, rounded


def live_bytes(tape: Tape) -> int:
    """Bytes allocated and not yet freed on a tape."""
    recorded = [change for op in tape.recorded for _, change in op.memory]
    return sum(recorded) + sum(change for _, change in tape.pending)


def names(tape: Tape) -> list[str]:
    """Names of the recorded operators in issue order."""
    return [operator.name for operator in tape.recorded]


def variable(tape: Tape, *shape: int, dtype: str = "fp32") -> Tensor:
    """A tensor in memory that requires a gradient."""
    start, _ = tape.boundary(tape.new(shape, dtype))
    return start


@given(st.integers(0, 10**12))
def test_allocations_are_whole_blocks(size: int) -> None:
    """The allocator counts the next multiple of its block, never less than what was asked for."""
    assert rounded(size) % ALLOCATION_BYTES == 0
    assert size <= rounded(size) < size + ALLOCATION_BYTES


def test_a_tensor_dies_with_its_last_reference() -> None:
    """Memory is held by views and detached copies, and returns when the last of them goes."""
    tape = Tape()
    x = tape.new((1000,), "fp32")
    view, saved = x.viewed(10, 100), x.detached()
    held = [live_bytes(tape)]
    del x
    held.append(live_bytes(tape))
    del view
    held.append(live_bytes(tape))
    del saved
    assert [*held, live_bytes(tape)] == [4096, 4096, 4096, 0]


def test_what_backward_needs_lives_until_backward() -> None:
    """An activation's input is kept by its history alone and freed once its gradient is done."""
    tape = Tape()
    x = variable(tape, 512)
    y = ops.activation(tape, x, "gelu")
    del x
    assert live_bytes(tape) == 2 * 2048
    gradient = tape.new((512,), "fp32")
    autograd.backward(tape, y, gradient)
    del y, gradient
    assert live_bytes(tape) == 0


def test_without_gradients_nothing_is_kept() -> None:
    """In a region without gradients the input of an activation dies at once."""
    tape = Tape()
    x = variable(tape, 512)
    with tape.mode(grad=False):
        y = ops.activation(tape, x, "gelu")
    del x
    assert y.node is None
    assert live_bytes(tape) == 2048


def test_backward_runs_newest_first() -> None:
    """Backward operators come in the reverse order of their forward operators."""
    tape = Tape()
    x = variable(tape, 8, 8)
    x = ops.activation(tape, x, "relu")
    x = ops.activation(tape, x, "silu")
    x = ops.activation(tape, x, "gelu")
    autograd.backward(tape, x, tape.new((8, 8), "fp32"))
    backward = [name for name in names(tape) if name.endswith("_backward")]
    assert backward == ["gelu_backward", "silu_backward", "relu_backward"]


def test_a_node_waits_for_all_its_gradients() -> None:
    """Where two branches meet, their gradients are summed before the shared part runs."""
    tape = Tape()
    x = variable(tape, 8, 8)
    shared = ops.activation(tape, x, "relu")
    left = ops.activation(tape, shared, "silu")
    right = ops.activation(tape, shared, "gelu")
    autograd.backward(tape, ops.add(tape, left, right), tape.new((8, 8), "fp32"))
    order = names(tape)
    assert order.index("gelu_backward") < order.index("silu_backward")
    assert order.index("silu_backward") < order.index("accumulate")
    assert order.index("accumulate") < order.index("relu_backward")
    assert order.count("accumulate") == 1


def test_gradients_are_summed_in_place_where_they_may_be() -> None:
    """A gradient that nothing else holds is overwritten; one that is a view is not."""
    tape = Tape()
    held = tape.new((1024,), "fp32")
    assert autograd.add_gradients(tape, held) is held
    assert live_bytes(tape) == 4096
    view = held.viewed(1024)
    assert autograd.add_gradients(tape, view) is not view


def test_a_shared_gradient_is_not_overwritten() -> None:
    """A gradient whose memory someone else still holds is summed into new memory."""
    tape = Tape()
    held = tape.new((1024,), "fp32")
    keeper = held.detached()
    out = autograd.add_gradients(tape, held)
    assert out.storage is not held.storage
    assert keeper.storage is held.storage
    assert live_bytes(tape) == 2 * 4096


@pytest.mark.parametrize("accumulate", [False, True])
def test_first_gradient_is_kept_and_later_ones_are_added(accumulate: bool) -> None:
    """Without earlier gradients the new one stays as it is; with them it is added and freed."""
    tape = Tape(accumulate=accumulate)
    weight = tape.parameter((128, 64), "fp32", "w")
    x = variable(tape, 16, 64)
    y = ops.linear(tape, x, weight)
    gradient = tape.new((16, 128), "fp32")
    autograd.backward(tape, y, gradient)
    del x, y, gradient
    assert (weight.grad is None) == accumulate
    assert names(tape).count("accumulate_grad") == accumulate
    assert live_bytes(tape) == (0 if accumulate else 128 * 64 * 4)


def test_a_weight_used_twice_sums_its_gradients() -> None:
    """The second gradient of a tied weight is added to the first, which stays the gradient."""
    tape = Tape()
    weight = tape.parameter((64, 64), "fp32", "w")
    y = ops.linear(tape, ops.linear(tape, variable(tape, 16, 64), weight), weight)
    autograd.backward(tape, y, tape.new((16, 64), "fp32"))
    assert names(tape).count("accumulate_grad") == 1
    assert weight.grad is not None


def test_kept_gradients_are_counted_as_gradients() -> None:
    """A parameter's gradient moves from the activations to the gradients, byte by byte."""
    tape = Tape()
    weight = tape.parameter((128, 64), "fp32", "w")
    y = ops.linear(tape, variable(tape, 16, 64), weight)
    autograd.backward(tape, y, tape.new((16, 128), "fp32"))
    del y
    tape.emit("end", ())
    changes: dict[str, int] = {}
    for operator in tape.recorded:
        for category, change in operator.memory:
            changes[category] = changes.get(category, 0) + change
    assert changes == {"activations": 0, "gradients": 128 * 64 * 4}


def test_backward_runs_once() -> None:
    """A second backward through the same output is refused."""
    tape = Tape()
    y = ops.activation(tape, variable(tape, 8), "relu")
    autograd.backward(tape, y, tape.new((8,), "fp32"))
    with pytest.raises(ValueError, match="backward needs an output with history"):
        autograd.backward(tape, y, tape.new((8,), "fp32"))


def test_muted_work_leaves_history_only() -> None:
    """What recomputation leaves out is neither launched nor allocated, but has a gradient."""
    tape = Tape()
    x = variable(tape, 16, 64)
    weight = tape.parameter((64, 64), "fp32", "w")
    before, operators = live_bytes(tape), len(tape.recorded)
    with tape.mode(muted=True):
        y = ops.linear(tape, x, weight)
    assert (live_bytes(tape), len(tape.recorded)) == (before, operators)
    autograd.backward(tape, y, tape.new((16, 64), "fp32"))
    products = [k for op in tape.recorded for k in op.kernels if isinstance(k, Gemm)]
    assert [k.layout for k in products] == ["nn", "tn"] or [k.layout for k in products] == [
        "tn", "nn",
    ]  # fmt: skip


def test_modes_end_with_their_block() -> None:
    """Phase, gradients and muting are as before once the block is left."""
    tape = Tape()
    with tape.mode(phase="backward", grad=False, muted=True):
        assert (tape.phase, tape.grad_enabled, tape.muted) == ("backward", False, True)
    assert (tape.phase, tape.grad_enabled, tape.muted) == ("forward", True, False)


def test_a_segment_holds_its_operators_and_its_last_releases() -> None:
    """What is freed at the end of a segment is recorded inside it."""
    tape, found = Tape(), list[Segment]()
    with tape.segment("part", found):
        x = tape.new((1000,), "fp32")
        tape.emit("op", [Stream("scalar", 1, 1, 0, 0)])
        del x
    assert [operator.name for operator in found[0].operators] == ["op", "release"]
    assert sum(change for op in found[0].operators for _, change in op.memory) == 0
    assert tape.recorded == []
