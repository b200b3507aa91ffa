"""The shipped traces against their records: times agree, and every kernel has a class."""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path

import pytest

from validation import DATA
from validation.kernel_classes import CLASSES, classify
from validation.records import MeasuredRun, read_runs
from validation.traces import Trace, busy_times, class_totals, read_trace

TRACES = sorted((DATA / "h200" / "traces").glob("*.json.gz"))
RUNS = {run.id: run for run in read_runs(DATA / "h200" / "runs.jsonl")}

each_trace = pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.split(".")[0])


@cache
def shipped(path: Path) -> Trace:
    """A shipped trace, read once for all tests."""
    return read_trace(path)


def record_of(path: Path) -> MeasuredRun:
    """The record of the run that a trace file is named after."""
    return RUNS[path.name.partition(".rank")[0]]


def test_seven_traces_are_shipped() -> None:
    """There are traces to test, all of single-GPU runs, each with its record."""
    assert len(TRACES) == 7
    assert {record_of(path).system.num_gpus for path in TRACES} == {1}


@each_trace
def test_times_agree_with_the_record(path: Path) -> None:
    """Busy time, span, launches and streams are those that were recorded when measuring."""
    trace, profiled = shipped(path), record_of(path).measured.profiled_step
    assert profiled is not None
    busy = busy_times(trace.kernels)
    assert busy.gpu_busy_s == pytest.approx(profiled.gpu_busy_s, rel=5e-3)
    assert busy.compute_busy_s == pytest.approx(profiled.compute_busy_s, rel=5e-3)
    assert busy.span_s == pytest.approx(profiled.span_s, rel=5e-3)
    assert (busy.launches, busy.streams) == (profiled.launches, profiled.streams)
    assert trace.launches == profiled.launches
    assert busy.communication_total_s == 0.0


@each_trace
def test_hardly_any_time_is_unclassified(path: Path) -> None:
    """Less than 1 percent of the GPU time is in the class `other`."""
    totals = class_totals(shipped(path))
    unknown_s = totals["other"].total_s if "other" in totals else 0.0
    assert unknown_s < 0.01 * sum(total.total_s for total in totals.values())


@each_trace
def test_every_operation_is_linked_and_counted(path: Path) -> None:
    """Nothing is unknown, every operation has a launch and an operator, and is in one class."""
    trace = shipped(path)
    assert trace.unknown_categories == {}
    assert all(op.op is not None and op.launch_ps is not None for op in trace.kernels)
    assert all(op.launch_ps <= op.start_ps for op in trace.kernels if op.launch_ps is not None)
    assert sum(total.count for total in class_totals(trace).values()) == trace.launches


def test_operators_do_not_depend_on_external_ids(tmp_path: Path) -> None:
    """Where launches are all that is left to go by, the operators found are the same."""
    path = next(path for path in TRACES if "r50" in path.name)
    anonymous = tmp_path / "trace.json"
    anonymous.write_bytes(gzip.decompress(path.read_bytes()).replace(b'"External id"', b'"x"'))
    found = read_trace(anonymous)
    assert [op.op for op in found.kernels] == [op.op for op in shipped(path).kernels]


@each_trace
def test_the_trace_is_of_the_gpu_of_its_record(path: Path) -> None:
    """The device of a shipped trace is an H200 with its 132 multiprocessors."""
    device = shipped(path).devices[0]
    assert (device.name, device.sm_count) == ("NVIDIA H200", 132)


def test_classes_tell_models_apart() -> None:
    """GPT and Llama steps spend most in GEMMs, ResNet in convolution, batch norm and elements."""
    for path in TRACES:
        totals = class_totals(shipped(path))
        family = record_of(path).workload.model.family
        largest = max(totals, key=lambda name: totals[name].total_s)
        assert largest == ("convolution" if family == "resnet50" else "gemm")
        assert ("attention" in totals) == (family != "resnet50")
        assert ("batch_norm" in totals) == (family == "resnet50")


def test_top_kernels_of_every_run_are_classified() -> None:
    """Of the kernels that the records name, cut short as they are, less than 0.5 % are `other`."""
    total_s = dict.fromkeys(CLASSES, 0.0)
    for run in RUNS.values():
        profiled = run.measured.profiled_step
        for kernel in profiled.top_kernels if profiled else ():
            total_s[classify(kernel.name)] += kernel.total_s
    assert total_s["other"] < 0.005 * sum(total_s.values())
    assert min(total_s[name] for name in CLASSES if name != "other") > 0.0
