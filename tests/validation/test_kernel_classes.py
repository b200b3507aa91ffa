"""Kernel classes of names that are easy to mistake."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from validation.kernel_classes import CLASSES, classify

NATIVE = "void at::native::"
HIDDEN = NATIVE + "(anonymous namespace)::"
MULTI = HIDDEN + "multi_tensor_apply_kernel<at::native::(anonymous namespace)::"

NAMES = [
    ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "gemm"),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, float>", "gemm"),
    ("void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16_128x128_64x5_nt_align8>", "gemm"),
    ("void gemv2T_kernel_val<int, int, float>", "gemm"),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26", "attention"),
    ("void cudnn::fusion::compute_dot_do_o_specialized<true, 64>(void const*", "attention"),
    ("void cudnn::fusion::convert_dq_to_16bits<true>(void const*", "attention"),
    ("void cudnn::fusion::fmha_reduce_head<true>(void const*", "attention"),
    ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>", "attention"),
    ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention", "attention"),
    ("sm90_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc", "convolution"),
    ("sm90_xmma_wgrad_image_first_layer_f16f16_f32_f32_nhwckrsc", "convolution"),
    ("void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized", "convolution"),
    ("void nhwcAddPaddingKernel<__half, __half, float, true>", "convolution"),
    ("void cudnn::batchnorm_bwtr_nhwc_semiPersist<__half, float>", "batch_norm"),
    (NATIVE + "batch_norm_collect_statistics_channels_last_kernel<at::native::Var", "batch_norm"),
    ("triton_red_fused__native_batch_norm_legit_functional_29", "batch_norm"),
    ("triton_poi_fused__native_batch_norm_legit_functional_add_relu_18", "elementwise"),
    ("triton_poi_fused_gelu_view_2", "elementwise"),
    ("triton_red_fused_native_layer_norm_0", "normalization"),
    ("triton_per_fused__fused_rms_norm__fused_rms_norm_backward_add_6", "normalization"),
    ("triton_red_fused_sum_view_7", "reduction"),
    ("triton_red_fused__log_softmax_3", "softmax_loss"),
    ("triton_tem_fused_flex_attention_0", "attention"),
    ("triton_tem_fused_mm_4", "gemm"),
    (NATIVE + "vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel", "elementwise"),
    (NATIVE + "unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(", "elementwise"),
    (NATIVE + "elementwise_kernel<4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy",
     "copy"),
    (NATIVE + "vectorized_elementwise_kernel<4, at::native::FillFunctor<float>", "elementwise"),
    (HIDDEN + "CatArrayBatchedCopy<at::native::", "copy"),
    (NATIVE + "detail::chunk_cat_cuda_kernel<float, c10::BFloat16>", "copy"),
    ("Memcpy DtoD (Device -> Device)", "copy"),
    ("Memset (Device)", "memset"),
    (HIDDEN + "layer_norm_grad_input_kernel_vectorized<float", "normalization"),
    (HIDDEN + "GammaBetaBackwardCUDAKernelTemplate<c10", "normalization"),
    (HIDDEN + "cunn_SoftMaxBackward<4, float", "softmax_loss"),
    (HIDDEN + "nll_loss_forward_reduce_cuda_kernel_2d<float", "softmax_loss"),
    (NATIVE + "reduce_kernel<128, 4, at::native::ReduceOp<float", "reduction"),
    (HIDDEN + "max_pool_backward_nhwc<c10::Half, float>", "reduction"),
    (NATIVE + "vectorized_gather_kernel<16, long>(char*", "embedding"),
    ("void at_cuda_detail::cub::detail::radix_sort::DeviceRadixSortOnesweepKernel<", "embedding"),
    (MULTI + "FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor", "optimizer"),
    (MULTI + "TensorListMetadata<1>, at::native::LpNormFunctor<c10::BFloat16", "optimizer"),
    (MULTI + "TensorListMetadata<2>, at::native::(anonymous namespace)::CopyFunctor<float", "copy"),
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "collective"),
    ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*", "collective"),
    ("my_own_kernel", "other"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), NAMES)
def test_names_have_their_class(name: str, kind: str) -> None:
    """Each of these kernel names, met in traces, is of the class that a person would say."""
    assert classify(name) == kind


@pytest.mark.parametrize(
    ("name", "op", "kind"),
    [
        ("nvjet_sm90_tst_256x128_64x4", "aten::cudnn_convolution", "convolution"),
        ("void cublasLt::splitKreduce_kernel<32", "aten::convolution_backward", "convolution"),
        ("nvjet_sm90_tst_256x128_64x4", "aten::addmm", "gemm"),
        ("Memset (Device)", "aten::convolution_backward", "memset"),
        (MULTI + "TensorListMetadata<2>, UnaryOpFunctor", "aten::_foreach_copy_", "copy"),
        (MULTI + "TensorListMetadata<1>, BinaryOpScalar", "aten::_foreach_mul_", "optimizer"),
    ],
)
def test_the_launching_operator_decides_where_names_do_not(name: str, op: str, kind: str) -> None:
    """Ambiguous names are resolved by the operator; others keep the class of their name."""
    assert classify(name, op) == kind


@given(st.text(max_size=60), st.none() | st.text(max_size=20))
def test_any_name_has_a_known_class(name: str, op: str | None) -> None:
    """Whatever the names, the class is one of the listed ones."""
    assert classify(name, op) in CLASSES
