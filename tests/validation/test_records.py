"""Measured records: what is shipped reads whole, what is wrong is refused with file and line."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from archs.errors import StepsimError
from validation import DATA
from validation.records import (
    MeasuredInference,
    MeasuredRun,
    parse_record,
    read_records,
    read_runs,
    to_plain,
)

RUN: dict[str, Any] = {
    "schema": "measured-run/1",
    "id": "mine-1",
    "source": "our cluster, 2026-12-01",
    "system": {"gpu": "h200-sxm-141gb", "num_gpus": 2},
    "workload": {
        "model": {"family": "gpt", "hidden": 768, "layers": 12, "heads": 12},
        "micro_batch": 4,
        "global_batch": 8,
    },
    "plan": {"dp": 2, "sharding": "none"},
    "stack": {"framework": "pytorch", "precision": "amp-bf16"},
    "measured": {"step_time_s": 0.05, "ranks": [{"step_time_s": 0.05}, {"step_time_s": 0.05}]},
}
INFERENCE: dict[str, Any] = {
    "schema": "measured-inference/1",
    "id": "mine-2",
    "system": {"gpu": "h200-sxm-141gb", "num_gpus": 1},
    "workload": {"model": {"name": "llama3-8b"}, "batch": 1, "input_len": 128, "output_len": 0},
    "measured": {"prefill_s": 0.01},
}


def changed(path: str, value: object) -> dict[str, Any]:
    """RUN with the value at a dotted path set."""
    plain = copy.deepcopy(RUN)
    *parents, last = path.split(".")
    part: Any = plain
    for name in parents:
        part = part[int(name)] if isinstance(part, list) else part[name]
    part[last] = value
    return plain


def write(folder: Path, *records: object) -> Path:
    """A file of one JSON object a line."""
    path = folder / "runs.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def refusal(read: Callable[[Path], object], path: Path) -> str:
    """The one line with which a reader refuses a file."""
    with pytest.raises(StepsimError) as caught:
        read(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", ["runs.jsonl", "inference.jsonl"])
def test_every_shipped_record_reads_without_loss(name: str) -> None:
    """A shipped record, read and made plain again, is the JSON of its line."""
    path = DATA / "h200" / name
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [to_plain(record) for record in read_records(path)] == list(map(json.loads, lines))


def test_shipped_runs_are_the_47_training_runs() -> None:
    """The shipped runs cover one, two and four GPUs and both bounds of the step."""
    runs = read_runs(DATA / "h200" / "runs.jsonl")
    assert len(runs) == 47
    assert {run.system.num_gpus for run in runs} == {1, 2, 4}
    assert {run.measured.host_bound for run in runs} == {True, False}


def test_repeated_runs_are_shipped_runs() -> None:
    """Each line of the repeatability file belongs to a shipped run and repeats its step time."""
    times = {run.id: run.measured.step_time_s for run in read_runs(DATA / "h200" / "runs.jsonl")}
    text = (DATA / "h200" / "repeatability.jsonl").read_text(encoding="utf-8")
    for line in map(json.loads, text.splitlines()):
        assert times[line["run"]] == line["first_machine_step_s"]


def test_both_schemas_read_in_order(tmp_path: Path) -> None:
    """A file may mix training and inference records; they come back in the file's order."""
    records = read_records(write(tmp_path, RUN, INFERENCE))
    assert isinstance(records[0], MeasuredRun)
    assert isinstance(records[1], MeasuredInference)
    assert [to_plain(record) for record in records] == [RUN, INFERENCE]


def test_gzip_changes_nothing(tmp_path: Path) -> None:
    """A compressed file reads as the plain one, also when it was written in several members."""
    plain = write(tmp_path, RUN, INFERENCE)
    lines = plain.read_bytes().splitlines(keepends=True)
    packed = tmp_path / "runs.jsonl.gz"
    packed.write_bytes(b"".join(gzip.compress(line) for line in lines))
    assert read_records(packed) == read_records(plain)


def test_blank_lines_and_line_endings_do_not_matter(tmp_path: Path) -> None:
    """Blank lines, Windows line ends and a byte order mark are accepted."""
    path = tmp_path / "runs.jsonl"
    text = json.dumps(RUN) + "\r\n\r\n" + json.dumps(INFERENCE)
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert [record.id for record in read_records(path)] == ["mine-1", "mine-2"]


def test_records_are_frozen() -> None:
    """A record cannot be changed after it was read."""
    run = parse_record(json.dumps(RUN), "runs.jsonl:1")
    with pytest.raises(ValueError, match="frozen"):
        setattr(run, "id", "other")  # noqa: B010 -- a plain assignment is a type error


WRONG_VALUES = [
    ("measured.step_time_s", 0.0, "step_time_s must be greater than 0"),
    ("measured.step_time_s", -0.05, "step_time_s must be greater than 0"),
    ("measured.step_time_s", float("nan"), "step_time_s must be a finite number"),
    ("measured.step_time_s", float("inf"), "step_time_s must be a finite number"),
    ("measured.step_time_s", "0.05", "step_time_s must be a valid number"),
    ("measured.ranks.1.step_time_s", -1, "step_time_s must be greater than 0"),
    ("system.num_gpus", 0, "num_gpus must be greater than or equal to 1"),
    ("system.num_gpus", 1.5, "num_gpus must be a valid integer"),
    ("system.num_gpus", True, "num_gpus must be a valid integer"),
    ("plan.sharding", "zero5", "sharding must be 'none', 'zero1', 'zero2' or 'zero3'"),
    ("workload.model", [], "model must be an object"),
    ("schema", "measured-run/9", "schema must be one of measured-run/1, measured-inference/1"),
    ("schema", None, "schema must be one of measured-run/1, measured-inference/1"),
    ("schema", ["measured-run/1"], "schema must be one of measured-run/1, measured-inference/1"),
]


