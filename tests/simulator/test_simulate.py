"""A whole prediction: what it says adds up, and more hardware never makes a step slower."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archs.errors import InputError
from archs.gpu import Gpu, gpu_ids, load_gpu
from archs.systems import single_node
from simulator import Scenario, StepResult, simulate
from simulator.power import PowerModel
from simulator.simulation import machine_of
from tests.strategies import scenarios, trainable_gpu_ids
from workloads.model import TransformerModel

KEYS = [
    "step_time_s", "step_time_interval_s", "interval_level", "tokens_per_s",
    "tokens_per_s_per_gpu", "model_tflops_per_gpu", "mfu", "hfu", "peak_memory_bytes",
    "fits_in_memory", "memory", "breakdown", "bound_by", "energy_j", "average_power_w",
    "sm_clock_mhz", "cost_usd", "warnings", "engine",
]  # fmt: skip
"""Keys of a language-model result, as documented; an image model has images for tokens."""

PARTS = ["compute", "optimizer", "exposed_communication", "bubble", "host", "launch_gaps"]


def llama(layers: int = 4, **tables: Any) -> dict[str, Any]:
    """A small Llama step on one H200 as scenario tables, with other tables as they are given."""
    model = {"family": "llama", "hidden": 1024, "layers": layers, "heads": 8, "ffn": 4096,
             "vocab": 32_000}  # fmt: skip
    workload = {"model": model, "seq_len": 1024, "micro_batch": 8}
    return {
        "system": {"gpu": "h200-sxm-141gb"},
        "workload": workload,
        "stack": {"precision": "bf16"},
        **tables,
    }


def result(tables: dict[str, Any], **overrides: str) -> StepResult:
    """The prediction for scenario tables, with overrides ("gpu__sm_count" for a dotted path)."""
    changes = {path.replace("__", "."): text for path, text in overrides.items()}
    return simulate(Scenario.from_mapping(tables, overrides=changes))


def on_gpu(scenario: Scenario, **changes: object) -> Scenario:
    """The scenario on a GPU with changed fields."""
    gpu = scenario.gpu.model_copy(update=changes)
    return replace(scenario, gpu=gpu, system=single_node(gpu, 1))


def stronger(gpu: Gpu, factor: int) -> dict[str, object]:
    """Fields of a GPU with more SMs, each as strong as before."""
    peaks = {key: factor * value for key, value in gpu.tensor_flops_per_s.items()}
    sparse = {key: factor * value for key, value in gpu.sparse_tensor_flops_per_s.items()}
    return {"sm_count": factor * gpu.sm_count, "tensor_flops_per_s": peaks,
            "sparse_tensor_flops_per_s": sparse}  # fmt: skip


@given(scenarios())
def test_breakdown_sums_to_the_step(scenario: Scenario) -> None:
    """The parts of a step are those of the contract, none is negative, and they are its time."""
    found = simulate(scenario)
    assert list(found.breakdown) == PARTS
    assert min(found.breakdown.values()) >= 0.0
    assert sum(found.breakdown.values()) == pytest.approx(found.step_time_s, rel=1e-9)


@given(scenarios())
def test_interval_contains_the_prediction(scenario: Scenario) -> None:
    """The step lies inside its own interval, whose level is stated."""
    found = simulate(scenario)
    low, high = found.step_time_interval_s
    assert 0.0 <= low < found.step_time_s < high
    assert found.interval_level == 0.9


@given(scenarios())
def test_rates_follow_from_the_step(scenario: Scenario) -> None:
    """Throughput, FLOP rates, energy and memory agree with each other."""
    found = simulate(scenario)
    assert found.hfu >= found.mfu > 0.0
    assert found.hfu <= 1.0
    assert found.energy_j == pytest.approx(found.average_power_w * found.step_time_s)
    assert sum(found.memory.values()) == found.peak_memory_bytes
    samples = scenario.workload.micro_batch * scenario.workload.grad_accum
    if found.tokens_per_s is None:
        assert found.images_per_s == pytest.approx(samples / found.step_time_s)
    else:
        tokens = samples * (scenario.workload.seq_len or 0)
        assert found.tokens_per_s == pytest.approx(tokens / found.step_time_s)


@given(scenarios())
def test_power_and_bound_are_possible(scenario: Scenario) -> None:
    """The mean power is at least that without work, and one thing that can bind one GPU does."""
    found = simulate(scenario)
    idle_w = PowerModel(machine_of(scenario), scenario.power_limit_w).idle_w
    assert found.average_power_w >= idle_w > 0.0
    assert found.bound_by in ("host", "power", "compute", "memory_bandwidth")


@given(scenarios())
def test_clock_is_possible(scenario: Scenario) -> None:
    """The mean clock is positive and at most the GPU's highest."""
    found = simulate(scenario)
    assert 0.0 < found.sm_clock_mhz <= scenario.gpu.boost_clock_hz / 1e6


