"""Bad input: one clear line that names the rule, the value and the place; exit code 2."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import refused, stepsim
from validation.validate import RUNS

SCENARIO = """
[system]
gpu = "h200-sxm-141gb"
[workload]
model = "gpt2"
seq_len = 256
"""
MODEL = {"family": "llama", "hidden": 256, "layers": 2, "heads": 4, "kv_heads": 2, "vocab": 1000}


def simulated(tmp_path: Path, text: str, *arguments: str) -> str:
    """The error of simulating a scenario file with this text, the folder's name left out."""
    path = tmp_path / "scenario.toml"
    path.write_text(text, encoding="utf-8")
    return refused("simulate", str(path), *arguments).replace(f"{tmp_path}/", "")


def validated(tmp_path: Path, content: bytes, name: str = "runs.jsonl") -> str:
    """The error of validating a record file with this content, the folder's name left out."""
    path = tmp_path / name
    path.write_bytes(content)
    return refused("validate", "--runs", str(path)).replace(f"{tmp_path}/", "")


def record(**changes: Any) -> dict[str, Any]:
    """The first shipped record; ``a__b=value`` changes a nested field."""
    found: dict[str, Any] = json.loads(RUNS.read_text(encoding="utf-8").splitlines()[0])
    for path, value in changes.items():
        *parents, last = path.split("__")
        table = found
        for part in parents:
            table = table[part]
        table[last] = value
    return found


