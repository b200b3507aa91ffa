"""Scenarios: from TOML, overrides and measured records, and one clear line for what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from archs.errors import InputError
from simulator import Scenario, simulate
from simulator.scenario import parse_overrides
from validation import DATA
from validation.records import MeasuredRun, read_runs, to_plain
from workloads.catalog import load_model

RUNS = {run.id: run for run in read_runs(DATA / "h200" / "runs.jsonl")}
SINGLE = [run for run in RUNS.values() if run.system.num_gpus == 1]

TEXT = """
[system]
gpu = "h100-sxm-80gb"
power_limit_w = 650.0
host = { eager_launch_s = 5e-6 }
[workload]
model = "llama3-8b"
seq_len = 8192
micro_batch = 1
global_batch = 4
[plan]
recompute = "full"
[stack]
precision = "bf16"
execution = "compile"
"""


def tables(**changes: Mapping[str, Any] | None) -> dict[str, Any]:
    """A valid scenario as tables, each section updated; a section of None is left out."""
    found: dict[str, Any] = {
        "system": {"gpu": "h200-sxm-141gb"},
        "workload": {"model": "gpt2", "seq_len": 1024, "micro_batch": 4},
    }
    for section, change in changes.items():
        found[section] = None if change is None else {**found.get(section, {}), **change}
    return {section: table for section, table in found.items() if table is not None}


def refused(data: Mapping[str, Any], **overrides: str) -> str:
    """The one line that says why a scenario is refused."""
    changes = {path.replace("__", "."): text for path, text in overrides.items()}
    with pytest.raises(InputError) as caught:
        Scenario.from_mapping(data, "file.toml", changes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    """Every section of a scenario file arrives where it belongs."""
    path = tmp_path / "scenario.toml"
    path.write_text(TEXT, encoding="utf-8")
    found = Scenario.from_toml(path)
    assert found.gpu.id == found.system.gpu.id == "h100-sxm-80gb"
    assert (found.gpus, found.power_limit_w, found.host_launch_s) == (1, 650.0, 5e-6)
    assert found.workload.model == load_model("llama3-8b")
    assert (found.workload.seq_len, found.workload.grad_accum) == (8192, 4)
    assert found.plan.recompute == "full"
    assert (found.stack.precision, found.stack.execution) == ("bf16", "compile")


def test_defaults_are_one_gpu_and_one_micro_batch() -> None:
    """Without counts there is one GPU with one micro-batch, at its own power limit."""
    found = Scenario.from_mapping(tables())
    assert (found.gpus, found.plan.ranks, found.workload.grad_accum) == (1, 1, 1)
    assert found.workload.global_batch == 4
    assert found.power_limit_w == found.gpu.power_limit_w
    assert found.host_launch_s == found.system.host.eager_launch_s


def test_models_may_be_described_in_place() -> None:
    """An inline table of shape fields is a model of one's own."""
    shape = {"family": "gpt", "hidden": 128, "layers": 2, "heads": 2, "vocab": 100}
    found = Scenario.from_mapping(tables(workload={"model": shape})).workload.model
    assert found.model_dump(include=set(shape)) == shape


def test_systems_of_the_catalog_bring_their_gpu() -> None:
    """Naming a system takes its GPU and host."""
    found = Scenario.from_mapping(tables(system={"system": "dgx-h100", "gpu": None, "gpus": 1}))
    assert found.system.id == "dgx-h100"
    assert found.gpu.id == "h100-sxm-80gb"


@pytest.mark.parametrize(
    ("path", "text", "where", "value"),
    [
        ("gpu.sm_count", "144", "gpu.sm_count", 144),
        ("gpu.hbm.bandwidth_bytes_per_s", "6 TB/s", "gpu.hbm.bandwidth_bytes_per_s", 6e12),
        ("workload.seq_len", "2048", "workload.seq_len", 2048),
        ("workload.model", "llama2-7b", "workload.model.name", "llama2-7b"),
        ("workload.grad_accum", "3", "workload.global_batch", 12),
        ("plan.recompute", "full", "plan.recompute", "full"),
        ("stack.precision", "bf16", "stack.precision", "bf16"),
        ("stack.grad_clip", "false", "stack.grad_clip", False),
        ("system.power_limit_w", "350", "power_limit_w", 350.0),
        ("system.host.eager_launch_s", "1e-5", "host_launch_s", 1e-5),
    ],
)
def test_overrides_reach_every_section(path: str, text: str, where: str, value: object) -> None:
    """``path=value`` changes the GPU, the workload, the plan, the stack and the system."""
    found: Any = Scenario.from_mapping(tables(), overrides=parse_overrides([f"{path}={text}"]))
    for part in where.split("."):
        found = getattr(found, part)
    assert found == value


