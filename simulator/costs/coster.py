"""Costs of any kernel on one GPU, each distinct kernel costed once."""

from __future__ import annotations

from workloads.kernels import Attention, Collective, Convolution, Gemm, Kernel

from .attention import attention_launch
from .collective import collective_launch
from .convolution import convolution_launch
from .gemm import gemm_launches
from .launch import Launch
from .machine import Machine
from .stream import stream_launch


class Coster:
    """Maps kernels to launches on one machine; equal kernels share one result."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._known: dict[Kernel, tuple[Launch, ...]] = {}

    def launches(self, kernel: Kernel) -> tuple[Launch, ...]:
        """The launches that one kernel of the vocabulary becomes."""
        found = self._known.get(kernel)
        if found is None:
            found = self._known[kernel] = self._cost(kernel)
        return found

    def _cost(self, kernel: Kernel) -> tuple[Launch, ...]:
        if isinstance(kernel, Gemm):
            return gemm_launches(self.machine, kernel)
        if isinstance(kernel, Attention):
            return (attention_launch(self.machine, kernel),)
        if isinstance(kernel, Convolution):
            return (convolution_launch(self.machine, kernel),)
        if isinstance(kernel, Collective):
            return (collective_launch(self.machine, kernel),)
        return (stream_launch(self.machine, kernel),)