def line(**changes: Any) -> bytes:
    """One record as a line of JSON; NaN is written as Python writes it."""
    return json.dumps(record(**changes)).encode() + b"\n"


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (("simulate", "--gpu", "h20-sxm-141gb", "--model", "gpt2", "--seq-len", "8"), "h200-sxm"),
        (("simulate", "--gpu", "h200", "--model", "lama3-8b", "--seq-len", "8"), "llama3-8b"),
        (("simulate", "--system", "dgx-h10", "--model", "gpt2", "--seq-len", "8"), "dgx-h100"),
        (("simulate", "--run", "h200-g124-mb17"), "h200-g124-mb16"),
        (("show", "gpu", "b20-sxm"), "b200-sxm"),
        (("show", "system", "dgx-b20"), "dgx-b200"),
        (("show", "model", "gpt2-xxl"), "gpt2-xl"),
        (("show", "hbm", "HBM3f"), "HBM3e"),
        (("show", "calibration", "h200-sxm"), "h200-sxm-141gb"),
        (("show", "run", "h200-r50-265"), "h200-r50-256"),
        (("show", "gpuu", "h200"), "gpu"),
        (("list", "modles"), "models"),
        (("calibrate", "--gpu", "h200-sxm-141"), "h200-sxm-141gb"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(
    arguments: tuple[str, ...], nearest: str
) -> None:
    """A misspelt name in any command is refused with the names that are close to it."""
    message = refused(*arguments)
    assert "must be a known name, nearest: " in message
    assert nearest in message.split("nearest: ")[1].split(" (got")[0]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("gpu.sm_cont=1", r"nearest: sm_count \(got sm_cont\)"),
        ("gpu.hbm.bandwith=1", r"bandwidth_bytes_per_s, .*\(got bandwith\)"),
        ("workload.seq_length=1", r"\(got seq_length\) in .*workload:seq_length"),
        ("plan.ttp=2", r"nearest: .*tp.* \(got ttp\)"),
        ("stack.precission=bf16", r"nearest: precision \(got precission\)"),
        ("wrokload.seq_len=1", r"nearest: workload \(got wrokload\)"),
        ("seq_len", r"override must have the form path=value \(got seq_len\)"),
        ("workload..seq_len=1", r"path must be keys joined by single dots"),
        ("gpu.sm_count=-132", r"sm_count must .*-132"),
        ("gpu.hbm.bandwidth_bytes_per_s=0", r"bandwidth_bytes_per_s must .*0"),
        ("gpu.hbm.bandwidth_bytes_per_s=nan", r"bandwidth_bytes_per_s must .*nan"),
        ("gpu.hbm.bandwidth_bytes_per_s=4.8 TW", r"bandwidth_bytes_per_s must .*4\.8 TW"),
        ("stack.precision=fp4", r"precision must be .*\(got fp4\)"),
        ("plan.recompute=some", r"recompute must be .*\(got some\)"),
    ],
)
def test_a_bad_override_names_its_path(tmp_path: Path, override: str, expected: str) -> None:
    """An override of an unknown key or with a value that is not allowed is refused."""
    assert re.search(expected, simulated(tmp_path, SCENARIO, "--set", override))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--seq-len", "0"), r"seq_len must be greater than 0 \(got 0\)"),
        (("--seq-len", "-5"), r"seq_len must be greater than 0 \(got -5\)"),
        (("--micro-batch", "-1"), r"micro_batch must be greater than 0 \(got -1\)"),
        (("--global-batch", "0"), r"global_batch must be greater than 0 \(got 0\)"),
        (("--gpus", "0"), r"gpus must be greater than 0 \(got 0\)"),
        (("--tp", "-2"), r"tp must be greater than 0 \(got -2\)"),
        (("--power-limit", "nan"), r"power limit must be finite \(got nan\)"),
        (("--power-limit", "-700 W"), r"power limit must be greater than 0 \(got -700 W\)"),
        (("--power-limit", "700 V"), r"power limit must be .*\(got 700 V\)"),
        (("--micro-batch", "3", "--global-batch", "8"), r"nearest: 6 or 9 \(got 8\)"),
        (("--grad-accum", "2", "--global-batch", "3"), r"grad_accum must be .*= 3 \(got 2\)"),
        (("--gpus", "4", "--tp", "3"), r"must equal the number of GPUs 4 \(got 3\)"),
        (("--execution", "jit"), r"execution must be .*\(got jit\)"),
        (("--optimizer", "adam"), r"optimizer must be .*\(got adam\)"),
    ],
)
def test_a_bad_flag_is_refused(tmp_path: Path, flags: tuple[str, ...], expected: str) -> None:
    """Zero, negative and NaN values, unknown words and batches that do not divide are refused."""
    assert re.search(expected, simulated(tmp_path, SCENARIO, *flags))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[system\ngpu = 1\n", r"TOML must be well formed: .* in scenario\.toml:1$"),
        ('[system]\ngpu = "h2', r"TOML must be well formed: .* in scenario\.toml:2$"),
        ("[system]\ngpu = \n", r"in scenario\.toml:2$"),
        ('[system]\ngpu = "a"\ngpu = "b"\n', r"in scenario\.toml:3$"),
        ("", r"model must be given in scenario\.toml:workload\.model"),
        ("system = 3\n", r"system must be a table \(got 3\) in scenario\.toml:system"),
        (SCENARIO.replace('"gpt2"', "7"), r"model must .*in scenario\.toml:workload"),
        (SCENARIO.replace("256", "nan"), r"seq_len must be .*\(got nan\)"),
        (SCENARIO.replace("256", "256.5"), r"seq_len must be .*\(got 256\.5\)"),
        (SCENARIO.replace("seq_len", "seqlen"), r"key must .*nearest: seq_len \(got seqlen\)"),
        (SCENARIO.replace('gpu = "h200-sxm-141gb"', ""), r"gpu or system must be given in"),
    ],
)
def test_a_bad_scenario_file_names_file_and_place(tmp_path: Path, text: str, expected: str) -> None:
    """Malformed or truncated TOML is named by file and line, a bad value by file and key."""
    assert re.search(expected, simulated(tmp_path, text))