def test_overrides_do_not_change_their_input() -> None:
    """The tables that a scenario is made from stay as they were."""
    data = tables()
    Scenario.from_mapping(data, overrides={"workload.seq_len": "1", "gpu.sm_count": "1"})
    assert data == tables()


def test_later_overrides_win() -> None:
    """Of two overrides of one path the last counts."""
    assert parse_overrides(["a.b=1", "a.b=2"]) == {"a.b": "2"}


@pytest.mark.parametrize("text", ["seq_len", "=1", "seq_len=", ""])
def test_overrides_need_a_path_and_a_value(text: str) -> None:
    """An override that is no ``path=value`` is refused with what it was."""
    with pytest.raises(InputError, match="override must have the form path=value"):
        parse_overrides([text])


@pytest.mark.parametrize("run", SINGLE, ids=lambda run: run.id)
def test_every_single_gpu_record_is_a_scenario(run: MeasuredRun) -> None:
    """A shipped record of one GPU becomes the scenario that was measured, and is simulated."""
    plain = to_plain(run)
    found = Scenario.from_record(plain)
    assert (found.gpu.id, found.gpus) == (run.system.gpu, 1)
    assert found.host_launch_s == plain["system"]["host"]["eager_launch_s"]
    assert found.workload.model.family == plain["workload"]["model"]["family"]
    assert found.workload.micro_batch == plain["workload"]["micro_batch"]
    for section, got in (("plan", found.plan), ("stack", found.stack)):
        kept = {k: v for k, v in plain[section].items() if v is not None and hasattr(got, k)}
        assert {key: getattr(got, key) for key in kept} == kept
    assert simulate(found).step_time_s > 0.0


@pytest.mark.parametrize("run", SINGLE, ids=lambda run: run.id)
def test_parameters_of_a_record_are_those_counted(run: MeasuredRun) -> None:
    """The model of each record has exactly as many parameters as were counted on the GPU."""
    workload = Scenario.from_record(to_plain(run)).workload
    model, counted = workload.model, to_plain(run)["measured"]["parameters"]
    if model.family == "resnet50":
        assert model.parameter_count() == counted
    else:
        assert model.parameter_count(workload.seq_len or 0) == counted


def test_shipped_records_have_single_gpu_runs() -> None:
    """The tests above have something to test."""
    assert len(SINGLE) == 22


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"plan": {"async_tp": True}}, "async_tp must not be set: not modelled yet"),
        ({"stack": {"framework": "jax"}}, "framework must be one of pytorch"),
        ({"stack": {"execution": "graph"}}, "execution must be 'eager' or 'compile'"),
    ],
)
def test_records_that_are_not_modelled_are_refused(
    change: dict[str, dict[str, Any]], message: str
) -> None:
    """A record that needs more than is modelled is refused with the reason and its id."""
    plain = to_plain(SINGLE[0])
    for section, fields in change.items():
        plain[section] = {**plain[section], **fields}
    with pytest.raises(InputError) as caught:
        Scenario.from_record(plain)
    assert message in str(caught.value)
    assert SINGLE[0].id in str(caught.value)


@pytest.mark.parametrize("section", ["system", "workload", "plan", "stack"])
def test_records_without_a_section_are_refused(section: str) -> None:
    """A record that lacks a section is refused by name, not with a traceback."""
    plain = to_plain(SINGLE[0])
    del plain[section]
    with pytest.raises(InputError) as caught:
        Scenario.from_record(plain)
    assert str(caught.value).startswith(f"{section} must be a table")
    assert str(caught.value).endswith(f" in {SINGLE[0].id}")


