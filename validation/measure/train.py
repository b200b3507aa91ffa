"""Measure training steps on one CUDA GPU and write them as ``measured-run/1`` records.

    python validation/measure/train.py OUT.jsonl [--only ID,...] [--list] [--quick]

The recipe is that of the shipped H200 records (validation/data/h200/README.md): synthetic data on
the GPU, four warm-up steps, then about four seconds of steps timed with CUDA events.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from models import Shape, Transformer
from power import Sampler
from timing import DEVICE

LLAMA1 = Shape("llama", 2048, 16, 32, 8, 8192, 128256)
LLAMA7 = Shape("llama", 4096, 8, 32, 32, 11008, 32000)


def gpt(hidden: int, layers: int, heads: int) -> Shape:
    """A GPT shape with the usual widths."""
    return Shape("gpt", hidden, layers, heads, heads, 4 * hidden, 50304)


@dataclass(frozen=True)
class Config:
    """One run: what is trained, and how."""

    id: str
    shape: Shape | None
    batch: int
    seq: int = 0
    precision: str = "bf16"
    scope: str | None = None
    recompute: bool = False
    accumulate: int = 1


CONFIGS = (
    Config("r50-128-fp16", None, 128, precision="amp-fp16"),
    Config("r50-192", None, 192, precision="amp-bf16"),
    Config("r50-32", None, 32, precision="amp-bf16"),
    Config("r50-128-compile", None, 128, precision="amp-bf16", scope="full"),
    Config("g350-mb8", gpt(1024, 24, 16), 8, 1024, "amp-bf16"),
    Config("g350-mb1", gpt(1024, 24, 16), 1, 1024, "amp-bf16"),
    Config("g124-mb2-bf16", gpt(768, 12, 12), 2, 1024),
    Config("g124-s2k-mb8-compile", gpt(768, 12, 12), 8, 2048, scope="block"),
    Config("g1600-mb8-bf16", gpt(1600, 24, 25), 8, 1024),
    Config("g13-mb4", gpt(2048, 24, 16), 4, 2048, "amp-bf16"),
    Config("g2560-mb4-compile", gpt(2560, 16, 20), 4, 2048, scope="block"),
    Config("l1-s512-mb1", LLAMA1, 1, 512),
    Config("l1-s1k-mb4-amp", LLAMA1, 4, 1024, "amp-bf16"),
    Config("l1-s8k-mb1", LLAMA1, 1, 8192),
    Config("l1-s2k-mb8-compile", LLAMA1, 8, 2048, scope="block"),
    Config("l1-s4k-mb2-ga2", LLAMA1, 2, 4096, accumulate=2),
    Config("l3072-s2k-mb4", Shape("llama", 3072, 14, 24, 8, 8192, 32000), 4, 2048),
    Config("l7-s4k-mb2", LLAMA7, 2, 4096),
    Config("l7-s4k-mb2-full", LLAMA7, 2, 4096, recompute=True),
    Config("l8x16-s2k-mb2", Shape("llama", 4096, 16, 32, 8, 14336, 128256), 2, 2048),
)


class Trainer:
    """Model, optimizer and one step of a configuration."""

    def __init__(self, config: Config) -> None:
        self.config, self.shape = config, config.shape
        self.amp = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}.get(config.precision)
        self.scaler = torch.amp.GradScaler(DEVICE) if config.precision == "amp-fp16" else None
        self.model = self._model()
        parameters = list(self.model.parameters())
        self.parameters = parameters
        if self.shape is None:
            self.optimizer: Any = torch.optim.SGD(parameters, lr=1e-4, momentum=0.9)
            side = (config.batch, 3, 224, 224)
            images = torch.randn(side, device=DEVICE)
            self.inputs = images.contiguous(memory_format=torch.channels_last)
            self.targets = torch.randint(0, 1000, (config.batch,), device=DEVICE)
        else:
            self.optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=True)
            size = (config.batch, config.seq)
            self.inputs = torch.randint(0, self.shape.vocab, size, device=DEVICE)
            self.targets = torch.randint(0, self.shape.vocab, size, device=DEVICE)

    def _model(self) -> Any:
        config = self.config
        torch.backends.cudnn.benchmark = True
        if self.shape is None:
            from torchvision.models import resnet50

            model: Any = resnet50().to(DEVICE, memory_format=torch.channels_last)
        else:
            with torch.device(DEVICE):
                model = Transformer(self.shape, config.seq, config.recompute)
            if self.amp is None:
                model = model.to(torch.bfloat16)
        if config.scope == "block":
            for block in model.blocks:
                block.compile()
        return torch.compile(model) if config.scope == "full" else model

    def loss(self) -> torch.Tensor:
        """Forward of one micro-batch."""
        context = torch.autocast(DEVICE, dtype=self.amp) if self.amp else nullcontext()
        with context:
            logits = self.model(self.inputs)
            if self.shape is None:
                return F.cross_entropy(logits, self.targets)
            flat = logits.view(-1, self.shape.vocab).float()
            return F.cross_entropy(flat, self.targets.view(-1)) / self.config.accumulate

    def step(self) -> None:
        """One whole training step."""
        self.optimizer.zero_grad(set_to_none=True)
        for _ in range(self.config.accumulate):
            loss = self.loss()
            (self.scaler.scale(loss) if self.scaler else loss).backward()
        if self.shape is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()


def timed_steps(trainer: Trainer, seconds: float) -> tuple[list[float], dict[str, Any]]:
    """Step times, and what was sampled while they ran."""
    for _ in range(4):
        trainer.step()
    torch.cuda.synchronize()
    begin = time.time()
    for _ in range(2):
        trainer.step()
    torch.cuda.synchronize()
    each = (time.time() - begin) / 2
    steps = min(60, max(5, round(seconds / each)))
    torch.cuda.reset_peak_memory_stats()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    sampler = Sampler()
    sampler.start()
    begin = time.time()
    events[0].record()
    for event in events[1:]:
        trainer.step()
        event.record()
    torch.cuda.synchronize()
    rows = [r for r in sampler.rows if begin < r[0]]
    sampler.stop()
    times = [a.elapsed_time(b) * 1e-3 for a, b in itertools.pairwise(events)]
    return times, {
        "peak_memory_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_memory_reserved_bytes": torch.cuda.max_memory_reserved(),
        "power_w": round(statistics.fmean(r[1] for r in rows), 1) if rows else None,
        "sm_clock_mhz": round(statistics.fmean(r[2] for r in rows)) if rows else None,
    }


def profiled_step(trainer: Trainer) -> dict[str, Any]:
    """Kernel totals of one more step under the profiler."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as session:
        trainer.step()
        torch.cuda.synchronize()
    rows = sorted(
        (e.start_ns(), e.start_ns() + e.duration_ns(), e.name())
        for e in session.profiler.kineto_results.events()
        if "CUDA" in str(e.device_type()) and e.duration_ns() > 0
    )
    busy, end = 0, 0
    totals: dict[str, list[float]] = {}
    for start, stop, name in rows:
        busy += max(0, stop - max(start, end))
        end = max(end, stop)
        entry = totals.setdefault(name[:110], [0, 0.0])
        entry[0] += 1
        entry[1] += (stop - start) * 1e-9
    top = sorted(totals.items(), key=lambda item: -item[1][1])
    return {
        "span_s": (end - rows[0][0]) * 1e-9,
        "gpu_busy_s": busy * 1e-9,
        "compute_busy_s": busy * 1e-9,
        "comm_total_s": 0.0,
        "comm_exposed_s": 0.0,
        "launches": len(rows),
        "streams": 1,
        "top_kernels": [{"name": k, "count": int(n), "total_s": round(s, 7)} for k, (n, s) in top],
    }


