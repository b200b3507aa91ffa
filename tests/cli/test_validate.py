"""`stepsim validate`: scores, thresholds, and one run in full."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.cli.commands import masked, refused, stepsim
from validation import DATA
from validation.records import read_runs
from validation.validate import RUNS

RUN = "h200-g124-mb16"
KEYS = [
    "n", "mape", "median_ape", "p90_ape", "bias", "coverage", "median_interval_width", "spearman",
    "memory_mape", "memory_n", "groups", "rows", "skipped",
]  # fmt: skip


def records(*ids: str) -> list[dict[str, Any]]:
    """Shipped records by id, in this order."""
    found = {}
    for line in RUNS.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        found[record["id"]] = record
    return [found[each] for each in ids]


def write(path: Path, *lines: dict[str, Any]) -> str:
    """A record file; returns its name."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


@pytest.fixture(name="file")
def record_file(tmp_path: Path) -> str:
    """Three records that can be simulated and one of a framework that cannot."""
    known = records(RUN, "h200-g124-mb4", "h200-r50-256")
    return write(tmp_path / "runs.jsonl", *known, of_another_framework())


def of_another_framework() -> dict[str, Any]:
    """A record of a framework that is not modelled."""
    (record,) = records(RUN)
    record["stack"]["framework"] = "jax"
    return {**record, "id": "jax-run"}


def test_every_single_gpu_run_is_simulated() -> None:
    """Of the shipped records all of one GPU are scored; each other is scored or has a reason."""
    found = stepsim("validate", "--json").json
    runs = read_runs(RUNS)
    scored = [row["id"] for row in found["rows"]]
    skipped = {row["id"]: row["reason"] for row in found["skipped"]}
    assert {run.id for run in runs if run.system.num_gpus == 1} <= set(scored)
    assert sorted([*scored, *skipped]) == sorted(run.id for run in runs)
    assert all(skipped.values())


def test_the_json_is_the_contract(file: str) -> None:
    """Keys are those of the validate contract, also inside the groups."""
    found = stepsim("validate", "--runs", file, "--json").json
    assert list(found) == KEYS
    assert all(list(scores) == KEYS[:-3] for scores in found["groups"].values())


def test_runs_are_grouped_by_regime_mode_and_family(file: str) -> None:
    """Each run counts in its regime, its execution mode and its model family."""
    groups = stepsim("validate", "--runs", file, "--json").json["groups"]
    counts = {name: scores["n"] for name, scores in groups.items()}
    assert counts == {"gpu_bound": 2, "host_bound": 1, "eager": 3, "gpt": 2, "resnet50": 1}


def test_inference_is_skipped_with_its_reason() -> None:
    """Inference records are listed, not scored, because they are not modelled yet."""
    found = stepsim("validate", "--runs", str(DATA / "h200" / "inference.jsonl"), "--json").json
    assert (found["n"], found["mape"], found["rows"]) == (0, None, [])
    assert {row["reason"] for row in found["skipped"]} == {"inference is not modelled yet"}


def test_a_record_without_plan_and_stack_settings_is_read(tmp_path: Path) -> None:
    """A user's record may leave out the plan: one GPU needs none."""
    (record,) = records(RUN)
    del record["plan"]
    found = stepsim("validate", "--runs", write(tmp_path / "r.jsonl", record), "--json").json
    assert [row["id"] for row in found["rows"]] == [RUN]


def test_a_regime_that_is_not_stated_is_its_own_group(tmp_path: Path) -> None:
    """A record that does not say what bounds it is scored as unstated."""
    (record,) = records(RUN)
    del record["measured"]["host_bound"]
    found = stepsim("validate", "--runs", write(tmp_path / "r.jsonl", record), "--json").json
    assert found["rows"][0]["group"] == "unstated"


def test_the_threshold_decides_the_exit_code(file: str) -> None:
    """--fail-above exits with 1 just below the error, and with 0 at it; output is the same."""
    plain = stepsim("validate", "--runs", file, "--json")
    error = plain.json["mape"]
    above, below = str(error * 1.001), str(error * 0.999)
    passed = stepsim("validate", "--runs", file, "--json", "--fail-above", above)
    failed = stepsim("validate", "--runs", file, "--json", "--fail-above", below)
    assert (plain.code, passed.code, failed.code) == (0, 0, 1)
    assert plain.out == passed.out == failed.out
    assert "MAPE must be at most" in failed.err