def test_a_system_and_another_gpu_contradict_each_other() -> None:
    """A catalog system with the name of another GPU is refused; that of its own, in any form, not.

    The GPU of the system may be named by its id or by an alias.
    """
    assert refused(tables(system={"system": "dgx-a100", "gpus": 1})) == (
        "gpu must be that of the system, a100-sxm-80gb, or left out (got h200-sxm-141gb) "
        "in file.toml:system.gpu"
    )
    for name in ("a100-sxm-80gb", "A100"):
        both = tables(system={"system": "dgx-a100", "gpu": name, "gpus": 1})
        assert Scenario.from_mapping(both).gpu.id == "a100-sxm-80gb"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (tables(system={"gpu": "h201"}), "gpu must be a known name, nearest: h20"),
        (tables(system=None), "gpu or system must be given in file.toml:system"),
        (tables(system={"gpu": None}), "gpu or system must be given in file.toml:system"),
        (
            tables(system={"gpus": 0}),
            "gpus must be greater than 0 (got 0) in file.toml:system:gpus",
        ),
        (
            tables(system={"gpus": 2}, plan={"dp": 1}),
            "must equal the number of GPUs 2 (got 1) in file.toml:plan",
        ),
        (
            tables(system={"gpus": 9}),
            "gpus must be a whole number from 1 to 8 on one host of h200-sxm-141gb (got 9)",
        ),
        (
            tables(system={"gpu": None, "system": "dgx-h200", "gpus": 9}),
            "gpus must be at most 8, one scale-up domain of dgx-h200, for now (got 9)",
        ),
        (
            tables(system={"host": {"eager_launch_s": float("inf")}}),
            "eager_launch_s must be less than or equal to 1 (got inf)",
        ),
        (
            tables(workload={"grad_accum": 10**7}),
            "grad_accum must be less than or equal to 16384 (got 10000000)",
        ),
        (
            tables(workload={"seq_len": 2**24, "micro_batch": 2**10}),
            "micro_batch x seq_len must be at most 67108864 (got 17179869184)",
        ),
        (tables(plan={"tp": -1}), "tp must be greater than 0 (got -1) in file.toml:plan:tp"),
        (tables(system={"power_limit_w": float("nan")}), "power_limit_w must be"),
        (tables(system={"power_limit_w": -1.0}), "power_limit_w must be greater than 0 (got -1.0)"),
        (tables(system={"speed": 1}), "key must be one of"),
        (tables(workload=None), "model must be given in file.toml:workload.model"),
        (tables(workload={"model": "gpt22"}), "nearest: gpt2"),
        (tables(workload={"seq_len": None}), "seq_len must be given for a language model"),
        (tables(workload={"seq_len": 0}), "seq_len must be greater than 0 (got 0)"),
        (tables(workload={"micro_batch": 1.5}), "micro_batch must be a valid integer"),
        (tables(workload={"batch": 8}), "key must be a known name, nearest: "),
        (
            tables(workload={"global_batch": 10}),
            "must be a multiple of micro_batch x dp = 4, nearest: 8 or 12 (got 10) in file.toml:",
        ),
        (
            tables(workload={"global_batch": 8, "grad_accum": 3}),
            "global_batch / (micro_batch x dp) = 2 (got 3) in file.toml:workload.grad_accum",
        ),
        (tables(stack={"precision": "fp12"}), "precision must be 'amp-bf16'"),
        (tables(stack={"recompute": "full"}), "key must be"),
        (tables(plan={"recompute": "some"}), "recompute must be 'none', 'selective' or 'full'"),
        (tables(gpu={"sm_cout": 1}), "key must be a known name, nearest: sm_count"),
        (tables(worklod={}), "section must be a known name, nearest: workload (got worklod)"),
        ({**tables(), "plan": 3}, "plan must be a table (got 3) in file.toml:plan"),
    ],
)
def test_bad_input_is_one_clear_line(data: dict[str, Any], message: str) -> None:
    """Each rule of a scenario, broken, gives one line with the rule, the value and the place."""
    assert message in refused(data)


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("workload", "3", "workload must be a table"),
        ("workload.model.hidden", "0", "hidden must be greater than 0 (got 0)"),
        ("gpu.hbm.bandwidth_bytes_per_s", "6 GHz", "bandwidth_bytes_per_s"),
        ("gpu.sm_count", "0", "sm_count must be"),
        ("plan.dp", "2", "must equal the number of GPUs 1 (got 2)"),
    ],
)
def test_bad_overrides_are_one_clear_line(path: str, text: str, message: str) -> None:
    """An override that breaks a rule is refused like the file."""
    shape = {"family": "gpt", "hidden": 128, "layers": 2, "heads": 2, "vocab": 100}
    data = tables(workload={"model": shape}, system={"gpus": 1})
    assert message in refused(data, **{path.replace(".", "__"): text})


@pytest.mark.parametrize("cut", [20, 60, 150])
def test_a_cut_file_is_refused_with_its_line(tmp_path: Path, cut: int) -> None:
    """A scenario file that ends too early names the file and the line or what is missing."""
    path = tmp_path / "scenario.toml"
    path.write_text(TEXT[:cut], encoding="utf-8")
    with pytest.raises(InputError) as caught:
        Scenario.from_toml(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """A scenario file that does not exist is one clear line."""
    with pytest.raises(InputError, match="file must be readable"):
        Scenario.from_toml(tmp_path / "none.toml")
