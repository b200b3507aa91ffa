"""Parameters of the cost models of one GPU, fitted to its microbenchmarks.

A calibration file (``archs/calibrations/<gpu>.toml``) says what was fitted, to which data (with
hashes), and with what residuals. The numbers are per SM and per cycle where they can be, so that
another GPU of the family can use them through its own descriptor.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, ValidationError

from .errors import InputError, from_validation, unknown_name
from .reading import read_toml

DIRECTORY = Path(__file__).parent / "calibrations"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class GemmParameters(_Frozen):
    """Tiled matrix product on the tensor cores.

    ``efficiency`` is the share of the peak rate of a busy SM's main loop; ``l2_bytes_per_cycle``
    what one SM loads from L2; ``prologue_cycles`` is paid once a kernel, ``epilogue_cycles`` once a
    tile of 128 x 128 results; ``hbm_fraction`` the share of the peak HBM bandwidth that operands
    reach; ``precision_efficiency`` the rate of other precisions relative to bf16's.
    """

    efficiency: PositiveFloat
    l2_bytes_per_cycle: PositiveFloat
    prologue_cycles: NonNegativeFloat
    epilogue_cycles: NonNegativeFloat
    floor_s: NonNegativeFloat
    split_sync_s: NonNegativeFloat
    hbm_fraction: PositiveFloat
    tiles: tuple[tuple[int, int], ...]
    precision_efficiency: Mapping[str, float] = Field(default_factory=dict)


class AttentionParameters(_Frozen):
    """Fused attention of one direction, per (query, key) pair and head.

    ``mma`` scales the tensor-core cycles of the pair's products; ``pair_cycles`` is the softmax
    work; ``tail`` the share of one longest tile left uncovered at the end; ``tile_cycles`` is paid
    once a wave of query tiles.
    """

    mma: PositiveFloat
    pair_cycles: NonNegativeFloat
    tail: NonNegativeFloat
    tile_cycles: NonNegativeFloat
    floor_s: NonNegativeFloat


class ConvolutionParameters(_Frozen):
    """Implicit-GEMM convolution of one direction.

    ``efficiency`` is relative to the GEMM main loop, ``hbm_fraction`` the share of the peak HBM
    bandwidth, ``floor_s`` the fixed time.
    """

    efficiency: PositiveFloat
    hbm_fraction: PositiveFloat
    tile_cycles: NonNegativeFloat
    floor_s: NonNegativeFloat


class StreamParameters(_Frozen):
    """One memory-bound code path.

    Time is ``floor_s`` plus the larger of traffic over ``hbm_fraction`` of the peak bandwidth and
    the SMs' own work: ``element_s`` for each element and ``row_s`` for each row on one SM, spread
    over the SMs. These latencies are set by the memory side: they do not follow the SM clock
    (measured between 1.55 and 1.98 GHz).
    """

    floor_s: NonNegativeFloat
    hbm_fraction: PositiveFloat
    element_s: NonNegativeFloat = 0.0
    row_s: NonNegativeFloat = 0.0
    element_j: NonNegativeFloat = 0.0


class L2Parameters(_Frozen):
    """When a kernel finds its data in L2.

    Traffic up to ``resident_fraction`` of the capacity runs at ``speedup`` times the HBM rate,
    fading to none at ``gone_fraction``.
    """

    resident_fraction: PositiveFloat
    gone_fraction: PositiveFloat
    speedup: PositiveFloat


class PowerParameters(_Frozen):
    """Board power: ``idle_w``, ``active_w`` while a kernel runs, and energy per operation and byte.

    What the SMs take holds at ``reference_clock_hz`` and scales with (clock / reference) **
    ``exponent``; memory energy does not depend on the clock. The board
    holds its mean power at ``limit_fraction`` of the limit.
    """

    idle_w: NonNegativeFloat
    active_w: NonNegativeFloat
    flop_j: Mapping[str, float]
    hbm_byte_j: NonNegativeFloat
    pair_forward_j: NonNegativeFloat
    pair_backward_j: NonNegativeFloat
    reference_clock_hz: PositiveFloat
    exponent: NonNegativeFloat
    limit_fraction: PositiveFloat
    min_clock_hz: PositiveFloat


class HostParameters(_Frozen):
    """Seconds that the host needs to issue one operator, by class ``name.phase``.

    Measured on a host whose ``x.add_(1)`` loop takes ``reference_launch_s``; another host's costs
    scale with its own loop. ``step_factor`` is how much more an operator costs inside a step than
    in a loop of its own (modules, cold code and caches). ``unit_s`` is added for each further
    tensor of a multi-tensor operator; ``gap_s`` passes on the GPU between consecutive kernels of a
    stream.
    """

    reference_launch_s: PositiveFloat
    step_factor: PositiveFloat
    classes: Mapping[str, float]
    default_s: PositiveFloat
    unit_s: NonNegativeFloat
    gap_s: NonNegativeFloat


class CollectiveParameters(_Frozen):
    """One collective inside a scale-up domain.

    Time is ``latency_s`` plus wire bytes over a rate: ``link_fraction`` of the one-way bandwidth of
    a GPU, less ``rank_loss`` / ranks of it.
    """

    latency_s: NonNegativeFloat
    link_fraction: PositiveFloat
    rank_loss: NonNegativeFloat


class InterferenceParameters(_Frozen):
    """How much longer work takes beside communication (``gemm``, ``memory``), and the reverse."""

    gemm: PositiveFloat
    memory: PositiveFloat
    communication: PositiveFloat


class Residual(_Frozen):
    """How well one operator class was fitted: relative errors of predicted durations."""

    n: int
    median: float
    p90: float
    worst: float
    bias: float


class Source(_Frozen):
    """One data file behind a calibration."""

    file: str
    sha256: str
    rows: int


class Calibration(_Frozen):
    """All fitted parameters of one GPU with their provenance and residuals."""

    gpu: str
    architecture: str
    date: str
    software: str
    sources: tuple[Source, ...]
    gemm: GemmParameters
    attention: Mapping[str, AttentionParameters]
    convolution: Mapping[str, ConvolutionParameters]
    l2: L2Parameters
    streams: Mapping[str, StreamParameters]
    collectives: Mapping[str, CollectiveParameters]
    interference: InterferenceParameters
    power: PowerParameters
    host: HostParameters
    residuals: Mapping[str, Residual]
    intervals: Mapping[str, float]


def calibration_ids() -> list[str]:
    """GPUs that have their own calibration, sorted."""
    return sorted(path.stem for path in DIRECTORY.glob("*.toml"))


def load_calibration(name: str | Path) -> Calibration:
    """The calibration of GPU ``name`` or of a TOML file; raises InputError when there is none."""
    path = Path(name)
    if path.suffix == ".toml":
        return _read(path)
    return _shipped(str(name))


@cache
def _shipped(name: str) -> Calibration:
    if name not in calibration_ids():
        raise unknown_name("calibration", name, calibration_ids(), "calibration")
    return _read(DIRECTORY / f"{name}.toml")


def _read(path: Path) -> Calibration:
    try:
        return Calibration.model_validate(read_toml(path))
    except ValidationError as error:
        raise from_validation(error, str(path)) from error


def best_calibration(gpu_id: str, architecture: str) -> tuple[Calibration, bool]:
    """The GPU's own calibration, else its architecture's, else any: (calibration, own)."""
    known = calibration_ids()
    if gpu_id in known:
        return load_calibration(gpu_id), True
    if not known:
        raise InputError("a calibration must be installed", got=None, where="archs/calibrations")
    loaded = [load_calibration(name) for name in known]
    alike = [c for c in loaded if c.architecture == architecture]
    return (alike or loaded)[0], False
