"""The trace reader: what must not change its result, and what it adds up."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archs.errors import StepsimError
from tests.validation.chrome_traces import (
    BASE_NS,
    Plain,
    complete,
    document,
    gpu_work,
    kernel,
    launch,
    operator,
    read,
)
from validation.traces import (
    Collective,
    Distributed,
    GpuOp,
    Trace,
    busy_times,
    class_totals,
    ops_of_step,
    read_trace,
    stream_busy_s,
    union,
)

# A file is written over for each example: the folder does not carry anything between them.
in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
PS_PER_US = 1_000_000


@in_one_folder
@given(gpu_work(), st.integers(0, 2**32))
def test_order_of_events_does_not_matter(tmp_path: Path, events: list[Plain], seed: int) -> None:
    """The same events in another order are the same trace."""
    shuffled = list(events)
    random.Random(seed).shuffle(shuffled)
    assert read(tmp_path, document(shuffled)) == read(tmp_path, document(events))


@in_one_folder
@given(gpu_work(), st.integers(-10_000_000, 10_000_000))
def test_a_shift_in_time_changes_no_duration(
    tmp_path: Path, events: list[Plain], shift_ns: int
) -> None:
    """Moving every event by one time moves every start by it, and nothing else."""
    trace = read(tmp_path, document(events))
    shifted = read(tmp_path, document(events, baseTimeNanoseconds=BASE_NS + shift_ns))
    back = [replace(op, start_ps=op.start_ps - shift_ns * 1000) for op in shifted.kernels]
    assert [replace(op, launch_ps=None) for op in back] == [
        replace(op, launch_ps=None) for op in trace.kernels
    ]
    assert busy_times(shifted.kernels) == busy_times(trace.kernels)
    assert class_totals(shifted) == class_totals(trace)


@in_one_folder
@given(gpu_work(), st.integers(1, 10_000), st.integers(1, 10_000))
def test_process_numbers_do_not_matter(
    tmp_path: Path, events: list[Plain], pid: int, tid: int
) -> None:
    """Renumbering the host's processes and threads leaves the GPU's work as it is."""
    renumbered = [
        event if event["cat"] == "kernel" else {**event, "pid": pid, "tid": tid} for event in events
    ]
    assert read(tmp_path, document(renumbered)).kernels == read(tmp_path, document(events)).kernels


@in_one_folder
@given(gpu_work())
def test_both_time_bases_agree(tmp_path: Path, events: list[Plain]) -> None:
    """Microseconds since a base and since the epoch are the same times, to the picosecond."""
    whole = [{**event, "ts": round(event["ts"]), "dur": round(event["dur"])} for event in events]
    absolute = [{**event, "ts": event["ts"] + BASE_NS // 1000} for event in whole]
    relative = read(tmp_path, document(whole))
    assert read(tmp_path, {"traceEvents": absolute}) == relative
    assert read(tmp_path, absolute) == relative


def test_times_are_exact(tmp_path: Path) -> None:
    """A time with three decimals, twelve digits before them, keeps its nanosecond."""
    trace = read(tmp_path, document([kernel("gemm", 5220069647369.679, 0.001)]))
    assert trace.kernels[0].start_ps == BASE_NS * 1000 + 5220069647369679000
    assert trace.kernels[0].duration_ps == 1000


@in_one_folder
@given(gpu_work())
def test_gzip_does_not_matter(tmp_path: Path, events: list[Plain]) -> None:
    """A compressed trace reads as the plain one."""
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(json.dumps(document(events)).encode()))
    assert read_trace(packed) == read(tmp_path, document(events))


intervals = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda ends: (min(ends), max(ends))),
    max_size=12,
)


@given(intervals)
def test_union_covers_each_tick_once(pieces: list[tuple[int, int]]) -> None:
    """The union is as long as the number of ticks that any interval covers, and disjoint."""
    covered = {tick for start, end in pieces for tick in range(start, end)}
    merged = union(pieces)
    assert sum(end - start for start, end in merged) == len(covered)
    assert all(before[1] < after[0] for before, after in pairwise(merged))


@in_one_folder
@given(gpu_work())
def test_busy_times_are_consistent(tmp_path: Path, events: list[Plain]) -> None:
    """Busy plus idle is the span; compute plus exposed communication is busy; sums bound unions."""
    trace = read(tmp_path, document(events))
    busy = busy_times(trace.kernels)
    assert busy.gpu_busy_s + busy.idle_s == pytest.approx(busy.span_s)
    exposed = busy.communication_exposed_s
    assert busy.compute_busy_s + exposed == pytest.approx(busy.gpu_busy_s)
    assert 0.0 <= exposed <= busy.communication_busy_s <= busy.communication_total_s
    total_s = sum(total.total_s for total in class_totals(trace).values())
    assert busy.gpu_busy_s <= total_s * (1 + 1e-12)
    assert max(stream_busy_s(trace.kernels).values()) <= busy.gpu_busy_s


def test_overlapping_kernels_count_once(tmp_path: Path) -> None:
    """Two kernels of 10 us that overlap by 4 us keep the GPU busy for 16 us."""
    trace = read(tmp_path, document([kernel("gemm", 0, 10), kernel("gemm", 6, 10)]))
    assert busy_times(trace.kernels).gpu_busy_s == pytest.approx(16e-6)
    assert stream_busy_s(trace.kernels) == {(0, 7): pytest.approx(16e-6)}
    assert class_totals(trace)["gemm"].total_s == pytest.approx(20e-6)


def test_only_communication_beside_nothing_is_exposed(tmp_path: Path) -> None:
    """Of a collective of 10 us, 3 us of them beside a kernel, 7 us are exposed."""
    events = [kernel("gemm", 0, 5), kernel("ncclDevKernel_AllReduce", 2, 10, stream=17)]
    busy = busy_times(read(tmp_path, document(events)).kernels)
    assert busy.communication_exposed_s == pytest.approx(7e-6)
    assert busy.communication_busy_s == pytest.approx(10e-6)
    assert (busy.launches, busy.streams) == (2, 2)


def test_no_gpu_work_is_no_time(tmp_path: Path) -> None:
    """A trace of a rank without GPU work has zero busy time and no classes."""
    trace = read(tmp_path, document([operator("aten::mm", 0, 1)]))
    assert busy_times(trace.kernels).span_s == 0.0
    assert class_totals(trace) == {}


def only_kernel(folder: Path, *events: Plain) -> GpuOp:
    """The single GPU operation of a trace of these events."""
    (found,) = read(folder, document(list(events))).kernels
    return found


def test_the_innermost_operator_launched_it(tmp_path: Path) -> None:
    """An External id that repeats the correlation says nothing: containment decides."""
    found = only_kernel(
        tmp_path,
        operator("aten::linear", 0, 100),
        operator("aten::t", 5, 10),
        operator("aten::addmm", 20, 50),
        operator("aten::other", 90, 5, **{"External id": 3}),
        launch(3, 30),
        kernel("gemm", 200, 5, correlation=3, **{"External id": 3}),
    )
    assert found.op == "aten::addmm"
    assert found.launch_ps == BASE_NS * 1000 + 30 * PS_PER_US


def test_a_repeated_correlation_is_its_first_launch(tmp_path: Path) -> None:
    """When a correlation number occurs twice on the host, the earlier call is the launch."""
    calls = [launch(3, 40), launch(3, 10), launch(3, 30)]
    found = only_kernel(tmp_path, *calls, kernel("gemm", 50, 5, correlation=3))
    assert found.launch_ps == BASE_NS * 1000 + 10 * PS_PER_US


def test_another_thread_did_not_launch_it(tmp_path: Path) -> None:
    """An operator open on another thread at the time of the launch is not the launching one."""
    found = only_kernel(
        tmp_path,
        operator("aten::mm", 0, 100),
        launch(3, 30, tid=77),
        kernel("k", 50, 5, correlation=3),
    )
    assert found.op is None


def test_an_external_id_names_the_operator(tmp_path: Path) -> None:
    """An External id that an operator carries wins over containment, launch or no launch."""
    found = only_kernel(
        tmp_path,
        operator("aten::mm", 0, 1, **{"External id": 41}),
        kernel("gemm", 50, 5, correlation=3, **{"External id": 41}),
    )
    assert found.op == "aten::mm"
    assert found.launch_ps is None


def test_operator_decides_what_a_gemm_kernel_is(tmp_path: Path) -> None:
    """The same kernel name is a convolution when a convolution operator launched it."""
    events = [
        operator("aten::mm", 0, 10), launch(1, 5), kernel("nvjet", 50, 5, correlation=1),
        operator("aten::cudnn_convolution", 20, 10), launch(2, 25),
        kernel("nvjet", 60, 5, correlation=2),
    ]  # fmt: skip
    totals = class_totals(read(tmp_path, document(events)))
    assert {name: total.count for name, total in totals.items()} == {"gemm": 1, "convolution": 1}


COLLECTIVE_ARGS: dict[str, Any] = {
    "Collective name": "_allgather_base",
    "In msg nelems": 25_136,
    "Out msg nelems": 201_088,
    "Group size": 8,
    "dtype": "BFloat16",
    "Process Group Name": "0",
    "Seq": 12,
}


def test_collective_arguments_give_bytes(tmp_path: Path) -> None:
    """Elements and dtype of a collective's arguments become the bytes of one rank's tensors."""
    found = only_kernel(
        tmp_path, kernel("ncclDevKernel_AllGather_RING_LL", 0, 1, **COLLECTIVE_ARGS)
    )
    assert found.collective == Collective(
        "_allgather_base", 25_136, 201_088, "BFloat16", 8, "0", 12, inferred=False
    )
    assert (found.collective.bytes_in, found.collective.bytes_out) == (50_272, 402_176)


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(...)", "reduce_scatter"),
        ("ncclDevKernel_AllReduce_Sum_f32_TREE_LL128(...)", "allreduce"),
        ("ncclDevKernel_Generic_4(...)", "unknown"),
    ],
)
def test_a_collective_without_arguments_is_flagged(tmp_path: Path, name: str, op: str) -> None:
    """Without arguments the operation is inferred from the kernel's name and says so."""
    found = only_kernel(tmp_path, kernel(name, 0, 1))
    assert found.collective == Collective(op, inferred=True)
    assert found.collective.bytes_in is None