def test_a_threshold_in_percent_is_the_same(file: str) -> None:
    """99 % and 0.99 mean the same, and no run is that wrong."""
    for text in ("99%", "99 %", "0.99"):
        assert stepsim("validate", "--runs", file, "--fail-above", text).code == 0
    assert stepsim("validate", "--runs", file, "--fail-above", "0.0001%").code == 1


@pytest.mark.parametrize("text", ["8", "1", "nan", "inf", "-1%", "-0.1", "eight", "%", "nan%"])
def test_a_doubtful_threshold_is_refused(text: str) -> None:
    """A number of 1 and more without a percent sign, and what is no number, is bad input."""
    assert "fail-above must be" in refused("validate", f"--fail-above={text}")


def test_nothing_to_judge_fails_the_check() -> None:
    """A check that could not score a single run does not pass."""
    inference = str(DATA / "h200" / "inference.jsonl")
    outcome = stepsim("validate", "--runs", inference, "--fail-above", "50%")
    assert outcome.code == 1
    assert "no run that could be simulated" in outcome.err


def test_what_people_read(file: str, snapshot: SnapshotAssertion) -> None:
    """The report on three runs, numbers masked, rows in alphabetical order."""
    outcome = stepsim("validate", "--runs", file)
    lines = [line.replace(" no ", " yes ") for line in masked(outcome.out).splitlines()]
    first, last = lines.index("Runs, worst first") + 2, lines.index("Skipped")
    ordered = [*lines[:first], *sorted(lines[first:last]), *lines[last:]]
    assert "\n".join(ordered) == snapshot
    assert outcome.err == "simulating 4 records of runs.jsonl\n"


def test_one_run_is_explained() -> None:
    """--explain sets step, memory, power, clock, launches and kernel classes side by side."""
    found = stepsim("validate", "--explain", RUN, "--json").json
    (run,) = [run for run in read_runs(RUNS) if run.id == RUN]
    quantities = {each["name"]: each for each in found["quantities"]}
    assert list(quantities) == [
        "step time", "GPU busy", "peak memory", "power", "SM clock", "launches",
    ]  # fmt: skip
    assert quantities["step time"]["measured"] == run.measured.step_time_s
    assert quantities["launches"]["measured"] == run.measured.profiled_step.launches  # type: ignore[union-attr]
    classes = {each["name"]: each for each in found["kernel_classes"]}
    assert classes["gemm"]["predicted_count"] == classes["gemm"]["measured_count"]
    assert sum(c["measured_count"] for c in classes.values()) == pytest.approx(
        quantities["launches"]["measured"], abs=3
    )


def test_an_explained_run_is_shown_to_people() -> None:
    """Quantities, breakdown and kernel classes are tables with predicted, measured and error."""
    out = stepsim("validate", "--explain", RUN).out
    for word in ("predicted", "measured", "error", "peak memory", "gemm", "launch gaps", "total"):
        assert word in out


def test_a_run_without_trace_says_so() -> None:
    """A run whose trace is not shipped is explained without kernel classes."""
    out = stepsim("validate", "--explain", "h200-r50-64").out
    assert "no trace of this run is shipped" in out


def test_explaining_can_fail_a_check() -> None:
    """--fail-above judges the explained run's own step time."""
    outcome = stepsim("validate", "--explain", RUN, "--fail-above", "0.00001%")
    assert outcome.code == 1


def test_an_unknown_run_is_answered_with_the_nearest() -> None:
    """A misspelt id is one line with the nearest ids."""
    assert RUN in refused("validate", "--explain", "h200-g124-mb61")


def test_a_run_that_is_not_modelled_cannot_be_explained(file: str) -> None:
    """What is not modelled is refused in one line."""
    message = refused("validate", "--runs", file, "--explain", "jax-run")
    assert "framework must be one of pytorch" in message
