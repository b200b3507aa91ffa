"""The update: multi-tensor launches cut as the framework cuts them, and the bytes they move."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.kernels import Stream
from workloads.optimizer import (
    CHUNK_ELEMENTS,
    MAX_BLOCKS,
    MAX_TENSORS,
    adamw,
    clip_gradients,
    launches,
    multi_tensor,
    sgd_momentum,
    unscale_gradients,
)
from workloads.tape import Tape, Tensor

sizes = st.lists(st.integers(1, 60 * CHUNK_ELEMENTS), min_size=1, max_size=150)
depths = st.sampled_from(sorted(MAX_TENSORS))


def chunk_by_chunk(tensors: Sequence[int], max_tensors: int) -> list[int]:
    """The framework's loop, one chunk at a time: elements of each launch.

    A launch goes out when its blocks are full, when its tensors are full at the end of a tensor,
    or after the last chunk; a tensor that was cut opens the next launch.
    """
    result: list[int] = []
    blocks = held = elements = 0
    for index, size in enumerate(tensors):
        held += 1
        chunks = -(-size // CHUNK_ELEMENTS)
        for chunk in range(chunks):
            blocks += 1
            elements += min(CHUNK_ELEMENTS, size - chunk * CHUNK_ELEMENTS)
            ends = chunk == chunks - 1
            last = ends and index == len(tensors) - 1
            if blocks == MAX_BLOCKS or (ends and held == max_tensors) or last:
                result.append(elements)
                blocks = elements = 0
                held = 0 if ends else 1
    return result


@given(sizes, depths)
def test_launches_are_those_of_the_loop_over_chunks(tensors: list[int], depth: int) -> None:
    """Launch by launch, the arithmetic equals the framework's loop over single chunks."""
    assert launches(tensors, depth) == chunk_by_chunk(tensors, MAX_TENSORS[depth])


@given(sizes, depths)
def test_every_element_is_in_exactly_one_launch(tensors: list[int], depth: int) -> None:
    """Launches cover all elements, and none is larger than its blocks allow."""
    found = launches(tensors, depth)
    assert sum(found) == sum(tensors)
    assert max(found) <= MAX_BLOCKS * CHUNK_ELEMENTS
    assert min(found) > 0


def test_launch_boundaries() -> None:
    """One more tensor, or one more element, than a launch takes makes a second launch."""
    full = MAX_BLOCKS * CHUNK_ELEMENTS
    assert launches([full], 4) == [full]
    assert launches([full + 1], 4) == [full, 1]
    assert launches([1] * MAX_TENSORS[4], 4) == [MAX_TENSORS[4]]
    assert launches([1] * (MAX_TENSORS[4] + 1), 4) == [MAX_TENSORS[4], 1]
    assert launches([], 4) == []


def test_deeper_lists_leave_room_for_fewer_tensors() -> None:
    """The kernel's argument space is shared by the lists: more lists, fewer tensors a launch."""
    counts = [len(launches([1] * 220, depth)) for depth in sorted(MAX_TENSORS)]
    assert counts == sorted(counts)
    assert counts[0] == 2


@given(sizes, depths, st.integers(0, 16), st.integers(0, 16))
def test_traffic_is_bytes_for_each_element(
    tensors: list[int], depth: int, reads: int, writes: int
) -> None:
    """However it is cut, a multi-tensor operator moves its bytes for each element."""
    kernels = multi_tensor("foreach_mul_float", tensors, depth, reads, writes)
    assert sum(k.hbm_bytes for k in kernels) == sum(tensors) * (reads + writes)


def parameters(sizes_: Sequence[int], dtype: str) -> list[Tensor]:
    """Parameters of these sizes."""
    tape = Tape()
    return [tape.parameter((n,), dtype, "p") for n in sizes_]


@pytest.mark.parametrize(("dtype", "size"), [("fp32", 4), ("bf16", 2)])
def test_adamw_reads_four_values_and_writes_three(dtype: str, size: int) -> None:
    """Parameter, gradient and two moments are read; all but the gradient are written."""
    tape = Tape(phase="optimizer")
    adamw(tape, parameters([1000, 5_000_000], dtype))
    update = tape.recorded[-1]
    assert sum(k.hbm_bytes for k in update.kernels) == 7 * size * 5_001_000
    assert update.units == 2


@pytest.mark.parametrize("step", [adamw, sgd_momentum, clip_gradients, unscale_gradients])
def test_update_operators_belong_to_the_optimizer(step: object) -> None:
    """Every operator of an update is of the optimizer phase and knows how many tensors it has."""
    tape = Tape(phase="optimizer")
    assert callable(step)
    step(tape, parameters([3, 70_000, 5], "fp32"))
    assert {operator.phase for operator in tape.recorded} == {"optimizer"}
    assert max(operator.units for operator in tape.recorded) == 3


def test_only_the_loss_scaler_waits_for_the_gpu() -> None:
    """Unscaling reads a flag on the host; clipping and the optimizers do not synchronise."""
    waiting = {}
    for step in (adamw, sgd_momentum, clip_gradients, unscale_gradients):
        tape = Tape(phase="optimizer")
        step(tape, parameters([100], "fp32"))
        waiting[step.__name__] = any(operator.synchronises for operator in tape.recorded)
    assert waiting == {
        "adamw": False, "sgd_momentum": False, "clip_gradients": False, "unscale_gradients": True,
    }  # fmt: skip


def test_clipping_reads_all_gradients_twice_and_writes_them_once() -> None:
    """One pass for the norms, one pass that scales in place."""
    tape = Tape(phase="optimizer")
    clip_gradients(tape, parameters([10_000_000, 7], "fp32"))
    large = [k for op in tape.recorded for k in op.kernels if "foreach" in _kind(k)]
    assert sum(k.hbm_bytes for k in large) == 3 * 4 * 10_000_007


def _kind(kernel: object) -> str:
    return kernel.kind if isinstance(kernel, Stream) else ""
