"""The timeline of a predicted step is a kineto trace that readers of measured ones understand."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from archs.errors import InputError
from simulator import Scenario, StepResult, simulate
from simulator.simulation import class_seconds
from simulator.streams import Slice
from simulator.timeline import STREAMS, allocated_bytes, chrome_trace, write_trace
from tests.strategies import scenarios
from validation.traces import GpuOp, Trace, busy_times, ops_of_step, read_trace

PS_PER_NS = 1_000
PS_PER_S = 10**12
GPT = {"family": "gpt", "hidden": 256, "layers": 3, "heads": 4, "vocab": 1000}
CASES: dict[str, dict[str, Any]] = {
    "eager": {"workload": {"model": GPT, "seq_len": 256, "micro_batch": 2}},
    "compiled": {
        "workload": {"model": GPT, "seq_len": 1024, "micro_batch": 8},
        "stack": {"execution": "compile"},
    },
    "two_passes": {"workload": {"model": GPT, "seq_len": 128, "micro_batch": 1, "grad_accum": 2}},
    "data_parallel": {
        "system": {"gpu": "h200-sxm-141gb", "gpus": 2},
        "workload": {"model": GPT, "seq_len": 256, "micro_batch": 2},
        "plan": {"dp": 2},
    },
    "images": {
        "workload": {"model": "resnet50", "micro_batch": 64},
        "stack": {"precision": "amp-fp16", "optimizer": "sgd-momentum"},
    },
}
cases = pytest.mark.parametrize("case", CASES)


@cache
def predicted(case: str) -> tuple[Scenario, StepResult]:
    """A scenario and its prediction."""
    scenario = Scenario.from_mapping({"system": {"gpu": "h200-sxm-141gb"}, **CASES[case]})
    return scenario, simulate(scenario)


@cache
def document(case: str) -> dict[str, Any]:
    """The written trace of a case, as any JSON reader sees it."""
    scenario, result = predicted(case)
    found: dict[str, Any] = json.loads(json.dumps(chrome_trace(result, scenario)))
    return found


def read_back(scenario: Scenario, result: StepResult) -> Trace:
    """What our reader of measured traces makes of the written prediction."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.json.gz"
        write_trace(path, result, scenario)
        return read_trace(path)


def events(case: str, **wanted: Any) -> list[dict[str, Any]]:
    """Events of a case with these values."""
    return [
        event
        for event in document(case)["traceEvents"]
        if all(event.get(key) == value for key, value in wanted.items())
    ]


def gpu_events(case: str) -> list[dict[str, Any]]:
    """Kernels and memsets in the order of the file."""
    return [e for e in document(case)["traceEvents"] if e.get("cat") in ("kernel", "gpu_memset")]


def nanoseconds(event: dict[str, Any]) -> tuple[int, int]:
    """Start and end of a slice in whole nanoseconds."""
    start = round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)


def assert_round_trip(result: StepResult, trace: Trace) -> None:
    """Kernels, names, times and operators are those of the simulated step, to a nanosecond."""
    assert trace.launches == len(result.timeline.slices)
    shift = min(s.start_ps for s in result.timeline.slices) - trace.kernels[0].start_ps
    for name, number in STREAMS.items():
        slices = [s for s in result.timeline.slices if s.work.operator.stream == name]
        assert_same([op for op in trace.kernels if op.stream == number], slices, shift)


def assert_same(ops: list[GpuOp], slices: list[Slice], shift: int) -> None:
    """The kernels of one stream are the simulated ones, in order."""
    for op, piece in zip(ops, slices, strict=True):
        assert piece.launch.name in op.name
        assert op.op == piece.work.operator.name
        assert abs(op.duration_ps - (piece.end_ps - piece.start_ps)) <= PS_PER_NS
        assert abs(op.start_ps + shift - piece.start_ps) <= PS_PER_NS
        assert op.launch_ps is not None
        assert op.launch_ps <= op.start_ps


@given(scenarios())
@settings(max_examples=12)
def test_our_reader_gets_every_kernel_back(scenario: Scenario) -> None:
    """Writing a prediction and reading it as a trace is the identity, to a nanosecond."""
    result = simulate(scenario)
    trace = read_back(scenario, result)
    assert_round_trip(result, trace)
    assert trace.unknown_categories == {}


