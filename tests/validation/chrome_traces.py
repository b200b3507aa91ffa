"""Tiny traces in kineto's dialect, built independently of any writer of this project."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from validation.traces import Trace, read_trace

BASE_NS = 1_790_857_026_000_000_000
PID, THREAD = 900, 901

Plain = dict[str, Any]


def complete(cat: str, name: str, ts_us: float, dur_us: float, **others: Any) -> Plain:
    """A complete event on the host thread; `others` replace or add fields."""
    event = {"ph": "X", "cat": cat, "name": name, "pid": PID, "tid": THREAD, "args": {}}
    return {**event, "ts": ts_us, "dur": dur_us, **others}


def kernel(name: str, ts_us: float, dur_us: float, stream: int = 7, **args: Any) -> Plain:
    """A kernel on GPU 0."""
    placed = {"device": 0, "stream": stream, **args}
    return complete("kernel", name, ts_us, dur_us, pid=0, tid=stream, args=placed)


def launch(correlation: int, ts_us: float, **others: Any) -> Plain:
    """The host's call that launched the GPU operation of that correlation number."""
    args = {"correlation": correlation}
    return complete("cuda_runtime", "cudaLaunchKernel", ts_us, 0.5, args=args, **others)


def operator(name: str, ts_us: float, dur_us: float, **args: Any) -> Plain:
    """An operator on the host thread."""
    return complete("cpu_op", name, ts_us, dur_us, args=args)


def document(events: list[Plain], **others: Any) -> Plain:
    """A trace file's top level."""
    return {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "traceEvents": events, **others}


def read(folder: Path, plain: object) -> Trace:
    """Write a document and read it back."""
    path = folder / "trace.json"
    path.write_text(json.dumps(plain), encoding="utf-8")
    return read_trace(path)


NAMES = (
    "nvjet_sm90_tst_256x128",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    "Memcpy",
    "triton_poi_0",
)
TIMES_US = st.integers(0, 40_000).map(lambda ns: ns / 1000)


@st.composite
def gpu_work(draw: st.DrawFn) -> list[Plain]:
    """Operators that launch kernels on up to three streams, which may overlap in any way."""
    events: list[Plain] = []
    for correlation in range(1, draw(st.integers(1, 8)) + 1):
        issued, start = draw(TIMES_US), draw(TIMES_US)
        events.append(operator(f"aten::op{correlation}", issued, draw(TIMES_US)))
        events.append(launch(correlation, issued))
        name, stream = draw(st.sampled_from(NAMES)), draw(st.sampled_from([7, 17, 20]))
        events.append(kernel(name, start, draw(TIMES_US), stream, correlation=correlation))
    return events
