"""``stepsim simulate``: predict one training step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import flags
from .console import write, write_json

if TYPE_CHECKING:
    from simulator import Scenario

File = Annotated[
    Path | None, typer.Argument(metavar="SCENARIO", help="Scenario file (TOML); flags go over it.")
]
Run = Annotated[
    str | None, typer.Option("--run", metavar="ID", help="Simulate a shipped measured run instead.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON.")]
TraceFile = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE", help="Write the timeline (.json or .json.gz)."),
]


def simulate(  # noqa: PLR0913, PLR0917 - a flag is an argument
    file: File = None,
    gpu: flags.Gpu = None,
    gpus: flags.Gpus = None,
    system: flags.System = None,
    power_limit_w: flags.PowerLimit = None,
    model: flags.Model = None,
    seq_len: flags.SeqLen = None,
    micro_batch: flags.MicroBatch = None,
    global_batch: flags.GlobalBatch = None,
    grad_accum: flags.GradAccum = None,
    dp: flags.Dp = None,
    tp: flags.Tp = None,
    pp: flags.Pp = None,
    vpp: flags.Vpp = None,
    cp: flags.Cp = None,
    ep: flags.Ep = None,
    sharding: flags.Sharding = None,
    recompute: flags.Recompute = None,
    precision: flags.Precision = None,
    execution: flags.Execution = None,
    compile_scope: flags.CompileScope = None,
    optimizer: flags.Optimizer = None,
    grad_clip: flags.GradClip = None,
    overrides: flags.Overrides = None,
    run: Run = None,
    json: AsJson = False,
    trace: TraceFile = None,
) -> None:
    """Predict one training step of a scenario.

    The scenario comes from a file, from flags, or from both; --set changes any value of it.

    \b
    Examples:
      stepsim simulate --gpu h200-sxm-141gb --model llama3-8b --seq-len 4096 \\
          --precision bf16 --trace step.json.gz
      stepsim simulate scenario.toml --set gpu.hbm.bandwidth_bytes_per_s='6 TB/s'
      stepsim simulate --run h200-l1-s4k-mb2
    """  # noqa: D301 - the backslashes are part of what --help shows
    given: dict[str, Any] = {
        "gpu": gpu, "gpus": gpus, "system": system, "power_limit_w": power_limit_w,
        "model": model, "seq_len": seq_len, "micro_batch": micro_batch,
        "global_batch": global_batch, "grad_accum": grad_accum,
        "dp": dp, "tp": tp, "pp": pp, "vpp": vpp, "cp": cp, "ep": ep, "sharding": sharding,
        "recompute": recompute, "precision": precision, "execution": execution,
        "compile_scope": compile_scope, "optimizer": optimizer, "grad_clip": grad_clip,
    }  # fmt: skip
    asked = _asked(run, file, given, overrides or [])
    result = flags.predicted(asked)
    if trace is not None:
        from simulator.timeline import write_trace

        write_trace(trace, result, asked)
    if json:
        write_json(result.as_dict())
    else:
        from .report import report

        write(*report(asked, result))


def _asked(
    run: str | None, file: Path | None, given: dict[str, Any], overrides: list[str]
) -> Scenario:
    if run is None:
        return flags.scenario(file, given, overrides)
    from archs.errors import InputError

    if file or overrides or any(value is not None for value in given.values()):
        raise InputError("--run must stand without a scenario file, scenario flags and --set", run)
    from validation.validate import scenario_of, shipped_run

    return scenario_of(shipped_run(run))
