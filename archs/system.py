"""The descriptor of a system: GPUs of one kind, their scale-up fabric, network and hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, ValidationError, model_validator

from .errors import InputError, from_validation
from .fields import Bytes, BytesPerSecond, Count, Dollars, Flag, Name, Seconds, Text, Watts
from .gpu import Gpu
from .overriding import apply_overrides, plain_values
from .provenance import Frozen, Provenance, lookup

SystemKind = Literal["server", "rack", "cloud", "generic"]
GPU_PREFIX = "gpu."
PLAIN_KEYS = frozenset({"id", "aliases", "name", "kind", "gpu", "notes"})
"""Keys of a system file that need no provenance: they name the product and its GPU."""


class Fabric(Frozen):
    """How the GPUs of one scale-up domain are joined; one GPU a domain means over PCIe only.

    The bandwidth of one GPU's links is the GPU's own (``gpu.scaleup``). ``in_switch_reduction``
    says that the switches add in flight (NVLS); ``bisection_bytes_per_s`` is one direction.
    """

    domain_gpus: Count
    switched: Flag
    in_switch_reduction: Flag
    topology: Text | None = None
    bisection_bytes_per_s: BytesPerSecond | None = None


class Network(Frozen):
    """The scale-out network of one system as sold; bandwidths are one direction.

    ``nics`` is the number of ports for compute traffic, ``nic_bandwidth_bytes_per_s`` of one port.
    """

    name: Text
    nics: Count | None = None
    nic_bandwidth_bytes_per_s: BytesPerSecond | None = None
    bandwidth_per_gpu_bytes_per_s: BytesPerSecond | None = None


class Host(Frozen):
    """What runs the training script.

    ``eager_launch_s`` is the time between two small eager operators (a loop of ``x.add_(1)``),
    ``graph_launch_s`` between two kernels of a CUDA graph; ``memory_bytes`` is of all hosts.
    """

    eager_launch_s: Seconds
    graph_launch_s: Seconds
    cpu: Text | None = None
    memory_bytes: Bytes | None = None


class System(Frozen):
    """A system as sold: ``gpus`` GPUs in hosts of ``gpus_per_node`` each.

    ``max_power_w`` and prices are of the whole system, ``cloud_price_usd_per_gpu_h`` of one GPU and
    hour. ``network`` is None for a single host without one.
    """

    id: Name
    aliases: tuple[str, ...] = ()
    name: Text
    kind: SystemKind
    gpu: Gpu
    gpus: Count
    gpus_per_node: Count
    fabric: Fabric
    host: Host
    network: Network | None = None
    max_power_w: Watts | None = None
    list_price_usd: Dollars | None = None
    cloud_price_usd_per_gpu_h: Dollars | None = None
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, Provenance] = Field(default_factory=dict, repr=False)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.gpus % self.gpus_per_node:
            must = f"gpus must be a multiple of gpus_per_node, {self.gpus_per_node}"
            raise InputError(must, self.gpus)
        if self.fabric.domain_gpus > self.gpus:
            must = f"domain_gpus must be at most gpus, {self.gpus}"
            raise InputError(must, self.fabric.domain_gpus)
        return self

    @property
    def nodes(self) -> int:
        """Hosts of one system as sold."""
        return self.gpus // self.gpus_per_node

    def source_of(self, path: str) -> Provenance:
        """Origin of the value at a dotted path; paths of the GPU start with "gpu."."""
        if path.startswith(GPU_PREFIX):
            return self.gpu.source_of(path.removeprefix(GPU_PREFIX))
        return lookup(self.provenance, path, self.id)

    def with_overrides(self, overrides: Mapping[str, str]) -> System:
        """A copy with values changed by dotted path; those of the GPU start with "gpu.".

        Raises InputError for an unknown path or a value that is not allowed.
        """
        if not overrides:
            return self
        of_gpu = {p.removeprefix(GPU_PREFIX): t for p, t in overrides.items() if _is_gpu(p)}
        own = {path: text for path, text in overrides.items() if not _is_gpu(path)}
        if "gpu" in own:
            must = "gpu must be exchanged by naming another system, or changed as gpu.<field>"
            raise InputError(must, own["gpu"], "overrides:gpu")
        values = plain_values(self)
        provenance = apply_overrides(values, self.provenance, own)
        values["gpu"] = self.gpu.with_overrides(of_gpu) if of_gpu else self.gpu
        return validate_system(values, provenance, f"overrides of {self.id}")


def validate_system(
    values: Mapping[str, object], provenance: Mapping[str, Provenance], where: str
) -> System:
    """A System from plain values; raises InputError that names ``where`` and the dotted key."""
    try:
        return System.model_validate({**values, "provenance": provenance})
    except ValidationError as error:
        raise from_validation(error, where, System) from None


def _is_gpu(path: str) -> bool:
    return path.startswith(GPU_PREFIX)