def eager_launch_s() -> float:
    """Seconds of one ``x.add_(1)`` on this host."""
    x = torch.ones(8, device=DEVICE)
    times = []
    for _ in range(8):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(1000):
            x.add_(1.0)
        times.append((time.perf_counter() - begin) / 1000)
    return statistics.median(times[1:])


def record(config: Config, trainer: Trainer, launch_s: float, seconds: float) -> dict[str, Any]:
    """Measure one configuration."""
    times, sampled = timed_steps(trainer, seconds)
    ordered = sorted(times)
    median = statistics.median(times)
    profiled = profiled_step(trainer)
    share = profiled["gpu_busy_s"] / median
    p10, p90 = ordered[len(times) // 10], ordered[-1 - len(times) // 10]
    shape = config.shape
    amp = config.precision.startswith("amp")
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu"
    model: dict[str, Any] = {"family": "resnet50", "image_size": 224, "classes": 1000}
    if shape is not None:
        tied = shape.family == "gpt"
        model = {**asdict(shape), "tied_embeddings": tied, "bias": tied}
    workload = {"model": model, "task": "pretrain", "micro_batch": config.batch,
                "grad_accum": config.accumulate,
                "global_batch": config.batch * config.accumulate}  # fmt: skip
    if shape is not None:
        workload["seq_len"] = config.seq
    return {
        "schema": "measured-run/1",
        "id": f"h200b-{config.id}",
        "source": f"own measurement, {time.strftime('%Y-%m-%d')}, 1x {name}, torch "
        f"{torch.__version__}, held out: never used for fitting kernel costs",
        "system": {"gpu": "h200-sxm-141gb", "num_gpus": 1, "gpus_per_node": 1,
                   "host": {"cpu": "x86-64 virtual machine", "eager_launch_s": launch_s}},
        "workload": workload,
        "plan": {"dp": 1, "tp": 1, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "sharding": "none",
                 "sequence_parallel": False, "schedule": None,
                 "recompute": "full" if config.recompute else "none"},
        "stack": {
            "framework": "pytorch", "torch": torch.__version__,
            "execution": "compile" if config.scope else "eager", "compile_scope": config.scope,
            "attention": "sdpa", "precision": config.precision,
            "param_dtype": "fp32" if amp else "bf16",
            "compute_dtype": "fp16" if "fp16" in config.precision else "bf16",
            "grad_reduce_dtype": "fp32" if amp else "bf16",
            "optimizer": "adamw-fused" if shape else "sgd-momentum", "grad_clip": shape is not None,
            "loss_dtype": "fp32", "channels_last": None if shape else True,
            "cudnn_benchmark": True, "nccl_nvls": False,
        },
        "measured": {
            "step_time_s": median, "step_time_p10_s": p10, "step_time_p90_s": p90,
            "steps": len(times), **sampled,
            "parameters": sum(p.numel() for p in trainer.parameters),
            "profiled_step": profiled, "gpu_busy_share": round(min(1.0, share), 3),
            "compute_busy_share": round(min(1.0, share), 3),
            "host_bound": share < 0.9,
        },
    }  # fmt: skip


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--seconds", type=float, default=3.0)
    args = parser.parse_args()
    wanted = set(args.only.split(",")) - {""}
    chosen = [c for c in CONFIGS if not wanted or c.id in wanted]
    if args.list:
        print("\n".join(c.id for c in chosen))
        return
    launch_s = eager_launch_s()
    with args.out.open("w") as sink:
        for config in chosen:
            begin = time.time()
            try:
                torch._dynamo.reset()
                row = record(config, Trainer(config), launch_s, args.seconds)
            except (RuntimeError, torch.OutOfMemoryError) as error:
                print(f"{config.id}: {str(error).splitlines()[0]}", flush=True)
                continue
            finally:
                gc.collect()
                torch.cuda.empty_cache()
            sink.write(json.dumps(row) + "\n")
            sink.flush()
            m = row["measured"]
            print(f"{config.id}: {m['step_time_s'] * 1e3:.2f} ms, busy {m['gpu_busy_share']}, "
                  f"{m['power_w']} W, {m['sm_clock_mhz']} MHz, "
                  f"{time.time() - begin:.0f} s", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