@cases
def test_every_case_survives_the_round_trip(case: str) -> None:
    """Eager, compiled, accumulating and convolutional steps all survive writing and reading."""
    scenario, result = predicted(case)
    assert_round_trip(result, read_back(scenario, result))


@cases
def test_class_totals_survive(case: str) -> None:
    """Durations as read, summed by the class that each kernel carries, are the step's totals."""
    scenario, result = predicted(case)
    kinds = {e["args"]["correlation"]: e["args"]["kernel class"] for e in gpu_events(case)}
    counts: dict[str, int] = defaultdict(int)
    total_ps: dict[str, int] = defaultdict(int)
    for op in read_back(scenario, result).kernels:
        assert op.correlation is not None
        counts[kinds[op.correlation]] += 1
        total_ps[kinds[op.correlation]] += op.duration_ps
    expected = class_seconds(result.timeline)
    assert counts == {kind: count for kind, (count, _) in expected.items()}
    for kind, (count, spent_s) in expected.items():
        assert total_ps[kind] / PS_PER_S == pytest.approx(spent_s, abs=count * 1e-9)


@cases
def test_busy_time_is_that_of_the_simulated_stream(case: str) -> None:
    """The union of a stream's kernels as read is the sum of the simulated ones: none overlap."""
    scenario, result = predicted(case)
    trace, slices = read_back(scenario, result), result.timeline.slices
    compute = [piece for piece in slices if piece.work.operator.stream == "compute"]
    busy_s = sum(piece.end_ps - piece.start_ps for piece in compute) / PS_PER_S
    found = busy_times(trace.kernels)
    assert found.compute_busy_s == pytest.approx(busy_s, abs=len(slices) * 1e-9)


def test_collectives_are_read_as_such() -> None:
    """A data-parallel step's all-reduces hold every gradient, and run on a stream of their own."""
    scenario, result = predicted("data_parallel")
    trace = read_back(scenario, result)
    collectives = [op for op in trace.kernels if op.collective is not None]
    assert trace.distributed is not None
    assert trace.distributed.world_size == 2
    assert {op.stream for op in collectives} == {STREAMS["communication"]}
    assert {op.kernel_class for op in collectives} == {"collective"}
    described = [op.collective for op in collectives if op.collective is not None]
    assert {(each.op, each.group_size, each.dtype) for each in described} == {
        ("allreduce", 2, "Float")
    }
    parameters = scenario.workload.model.parameter_count(256)  # type: ignore[call-arg]
    assert sum(each.elements_in or 0 for each in described) == parameters


@cases
def test_the_step_window_holds_every_kernel(case: str) -> None:
    """Every kernel was launched inside ProfilerStep#1; its slice on the GPU lasts a step."""
    scenario, result = predicted(case)
    trace = read_back(scenario, result)
    assert ops_of_step(trace, 1) == list(trace.kernels)
    (step,) = events(case, cat="gpu_user_annotation", name="ProfilerStep#1")
    assert step["dur"] * 1e-6 == pytest.approx(result.step_time_s, abs=2e-9)


@cases
def test_slices_of_one_track_nest(case: str) -> None:
    """On each track two slices are apart or one holds the other, as Perfetto demands."""
    tracks = defaultdict(list)
    for event in events(case, ph="X"):
        start, end = nanoseconds(event)
        tracks[event["pid"], event["tid"]].append((start, -end))
    for slices in tracks.values():
        open_until: list[int] = []
        for start, negative_end in sorted(slices):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or -negative_end <= open_until[-1]
            open_until.append(-negative_end)


@cases
def test_every_kernel_has_its_launch_and_flow(case: str) -> None:
    """A kernel, its launch call and both ends of its flow share one correlation number."""
    calls = {e["args"]["correlation"]: e for e in events(case, cat="cuda_runtime")}
    starts = {e["id"]: e for e in events(case, cat="ac2g", ph="s")}
    ends = {e["id"]: e for e in events(case, cat="ac2g", ph="f")}
    kernels = {e["args"]["correlation"]: e for e in gpu_events(case)}
    assert len(kernels) == len(gpu_events(case))
    assert calls.keys() == starts.keys() == ends.keys() == kernels.keys()
    for correlation, kernel in kernels.items():
        assert starts[correlation]["ts"] == calls[correlation]["ts"]
        assert ends[correlation]["ts"] == kernel["ts"]
        assert ends[correlation]["bp"] == "e"
        assert calls[correlation]["args"]["External id"] == kernel["args"]["External id"]