@pytest.mark.parametrize(("path", "value", "rule"), WRONG_VALUES)
def test_a_wrong_value_is_refused_by_key(
    tmp_path: Path, path: str, value: object, rule: str
) -> None:
    """A value that cannot be is refused in one line: rule, value, file and line."""
    good = changed("id", "good")
    file = write(tmp_path, good, changed(path, value))
    message = refusal(read_records, file)
    assert rule in message
    assert message.endswith(f"in {file}:2:{path}")
    assert "(got " in message


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("measured.step_time", "step_time_s"),
        ("system.num_gpu", "num_gpus"),
        ("workload.model.hiden", "hidden"),
        ("measured.ranks.0.power_watt", "power_w"),
        ("sytem", "system"),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest(
    tmp_path: Path, path: str, nearest: str
) -> None:
    """A misspelt field is refused, never ignored, and the message names the nearest known one."""
    file = write(tmp_path, changed(path, 1))
    message = refusal(read_records, file)
    assert f"nearest: {nearest}" in message
    assert message.endswith(f"in {file}:1:{path}")


def test_a_misspelt_required_field_is_named_before_the_missing_one(tmp_path: Path) -> None:
    """A required field under a wrong name is reported as the wrong name, not as missing."""
    file = write(tmp_path, changed("measured", {"step_time": 0.05}))
    assert "nearest: step_time_s" in refusal(read_records, file)


@pytest.mark.parametrize("key", ["id", "system", "workload", "measured"])
def test_a_missing_field_is_named(tmp_path: Path, key: str) -> None:
    """What identifies a run must be given."""
    plain = {name: value for name, value in RUN.items() if name != key}
    assert f"{key} must be given" in refusal(read_records, write(tmp_path, plain))


BROKEN_LINES = [
    (b'{"schema": "measured-run/1", "id": "cut', "one complete JSON object"),
    (b"{'schema': 1}", "one complete JSON object"),
    (b"[1, 2]", "one JSON object"),
    (b'"text"', "one JSON object"),
    (b'{"id": "a", "id": "b"}', "a key must occur once"),
    (b'{"id": "\xff"}', "UTF-8"),
    (b"[" * 100_000, "JSON that can be read"),
    (b'{"id": ' + b"9" * 5_000 + b"}", "JSON that can be read"),
]


@pytest.mark.parametrize(("line", "rule"), BROKEN_LINES)
def test_a_broken_line_is_refused_with_its_number(tmp_path: Path, line: bytes, rule: str) -> None:
    """Malformed and truncated JSON is refused in one short line with file and line number."""
    file = write(tmp_path, RUN)
    file.write_bytes(file.read_bytes() + b"\n" + line)
    message = refusal(read_records, file)
    assert rule in message
    assert message.endswith(f"in {file}:3")
    assert len(message) < 300 + len(str(file))


def test_a_repeated_id_is_refused(tmp_path: Path) -> None:
    """Two records with one id are refused, naming both lines."""
    file = write(tmp_path, RUN, INFERENCE, RUN)
    message = refusal(read_records, file)
    assert "id must be unique (first in line 1)" in message
    assert "mine-1" in message
    assert message.endswith(f"in {file}:3:id")


def test_a_truncated_gzip_file_is_refused(tmp_path: Path) -> None:
    """Compressed data that ends early is refused with the byte where it ends."""
    packed = gzip.compress(json.dumps(RUN).encode() * 50)
    path = tmp_path / "runs.jsonl.gz"
    path.write_bytes(packed[:-20])
    message = refusal(read_records, path)
    assert f"it ends after byte {len(packed) - 20}" in message
    assert f"{path}:1" in message


def test_a_damaged_gzip_file_is_refused(tmp_path: Path) -> None:
    """Compressed data with a changed byte is refused."""
    packed = bytearray(gzip.compress(json.dumps(RUN).encode()))
    packed[15] ^= 0xFF
    path = tmp_path / "runs.jsonl.gz"
    path.write_bytes(packed)
    assert "gzip data must be" in refusal(read_records, path)


@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_a_file_without_records_is_refused(tmp_path: Path, content: bytes) -> None:
    """A file that holds nothing is an error, not a perfect score."""
    path = tmp_path / "runs.jsonl"
    path.write_bytes(content)
    assert "at least one record" in refusal(read_records, path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """A file that is not there is named."""
    assert "none.jsonl" in refusal(read_records, tmp_path / "none.jsonl")


def test_training_only_reader_refuses_inference(tmp_path: Path) -> None:
    """`read_runs` refuses an inference record by id instead of dropping it."""
    message = refusal(read_runs, write(tmp_path, RUN, INFERENCE))
    assert "schema of mine-2 must be measured-run/1" in message
