"""The kernel vocabulary: what a GPU is asked to run, as shapes and bytes, never as seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass

DTYPE_BYTES = {
    "fp64": 8, "int64": 8, "fp32": 4, "tf32": 4, "int32": 4, "fp16": 2, "bf16": 2, "fp8": 1,
    "int8": 1, "bool": 1,
}  # fmt: skip


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element of ``dtype``; raises ValueError for an unknown name."""
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"dtype must be one of {sorted(DTYPE_BYTES)} (got {dtype!r})")
    return DTYPE_BYTES[dtype]


@dataclass(frozen=True, slots=True)
class Gemm:
    """``batch`` products C[m,n] = A[m,k] B[k,n] on the tensor cores.

    ``layout`` names the operands' memory order as in a linear layer: ``nt`` (forward), ``nn``
    (input gradient), ``tn`` (weight gradient).
    """

    m: int
    n: int
    k: int
    dtype: str
    layout: str = "nt"
    bias: bool = False
    batch: int = 1

    @property
    def flops(self) -> float:
        """Floating-point operations, a multiply-add counted as two."""
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def hbm_bytes(self) -> float:
        """Compulsory HBM traffic: each operand read once, the result written once."""
        size = dtype_bytes(self.dtype)
        return float(size * self.batch * (self.m * self.k + self.k * self.n + self.m * self.n))

    @property
    def label(self) -> str:
        """Short name with shapes, for timelines."""
        return f"gemm_{self.dtype}_{self.layout}_{self.m}x{self.n}x{self.k}"


@dataclass(frozen=True, slots=True)
class Attention:
    """Main kernel of fused (flash) attention over ``batch`` sequences.

    ``direction`` is ``forward`` or ``backward``; queries have ``heads`` heads, keys and values
    ``kv_heads``; ``causal`` halves the work.
    """

    batch: int
    seq: int
    kv_seq: int
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool
    dtype: str
    direction: str

    @property
    def flops(self) -> float:
        """Floating-point operations done: 2 products forward, 5 backward, half when causal."""
        products = 2.0 if self.direction == "forward" else 5.0
        pairs = self.batch * self.heads * self.seq * self.kv_seq * (0.5 if self.causal else 1.0)
        return products * 2.0 * pairs * self.head_dim

    @property
    def hbm_bytes(self) -> float:
        """Compulsory HBM traffic of the operands of this direction."""
        size = dtype_bytes(self.dtype)
        q = self.batch * self.heads * self.seq * self.head_dim * size
        kv = self.batch * self.kv_heads * self.kv_seq * self.head_dim * size
        if self.direction == "forward":
            return float(2 * q + 2 * kv)
        return float(3 * q + 2 * kv + 2 * q + 2 * kv)

    @property
    def label(self) -> str:
        """Short name with shapes, for timelines."""
        shape = f"{self.batch}x{self.seq}x{self.heads}x{self.head_dim}"
        return f"flash_attention_{self.direction}_{self.dtype}_{shape}"


@dataclass(frozen=True, slots=True)
class Convolution:
    """A square 2-D convolution in NHWC; ``size`` is the input's height and width.

    ``direction`` is ``fprop``, ``dgrad`` (input gradient) or ``wgrad`` (weight gradient).
    """

    batch: int
    cin: int
    cout: int
    kernel: int
    stride: int
    size: int
    dtype: str
    direction: str

    @property
    def out_size(self) -> int:
        """Height and width of the output with same-style padding."""
        return (self.size + 2 * (self.kernel // 2) - self.kernel) // self.stride + 1

    @property
    def gemm_shape(self) -> tuple[int, int, int]:
        """(m, n, k) of the equivalent implicit GEMM of this direction."""
        pixels, taps = self.batch * self.out_size**2, self.kernel**2
        if self.direction == "fprop":
            return pixels, self.cout, self.cin * taps
        if self.direction == "dgrad":
            return self.batch * self.size**2, self.cin, self.cout * taps // self.stride**2
        return self.cout, self.cin * taps, pixels

    @property
    def flops(self) -> float:
        """Floating-point operations of the convolution, a multiply-add counted as two."""
        return 2.0 * self.batch * self.out_size**2 * self.cout * self.cin * self.kernel**2

    @property
    def hbm_bytes(self) -> float:
        """Compulsory HBM traffic: input, weights and output once each."""
        images = self.batch * (self.cin * self.size**2 + self.cout * self.out_size**2)
        return float(dtype_bytes(self.dtype) * (images + self.cin * self.cout * self.kernel**2))

    @property
    def label(self) -> str:
        """Short name with shapes, for timelines."""
        shape = f"{self.batch}x{self.cin}x{self.size}x{self.size}_{self.cout}x{self.kernel}"
        return f"conv_{self.direction}_{self.dtype}_{shape}s{self.stride}"


@dataclass(frozen=True, slots=True)
class Stream:
    """A kernel bound by memory traffic, named by the code that runs.

    ``kind`` selects the measured code path (``elementwise_bf16``, ``layer_norm_fp32``, ...);
    ``rows`` x ``cols`` is the iteration space, ``read_bytes`` and ``write_bytes`` the traffic.
    ``l2_bytes`` is the part of the traffic whose data may still be in L2.
    """

    kind: str
    rows: int
    cols: int
    read_bytes: int
    write_bytes: int

    @property
    def elements(self) -> int:
        """Number of elements iterated over."""
        return self.rows * self.cols

    @property
    def flops(self) -> float:
        """Tensor-core operations: none."""
        return 0.0

    @property
    def hbm_bytes(self) -> float:
        """HBM traffic, read plus written."""
        return float(self.read_bytes + self.write_bytes)

    @property
    def label(self) -> str:
        """Short name with shapes, for timelines."""
        return f"{self.kind}_{self.rows}x{self.cols}"


@dataclass(frozen=True, slots=True)
class Collective:
    """Communication among ``ranks`` GPUs; ``size`` is the full buffer on one rank, in bytes.

    ``op`` is ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``, ``broadcast`` or
    ``send`` (a message between two ranks).
    """

    op: str
    size: int
    ranks: int
    dtype: str

    @property
    def wire_bytes(self) -> float:
        """Bytes that each GPU sends by a ring: the least for the reducing operations."""
        share = (self.ranks - 1) / self.ranks
        factors = {"all_reduce": 2.0 * share, "broadcast": 1.0, "send": 1.0}
        return self.size * factors.get(self.op, share) if self.ranks > 1 else 0.0

    @property
    def flops(self) -> float:
        """Tensor-core operations: none."""
        return 0.0

    @property
    def hbm_bytes(self) -> float:
        """HBM traffic: what is sent is read, what arrives is written."""
        return 2.0 * self.wire_bytes

    @property
    def label(self) -> str:
        """Short name with size and ranks, for timelines."""
        return f"{self.op}_{self.dtype}_{self.size}B_{self.ranks}ranks"


Kernel = Gemm | Attention | Convolution | Stream | Collective


def elementwise(kind: str, elements: int, reads: int, writes: int) -> Stream:
    """A Stream over ``elements`` with ``reads`` and ``writes`` bytes per element."""
    return Stream(kind, elements, 1, elements * reads, elements * writes)


def product(shape: tuple[int, ...]) -> int:
    """Number of elements of a shape."""
    return math.prod(shape)
