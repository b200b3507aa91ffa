"""The kernel vocabulary: FLOPs, bytes and names follow from shapes alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import attentions, convolutions, gemms
from workloads.kernels import (
    DTYPE_BYTES,
    Attention,
    Convolution,
    Gemm,
    Stream,
    dtype_bytes,
    elementwise,
)


@given(gemms())
def test_gemm_counts_a_multiply_add_as_two(gemm: Gemm) -> None:
    """FLOPs are 2 m n k for each product; traffic is each operand and the result once."""
    assert gemm.flops == 2.0 * gemm.m * gemm.n * gemm.k * gemm.batch
    elements = gemm.m * gemm.k + gemm.k * gemm.n + gemm.m * gemm.n
    assert gemm.hbm_bytes == 2 * gemm.batch * elements


@given(gemms())
def test_gemm_layout_does_not_change_the_work(gemm: Gemm) -> None:
    """The three passes of a linear layer have equal FLOPs and traffic."""
    turned = replace(gemm, layout="tn", m=gemm.n, n=gemm.k, k=gemm.m)
    assert (turned.flops, turned.hbm_bytes) == (gemm.flops, gemm.hbm_bytes)


@given(attentions())
def test_attention_backward_is_two_and_a_half_forwards(kernel: Attention) -> None:
    """Backward recomputes the scores and has four products: five in all against two."""
    forward = replace(kernel, direction="forward")
    backward = replace(kernel, direction="backward")
    assert backward.flops == 2.5 * forward.flops
    assert backward.hbm_bytes > 2 * forward.hbm_bytes


@given(attentions())
def test_causal_attention_is_half_of_full(kernel: Attention) -> None:
    """The mask halves the FLOPs and leaves the traffic."""
    causal, full = replace(kernel, causal=True), replace(kernel, causal=False)
    assert 2 * causal.flops == full.flops
    assert causal.hbm_bytes == full.hbm_bytes


@given(attentions())
def test_sharing_keys_saves_traffic_only(kernel: Attention) -> None:
    """Grouped queries never add traffic and have the FLOPs of one key head for each head."""
    own = replace(kernel, kv_heads=kernel.heads)
    assert kernel.flops == own.flops
    assert kernel.hbm_bytes <= own.hbm_bytes


@given(convolutions())
def test_convolution_directions_do_equal_work(kernel: Convolution) -> None:
    """Forward and weight gradient are the same products: the implicit GEMM has all the FLOPs."""
    for direction in ("fprop", "wgrad"):
        turned = replace(kernel, direction=direction)
        m, n, k = turned.gemm_shape
        assert 2.0 * m * n * k == turned.flops == kernel.flops


@given(convolutions())
def test_input_gradient_has_the_forward_work(kernel: Convolution) -> None:
    """Where the stride divides the image, the input gradient's implicit GEMM has all the FLOPs."""
    kernel = replace(kernel, direction="dgrad", size=kernel.size // 2 * 2, cout=512)
    m, n, k = kernel.gemm_shape
    assert 2.0 * m * n * k == kernel.flops


def test_convolution_of_the_first_layer() -> None:
    """ResNet's 7 x 7 convolution with stride 2 turns 224 pixels into 112."""
    kernel = Convolution(1, 3, 64, 7, 2, 224, "fp16", "fprop")
    assert kernel.out_size == 112
    assert kernel.gemm_shape == (112 * 112, 64, 147)
    assert kernel.flops == 2 * 112 * 112 * 64 * 147


@given(st.integers(0, 10**9), st.integers(0, 16), st.integers(0, 16))
def test_elementwise_traffic_is_bytes_for_each_element(n: int, reads: int, writes: int) -> None:
    """A stream over n elements moves (reads + writes) n bytes and does no tensor work."""
    kernel = elementwise("add_half", n, reads, writes)
    assert (kernel.hbm_bytes, kernel.elements, kernel.flops) == (n * (reads + writes), n, 0.0)


@pytest.mark.parametrize(
    ("kernel", "label"),
    [
        (Gemm(8, 16, 32, "bf16", "tn"), "gemm_bf16_tn_8x16x32"),
        (Stream("gelu_half", 3, 5, 0, 0), "gelu_half_3x5"),
        (
            Attention(2, 128, 128, 4, 4, 64, True, "bf16", "backward"),
            "flash_attention_backward_bf16_2x128x4x64",
        ),
        (Convolution(8, 64, 256, 1, 1, 56, "bf16", "dgrad"), "conv_dgrad_bf16_8x64x56x56_256x1s1"),
    ],
)
def test_labels_say_what_runs(kernel: Gemm | Stream | Attention | Convolution, label: str) -> None:
    """A kernel's label has its kind, precision and shape, as timelines show it."""
    assert kernel.label == label


def test_unknown_dtype_is_refused() -> None:
    """A dtype without a size is one clear error."""
    with pytest.raises(ValueError, match=r"dtype must be one of .* \(got 'fp128'\)"):
        dtype_bytes("fp128")
    assert {dtype_bytes(name) for name in DTYPE_BYTES} == {1, 2, 4, 8}
