"""Measure training steps on one CUDA GPU and write them as ``measured-run/1`` records.

    python validation/measure/train.py OUT.jsonl [--only ID,...] [--list] [--quick]

The recipe is that of the shipped H200 records (validation/data/h200/README.md): synthetic data on
the GPU, four warm-up steps, then about four seconds of steps timed with CUDA events. ``--quick``
runs tiny shapes for a fraction of a second. Without a GPU it always does, times with the host's
clock and samples neither memory nor power; that checks this script and measures nothing.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import statistics
import subprocess
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from models import CONFIGS, Config, Trainer, stack, tiny, workload
from power import Sampler
from timing import DEVICE

ON_GPU = DEVICE == "cuda"
WARM_UP_STEPS = 4
LEFT_OVER_BYTES = 64 << 20
"""More than this allocated before a model is built would be counted into its peak."""


def warmed_up_s(trainer: Trainer) -> float:
    """Seconds of a step, from the last two of the warm-up steps."""
    for _ in range(WARM_UP_STEPS - 2):
        trainer.step()
    synchronize()
    begin = time.perf_counter()
    for _ in range(2):
        trainer.step()
    synchronize()
    return (time.perf_counter() - begin) / 2


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if ON_GPU:
        torch.cuda.synchronize()


def step_times_s(trainer: Trainer, steps: int) -> list[float]:
    """Seconds of each of ``steps`` steps: CUDA events, or the host's clock without a GPU."""
    if not ON_GPU:
        return [timeit.timeit(trainer.step, number=1) for _ in range(steps)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    events[0].record()
    for event in events[1:]:
        trainer.step()
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) * 1e-3 for a, b in itertools.pairwise(events)]


