"""ResNet-50 (torchvision, channels-last) as PyTorch runs it."""

from __future__ import annotations

from . import ddp, ops, vision_ops
from .autograd import backward
from .kernels import Convolution, Stream, dtype_bytes
from .model import ResNet50
from .optimizer import resident_bytes, update_segment
from .plan import Stack, Workload
from .program import Placement, Program, Role, Segment
from .tape import Tape, Tensor, rounded
from .walk import micro_batches

STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
"""(blocks, width, stride of the first block) of each stage (He et al. 2015, table 1)."""

EXPANSION = 4


class Network:
    """Parameters are declared as the layers are walked, so one walk gives both."""

    def __init__(self, tape: Tape, dtype: str, compiled: bool) -> None:
        self.tape, self.dtype, self.compiled = tape, dtype, compiled
        self.parameters: list[Tensor] = []
        self.buffer_sizes: list[int] = []

    def parameter(self, shape: tuple[int, ...], name: str) -> Tensor:
        """Declare a parameter."""
        tensor = self.tape.parameter(shape, self.dtype, name)
        self.parameters.append(tensor)
        return tensor

    def conv_norm(
        self,
        x: Tensor,
        cout: int,
        kernel: int,
        stride: int,
        relu: bool = True,
        residual: Tensor | None = None,
    ) -> Tensor:
        """Convolution, batch norm, and what follows it: residual addition, ReLU."""
        weight = self.parameter((cout, x.shape[1], kernel, kernel), "conv")
        x = vision_ops.convolution(self.tape, x, weight, stride)
        scale, shift = self.parameter((cout,), "bn.weight"), self.parameter((cout,), "bn.bias")
        self.buffer_sizes += [cout, cout, 2]
        if self.compiled:
            return vision_ops.compiled_norm(self.tape, x, scale, shift, relu, residual)
        x = vision_ops.batch_norm(self.tape, x, scale, shift)
        if residual is not None:
            x = vision_ops.add_(self.tape, x, residual)
        return vision_ops.relu_(self.tape, x) if relu else x

    def bottleneck(self, x: Tensor, width: int, stride: int) -> Tensor:
        """1x1, 3x3, 1x1 convolutions with a residual connection."""
        wide = width * EXPANSION
        out = self.conv_norm(self.conv_norm(x, width, 1, 1), width, 3, stride)
        if stride != 1 or x.shape[1] != wide:
            x = self.conv_norm(x, wide, 1, stride, relu=False)
        return self.conv_norm(out, wide, 1, 1, residual=x)

    def forward(self, images: Tensor, classes: int) -> Tensor:
        """Logits of a batch of images."""
        tape = self.tape
        x = self.conv_norm(images, 64, 7, 2)
        x = vision_ops.max_pool(tape, x, 3, 2)
        for blocks, width, stride in STAGES:
            for index in range(blocks):
                x = self.bottleneck(x, width, stride if index == 0 else 1)
        x = vision_ops.average_pool(tape, x)
        weight = self.parameter((classes, x.shape[1]), "fc.weight")
        return ops.linear(tape, x, weight, self.parameter((classes,), "fc.bias"))


def lower(workload: Workload, model: ResNet50, stack: Stack, ranks: int) -> Program:
    """Operators of one ResNet-50 training step on each of ``ranks`` data-parallel GPUs."""
    steps = workload.grad_accum
    walked = micro_batches(
        lambda accumulate, last: _micro_batch(workload, model, stack, ranks, accumulate, last),
        steps,
    )
    first, network = walked[0]
    placements = []
    for step, (segments, _) in enumerate(walked):
        label = f"micro_batch{step}." if steps > 1 else ""
        placements += [Placement(s, f"{label}{s.name}") for s in segments]
    parameters = network.parameters
    if ranks > 1:
        buffers = ddp.buffer_broadcast(ranks, network.buffer_sizes)
        placements.insert(0, Placement(buffers, "buffers"))
    waits = ("communication",) if ranks > 1 else ()
    placements.append(Placement(update_segment(parameters, stack, waits), "optimizer"))
    batch = workload.micro_batch
    image = 3 * model.image_size**2 * dtype_bytes("fp32")
    resident = resident_bytes(parameters, stack, rounded(batch * image) + rounded(8 * batch))
    resident["buffers"] = sum(rounded(4 * n) for n in network.buffer_sizes)
    if ranks > 1:
        resident["gradients"] = sum(p.size for p in parameters)
    samples = batch * workload.grad_accum * ranks
    flops = 3.0 * samples * forward_flops(first[0])
    role = Role("rank", ranks, tuple(placements), resident)
    return Program((role,), flops, flops, samples, 0)


def forward_flops(forward: Segment) -> float:
    """FLOPs of one image in a forward segment (convolutions and the classifier)."""
    kernels = [k for op in forward.operators for k in op.kernels]
    batch = next(k.batch for k in kernels if isinstance(k, Convolution))
    return sum(k.flops for k in kernels) / batch


def _micro_batch(
    workload: Workload, model: ResNet50, stack: Stack, ranks: int, accumulate: bool, reduces: bool
) -> tuple[list[Segment], Network]:
    """Forward and backward of one micro-batch; the last one of a step reduces gradients."""
    bucketed = ranks > 1 and reduces
    tape = Tape(accumulate=accumulate, autocast=stack.autocast_dtype, bucketed=bucketed)
    buckets = ddp.Buckets(ranks, stack.param_dtype)
    if bucketed:
        tape.on_gradient = lambda leaf: tape.recorded.extend(buckets.ready([leaf]))
    network = Network(tape, stack.param_dtype, stack.execution == "compile")
    segments: list[Segment] = []
    size = model.image_size
    with tape.segment("forward", segments):
        images = Tensor((workload.micro_batch, 3, size, size), stack.param_dtype, None)
        logits = network.forward(images, model.classes)
        loss = ops.cross_entropy(tape, ops.cast(tape, logits, "fp32"))
        del logits
    tape.casts.clear()
    tape.phase, tape.autocast = "backward", None
    with tape.segment("backward", segments):
        tape.emit("ones_like", [Stream("scalar", 1, 1, 0, 0)])
        one = tape.new((), "fp32")
        backward(tape, loss, one)
        tape.recorded.extend(buckets.flush())
        del one, loss
    return segments, network
