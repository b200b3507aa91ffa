"""A scenario: which system runs which workload under which plan and software stack."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from archs.errors import InputError, from_validation, unknown_name
from archs.gpu import Gpu, load_gpu
from archs.reading import read_toml, set_path, split_assignment
from archs.system import System
from archs.systems import load_system, single_node
from workloads.catalog import load_model, parse_model
from workloads.plan import Plan, Stack, Workload

SECTIONS = ("system", "workload", "plan", "stack", "gpu")
Input = TypeVar("Input", bound=BaseModel)


class HostInput(BaseModel):
    """The host: its name, and the seconds of one eager ``x.add_(1)`` as its speed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpu: str | None = None
    eager_launch_s: Annotated[float, Field(gt=0.0, le=1.0)] | None = None


class SystemInput(BaseModel):
    """The ``[system]`` table: a GPU with a count, or a catalog system."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gpu: str | None = None
    system: str | None = None
    gpus: PositiveInt | None = None
    power_limit_w: Annotated[float, Field(gt=0.0, le=1e5)] | None = None
    host: HostInput | None = None


@dataclass(frozen=True)
class Scenario:
    """One question: System + Workload + Plan + Stack, validated.

    ``gpus`` is the number of GPUs used; the plan's dp, where not given, follows from it.
    ``power_limit_w`` is the limit of each board, and ``host_launch_s`` the host's time for one
    eager launch.
    """

    system: System
    gpu: Gpu
    gpus: int
    workload: Workload
    plan: Plan
    stack: Stack
    power_limit_w: float
    host_launch_s: float

    @classmethod
    def from_toml(cls, path: str | Path, overrides: Mapping[str, str] | None = None) -> Scenario:
        """A scenario file with ``path=value`` overrides; raises InputError naming file and key."""
        return cls.from_mapping(read_toml(path), str(path), overrides)

    @classmethod
    def from_mapping(
        cls,
        data: Mapping[str, Any],
        where: str = "scenario",
        overrides: Mapping[str, str] | None = None,
    ) -> Scenario:
        """A scenario from nested tables as in a scenario file."""
        tables = deepcopy(dict(data))
        for path, text in (overrides or {}).items():
            set_path(tables, path, text)
        for section in tables:
            if section not in SECTIONS:
                raise unknown_name("section", section, SECTIONS, where)
        for section, table in tables.items():
            if not isinstance(table, Mapping):
                raise InputError(f"{section} must be a table", table, f"{where}:{section}")
        system = _validated(SystemInput, tables.get("system", {}), f"{where}:system")
        plan = _validated(Plan, tables.get("plan", {}), f"{where}:plan")
        if "dp" not in tables.get("plan", {}) and system.gpus and system.gpus % plan.ranks == 0:
            plan = plan.model_copy(update={"dp": system.gpus // plan.ranks})
        return _assemble(
            system,
            _workload(tables.get("workload", {}), plan.dp, where),
            plan,
            _validated(Stack, tables.get("stack", {}), f"{where}:stack"),
            {k: str(v) for k, v in _flat(tables.get("gpu", {})).items()},
            where,
        )

    @classmethod
    def from_record(cls, run: Mapping[str, Any]) -> Scenario:
        """The scenario of a ``measured-run/1`` record; InputError for what is not modelled."""
        where = str(run.get("id", "record"))
        for section in ("system", "workload", "plan", "stack"):
            if not isinstance(run.get(section), Mapping):
                raise InputError(f"{section} must be a table", run.get(section), where)
        system, stack = run["system"], run["stack"]
        host = system.get("host") or {}
        tables = {
            "system": {"gpu": system["gpu"], "gpus": system["num_gpus"],
                       "host": {k: host.get(k) for k in ("cpu", "eager_launch_s")}},
            "workload": {k: v for k, v in run["workload"].items() if v is not None},
            "plan": _record_plan(run["plan"], where),
            "stack": _record_stack(stack, where),
        }  # fmt: skip
        return cls.from_mapping(tables, where)


def parse_overrides(assignments: list[str]) -> dict[str, str]:
    """``["path=value", ...]`` as a mapping; raises InputError for a malformed one."""
    return dict(split_assignment(item) for item in assignments)


def _validated(kind: type[Input], data: Mapping[str, Any], where: str) -> Input:
    try:
        return kind.model_validate(dict(data))
    except ValidationError as error:
        raise from_validation(error, where, kind) from error


def _workload(data: Mapping[str, Any], dp: int, where: str) -> Workload:
    fields = dict(data)
    model = fields.get("model")
    if model is None:
        raise InputError("model must be given", where=f"{where}:workload.model")
    if isinstance(model, str):
        fields["model"] = load_model(model)
    elif isinstance(model, Mapping):
        fields["model"] = parse_model(dict(model), f"{where}:workload.model")
    _derive_accumulation(fields, dp, where)
    return _validated(Workload, fields, f"{where}:workload")


def _derive_accumulation(fields: dict[str, Any], dp: int, where: str) -> None:
    """grad_accum from the global batch where only that is given; refuse what does not divide."""
    micro = fields.get("micro_batch", 1)
    batch, steps = fields.get("global_batch"), fields.get("grad_accum")
    if not isinstance(micro, int) or micro <= 0:
        return
    if not isinstance(batch, int) or batch <= 0:
        if batch is None and isinstance(steps, int):
            fields["global_batch"] = micro * dp * steps
        elif batch is None:
            fields["global_batch"] = micro * dp
        return
    if batch % (micro * dp):
        near = sorted(
            {max(1, batch // (micro * dp)) * micro * dp, -(-batch // (micro * dp)) * micro * dp}
        )
        raise InputError(
            f"global_batch must be a multiple of micro_batch x dp = {micro * dp}, nearest: "
            + " or ".join(map(str, near)), batch, f"{where}:workload.global_batch",
        )  # fmt: skip
    if steps is not None and steps * micro * dp != batch:
        raise InputError(
            f"grad_accum must be global_batch / (micro_batch x dp) = {batch // (micro * dp)}",
            steps, f"{where}:workload.grad_accum",
        )  # fmt: skip
    fields["grad_accum"] = batch // (micro * dp)


def _assemble(
    data: SystemInput,
    workload: Workload,
    plan: Plan,
    stack: Stack,
    gpu_overrides: Mapping[str, str],
    where: str,
) -> Scenario:
    if data.system is not None:
        system = load_system(data.system)
        if data.gpu is not None and load_gpu(data.gpu).id != system.gpu.id:
            raise InputError(
                f"gpu must be that of the system, {system.gpu.id}, or left out", data.gpu,
                f"{where}:system.gpu",
            )  # fmt: skip
        gpu = system.gpu.with_overrides(gpu_overrides) if gpu_overrides else system.gpu
    elif data.gpu is not None:
        gpu = load_gpu(data.gpu, gpu_overrides)
        system = single_node(gpu, data.gpus or plan.ranks)
    else:
        raise InputError("gpu or system must be given", where=f"{where}:system")
    gpus = data.gpus or plan.ranks
    if plan.ranks != gpus:
        raise InputError(
            f"dp x tp x pp x cp must equal the number of GPUs {gpus}", plan.ranks, f"{where}:plan"
        )
    domain = system.fabric.domain_gpus
    if gpus > domain:
        must = f"gpus must be at most {domain}, one scale-up domain of {system.id}, for now"
        raise InputError(must, gpus, f"{where}:system.gpus")
    host = data.host.eager_launch_s if data.host else None
    limit = data.power_limit_w or gpu.power_limit_w
    if limit is None:
        raise InputError("power_limit_w must be given for this GPU", where=f"{where}:system")
    return Scenario(
        system, gpu, gpus, workload, plan, stack, limit,
        host or system.host.eager_launch_s,
    )  # fmt: skip


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


PLAN_FIELDS = ("dp", "tp", "pp", "vpp", "cp", "ep", "sharding", "sequence_parallel", "recompute",
               "schedule")  # fmt: skip
STACK_FIELDS = ("execution", "compile_scope", "attention", "precision", "optimizer", "grad_clip")


def _record_plan(plan: Mapping[str, Any], where: str) -> dict[str, Any]:
    for key in ("shard_group", "async_tp", "recompute_modules"):
        if plan.get(key):
            raise InputError(f"{key} must not be set: not modelled yet", plan[key], f"{where}:plan")
    return {k: plan[k] for k in PLAN_FIELDS if plan.get(k) is not None}


def _record_stack(stack: Mapping[str, Any], where: str) -> dict[str, Any]:
    if stack.get("framework") != "pytorch":
        raise InputError("framework must be one of pytorch (others are not modelled yet)",
                         stack.get("framework"), f"{where}:stack.framework")  # fmt: skip
    found = {k: stack[k] for k in STACK_FIELDS if stack.get(k) is not None}
    return {"name": "pytorch", "version": stack.get("torch"), **found}


__all__ = ["Scenario", "parse_overrides"]