def timed_steps(trainer: Trainer, seconds: float, left_over: int) -> dict[str, Any]:
    """Step times, peak memory, power and clock of about ``seconds`` of steps.

    Sampling starts before the warm-up, so that the first timed steps have samples too.
    ``left_over``: bytes allocated before the model was built; too many void the peaks.
    """
    sampler = Sampler() if ON_GPU else None
    try:
        if sampler:
            sampler.start()
        steps = min(60, max(5, round(seconds / warmed_up_s(trainer))))
        if ON_GPU:
            torch.cuda.reset_peak_memory_stats()
        begin = time.time()
        times_s = sorted(step_times_s(trainer, steps))
        end = time.time()
    finally:
        if sampler:
            sampler.stop()
    rows = [r for r in sampler.rows if begin <= r[0] <= end] if sampler else []
    peaks = ON_GPU and left_over <= LEFT_OVER_BYTES
    return {
        "step_time_s": statistics.median(times_s),
        "step_time_p10_s": times_s[steps // 10],
        "step_time_p90_s": times_s[-1 - steps // 10],
        "steps": steps,
        "peak_memory_allocated_bytes": torch.cuda.max_memory_allocated() if peaks else None,
        "peak_memory_reserved_bytes": torch.cuda.max_memory_reserved() if peaks else None,
        "power_w": round(statistics.fmean(r[1] for r in rows), 1) if rows else None,
        "sm_clock_mhz": round(statistics.fmean(r[2] for r in rows)) if rows else None,
    }


def kernel_events(trainer: Trainer) -> list[tuple[int, int, str, int]]:
    """(start ns, end ns, name, stream) of what one profiled step ran on the GPU.

    Copies and memsets count, annotations do not. Without a GPU, operators stand in for kernels.
    """
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * ON_GPU
    with profile(activities=activities, record_shapes=True) as session:
        trainer.step()
        synchronize()
    kind, prefix = ("CUDA", "") if ON_GPU else ("CPU", "aten::")
    return sorted(
        (e.start_ns(), e.start_ns() + e.duration_ns(), e.name(), e.device_resource_id())
        for e in session.profiler.kineto_results.events()
        if kind in str(e.device_type())
        and e.duration_ns() > 0
        and e.name().startswith(prefix)
        and not e.is_user_annotation()
    )


def profiled_step(trainer: Trainer) -> dict[str, Any]:
    """Span, busy time (union over streams) and kernel totals of one more step."""
    rows = kernel_events(trainer)
    busy_ns, end_ns = 0, 0
    totals: dict[str, list[int]] = {}
    for start_ns, stop_ns, name, _ in rows:
        busy_ns += max(0, stop_ns - max(start_ns, end_ns))
        end_ns = max(end_ns, stop_ns)
        entry = totals.setdefault(name[:110], [0, 0])
        entry[0] += 1
        entry[1] += stop_ns - start_ns
    top = sorted(totals.items(), key=lambda item: -item[1][1])
    return {
        "span_s": (end_ns - rows[0][0]) * 1e-9,
        "gpu_busy_s": busy_ns * 1e-9,
        "compute_busy_s": busy_ns * 1e-9,
        "comm_total_s": 0.0,
        "comm_exposed_s": 0.0,
        "launches": len(rows),
        "streams": len({stream for *_, stream in rows}) if ON_GPU else 1,
        "top_kernels": [
            {"name": name, "count": count, "total_s": round(total * 1e-9, 7)}
            for name, (count, total) in top
        ],
    }


def measured(trainer: Trainer, seconds: float, left_over: int) -> dict[str, Any]:
    """The ``measured`` part of the record."""
    timed = timed_steps(trainer, seconds, left_over)
    profiled = profiled_step(trainer)
    share = profiled["gpu_busy_s"] / timed["step_time_s"]
    return {
        **timed,
        "parameters": sum(p.numel() for p in trainer.parameters),
        "profiled_step": profiled,
        "gpu_busy_share": round(min(1.0, share), 3),
        "compute_busy_share": round(min(1.0, share), 3),
        # The rule's other half (steps that spread, compute share below 0.8) needs communication.
        "host_bound": share < 0.9,
    }


def thousand_adds(x: torch.Tensor) -> None:
    """``x.add_(1)`` 1,000 times."""
    for _ in range(1000):
        x.add_(1.0)


def seconds_of(run: Callable[[], object], calls: int) -> float:
    """Median of seven runs of ``run``, by one of the ``calls`` that it makes."""
    times_s = []
    for _ in range(8):
        synchronize()
        begin = time.perf_counter()
        run()
        times_s.append(time.perf_counter() - begin)
    return statistics.median(times_s[1:]) / calls


def graph_launch_s(x: torch.Tensor) -> float:
    """Seconds of one ``x.add_(1)`` in a CUDA graph of 1,000, until the GPU is done."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        thousand_adds(x)
    return seconds_of(lambda: (graph.replay(), torch.cuda.synchronize()), 1000)


def host() -> dict[str, Any]:
    """CPU and launch costs of this machine."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.split(":", 1)[1].strip() for line in info.splitlines() if "model name" in line]
    x = torch.ones(8, device=DEVICE)
    return {
        "cpu": f"{names[0] if names else 'unknown CPU'}, {os.cpu_count()} virtual CPUs",
        "eager_launch_s": seconds_of(lambda: thousand_adds(x), 1000),
        "graph_launch_s": graph_launch_s(x) if ON_GPU else None,
    }


def machine() -> dict[str, Any]:
    """The parts of a record that this machine decides: source, system, and a prefix for ids."""
    gpu, facts, count = "cpu", "", 1
    if ON_GPU:
        query = "--query-gpu=driver_version,power.limit,clocks.max.sm"
        line = subprocess.check_output(
            ["nvidia-smi", query, "-i", "0", "--format=csv,noheader"], text=True
        )
        driver, limit, clock = (part.strip() for part in line.split(","))
        name, count = torch.cuda.get_device_name(), torch.cuda.device_count()
        gpu = {"NVIDIA H200": "h200-sxm-141gb"}.get(name, name.lower().replace(" ", "-"))
        label = "H200 SXM 141 GB" if gpu == "h200-sxm-141gb" else name
        facts = f"1x {label}, {limit} limit, {clock} maximum SM clock, driver {driver}, "
        facts += f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}, "
    here = host()
    return {
        "prefix": "h200b" if gpu == "h200-sxm-141gb" else gpu,
        "source": f"own measurement, {time.strftime('%Y-%m-%d')}, {facts}torch "
        f"{torch.__version__}, {here['cpu']}, held out: never used for fitting kernel costs",
        "system": {"gpu": gpu, "num_gpus": 1, "gpus_per_node": count, "host": here},
    }


def record(config: Config, here: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Train a configuration and describe it; ``here`` is what ``machine`` says."""
    left_over = torch.cuda.memory_allocated() if ON_GPU else 0
    plan = dict.fromkeys(("dp", "tp", "pp", "vpp", "cp", "ep"), 1)
    return {
        "schema": "measured-run/1",
        "id": f"{here['prefix']}-{config.id}",
        "source": here["source"],
        "system": here["system"],
        "workload": workload(config),
        "plan": {**plan, "sharding": "none", "sequence_parallel": False,
                 "recompute": "full" if config.recompute else "none", "schedule": None},
        "stack": stack(config),
        "measured": measured(Trainer(config), seconds, left_over),
    }  # fmt: skip


def forget() -> None:
    """Free what a configuration left; compiled code holds parameters until it is reset."""
    torch._dynamo.reset()
    gc.collect()
    if ON_GPU:
        torch.cuda.empty_cache()


def attempt(config: Config, here: dict[str, Any], seconds: float) -> dict[str, Any] | None:
    """The record of a configuration, or one line about why there is none."""
    begin = time.time()
    try:
        row = record(config, here, seconds)
    except Exception as error:  # noqa: BLE001 - whatever one run raises, the next must start
        first = (str(error).strip() or "no message").splitlines()[0]
        print(f"{config.id}: {type(error).__name__}: {first}", flush=True)
        return None
    m = row["measured"]
    print(f"{config.id}: {m['step_time_s'] * 1e3:.2f} ms, busy {m['gpu_busy_share']}, "
          f"{m['power_w']} W, {m['sm_clock_mhz']} MHz, "
          f"{time.time() - begin:.0f} s", flush=True)  # fmt: skip
    return row


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Measure training steps on one GPU.")
    parser.add_argument("out", type=Path, nargs="?", help="JSONL file to write")
    parser.add_argument("--only", default="", help="ids, separated by commas")
    parser.add_argument("--list", action="store_true", help="print the ids and stop")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, to check the script")
    parser.add_argument("--seconds", type=float, default=4.0, help="of timed steps of each run")
    args = parser.parse_args()
    wanted = set(args.only.split(",")) - {""}
    unknown = sorted(wanted - {c.id for c in CONFIGS})
    if unknown:
        parser.error(f"--only must name listed ids (got {', '.join(unknown)})")
    chosen = [c for c in CONFIGS if not wanted or c.id in wanted]
    if args.list:
        print("\n".join(c.id for c in chosen))
        return
    if args.out is None:
        parser.error("OUT.jsonl must be given")
    quick = args.quick or not ON_GPU
    here = machine()
    with args.out.open("w") as sink:
        for config in chosen:
            row = attempt(tiny(config) if quick else config, here, 0.2 if quick else args.seconds)
            forget()
            if row is not None:
                sink.write(json.dumps(row) + "\n")
                sink.flush()


if __name__ == "__main__":
    main()