def test_what_is_not_a_collective_has_no_collective(tmp_path: Path) -> None:
    """A kernel of another class carries no collective, whatever its arguments."""
    assert only_kernel(tmp_path, kernel("gemm", 0, 1, **COLLECTIVE_ARGS)).collective is None


def test_steps_are_windows_of_launches(tmp_path: Path) -> None:
    """A kernel belongs to the step in which it was launched, even if it runs after it."""
    events = [
        complete("user_annotation", "ProfilerStep#4", 0, 100),
        complete("user_annotation", "ProfilerStep#5", 100, 100),
        complete("gpu_user_annotation", "ProfilerStep#4", 50, 120),
        launch(1, 90), kernel("gemm", 150, 20, correlation=1),
        launch(2, 120), kernel("gemm", 180, 20, correlation=2),
        kernel("gemm", 130, 5),
    ]  # fmt: skip
    trace = read(tmp_path, document(events))
    assert [step.number for step in trace.steps] == [4, 5]
    assert [op.correlation for op in ops_of_step(trace, 4)] == [1]
    assert [op.correlation for op in ops_of_step(trace, 5)] == [None, 2]
    with pytest.raises(ValueError, match=r"step must be one of \[4, 5\] \(got 6\)"):
        ops_of_step(trace, 6)


