"""Kernel costs on one GPU: more hardware is never slower, and no kernel beats its limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archs.calibration import load_calibration
from archs.gpu import load_gpu
from simulator.costs import Coster, Launch
from simulator.costs.gemm import SPLITS, gemm_launches, main_loop_cycles, tilings
from simulator.costs.machine import Machine
from simulator.costs.stream import stream_class
from tests.simulator.handmade import h200, machine
from tests.strategies import (
    attentions,
    convolutions,
    gemms,
    streams,
    trainable_gpu_ids,
    trainable_gpus,
)
from validation.kernel_classes import CLASSES
from workloads.kernels import Attention, Convolution, Gemm, Kernel, Stream

KINDS = sorted(load_calibration("h200-sxm-141gb").streams)
H200 = h200()
kernels = st.one_of(gemms(), attentions(), convolutions(), streams(KINDS))


def seconds(on: Machine, kernel: Kernel) -> float:
    """Time of all launches of a kernel at the highest clock."""
    return sum(launch.seconds(on.max_clock_hz) for launch in Coster(on).launches(kernel))


def scaled(base: Machine, **factors: float) -> Machine:
    """A machine with memory bandwidth, L2, or SMs (and with them the peaks) scaled."""
    gpu = base.gpu
    sms, hbm = factors.get("sms", 1), factors.get("bandwidth", 1)
    peaks = {key: sms * value for key, value in gpu.tensor_flops_per_s.items()}
    changed = gpu.model_copy(
        update={
            "sm_count": int(sms * gpu.sm_count),
            "tensor_flops_per_s": peaks,
            "hbm": gpu.hbm.model_copy(
                update={"bandwidth_bytes_per_s": hbm * gpu.hbm.bandwidth_bytes_per_s}
            ),
        }
    )
    return Machine(changed, base.calibration, base.own)


@given(kernels)
def test_twice_the_bandwidth_is_never_slower(kernel: Kernel) -> None:
    """Doubling the memory bandwidth slows no kernel of any kind and size."""
    assert seconds(scaled(H200, bandwidth=2), kernel) <= seconds(H200, kernel)


@given(kernels)
def test_twice_the_sms_are_never_slower(kernel: Kernel) -> None:
    """Doubling the SMs, each as strong as before, slows no kernel of any kind and size."""
    assert seconds(scaled(H200, sms=2), kernel) <= seconds(H200, kernel)


def test_more_sms_by_override_are_never_slower() -> None:
    """Changing the SM count alone, as a what-if does, adds SMs of the same strength."""
    gemm = Gemm(12 * 128, 11 * 128, 8192, "bf16")
    wider = machine("h200-sxm-141gb", sm_count="144")
    assert seconds(wider, gemm) <= seconds(H200, gemm)


@given(kernels, st.floats(1e8, 2e9), st.floats(1.0, 2.0))
def test_a_higher_clock_is_never_slower(kernel: Kernel, clock_hz: float, factor: float) -> None:
    """Each launch takes as long or less at a higher clock."""
    for launch in Coster(H200).launches(kernel):
        assert launch.seconds(factor * clock_hz) <= launch.seconds(clock_hz)
        assert launch.picoseconds(factor * clock_hz) <= launch.picoseconds(clock_hz)


@given(kernels)
def test_no_launch_is_shorter_than_its_floor(kernel: Kernel) -> None:
    """A launch takes its fixed time and more, and a whole picosecond at least."""
    for launch in Coster(H200).launches(kernel):
        assert launch.seconds(H200.max_clock_hz) >= launch.floor_s >= 0.0
        assert launch.picoseconds(H200.max_clock_hz) >= 1


@given(kernels)
def test_costs_are_finite_and_not_negative(kernel: Kernel) -> None:
    """Cycles, memory time and energies of every kernel are ordinary numbers."""
    for launch in Coster(H200).launches(kernel):
        parts = (launch.cycles, launch.memory_s, launch.core_j, launch.memory_j, launch.flops)
        assert all(0.0 <= part < 1e18 for part in parts)


@given(kernels)
def test_equal_kernels_are_costed_once(kernel: Kernel) -> None:
    """A coster returns the very same launches for an equal kernel."""
    coster = Coster(H200)
    assert coster.launches(kernel) is coster.launches(replace(kernel))


@given(gemms())
def test_gemm_never_beats_the_peak(gemm: Gemm) -> None:
    """No product does more FLOPs than the tensor peak or moves its bytes above the bandwidth."""
    time_s = seconds(H200, gemm)
    assert gemm.flops / time_s <= H200.gpu.tensor_flops_per_s["bf16"]
    assert gemm.hbm_bytes / time_s <= H200.hbm_bytes_per_s


@given(attentions())
def test_attention_never_beats_the_peak(kernel: Attention) -> None:
    """Fused attention stays under the tensor peak and the bandwidth."""
    time_s = seconds(H200, kernel)
    assert kernel.flops / time_s <= H200.gpu.tensor_flops_per_s["bf16"]
    assert kernel.hbm_bytes / time_s <= H200.hbm_bytes_per_s


@given(convolutions())
def test_convolution_never_beats_the_peak(kernel: Convolution) -> None:
    """A convolution's implicit product stays under the tensor peak and the bandwidth."""
    time_s = seconds(H200, kernel)
    m, n, k = kernel.gemm_shape
    assert 2.0 * m * n * k / time_s <= H200.gpu.tensor_flops_per_s["bf16"]
    assert kernel.hbm_bytes / time_s <= H200.hbm_bytes_per_s


