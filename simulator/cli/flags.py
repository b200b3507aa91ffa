"""Scenario flags: which table and key of a scenario file each one sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from simulator import Scenario, StepResult

COMMAND_LINE = "command line"
Result = TypeVar("Result")
KEYS = {
    "gpu": "system", "gpus": "system", "system": "system", "power_limit_w": "system",
    "model": "workload", "seq_len": "workload", "micro_batch": "workload",
    "global_batch": "workload", "grad_accum": "workload",
    "dp": "plan", "tp": "plan", "pp": "plan", "vpp": "plan", "cp": "plan", "ep": "plan",
    "sharding": "plan", "recompute": "plan",
    "precision": "stack", "execution": "stack", "compile_scope": "stack", "optimizer": "stack",
    "grad_clip": "stack",
}  # fmt: skip
"""Flag, which is also the key in a scenario file, to the table that holds it."""


def _text(flag: str, text: str) -> Any:
    return typer.Option(flag, help=text, show_default=False)


Gpu = Annotated[str | None, _text("--gpu", "GPU id, alias or descriptor file.")]
Gpus = Annotated[int | None, _text("--gpus", "Number of GPUs.")]
System = Annotated[str | None, _text("--system", "System id or descriptor file.")]
PowerLimit = Annotated[str | None, _text("--power-limit", 'Limit of each board: "600 W".')]
Model = Annotated[str | None, _text("--model", "Model id, see `stepsim list models`.")]
SeqLen = Annotated[int | None, _text("--seq-len", "Tokens of one sequence.")]
MicroBatch = Annotated[int | None, _text("--micro-batch", "Sequences or images of one pass.")]
GlobalBatch = Annotated[int | None, _text("--global-batch", "Sequences or images of one step.")]
GradAccum = Annotated[int | None, _text("--grad-accum", "Passes of one step.")]
Dp = Annotated[int | None, _text("--dp", "Data-parallel ranks.")]
Tp = Annotated[int | None, _text("--tp", "Tensor-parallel ranks.")]
Pp = Annotated[int | None, _text("--pp", "Pipeline stages.")]
Vpp = Annotated[int | None, _text("--vpp", "Model chunks of one pipeline stage.")]
Cp = Annotated[int | None, _text("--cp", "Context-parallel ranks.")]
Ep = Annotated[int | None, _text("--ep", "Expert-parallel ranks.")]
Sharding = Annotated[str | None, _text("--sharding", "none, zero1, zero2 or zero3.")]
Recompute = Annotated[str | None, _text("--recompute", "none or full (language models).")]
Precision = Annotated[str | None, _text("--precision", "amp-bf16, amp-fp16, bf16 or fp16.")]
Execution = Annotated[str | None, _text("--execution", "eager or compile.")]
CompileScope = Annotated[str | None, _text("--compile-scope", "block or full.")]
Optimizer = Annotated[str | None, _text("--optimizer", "adamw-fused or sgd-momentum.")]
GradClip = Annotated[
    bool | None,
    typer.Option("--grad-clip/--no-grad-clip", help="Clip gradients.", show_default=False),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change any value: gpu.sm_count=144."),
]


def scenario(file: Path | None, flags: Mapping[str, Any], overrides: list[str]) -> Scenario:
    """The scenario of a file, flags over it, and ``path=value`` overrides over both.

    Raises StepsimError naming the file or the command line, and the key.
    """
    from archs.errors import InputError
    from archs.reading import read_toml
    from simulator import Scenario
    from simulator.scenario import parse_overrides

    where = COMMAND_LINE if file is None else str(file)
    tables = {} if file is None else read_toml(file)
    for key, value in _given(flags).items():
        table = tables.setdefault(KEYS[key], {})
        if not isinstance(table, dict):
            raise InputError(f"{KEYS[key]} must be a table", table, f"{where}:{KEYS[key]}")
        table[key] = value
    return expected(lambda: Scenario.from_mapping(tables, where, parse_overrides(overrides)))


def _given(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that were given, power in watts."""
    from archs.units import parse_quantity

    given = {key: value for key, value in flags.items() if value is not None}
    limit = given.get("power_limit_w")
    if limit is not None:
        given["power_limit_w"] = parse_quantity(
            limit, "W", what="power limit", where=f"{COMMAND_LINE}:--power-limit", sign="positive"
        )
    return given


def predicted(asked: Scenario) -> StepResult:
    """The prediction of a scenario; raises StepsimError for what is not modelled."""
    from simulator import simulate

    return expected(lambda: simulate(asked))


def expected(call: Callable[[], Result]) -> Result:
    """What ``call`` returns; a ValueError about its scenario becomes a StepsimError."""
    from archs.errors import StepsimError

    try:
        return call()
    except StepsimError:
        raise
    except ValueError as error:
        raise StepsimError(" ".join(str(error).split())) from error