def test_a_file_that_is_not_text_names_the_line(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 are refused with file and line."""
    path = tmp_path / "scenario.toml"
    path.write_bytes(b'[system]\ngpu = "\xff"\n')
    assert refused("simulate", str(path)).endswith("scenario.toml:2")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A scenario or record file that does not exist is refused by name."""
    for arguments in (("simulate",), ("validate", "--runs")):
        message = refused(*arguments, str(tmp_path / "none"))
        assert message == (
            f"file must be readable (got No such file or directory) in {tmp_path / 'none'}"
        )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"heads": 3}, r"heads"),
        ({"kv_heads": 3}, r"heads"),
        ({"layers": 0}, r"layers must be greater than 0 \(got 0\)"),
        ({"hidden": -256}, r"hidden must be greater than 0 \(got -256\)"),
        ({"family": "gtp"}, r"gtp"),
        ({"head": 4}, r"got head\)"),
    ],
)
def test_a_bad_model_is_refused(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    """Heads that do not divide, sizes that are not positive, unknown families and fields."""
    fields = "\n".join(f"{key} = {json.dumps(v)}" for key, v in {**MODEL, **changes}.items())
    head, _, _ = SCENARIO.partition("[workload]")
    text = f"{head}[workload]\nseq_len = 256\n[workload.model]\n{fields}\n"
    message = simulated(tmp_path, text)
    assert re.search(expected, message)
    assert "scenario.toml:workload" in message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            line() + b'{"schema": "measured-run/1", "id"',
            r"complete JSON object: .* in runs.jsonl:2",
        ),
        (line() + line(), r"id must be unique \(first in line 1\) .* in runs\.jsonl:2:id"),
        (b"[1]\n", r"line must be one JSON object .* in runs\.jsonl:1"),
        (b"", r"file must hold at least one record"),
        (b"\xff\n", r"UTF-8 .* in runs\.jsonl:1"),
        (line(schema="measured-run/9"), r"schema must be one of .*\(got measured-run/9\)"),
        (line(schema=None), r"schema must be one of measured-run/1, measured-inference/1"),
        (line(sytem={}), r"nearest: system \(got sytem\) in runs\.jsonl:1:sytem"),
        (line(measured__step_time_s=0), r"step_time_s must be greater than 0 \(got 0.*\)"),
        (line(measured__step_time_s=-1.5), r"step_time_s must be greater than 0 \(got -1\.5\)"),
        (line(measured__step_time_s=float("nan")), r"in runs\.jsonl:1"),
        (line(system__num_gpus=0), r"num_gpus must be greater than or equal to 1 \(got 0\)"),
    ],
)
def test_a_bad_record_names_file_and_line(tmp_path: Path, content: bytes, expected: str) -> None:
    """Malformed and truncated lines, unknown schemas and fields, times that are not positive."""
    assert re.search(expected, validated(tmp_path, content))


def test_a_truncated_gzip_is_named(tmp_path: Path) -> None:
    """A record file that was cut off inside its compressed data is refused with file and line."""
    whole = gzip.compress(line(), mtime=0)
    message = validated(tmp_path, whole[: len(whole) // 2], "runs.jsonl.gz")
    assert re.search(r"gzip data must be complete .* in runs\.jsonl\.gz:1", message)


def test_a_record_that_cannot_be_simulated_is_no_bad_input(tmp_path: Path) -> None:
    """A well-formed record of another framework or an unknown GPU is skipped, not refused."""
    path = tmp_path / "runs.jsonl"
    changes: list[dict[str, Any]] = [{"stack__framework": "jax"}, {"system__gpu": "tpu-v9"}]
    lines = [line(id=f"r{index}", **change) for index, change in enumerate(changes)]
    path.write_bytes(b"".join(lines))
    outcome = stepsim("validate", "--runs", str(path), "--json")
    assert outcome.code == 0
    reasons = [row["reason"] for row in outcome.json["skipped"]]
    assert "framework must be one of pytorch" in reasons[0]
    assert "gpu must be" in reasons[1]


def test_missing_measurements_are_named(tmp_path: Path) -> None:
    """A folder without microbenchmarks is refused with the first file that is missing."""
    message = refused_calibration(tmp_path)
    assert re.search(r"microbenchmark file must exist \(got \S+\) in ", message)
    assert list(tmp_path.iterdir()) == []


def refused_calibration(folder: Path) -> str:
    """The error of calibrating from a folder; progress lines before it are dropped."""
    outcome = stepsim("calibrate", "--data", str(folder), "--out", str(folder / "out.toml"))
    assert (outcome.code, outcome.out) == (2, "")
    return outcome.err.splitlines()[-1].removeprefix("stepsim: ")