def test_large_streams_never_beat_the_bandwidth() -> None:
    """Out of L2, code paths move no more than the memory can, within 2 percent of measuring.

    Excepted are two whose fit rests on sizes that are partly in L2: index sorting and half norms.
    """
    rates = {}
    for kind in KINDS:
        kernel = Stream(kind, 2**20, 2**10, 4 * 2**30, 4 * 2**30)
        rates[kind] = kernel.hbm_bytes / seconds(H200, kernel)
    above = {kind for kind, rate in rates.items() if rate > 1.02 * H200.hbm_bytes_per_s}
    assert above <= {"index_sort", "foreach_norm_half"}


@pytest.mark.parametrize("kind", KINDS)
def test_large_streams_scale_linearly(kind: str) -> None:
    """Twice the rows of a large kernel take twice the time."""
    large = Stream(kind, 2**20, 2**10, 4 * 2**30, 4 * 2**30)
    larger = Stream(kind, 2**21, 2**10, 8 * 2**30, 8 * 2**30)
    assert seconds(H200, larger) == pytest.approx(2 * seconds(H200, large), rel=0.02)


@pytest.mark.parametrize(
    ("kernel", "larger"),
    [
        (Gemm(2**16, 8192, 8192, "bf16"), Gemm(2**17, 8192, 8192, "bf16")),
        (
            Attention(64, 4096, 4096, 32, 32, 128, True, "bf16", "forward"),
            Attention(128, 4096, 4096, 32, 32, 128, True, "bf16", "forward"),
        ),
        (
            Convolution(2048, 256, 256, 3, 1, 56, "bf16", "fprop"),
            Convolution(4096, 256, 256, 3, 1, 56, "bf16", "fprop"),
        ),
    ],
)
def test_large_compute_scales_linearly(kernel: Kernel, larger: Kernel) -> None:
    """Twice the batch of a large product, attention or convolution takes twice the time."""
    assert seconds(H200, larger) == pytest.approx(2 * seconds(H200, kernel), rel=0.02)