@settings(max_examples=20)
@given(scenarios())
def test_same_input_same_bytes_out(scenario: Scenario) -> None:
    """Two predictions are equal byte by byte as JSON, but for the wall time they took."""
    texts = set()
    for _ in range(2):
        plain = simulate(scenario).as_dict()
        plain["engine"].pop("wall_time_s")
        texts.add(json.dumps(plain))
    assert len(texts) == 1


@given(scenarios(), st.integers(2, 4))
def test_more_bandwidth_is_never_slower(scenario: Scenario, factor: int) -> None:
    """Faster memory makes no step slower, also where the power limit lowers the clock."""
    hbm = scenario.gpu.hbm
    wider = hbm.model_copy(update={"bandwidth_bytes_per_s": factor * hbm.bandwidth_bytes_per_s})
    faster = simulate(on_gpu(scenario, hbm=wider)).step_time_s
    assert faster <= simulate(scenario).step_time_s * (1 + 1e-6)


@given(scenarios(), st.integers(2, 4))
def test_more_sms_are_never_slower(scenario: Scenario, factor: int) -> None:
    """More SMs of the same strength make no step slower."""
    faster = simulate(on_gpu(scenario, **stronger(scenario.gpu, factor))).step_time_s
    assert faster <= simulate(scenario).step_time_s * (1 + 1e-6)


@given(scenarios(), st.floats(1.0, 4.0))
def test_higher_power_limit_is_never_slower(scenario: Scenario, factor: float) -> None:
    """A board that may draw more makes no step slower."""
    limit_w = factor * scenario.power_limit_w
    faster = simulate(replace(scenario, power_limit_w=limit_w)).step_time_s
    assert faster <= simulate(scenario).step_time_s * (1 + 1e-6)


@given(scenarios(), st.floats(0.01, 1.0))
def test_faster_host_is_never_slower(scenario: Scenario, factor: float) -> None:
    """A host that issues operators faster makes no step slower."""
    launch_s = factor * scenario.host_launch_s
    faster = simulate(replace(scenario, host_launch_s=launch_s)).step_time_s
    assert faster <= simulate(scenario).step_time_s * (1 + 1e-6)


@settings(max_examples=12)
@given(
    st.sampled_from(("gpt", "llama", "mpt")),
    st.integers(8, 24),
    st.sampled_from(("eager", "compile")),
    st.sampled_from(("none", "full")),
)
def test_twice_the_layers_take_about_twice_as_long(
    family: str, layers: int, execution: str, recompute: str
) -> None:
    """In deep models at a large batch the blocks are the step."""
    tables = llama(plan={"recompute": recompute}, stack={"execution": execution})
    times = []
    for count in (layers, 2 * layers):
        model = {"family": family, "hidden": 2048, "layers": count, "heads": 16, "vocab": 8000}
        workload = {**tables["workload"], "model": model}
        times.append(result({**tables, "workload": workload}).step_time_s)
    assert 1.8 <= times[1] / times[0] <= 2.2


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_more_batch_takes_longer_and_is_more_efficient(recompute: str) -> None:
    """Step time and MFU both grow with the micro-batch."""
    tables = llama(plan={"recompute": recompute})
    found = [result(tables, workload__micro_batch=str(n)) for n in (1, 2, 4, 8, 16)]
    assert [r.step_time_s for r in found] == sorted(r.step_time_s for r in found)
    assert [r.mfu for r in found] == sorted(r.mfu for r in found)


def test_json_keys_are_frozen() -> None:
    """The JSON of a result has exactly the documented keys, in order, with plain values."""
    plain = result(llama()).as_dict()
    assert list(plain) == KEYS
    assert list(plain["engine"]) == ["events", "roles", "wall_time_s"]
    assert list(plain["breakdown"]) == PARTS
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


def test_image_models_have_image_rates() -> None:
    """A ResNet result has images where a language model has tokens."""
    workload = {"model": "resnet50", "micro_batch": 16}
    stack = {"optimizer": "sgd-momentum", "grad_clip": False}
    plain = result(llama(workload=workload, stack=stack)).as_dict()
    assert list(plain) == [key.replace("tokens", "images") for key in KEYS]
    assert plain["images_per_s"] == pytest.approx(16 / plain["step_time_s"])


def test_calibrated_gpu_needs_no_warning() -> None:
    """A step that fits on a GPU with its own calibration says nothing special."""
    found = result(llama())
    assert found.warnings == ()
    assert found.fits_in_memory


