"""Systems: read from the catalog or a file, or built around some GPUs of one host."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from .catalogs import DIRECTORY, Catalog
from .errors import InputError
from .gpu import Gpu, load_gpu
from .provenance import Provenance, split
from .reading import read_toml
from .system import PLAIN_KEYS, System, validate_system

CATALOG = Catalog("system", "systems")
HOST_FILE = DIRECTORY / "host.toml"
MAX_GPUS_PER_HOST = 8
ASKED = Provenance(source="number of GPUs that was asked for", kind="spec")


def system_ids() -> list[str]:
    """Ids of the systems in the catalog, sorted."""
    return CATALOG.ids()


def load_system(name_or_path: str | Path, overrides: Mapping[str, str] | None = None) -> System:
    """The system with this id or alias (in any case), or of the TOML file at this path.

    A host without launch times of its own takes the default host's. ``overrides`` change values by
    dotted path ("gpu.sm_count", "host.eager_launch_s"). Raises InputError for an unknown name, a
    malformed file, and every value that breaks a rule.
    """
    path = CATALOG.path(name_or_path)
    found = _read_shipped(path) if CATALOG.holds(path) else read_system(path)
    return found.with_overrides(overrides or {})


def read_system(path: Path) -> System:
    """The system of one TOML file; raises InputError with file and key."""
    values, provenance = split(read_toml(path), PLAIN_KEYS, str(path))
    values["gpu"] = _gpu_of(values, path)
    host, origin = _default_host()
    given = values.get("host", {})
    if isinstance(given, dict):
        values["host"] = {**host, **given}
        provenance |= {k: v for k, v in origin.items() if k.removeprefix("host.") not in given}
    return validate_system(values, provenance, str(path))


def single_node(gpu: Gpu, gpus: int) -> System:
    """One host with ``gpus`` GPUs of this kind and no network.

    From one to eight GPUs, or as many as the GPU's scale-up domain takes when that is more; GPUs
    beyond the domain are joined by PCIe. Raises InputError for another number.
    """
    domain = gpu.scaleup.max_domain_gpus if gpu.scaleup else 1
    most = max(MAX_GPUS_PER_HOST, domain)
    if not 1 <= gpus <= most:
        must = f"gpus must be a whole number from 1 to {most} on one host of {gpu.id}"
        raise InputError(must, gpus, "system.gpus")
    host, origin = _default_host()
    values = {
        "id": f"{gpu.id}-x{gpus}",
        "name": f"{gpus} x {gpu.name}, one host",
        "kind": "generic",
        "gpu": gpu,
        "gpus": gpus,
        "gpus_per_node": gpus,
        "fabric": _fabric(gpu, min(gpus, domain)),
        "host": host,
    }
    counts = {"gpus": ASKED, "gpus_per_node": ASKED}
    return validate_system(values, {**counts, **_fabric_origin(gpu), **origin}, "system")


@cache
def _read_shipped(path: Path) -> System:
    return read_system(path)


def _gpu_of(values: Mapping[str, Any], path: Path) -> Gpu:
    name = values.get("gpu")
    if not isinstance(name, str):
        raise InputError("gpu must be the id of a GPU or a TOML file", name, f"{path}:gpu")
    beside = path.parent / name
    try:
        return load_gpu(beside if name.endswith(".toml") else name)
    except InputError as error:
        raise InputError(error.must, error.got, error.where or f"{path}:gpu") from None


@cache
def _default_host() -> tuple[dict[str, Any], dict[str, Provenance]]:
    values, provenance = split(read_toml(HOST_FILE), frozenset(), str(HOST_FILE))
    return values["host"], provenance


def _fabric(gpu: Gpu, domain_gpus: int) -> dict[str, Any]:
    if gpu.scaleup is None:
        topology = {"topology": "PCIe"}
        return {"domain_gpus": 1, "switched": False, "in_switch_reduction": False, **topology}
    return {
        "domain_gpus": domain_gpus,
        "switched": gpu.scaleup.switched,
        "in_switch_reduction": gpu.scaleup.in_switch_reduction,
        **({"topology": gpu.scaleup.topology} if gpu.scaleup.topology else {}),
    }


def _fabric_origin(gpu: Gpu) -> dict[str, Provenance]:
    """The GPU's own provenance of its links, under the paths of the system."""
    names = {"max_domain_gpus": "domain_gpus"}
    keys = ("max_domain_gpus", "switched", "in_switch_reduction", "topology")
    known = {key: gpu.provenance.get(f"scaleup.{key}", ASKED) for key in keys}
    return {f"fabric.{names.get(key, key)}": origin for key, origin in known.items()}