def test_unknown_categories_are_counted(tmp_path: Path) -> None:
    """Events of unknown categories and phases are kept out and counted; known extras are not."""
    events = [
        complete("mtia_ccp_events", "x", 0, 1),
        complete("mtia_ccp_events", "y", 0, 1),
        {"ph": "Q", "name": "z"},
        {"ph": "X", "name": "no category", "ts": 0, "dur": 1},
        {"ph": "M", "name": "process_name", "pid": "Spans", "tid": "", "args": {"name": "p"}},
        complete("ac2g", "flow", 0, 1),
        kernel("gemm", 0, 1),
    ]
    trace = read(tmp_path, document(events))
    assert trace.unknown_categories == {"mtia_ccp_events": 2, "none": 1, "phase Q": 1}
    assert trace.launches == 1


def test_oldest_category_names_are_known(tmp_path: Path) -> None:
    """Kernel, Runtime and Operator of the oldest files are today's categories."""
    events = [
        complete("Operator", "aten::mm", 0, 10),
        complete("Runtime", "cudaLaunchKernel", 1, 1, args={"correlation": 9}),
        complete("Kernel", "sgemm", 20, 5, pid=0, tid=7, args={"correlation": 9}),
    ]
    found = only_kernel(tmp_path, *events)
    assert (found.category, found.op, found.device, found.stream) == ("kernel", "aten::mm", 0, 7)


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({}, None),
        ({"rank": 3}, Distributed(rank=3)),
        (
            {"backend": "nccl", "rank": 1, "world_size": 8, "nccl_version": "2.28.9"},
            Distributed(1, 8, "nccl", "2.28.9"),
        ),
    ],
)
def test_distributed_info_is_never_guessed(
    tmp_path: Path, info: Plain, expected: Distributed | None
) -> None:
    """Rank and world size are what the file says, None where it says nothing."""
    assert read(tmp_path, document([], distributedInfo=info)).distributed == expected
    assert read(tmp_path, document([])).distributed is None


