"""Hypothesis strategies that several test modules share."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from hypothesis import strategies as st

from archs.gpu import Gpu, gpu_ids, load_gpu
from archs.system import System
from archs.systems import single_node

SCALED_PATHS = ("hbm.bandwidth_bytes_per_s", "hbm.capacity_bytes", "boost_clock_hz")


def catalog_gpus() -> st.SearchStrategy[Gpu]:
    """Any GPU of the catalog, as it is."""
    return st.sampled_from(gpu_ids()).map(load_gpu)


@st.composite
def gpus(draw: st.DrawFn) -> Gpu:
    """A GPU of the catalog with memory, clock and SM count between half and twice its own."""
    base = draw(catalog_gpus())
    factors = {path: draw(st.floats(0.5, 2.0)) for path in SCALED_PATHS}
    sms = draw(st.integers(max(1, base.sm_count // 2), base.sm_count * 2))
    return base.with_overrides({"sm_count": str(sms)} | _scaled(base, factors))


@st.composite
def systems(draw: st.DrawFn) -> System:
    """One host with one to eight GPUs of any kind."""
    return single_node(draw(gpus()), draw(st.integers(1, 8)))


def _scaled(gpu: Gpu, factors: Mapping[str, float]) -> dict[str, str]:
    return {path: repr(factor * _value(gpu, path)) for path, factor in factors.items()}


def _value(gpu: Gpu, path: str) -> float:
    return float(functools.reduce(getattr, path.split("."), gpu))  # type: ignore[arg-type]
