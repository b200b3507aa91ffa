"""What a GPU kernel does, from its name and the operator that launched it.

One ordered table of name patterns, first match wins. Names may be cut short (records keep 110
characters), so patterns look at the beginning of a name where they can. Decisions behind it:

- A kernel of the GEMM libraries (nvjet, cutlass, xmma, split-K reductions, paddings) that a
  convolution operator launched is a `convolution`; by its name alone it would be a `gemm`.
- Element-wise kernels that change the type of their operand (casts) are `elementwise`; kernels
  that move values unchanged (strided copies, concatenation, splits, memcpy) are `copy`. Kernels
  that fill a buffer with a constant are `elementwise`, `memset` is the driver's memset only.
- Triton kernels say which fused operators they hold: point-wise ones (`triton_poi`) are
  `elementwise` whatever they fuse; reducing ones (`triton_red`, `triton_per`) are named by the
  reduction that decides their traffic (batch norm, layer or RMS norm, softmax or loss, embedding)
  and are `reduction` otherwise; templates (`triton_tem`, `triton_mm`) are `gemm` or `attention`.
- Multi-tensor kernels (fused optimizers, gradient norms, clipping, unscaling) are `optimizer`, but
  those of `_foreach_copy_` (FSDP's copies into communication buffers) are `copy`.
- Sorting and scanning kernels of CUB are `embedding`: in a training step the gradient of an
  embedding table is what sorts.
- Pooling is `reduction`, over the pooling window.
"""

from __future__ import annotations

import re

CLASSES = (
    "gemm",
    "attention",
    "convolution",
    "batch_norm",
    "elementwise",
    "normalization",
    "softmax_loss",
    "reduction",
    "embedding",
    "optimizer",
    "copy",
    "memset",
    "collective",
    "other",
)
"""Every class, in the order of a report."""

_PATTERNS: tuple[tuple[str, str], ...] = (
    ("collective", r"nccl|rccl|one_shot_all_|two_shot_all_|multimem_(all|one_shot)|cross_device_r"),
    ("memset", r"memset"),
    ("copy", r"memcpy|^copybuffer"),
    ("attention", r"^triton_tem.*attention"),
    ("gemm", r"^triton_(tem|mm)"),
    ("elementwise", r"^triton_poi"),
    ("batch_norm", r"^triton_(red|per).*batch_norm"),
    ("normalization", r"^triton_(red|per).*(layer_norm|rms_norm|group_norm)"),
    ("softmax_loss", r"^triton_(red|per).*(softmax|nll_loss|cross_entropy)"),
    ("embedding", r"^triton_(red|per).*embedding"),
    ("reduction", r"^triton_(red|per)"),
    ("optimizer", r"^triton_for"),
    ("attention", r"sdpa|fmha|flash_?(fwd|bwd|attn|attention|fprop|bprop)|flash::|efficient_att"),
    ("attention", r"compute_dot_do_o|convert_dq|attention"),
    ("batch_norm", r"batch_?norm|bn_(fw|bw)"),
    ("copy", r"multi_tensor_apply_kernel.*CopyFunctor"),
    ("optimizer", r"multi_tensor|FusedOptimizer|fused_(adam|sgd)|amp_update_scale|lpnorm"),
    ("normalization", r"layer_?norm|rms_?norm|group_?norm|GammaBeta|RowwiseMoments"),
    ("softmax_loss", r"softmax|nll_loss|cross_entropy|crossentropy"),
    ("embedding", r"embedding|index_?select|gather_kernel|compute_grad_weight|sum_and_scatter"),
    ("embedding", r"krn_partial|partial_segments|radix_sort|unique_by_key|::scan::|segmented_sort"),
    ("reduction", r"pool|adaptive_average"),
    ("copy", r"CatArray|chunk_cat|split_with_sizes_copy|gpu_kernel_impl_nocast<\S*direct_copy"),
    ("copy", r"nchwToNhwc|nhwcToNchw"),
    ("elementwise", r"elementwise_kernel|fused_dropout|fillfunctor|distribution_"),
    ("convolution", r"fprop|dgrad|wgrad|conv(?!ert)|implicit_gemm|winograd|nhwcAddPadding"),
    ("convolution", r"xmma__\w+::init_device_workspace|_cudnn::reduction|miopen"),
    ("convolution", r"[sh]cudnn_|cask_cudnn"),
    ("gemm", r"nvjet|gemm|gemv|cutlass|xmma|splitk|Cijk_|cublas|dot_kernel|^void gett|bmm"),
    ("reduction", r"reduce|reduction|cub::"),
)  # fmt: skip
_TABLE = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _PATTERNS)

_CONVOLUTION_OPERATOR = re.compile(r"convolution|aten::_?conv\d?d|slow_conv", re.IGNORECASE)
_COPYING_OPERATORS = frozenset({"aten::_foreach_copy_"})


def classify(name: str, op: str | None = None) -> str:
    """The class of a kernel, one of `CLASSES`; ``op`` is the operator that launched it, if known.

    Kernels that no pattern knows are `other`.
    """
    kind = next((kind for kind, pattern in _TABLE if pattern.search(name)), "other")
    if op is None:
        return kind
    if kind == "gemm" and _CONVOLUTION_OPERATOR.search(op):
        return "convolution"
    if kind == "optimizer" and op in _COPYING_OPERATORS:
        return "copy"
    return kind
