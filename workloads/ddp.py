"""Distributed data parallel as PyTorch does it: gradient buckets, all-reduced as they fill."""

from __future__ import annotations

from collections.abc import Iterable

from .kernels import Collective, Stream, dtype_bytes
from .program import Operator, Segment
from .tape import Tensor

BUCKET_BYTES = 25 * 2**20
FIRST_BUCKET_BYTES = 2**20
"""Default bucket sizes (torch.nn.parallel.DistributedDataParallel, bucket_cap_mb)."""


class Buckets:
    """Gradients in the order in which they become ready; a bucket is sent when it is full."""

    def __init__(self, ranks: int, dtype: str) -> None:
        self.ranks, self.dtype = ranks, dtype
        self.open_bytes = 0
        self.limit = FIRST_BUCKET_BYTES

    def ready(self, parameters: Iterable[Tensor]) -> list[Operator]:
        """All-reduces of the buckets that these gradients fill."""
        found = []
        for parameter in parameters:
            self.open_bytes += parameter.elements * dtype_bytes(self.dtype)
            if self.open_bytes >= self.limit:
                found.append(self._send())
        return found

    def flush(self) -> list[Operator]:
        """The all-reduce of what is left, if anything is."""
        return [self._send()] if self.open_bytes else []

    def _send(self) -> Operator:
        size, self.open_bytes, self.limit = self.open_bytes, 0, BUCKET_BYTES
        return all_reduce(size, self.ranks, self.dtype)


def all_reduce(size: int, ranks: int, dtype: str) -> Operator:
    """One bucket's all-reduce on the communication stream, after the gradients in it."""
    kernel = Collective("all_reduce", size, ranks, dtype)
    return Operator(
        "all_reduce", "backward", "op.backward", (kernel,), stream="communication",
        after=("compute",),
    )  # fmt: skip


def buffer_broadcast(ranks: int, sizes: list[int]) -> Segment:
    """Before each forward pass rank 0's buffers go to all: gathered, sent, copied back singly."""
    total = sum(sizes)
    send = Operator(
        "broadcast", "forward", "op.forward", (Collective("broadcast", total, ranks, "fp32"),),
        stream="communication", after=("compute",),
    )  # fmt: skip
    copy = Operator("copy_", "forward", "op.forward", (Stream("memset", 1, 1, 4, 4),))
    gather = Operator("cat", "forward", "cat.forward", (Stream("scalar", 1, 1, 0, 0),))
    first = Operator(
        "copy_", "forward", "op.forward", (Stream("memset", 1, 1, 4, 4),), after=("communication",)
    )
    return Segment("buffers", (gather, send, first, *[copy] * (len(sizes) - 1)))