@pytest.mark.parametrize("gpu", ["h100-sxm-80gb", "a100-sxm-80gb", "b200-sxm"])
def test_extrapolated_gpu_says_so(gpu: str) -> None:
    """A GPU without a calibration is warned about, and its interval is wider."""
    own, other = result(llama()), result(llama(system={"gpu": gpu}))
    (warning,) = other.warnings
    assert gpu in warning
    assert "extrapolated from h200-sxm-141gb" in warning
    widths = [(r.step_time_interval_s[1] / r.step_time_s) for r in (own, other)]
    assert widths[1] >= widths[0]


def test_out_of_memory_is_a_result() -> None:
    """A step that does not fit is simulated and says where memory ran out."""
    found = result(llama(), workload__micro_batch="256")
    assert not found.fits_in_memory
    assert found.step_time_s > 0.0
    (warning,) = found.warnings
    assert "would run out of memory at" in warning
    assert "h200-sxm-141gb" in warning


@pytest.mark.parametrize("gpu", trainable_gpu_ids())
@pytest.mark.parametrize("execution", ["eager", "compile"])
def test_every_gpu_trains_a_small_model(gpu: str, execution: str) -> None:
    """Each catalog GPU with a bf16 or fp16 peak predicts a plausible step."""
    has_bf16 = "bf16" in map(str, load_gpu(gpu).tensor_flops_per_s)
    precision = "amp-bf16" if has_bf16 else "amp-fp16"
    stack = {"execution": execution, "precision": precision}
    found = result(llama(system={"gpu": gpu}, stack=stack))
    assert 1e-4 < found.step_time_s < 10.0
    assert 0.0 < found.mfu < 1.0


@pytest.mark.parametrize("gpu", sorted(set(gpu_ids()) - set(trainable_gpu_ids())))
def test_gpus_that_cannot_be_simulated_say_why(gpu: str) -> None:
    """A GPU without a power limit or a suitable precision is one clear error."""
    with pytest.raises(InputError, match=r"(power_limit_w|precision) must") as caught:
        result(llama(system={"gpu": gpu}))
    assert "\n" not in str(caught.value)


def test_missing_precision_is_one_clear_error() -> None:
    """A GPU without the tensor mode of the stack is refused, with the precisions it can run."""
    with pytest.raises(InputError) as caught:
        result(llama(system={"gpu": "t4"}))
    rule = "precision must be one of amp-fp16, fp16 on t4"
    assert str(caught.value) == f"{rule} (got bf16) in stack.precision"
    tables = llama(system={"gpu": "rubin-ultra", "power_limit_w": 3600.0})
    with pytest.raises(InputError, match=r"precision must be one that the GPU has on rubin-ultra"):
        result(tables, gpu__l2_bytes="128 MiB")


def test_slow_host_is_what_binds_a_small_step() -> None:
    """With a very slow host the step is bound by it, and its part of the breakdown dominates."""
    slow = llama(system={"gpu": "h200-sxm-141gb", "host": {"eager_launch_s": 2e-4}})
    found = result(slow)
    assert found.bound_by == "host"
    assert found.breakdown["host"] > 0.5 * found.step_time_s


def test_low_power_limit_throttles() -> None:
    """At half its limit the GPU runs a step of large products slower and at a lower clock."""
    model = {"family": "llama", "hidden": 4096, "layers": 4, "heads": 32, "vocab": 8000}
    workload = {"model": model, "seq_len": 2048, "micro_batch": 8}
    found = [
        result(llama(workload=workload, system={"gpu": "h200", "power_limit_w": watts}))
        for watts in (350.0, 700.0)
    ]
    assert found[0].sm_clock_mhz < found[1].sm_clock_mhz
    assert found[0].step_time_s > found[1].step_time_s
    assert found[0].average_power_w <= 350.0 * 1.001
    assert found[0].bound_by == "power"


@pytest.mark.parametrize(
    ("path", "text"),
    [("gpu.sm_count", "144"), ("gpu.hbm.bandwidth_bytes_per_s", "6 TB/s"),
     ("gpu.boost_clock_hz", "2.2 GHz"), ("system.power_limit_w", "900")],
)  # fmt: skip
def test_more_by_override_is_never_slower(path: str, text: str) -> None:
    """The overrides of a what-if never make a step slower when they ask for more."""
    for layers in (2, 4):
        plain = result(llama(layers)).step_time_s
        assert result(llama(layers), **{path: text}).step_time_s <= plain * (1 + 1e-6)


def test_memory_of_a_step_is_the_models() -> None:
    """Pure bf16 parameters take two bytes each, AdamW's states twice that, gradients the same."""
    found = result(llama())
    model = Scenario.from_mapping(llama()).workload.model
    assert isinstance(model, TransformerModel)
    weights = 2 * model.parameter_count()
    assert found.memory["parameters"] == pytest.approx(weights, rel=1e-3)
    assert found.memory["optimizer"] == pytest.approx(2 * weights, rel=1e-3)
    assert load_gpu("h200").hbm.capacity_bytes > found.peak_memory_bytes > 3 * weights