def truncated(folder: Path, name: str, content: bytes) -> str:
    """The message with which a file of this content is refused."""
    path = folder / name
    path.write_bytes(content)
    with pytest.raises(StepsimError) as caught:
        read_trace(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


@in_one_folder
@given(gpu_work(), st.floats(0.0, 1.0))
def test_a_truncated_file_is_refused_with_its_offset(
    tmp_path: Path, events: list[Plain], share: float
) -> None:
    """Cut anywhere, a trace is refused, and the message says at which byte it ended."""
    content = json.dumps(document(events)).encode()
    end = 1 + int(share * (len(content) - 2))
    assert f"byte {end}" in truncated(tmp_path, "cut.json", content[:end])
    packed = gzip.compress(content)
    end = 2 + int(share * (len(packed) - 3))
    assert f"byte {end}" in truncated(tmp_path, "cut.json.gz", packed[:end])


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"", "trace must hold JSON"),
        (b"{]", "(byte 1)"),
        (b'{"traceEvents": 3}', "$.traceEvents"),
        (b'{"schema": "1.0.1", "nodes": []}', "traceEvents"),
        (b'{"traceEvents": [{"ph": "X", "ts": "now"}]}', "$.traceEvents[0].ts"),
    ],
)
def test_what_is_not_a_trace_is_refused(tmp_path: Path, content: bytes, rule: str) -> None:
    """A malformed file is refused in one line that says where it is wrong."""
    assert rule in truncated(tmp_path, "wrong.json", content)


@pytest.mark.parametrize(
    ("event", "rule"),
    [
        (kernel("gemm", 0, -1), "dur must not be negative (got -1 us)"),
        ({**kernel("gemm", 0, 1), "ts": None}, "ts must be given"),
        ({**kernel("gemm", 0, 1), "args": 5}, "Expected `object`"),
    ],
)
def test_gpu_work_without_a_usable_time_is_refused(tmp_path: Path, event: Plain, rule: str) -> None:
    """A GPU operation that cannot be placed in time is refused with its index in the file."""
    content = json.dumps(document([kernel("gemm", 0, 1), event])).encode()
    message = truncated(tmp_path, "wrong.json", content)
    assert rule in message
    assert "traceEvents[1]" in message


def test_an_empty_trace_has_the_versions_of_its_file(tmp_path: Path) -> None:
    """Devices and versions are those of the file's head."""
    head = {"id": 0, "name": "NVIDIA H200", "numSms": 132, "computeMajor": 9, "computeMinor": 0}
    trace: Trace = read(tmp_path, document([], deviceProperties=[head], cuda_driver_version=13000))
    (device,) = trace.devices
    assert (device.name, device.sm_count, device.compute_capability) == ("NVIDIA H200", 132, "9.0")
    assert trace.versions == {"cuda_driver_version": "13000"}
