"""`stepsim simulate`: files, flags and records give the prediction that Python gives."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from simulator import Scenario, simulate
from tests.cli.commands import masked, refused, stepsim
from validation.traces import read_trace
from validation.validate import scenario_of, shipped_run

FLAGS = (
    "--gpu", "h200-sxm-141gb", "--model", "gpt2", "--seq-len", "1024", "--micro-batch", "16",
)  # fmt: skip
SCENARIO = """
[system]
gpu = "h200-sxm-141gb"
[workload]
model = "gpt2"
seq_len = 1024
micro_batch = 16
"""
RUN = "h200-l1-s4k-mb2"


@pytest.fixture(name="file")
def scenario_file(tmp_path: Path) -> str:
    """A scenario file that says the same as ``FLAGS``."""
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO, encoding="utf-8")
    return str(path)


def predicted(*arguments: str) -> dict[str, Any]:
    """The prediction as JSON, without how long the simulation itself took."""
    outcome = stepsim("simulate", *arguments, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    found: dict[str, Any] = outcome.json
    return without_wall_time(found)


def without_wall_time(found: dict[str, Any]) -> dict[str, Any]:
    """A prediction without the one value that differs from run to run."""
    engine = {key: value for key, value in found["engine"].items() if key != "wall_time_s"}
    return {**found, "engine": engine}


def test_file_and_flags_and_python_agree(file: str) -> None:
    """The same scenario from a file, from flags and from Python gives the same prediction."""
    in_python = simulate(Scenario.from_toml(file)).as_dict()
    plain = without_wall_time(json.loads(json.dumps(in_python)))
    assert predicted(file) == predicted(*FLAGS) == plain


def test_a_shipped_run_is_its_record() -> None:
    """--run simulates the scenario of the measured record."""
    in_python = simulate(scenario_of(shipped_run(RUN)))
    assert predicted("--run", RUN)["step_time_s"] == in_python.step_time_s


@pytest.mark.parametrize(
    ("flags", "override"),
    [
        (("--micro-batch", "4"), "workload.micro_batch=4"),
        (("--global-batch", "32"), "workload.global_batch=32"),
        (("--grad-accum", "2"), "workload.grad_accum=2"),
        (("--seq-len", "512"), "workload.seq_len=512"),
        (("--model", "gpt2-medium"), "workload.model=gpt2-medium"),
        (("--precision", "bf16"), "stack.precision=bf16"),
        (("--optimizer", "sgd-momentum"), "stack.optimizer=sgd-momentum"),
        (("--no-grad-clip",), "stack.grad_clip=false"),
        (("--execution", "compile"), "stack.execution=compile"),
        (("--recompute", "full"), "plan.recompute=full"),
        (("--gpu", "h100-sxm-80gb"), "system.gpu=h100-sxm-80gb"),
        (("--power-limit", "0.4 kW"), "system.power_limit_w=400"),
    ],
)
def test_a_flag_goes_over_the_file(file: str, flags: tuple[str, ...], override: str) -> None:
    """A flag changes what the file says exactly as --set does, and it does change something."""
    with_flag = predicted(file, *flags)
    assert with_flag == predicted(file, "--set", override)
    assert with_flag != predicted(file)


def test_scope_and_ranks_are_passed_on(file: str) -> None:
    """The flags of compilation and parallelism reach the scenario."""
    whole = predicted(file, "--execution", "compile", "--compile-scope", "full")
    assert whole != predicted(file, "--execution", "compile", "--compile-scope", "block")
    ones = [f"--{name}" for name in ("gpus", "dp", "tp", "pp", "vpp", "cp", "ep")]
    neutral = [part for flag in ones for part in (flag, "1")]
    assert predicted(file, *neutral, "--sharding", "none") == predicted(file)


def test_a_system_can_be_named(tmp_path: Path) -> None:
    """One GPU of a catalog system gives a prediction with the system's own price."""
    flags = ("--system", "aws-p5en.48xlarge", "--gpus", "1", *FLAGS[2:])
    assert predicted(*flags)["fits_in_memory"] is True
    assert not list(tmp_path.iterdir())


def test_an_override_changes_the_gpu() -> None:
    """--set reaches every value of the descriptor, and may be repeated."""
    fewer = predicted(*FLAGS, "--set", "gpu.sm_count=66", "--set", "gpu.hbm.stacks=3")
    assert fewer["step_time_s"] > predicted(*FLAGS)["step_time_s"]


def test_json_has_no_other_output() -> None:
    """--json writes one document whose breakdown sums to the step, and nothing on stderr."""
    found = predicted(*FLAGS)
    assert math.fsum(found["breakdown"].values()) == pytest.approx(found["step_time_s"])


def test_another_gpu_is_extrapolated_with_a_warning() -> None:
    """A GPU without measurements is predicted from the H200's, and the result says so."""
    for gpu in ("h100-sxm-80gb", "a100-sxm-80gb", "b200-sxm"):
        found = predicted("--gpu", gpu, "--model", "llama3-8b", "--seq-len", "2048")
        assert any("extrapolated from h200-sxm-141gb" in text for text in found["warnings"])


def test_the_trace_is_written_and_the_prediction_shown(tmp_path: Path) -> None:
    """--trace writes a timeline that reads back, by its suffix plain or gzipped."""
    for name in ("step.json", "step.json.gz"):
        outcome = stepsim("simulate", *FLAGS, "--trace", str(tmp_path / name))
        assert outcome.code == 0
        assert "step time" in outcome.out
        assert read_trace(tmp_path / name).launches > 100


def test_a_trace_that_cannot_be_written_is_the_only_output(tmp_path: Path) -> None:
    """An unwritable place gives one line, no prediction on stdout and no file."""
    target = tmp_path / "missing" / "step.json"
    assert refused("simulate", *FLAGS, "--trace", str(target)) == (
        f"file must be writable (got No such file or directory) in {target}"
    )
    assert list(tmp_path.iterdir()) == []


def test_what_people_read(snapshot: SnapshotAssertion) -> None:
    """The report of a measured run, numbers masked, kernel classes in alphabetical order."""
    lines = masked(stepsim("simulate", "--run", RUN).out).splitlines()
    lines = [line.partition("bound by")[1] or line for line in lines]
    kernels = lines.index("Kernels") + 2
    assert "\n".join([*lines[:kernels], *sorted(lines[kernels:])]) == snapshot


def test_images_and_passes_are_named() -> None:
    """A ResNet's report counts images, and accumulated passes are part of the headline."""
    outcome = stepsim(
        "simulate", "--gpu", "h200", "--model", "resnet50", "--micro-batch", "64",
        "--grad-accum", "2", "--optimizer", "sgd-momentum",
    )  # fmt: skip
    assert "64 images x 2 passes" in outcome.out
    assert "images/s" in outcome.out


def test_warnings_are_shown_to_people() -> None:
    """What does not fit in memory is simulated and says so."""
    outcome = stepsim("simulate", "--gpu", "l40s", "--model", "llama3-8b", "--seq-len", "4096")
    assert outcome.code == 0
    assert "does not fit" in outcome.out
    assert "warning: peak memory" in outcome.out


def test_a_run_stands_alone() -> None:
    """--run with flags, a file or --set is refused: none of them would be ignored silently."""
    for extra in (("--gpu", "h200"), ("scenario.toml",), ("--set", "gpu.sm_count=1")):
        assert refused("simulate", "--run", RUN, *extra).startswith("--run must stand without")
