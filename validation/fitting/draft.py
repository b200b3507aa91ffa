"""The calibration that the fits start from."""

from __future__ import annotations

from archs.calibration import (
    AttentionParameters,
    Calibration,
    ConvolutionParameters,
    GemmParameters,
    HostParameters,
    InterferenceParameters,
    L2Parameters,
    PowerParameters,
    StreamParameters,
)
from archs.gpu import Gpu

from . import tensor

REFERENCE_CLOCK_HZ = 1.98e9
"""Clock at which energies are stated: the H200's maximum."""


def textbook_calibration(gpu: Gpu) -> Calibration:
    """Textbook values that the fits start from."""
    attention = AttentionParameters(
        mma=1.2, pair_cycles=0.08, tail=0.5, tile_cycles=2000.0, floor_s=3e-6
    )
    convolution = ConvolutionParameters(
        efficiency=0.8, hbm_fraction=0.7, tile_cycles=1500.0, floor_s=4e-6
    )
    return Calibration(
        gpu=gpu.id, architecture=gpu.architecture, date="", software="", sources=(),
        gemm=GemmParameters(
            efficiency=0.88, l2_bytes_per_cycle=70.0, prologue_cycles=3000.0,
            epilogue_cycles=1000.0, floor_s=1e-6, split_sync_s=2e-6, hbm_fraction=0.7,
            tiles=tensor.TILES, precision_efficiency={"bf16": 1.0},
        ),
        attention={"forward": attention, "backward": attention},
        convolution=dict.fromkeys(("fprop", "dgrad", "wgrad"), convolution),
        l2=L2Parameters(resident_fraction=0.5, gone_fraction=1.5, speedup=2.0),
        streams={"memset": StreamParameters(floor_s=8e-7, hbm_fraction=0.5)},
        collectives={},
        interference=InterferenceParameters(gemm=1.0, memory=1.0, communication=1.0),
        power=PowerParameters(
            idle_w=120.0, active_w=0.0, flop_j={"bf16": 8e-13}, hbm_byte_j=1e-10,
            pair_forward_j=1e-10, pair_backward_j=1e-10,
            reference_clock_hz=REFERENCE_CLOCK_HZ, exponent=0.5,
            limit_fraction=0.987, min_clock_hz=3.45e8,
        ),
        host=HostParameters(
            reference_launch_s=7e-6, step_factor=1.0, classes={}, default_s=7e-6,
            unit_s=0.0, gap_s=1.2e-6,
        ),
        residuals={}, intervals={},
    )  # fmt: skip
