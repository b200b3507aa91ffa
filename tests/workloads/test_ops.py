"""Operators as the framework runs them: which kernels, which casts, which splits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads import autograd, ops, vision_ops
from workloads.kernels import Attention, Convolution, Gemm, Stream
from workloads.ops import INDEX_LIMIT_BYTES
from workloads.tape import Tape, Tensor


def kinds(tape: Tape) -> list[str]:
    """What the recorded kernels are, in order: code path of a stream, class name of the others."""
    kernels = [kernel for operator in tape.recorded for kernel in operator.kernels]
    return [k.kind if isinstance(k, Stream) else type(k).__name__ for k in kernels]


def variable(tape: Tape, *shape: int, dtype: str = "bf16") -> Tensor:
    """A tensor in memory that requires a gradient."""
    start, _ = tape.boundary(tape.new(shape, dtype))
    return start


def backward(tape: Tape, y: Tensor) -> list[str]:
    """Run backward and return the kinds of its kernels."""
    done = len(kinds(tape))
    autograd.backward(tape, y, tape.new(y.shape, y.dtype))
    return kinds(tape)[done:]


@given(st.integers(1, 2**34), st.sampled_from((2, 4, 8)))
def test_kernels_are_split_for_32_bit_indexing(elements: int, size: int) -> None:
    """Pieces are a power of two, each small enough to index, none needlessly small."""
    kernel = Stream("add_float", elements, 1, elements * size, elements * size)
    found = ops.pieces(kernel, elements * size)
    assert len(found) & (len(found) - 1) == 0
    assert elements * size / len(found) <= INDEX_LIMIT_BYTES
    if len(found) > 1:
        assert 2 * elements * size / len(found) > INDEX_LIMIT_BYTES


@given(st.integers(0, 34))
def test_splitting_keeps_the_traffic(exponent: int) -> None:
    """The pieces of a kernel move together what the whole would."""
    elements = 2**exponent
    kernel = Stream("add_float", elements, 1, 8 * elements, 4 * elements)
    found = ops.pieces(kernel, 4 * elements)
    assert sum(k.hbm_bytes for k in found) == 12 * elements
    assert sum(k.elements for k in found if isinstance(k, Stream)) == elements


def test_split_boundary() -> None:
    """An operand of exactly the limit is one kernel, one byte more is two."""
    kernel = Stream("fill_float", 2**29, 1, 0, 2**31)
    assert len(ops.pieces(kernel, INDEX_LIMIT_BYTES)) == 1
    assert len(ops.pieces(kernel, INDEX_LIMIT_BYTES + 1)) == 2


def test_casts_happen_only_under_autocast() -> None:
    """A linear layer on fp32 tensors casts input and weight under autocast, and never without."""
    found = {}
    for autocast in (None, "bf16"):
        tape = Tape(autocast=autocast)
        weight = tape.parameter((64, 64), "fp32", "w")
        ops.linear(tape, variable(tape, 8, 64, dtype="fp32"), weight)
        found[autocast] = kinds(tape)
    assert found == {None: ["Gemm"], "bf16": ["cast_to_half", "cast_to_half", "Gemm"]}


def test_a_weight_is_cast_once_in_a_region() -> None:
    """Autocast keeps the copy of a parameter, not that of an activation."""
    tape = Tape(autocast="bf16")
    weight = tape.parameter((64, 64), "fp32", "w")
    x = variable(tape, 8, 64, dtype="fp32")
    for _ in range(3):
        ops.linear(tape, x, weight)
    assert kinds(tape).count("cast_to_half") == 1 + 3


def test_weight_gradients_return_to_the_dtype_of_the_parameter() -> None:
    """Under autocast the bf16 gradient of an fp32 weight is cast back to fp32."""
    tape = Tape(autocast="bf16")
    weight = tape.parameter((64, 64), "fp32", "w")
    y = ops.linear(tape, variable(tape, 8, 64), weight)
    assert "cast_to_float" in backward(tape, y)
    assert weight.grad is not None
    assert weight.grad.dtype == "fp32"


def test_cast_to_the_same_dtype_is_free() -> None:
    """``to`` without a change of dtype launches nothing and returns the tensor itself."""
    tape = Tape()
    x = variable(tape, 8)
    assert ops.cast(tape, x, "bf16") is x
    assert kinds(tape) == []


@pytest.mark.parametrize("bias", [False, True])
def test_linear_is_one_product_forward_and_two_backward(bias: bool) -> None:
    """A bias rides in the forward product and is a column sum backward."""
    tape = Tape()
    weight = tape.parameter((32, 64), "bf16", "w")
    y = ops.linear(
        tape, variable(tape, 8, 64), weight, tape.parameter((32,), "bf16", "b") if bias else None
    )
    assert kinds(tape) == ["Gemm"]
    assert backward(tape, y) == ["Gemm", "Gemm", *(["memset", "column_sum_half"] if bias else [])]
    products = [k for op in tape.recorded for k in op.kernels if isinstance(k, Gemm)]
    shapes = {k.layout: (k.m, k.n, k.k) for k in products}
    assert shapes == {"nt": (8, 32, 64), "nn": (8, 64, 32), "tn": (32, 64, 8)}
    assert [k.bias for k in products] == [bias, False, False]


def test_input_that_needs_no_gradient_gets_none() -> None:
    """The first layer of a network computes the gradient of its weight only."""
    tape = Tape()
    x = tape.new((8, 64), "bf16")
    y = ops.linear(tape, x, tape.parameter((32, 64), "bf16", "w"))
    assert backward(tape, y) == ["Gemm"]


def test_residual_addition_of_two_precisions_casts_its_gradient() -> None:
    """fp32 + bf16 is fp32; backward casts the gradient of the bf16 side."""
    tape = Tape()
    y = ops.add(tape, variable(tape, 8, dtype="fp32"), variable(tape, 8))
    assert y.dtype == "fp32"
    assert kinds(tape) == ["add_mixed"]
    assert backward(tape, y) == ["cast_to_half"]


def test_broadcast_addition_sums_its_gradient() -> None:
    """A bias of fewer elements receives the column sum of the gradient."""
    tape = Tape()
    y = ops.add(tape, variable(tape, 4, 16, 8), variable(tape, 16, 8))
    assert backward(tape, y) == ["column_sum_half"]


@pytest.mark.parametrize("shared", [1, 4])
def test_attention_is_fused_both_ways(shared: int) -> None:
    """One kernel forward; backward has its dot product and conversion, and sums shared heads."""
    tape = Tape()
    q = variable(tape, 2, 8, 128, 64)
    k, v = (variable(tape, 2, 8 // shared, 128, 64) for _ in range(2))
    y = ops.attention(tape, q, k, v)
    assert kinds(tape) == ["memset", "Attention"]
    expected = ["memset", "attention_dot", "Attention", "attention_convert"]
    expected += ["attention_reduce_heads"] * 2 if shared > 1 else []
    assert backward(tape, y) == expected
    found = [k for op in tape.recorded for k in op.kernels if isinstance(k, Attention)]
    assert [k.direction for k in found] == ["forward", "backward"]


def test_transposing_and_splitting_move_nothing() -> None:
    """Views of a packed projection launch no kernel; backward concatenates their gradients once."""
    tape = Tape()
    packed = variable(tape, 2, 128, 3 * 256)
    q, k, v = (ops.heads_first(tape, part, 4) for part in ops.split(tape, packed, [256] * 3))
    y = ops.attention(tape, q, k, v)
    assert kinds(tape) == ["memset", "Attention"]
    assert backward(tape, y)[-1] == "cat_half"
    assert kinds(tape).count("cat_half") == 1


@given(st.lists(st.integers(1, 64), min_size=1, max_size=6))
def test_slices_have_the_sizes_asked_for(sizes: list[int]) -> None:
    """Slices are views of their sizes in order; the joined gradient is as wide as the whole."""
    tape = Tape()
    packed, leaf = tape.boundary(tape.new((2, 8, sum(sizes)), "bf16"))
    slices = ops.split(tape, packed, sizes)
    assert [part.shape for part in slices] == [(2, 8, size) for size in sizes]
    assert all(part.storage is packed.storage for part in slices)
    for part in slices:
        autograd.backward(tape, part, tape.new(part.shape, "bf16"))
    assert kinds(tape) == ["cat_half"]
    assert leaf.grad is not None
    assert leaf.grad.shape == packed.shape


def test_rotary_embedding_is_computed_in_fp32() -> None:
    """Cast, four products, two sums, concatenation, cast back; backward negates one half."""
    tape = Tape()
    y = ops.rotary(tape, variable(tape, 2, 4, 128, 64))
    half = ["mul_broadcast", "mul_broadcast", "add_float"]
    assert kinds(tape) == ["cast_to_float", *half, *half, "cat_last", "cast_to_half"]
    assert backward(tape, y).count("neg_strided") == 1


def test_the_gradient_of_a_large_embedding_sorts_its_indices() -> None:
    """Up to 3,072 indices are added directly; more are sorted first."""
    few = ops.embedding_backward(3072, 1000, 64, "bf16")
    many = ops.embedding_backward(3073, 1000, 64, "bf16")
    assert len(few) == 2
    assert sum(isinstance(k, Stream) and k.kind == "index_sort" for k in many) == 12


def test_cross_entropy_runs_on_all_logits_twice_each_way() -> None:
    """Log-softmax and likelihood forward, zero fill and their gradients backward."""
    tape = Tape()
    loss = ops.cross_entropy(tape, variable(tape, 64, 1000, dtype="fp32"))
    assert kinds(tape) == ["log_softmax", "nll"]
    assert backward(tape, loss) == ["fill_float", "nll_backward", "log_softmax_backward"]


@pytest.mark.parametrize(
    ("dtype", "forward", "back"),
    [
        ("bf16", ["batch_norm_statistics_native", "batch_norm_transform_native"],
         ["batch_norm_reduce_native", "batch_norm_elementwise_native"]),
        ("fp16", ["batch_norm_forward_cudnn_half"], ["batch_norm_backward_cudnn_half"]),
        ("fp32", ["batch_norm_forward_cudnn_float"], ["batch_norm_backward_cudnn_float"]),
    ],
)  # fmt: skip
def test_batch_norm_library_depends_on_the_dtype(
    dtype: str, forward: list[str], back: list[str]
) -> None:
    """cuDNN normalises fp16 and fp32; bf16 runs in the framework's own two kernels."""
    tape = Tape()
    scale, shift = (tape.parameter((8,), "fp32", "p") for _ in range(2))
    y = vision_ops.batch_norm(tape, variable(tape, 2, 8, 14, 14, dtype=dtype), scale, shift)
    normalising = [kind for kind in kinds(tape) if kind.startswith("batch_norm")]
    assert normalising == forward
    assert [kind for kind in backward(tape, y) if kind.startswith("batch_norm")] == back


def test_only_images_are_padded() -> None:
    """Three input channels are padded before the tensor cores, for the input and its gradient."""
    for channels, pads in ((3, 2), (64, 0)):
        tape = Tape()
        weight = tape.parameter((64, channels, 3, 3), "fp16", "w")
        x = tape.new((2, channels, 32, 32), "fp16")
        backward(tape, vision_ops.convolution(tape, x, weight, 1))
        assert kinds(tape).count("pad_channels") == pads
        done = [k for op in tape.recorded for k in op.kernels if isinstance(k, Convolution)]
        assert [k.direction for k in done] == ["fprop", "wgrad"]


def test_in_place_operators_allocate_nothing() -> None:
    """In-place ReLU and addition write into their operand's memory."""
    tape = Tape()
    x, y = (variable(tape, 2, 8, 4, 4) for _ in range(2))
    before = len(tape.pending)
    out = vision_ops.relu_(tape, vision_ops.add_(tape, x, y))
    allocated = [c for op in tape.recorded for _, c in op.memory[before:]] + [
        c for _, c in tape.pending
    ]
    assert out.storage is x.storage
    assert allocated == []