@cases
def test_times_have_three_decimals_and_start_at_zero(case: str) -> None:
    """Times are microseconds on the grid of nanoseconds, none before the step began."""
    found = [event for event in document(case)["traceEvents"] if event["ph"] != "M"]
    assert min(event["ts"] for event in found) == 0
    for event in found:
        for key in ("ts", "dur"):
            value = event.get(key, 0.0)
            assert value >= 0
            assert round(value, 3) == value


def test_kernels_say_what_they_are() -> None:
    """A kernel carries its layer, operator, phase and class, and a product its bytes and FLOPs."""
    product = next(e for e in gpu_events("eager") if e["name"].startswith("gemm_bf16_nt_"))
    rows, columns, depth = map(int, product["name"].rsplit("_", 1)[1].split("x"))
    args = product["args"]
    assert (args["layer"], args["phase"], args["kernel class"]) == ("layer0", "forward", "gemm")
    assert args["flops"] == 2 * rows * columns * depth
    assert args["bytes"] == 2 * (rows * columns + columns * depth + rows * depth)
    assert (args["device"], args["stream"]) == (product["pid"], product["tid"]) == (0, 7)


def test_the_document_describes_gpu_and_job() -> None:
    """Name, SMs and compute capability are the descriptor's; the rank is 0 of all GPUs."""
    scenario, result = predicted("eager")
    trace = read_back(scenario, result)
    (device,) = trace.devices
    assert (device.name, device.sm_count) == (scenario.gpu.name, scenario.gpu.sm_count)
    assert device.compute_capability == scenario.gpu.compute_capability
    assert trace.distributed is not None
    assert (trace.distributed.rank, trace.distributed.world_size) == (0, 1)
    assert document("eager")["schemaVersion"] == 1


@cases
def test_allocated_memory_peaks_at_the_predicted_peak(case: str) -> None:
    """The memory counter's highest value is the predicted peak and it never falls below zero."""
    _, result = predicted(case)
    values = [e["args"]["bytes"] for e in events(case, ph="C", name="allocated memory")]
    assert max(values) == result.peak_memory_bytes
    assert min(values) > 0
    assert [time for time, _ in allocated_bytes(result)] == sorted(
        time for time, _ in allocated_bytes(result)
    )


def test_the_clock_counter_holds_the_settled_clock() -> None:
    """The SM clock is one value for the whole step."""
    _, result = predicted("eager")
    values = [e["args"]["MHz"] for e in events("eager", ph="C", name="SM clock")]
    assert set(values) == {result.sm_clock_mhz}


def test_tracks_are_named() -> None:
    """The stream and the host's thread have names, so that a viewer shows them."""
    for case in CASES:
        named = {(e["pid"], e["tid"]) for e in events(case, ph="M", name="thread_name")}
        assert named == {(e["pid"], e["tid"]) for e in events(case, ph="X")}


def test_equal_predictions_give_equal_bytes(tmp_path: Path) -> None:
    """Plain and gzipped files hold the same text, and writing twice gives the same bytes."""
    scenario, result = predicted("eager")
    for name in ("a.json", "a.json.gz", "b.json.gz"):
        write_trace(tmp_path / name, result, scenario)
    zipped = (tmp_path / "a.json.gz").read_bytes()
    assert zipped == (tmp_path / "b.json.gz").read_bytes()
    assert gzip.decompress(zipped) == (tmp_path / "a.json").read_bytes()


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    """A place that takes no file gives one error that names it, and no half-written file."""
    scenario, result = predicted("eager")
    blocked = tmp_path / "folder.json"
    blocked.mkdir()
    with pytest.raises(InputError, match=r"must be writable .* in .*folder\.json"):
        write_trace(blocked / "missing" / "step.json", result, scenario)
    assert list(tmp_path.rglob("*")) == [blocked]
