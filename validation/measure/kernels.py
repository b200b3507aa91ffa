"""Measure kernel durations, power and host costs of the operators of a training step.

Run on a machine with one CUDA GPU and PyTorch (nothing else of this repository is imported):

    python validation/measure/kernels.py OUT_DIR [--parts gemm,attention,...] [--quick]

Durations are those of the kernels themselves, from the profiler. Tensor-core kernels are taken on a
GPU kept busy just below its power limit, the others after an idle spin; both at the maximum clock.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import dense
import host
import memory
import power
import torch
from timing import Case, Pool, measure_cool, measure_loaded

DENSE = {
    "gemm": dense.gemm_cases,
    "attention": dense.attention_cases,
    "convolution": dense.convolution_cases,
}
MEMORY = {
    "elementwise": memory.elementwise_cases,
    "row": memory.row_cases,
    "loss": memory.loss_cases,
    "optimizer": memory.optimizer_cases,
    "vision": memory.vision_cases,
    "fused": memory.fused_cases,
}


PARTS = ["power", "sustained", "host", *MEMORY, *DENSE, *(f"{name}-hot" for name in DENSE)]


def provenance() -> dict[str, Any]:
    """What was measured on: GPU, driver, limits, versions, date."""
    query = "name,driver_version,power.limit,clocks.max.sm,clocks.max.memory"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "kind": "provenance",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nvidia_smi": text,
        "date": time.strftime("%Y-%m-%d"),
        "python": sys.version.split()[0],
    }


def measured(
    cases: Iterable[Case], measure: Callable[[Case], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """One row a case; a case that the GPU refuses becomes a row with its error."""
    for case in cases:
        try:
            yield measure(case)
        except (RuntimeError, torch.OutOfMemoryError) as error:
            yield {**case[0], "error": str(error).splitlines()[0][:200]}


def rows_of(part: str, pool: Pool, quick: bool) -> Iterator[dict[str, Any]]:
    """The rows of one part."""
    if part == "power":
        return power.measure_power(pool, 0.5 if quick else 2.0)
    if part == "host":
        return host.measure_host()
    if part == "sustained":
        chosen = itertools.chain(
            itertools.islice(dense.gemm_cases(pool, quick), 0, None, 8),
            itertools.islice(dense.attention_cases(pool, quick), 0, None, 7),
            itertools.islice(dense.convolution_cases(pool, quick), 0, None, 11),
        )
        return power.measure_sustained(chosen, 0.1 if quick else 0.6, 1.5e10)
    name, _, condition = part.partition("-")
    if name in DENSE:
        filler = loads(pool, quick)[condition or "busy"]
        step = 1 if condition != "hot" else {"gemm": 5, "attention": 5, "convolution": 9}[name]
        cases = itertools.islice(DENSE[name](pool, quick), 0, None, step)
        return measured(cases, lambda case: measure_loaded(case, condition or "busy", filler))
    return measured(MEMORY[part](pool, quick), measure_cool)


def loads(pool: Pool, quick: bool) -> dict[str, Callable[[], Any]]:
    """What runs between repetitions: memory-bound work or large products."""
    stream = pool.take((1 << (24 if quick else 28),), torch.bfloat16)
    side = 1024 if quick else 8192
    a, b = pool.take((side, side), torch.bfloat16), pool.take((side, side), torch.bfloat16)
    return {"busy": lambda: stream.mul_(1.0), "hot": lambda: torch.mm(a, b)}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "provenance.json").write_text(json.dumps(provenance(), indent=1))
    pool = Pool(1 << 26 if args.quick else 1 << 30)
    for part in args.parts.split(","):
        begin, failed, count = time.time(), 0, 0
        with (args.out / f"{part}.jsonl").open("w") as sink:
            for row in rows_of(part, pool, args.quick):
                failed += "error" in row
                count += 1
                sink.write(json.dumps(row) + "\n")
        print(f"{part}: {count} rows, {failed} failed, {time.time() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