@given(streams(KINDS))
def test_more_traffic_is_never_faster(kernel: Stream) -> None:
    """Time does not fall as a memory-bound kernel moves more bytes, into and out of L2."""
    larger = replace(kernel, read_bytes=kernel.read_bytes * 5 // 4 + 1000)
    assert seconds(H200, larger) >= seconds(H200, kernel)


@given(st.integers(0, 2**27), st.integers(1, 2**20))
def test_traffic_that_fits_in_l2_is_faster_than_memory(moved: int, more: int) -> None:
    """Traffic within L2 never takes longer than the same bytes from a GPU without L2 hits."""
    kernel = Stream("add_half", 1, 1, moved, 0)
    far = machine("h200-sxm-141gb", l2_bytes="1 MiB")
    assert seconds(H200, kernel) <= seconds(far, kernel)
    assert seconds(H200, replace(kernel, read_bytes=moved + more)) >= seconds(H200, kernel)


def predicted(gemm: Gemm) -> tuple[Launch, ...]:
    """Launches of one product on the H200."""
    return gemm_launches(H200, gemm)


@given(gemms())
def test_split_k_is_used_only_when_it_helps(gemm: Gemm) -> None:
    """The time taken, reduction included, is never above the best unsplit tiling's."""
    p = H200.calibration.gemm
    rate = H200.flops_per_sm_cycle(gemm.dtype) * p.precision_efficiency.get(gemm.dtype, 1.0)
    whole = [t for t in tilings(p, gemm, H200.sms, rate) if t.split == 1]
    memory_s = gemm.hbm_bytes / (p.hbm_fraction * H200.hbm_bytes_per_s)
    unsplit = min(max(t.cycles / H200.max_clock_hz, memory_s) for t in whole) + p.floor_s
    launches = [x for x in predicted(gemm) if x.kind == "gemm"]
    assert sum(x.seconds(H200.max_clock_hz) for x in launches) <= unsplit * (1 + 1e-9)


def test_split_k_fills_idle_sms() -> None:
    """A small result with a long sum is split and reduced; a large result is not."""
    long = predicted(Gemm(256, 256, 65_536, "bf16"))
    assert [x.name for x in long if x.name == "split_k_reduce"] == ["split_k_reduce"]
    wide = predicted(Gemm(8192, 8192, 65_536, "bf16"))
    assert all(x.name != "split_k_reduce" for x in wide)


@given(gemms())
def test_tilings_cover_the_product(gemm: Gemm) -> None:
    """Every tiling on offer has tiles for the whole result in its waves, and a known split."""
    p = H200.calibration.gemm
    rate = H200.flops_per_sm_cycle(gemm.dtype)
    for tiling in tilings(p, gemm, H200.sms, rate):
        area = tiling.waves * H200.sms * tiling.tile_n * tiling.tile_m
        assert area >= gemm.batch * gemm.m * gemm.n * tiling.split
        assert tiling.split in SPLITS
        assert tiling.cycles > 0


def test_wave_quantisation() -> None:
    """One tile more than the SMs take at once costs a whole main loop more."""
    p = H200.calibration.gemm.model_copy(update={"tiles": ((128, 128),)})
    rate = H200.flops_per_sm_cycle("bf16")
    full, more = (
        tilings(p, Gemm(128 * tiles, 128, 512, "bf16"), H200.sms, rate)[0] for tiles in (132, 133)
    )
    assert (full.waves, more.waves) == (1, 2)
    main_loop = 512 * main_loop_cycles(p, 128, 128, rate, 2)
    assert more.cycles >= full.cycles + main_loop
    assert more.cycles <= 2 * full.cycles


def test_unknown_code_path_is_refused() -> None:
    """A stream that no calibration has measured is one clear error, not a guess."""
    with pytest.raises(ValueError, match=r"kernel kind must be .* \(got 'magic'\)"):
        Coster(H200).launches(Stream("magic", 1, 1, 1, 1))


@pytest.mark.parametrize(
    ("gpu", "dtype"), [("v100-sxm2-32gb", "bf16"), ("a100-sxm-80gb", "fp8"), ("t4", "tf32")]
)
def test_missing_precision_is_refused(gpu: str, dtype: str) -> None:
    """A precision that the GPU has no tensor mode for is one clear error that lists its modes."""
    with pytest.raises(
        ValueError, match=rf"precision must be one of .*fp16.* \(got {dtype}\) in {gpu}"
    ):
        Coster(machine(gpu)).launches(Gemm(128, 128, 128, dtype))


@given(trainable_gpus())
def test_peak_of_a_machine_is_that_of_its_descriptor(gpu: object) -> None:
    """SMs x FLOPs a cycle x clock is the descriptor's dense peak, for every GPU."""
    assert isinstance(gpu, type(H200.gpu))
    on = Machine(gpu, H200.calibration, own=False)
    clock = gpu.tensor_peak_clock_hz or gpu.boost_clock_hz
    peak = on.flops_per_sm_cycle("fp16") * on.sms * clock
    assert peak == pytest.approx(gpu.tensor_flops_per_s["fp16"])


def test_other_gpus_are_reached_through_their_descriptor() -> None:
    """Large products scale with the tensor peak, large streams with the memory bandwidth."""
    other = machine("a100-sxm-80gb")
    gemm, stream = Gemm(2**14, 2**14, 2**14, "bf16"), Stream("add_half", 2**30, 1, 2**32, 2**31)
    peaks = load_gpu("h200").tensor_flops_per_s["bf16"] / 312e12
    assert seconds(other, gemm) / seconds(H200, gemm) == pytest.approx(peaks, rel=0.15)
    memory = H200.hbm_bytes_per_s / other.hbm_bytes_per_s
    assert seconds(other, stream) / seconds(H200, stream) == pytest.approx(memory, rel=0.01)


@given(st.integers(0, 2**32))
def test_an_unknown_l2_is_no_l2(moved: int) -> None:
    """A GPU whose L2 capacity nobody published is costed as if all traffic went to memory."""
    known = machine("rubin-r200", l2_bytes="1 B")
    assert machine("rubin-r200").gpu.l2_bytes is None
    kernel = Stream("add_half", 1, 1, moved, 0)
    found = seconds(machine("rubin-r200"), kernel)
    assert found == pytest.approx(seconds(known, kernel), rel=1e-6)


@pytest.mark.parametrize("gpu", trainable_gpu_ids())
def test_every_gpu_costs_every_code_path(gpu: str) -> None:
    """Each calibrated code path has a time on each GPU that can train."""
    coster = Coster(machine(gpu))
    for kind in KINDS:
        (found,) = coster.launches(Stream(kind, 1000, 1000, 4_000_000, 4_000_000))
        assert 0.0 < found.seconds(coster.machine.max_clock_hz) < 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_code_paths_have_a_class_of_the_traces(kind: str) -> None:
    """What a memory-bound code path is counted under is a class that traces are read into."""
    assert stream_class(kind) in CLASSES


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("layer_norm_float", "normalization"), ("gelu_half", "elementwise"),
        ("adamw_float", "optimizer"), ("log_softmax", "softmax_loss"), ("cat_half", "copy"),
        ("batch_norm_forward_cudnn_half", "batch_norm"), ("gather_float", "embedding"),
        ("column_sum_half", "reduction"), ("memset", "memset"),
    ],
)  # fmt: skip
def test_classes_of_well_known_code_paths(kind: str, name: str) -> None:
    """Code paths are counted under the class that their kernels have in a trace."""
    assert stream_class(kind) == name
