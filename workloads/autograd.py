"""The backward pass over a tape: order of nodes, sums of gradients, what parameters keep."""

from __future__ import annotations

import heapq
import sys

from .kernels import dtype_bytes, elementwise
from .ops import pieces, width
from .tape import Node, Tape, Tensor, rounded


def backward(tape: Tape, output: Tensor, gradient: Tensor) -> None:
    """Run autograd from ``output``, newest node first, as the framework's engine does."""
    if output.node is None:
        raise ValueError("backward needs an output with history (got a tensor without one)")
    root = output.node
    output.node = None
    root.gradient = gradient
    del gradient
    ready = [(-root.order, root)]
    del root
    while ready:
        _, node = heapq.heappop(ready)
        _run(tape, node, ready)


def _run(tape: Tape, node: Node, ready: list[tuple[int, Node]]) -> None:
    rule, gradient, edges = node.released()
    results = list(rule(gradient))
    del rule, gradient
    for index, (target, leaf) in enumerate(edges):
        result, results[index] = results[index], None
        if result is None:
            continue
        if leaf is not None:
            _accumulate_gradient(tape, leaf, result)
        elif target is not None:
            if target.gradient is None:
                target.gradient = result
                heapq.heappush(ready, (-target.order, target))
            else:
                held, target.gradient = target.gradient, None
                target.gradient = add_gradients(tape, held)
                del held
        del result


def add_gradients(tape: Tape, held: Tensor) -> Tensor:
    """Sum of a held gradient and a second one, in place when autograd may overwrite the first."""
    reads = 2 * dtype_bytes(held.dtype)
    writes = dtype_bytes(held.dtype)
    kind = f"add_{width(held.dtype)}"
    in_place = not held.view and sys.getrefcount(held.storage) <= 2
    out = held if in_place else tape.new(held.shape, held.dtype)
    kernel = elementwise(kind, held.elements, reads, writes)
    tape.emit("accumulate", pieces(kernel, held.size), host="accumulate")
    return out


def _accumulate_gradient(tape: Tape, leaf: Tensor, gradient: Tensor) -> None:
    """AccumulateGrad: keep the first gradient, add later ones in place.

    A parameter used several times in a step is complete when each use has sent its gradient. With
    buckets (the micro-batch after which data parallelism reduces) a complete gradient is copied
    into its bucket and released; until then gradients lie beside the buckets.
    """
    if leaf.boundary:
        leaf.grad = gradient
        return
    leaf.arrived += 1
    if tape.accumulate or leaf.grad is not None:
        _add_to(tape, leaf)
    else:
        leaf.grad = gradient
    if leaf.arrived % leaf.uses:
        return
    _settle(tape, leaf)
    if tape.on_gradient is not None:
        tape.on_gradient(leaf)


def _settle(tape: Tape, leaf: Tensor) -> None:
    """A complete gradient stays where it is, or goes into its bucket."""
    if not tape.bucketed:
        if leaf.grad is not None and leaf.grad.storage is not None:
            leaf.grad.storage.move("gradients")
        return
    size = dtype_bytes(leaf.dtype)
    kernel = elementwise(f"mul_{width(leaf.dtype)}", leaf.elements, size, size)
    tape.emit("bucket_copy", [kernel], host="accumulate")
    leaf.grad = None
    if tape.accumulate:
        tape.remember(("gradients", -rounded(leaf.elements * size)))


def _add_to(tape: Tape, leaf: Tensor) -> None:
    size = dtype_bytes(leaf.dtype)
    kernel = elementwise(f"add_{width(leaf.dtype)}", leaf.elements, 2 * size, size)
    tape.emit("accumulate_grad", [kernel], host="accumulate")
