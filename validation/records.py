"""Reader of measured records: one JSON object a line, plain or gzipped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails

from archs.errors import InputError, from_validation

from .compressed import read_content
from .record_models import MeasuredInference, MeasuredRun

Record = MeasuredRun | MeasuredInference
SCHEMAS: dict[str, type[MeasuredRun] | type[MeasuredInference]] = {
    "measured-run/1": MeasuredRun,
    "measured-inference/1": MeasuredInference,
}

__all__ = [
    "SCHEMAS",
    "MeasuredInference",
    "MeasuredRun",
    "Record",
    "parse_record",
    "read_records",
    "read_runs",
    "to_plain",
]


def read_records(path: str | Path) -> list[Record]:
    """Read every record of a `.jsonl` or `.jsonl.gz` file, in order.

    Raises InputError with file and line for malformed or truncated JSON, an unknown schema or
    field, a value of the wrong type, a number that is not finite, a time that is not positive, and
    an id that occurred before; also for a file without any record.
    """
    first_line: dict[str, int] = {}
    records: list[Record] = []
    for number, line in _lines(Path(path)):
        where = f"{path}:{number}"
        record = parse_record(line, where)
        if record.id in first_line:
            must = f"id must be unique (first in line {first_line[record.id]})"
            raise InputError(must, record.id, f"{where}:id")
        first_line[record.id] = number
        records.append(record)
    if not records:
        raise InputError("file must hold at least one record, one JSON object a line", 0, str(path))
    return records


def read_runs(path: str | Path) -> list[MeasuredRun]:
    """Read a file that holds training runs only; as `read_records`, and refuses other schemas."""
    runs: list[MeasuredRun] = []
    for record in read_records(path):
        if not isinstance(record, MeasuredRun):
            must = f"schema of {record.id} must be measured-run/1"
            raise InputError(must, record.schema_id, str(path))
        runs.append(record)
    return runs


def parse_record(line: str | bytes, where: str) -> Record:
    """Parse one record from its JSON text; ``where`` (file:line) goes into the error."""
    model = _model_of(_object(line, where), where)
    try:
        return model.model_validate_json(line)
    except ValidationError as error:
        raise from_validation(_unknown_first(error), where, model) from None


def to_plain(record: Record) -> dict[str, Any]:
    """The record as plain JSON values: exactly the fields that were given, nulls included."""
    return record.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    content = read_content(path)
    lines = content.data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for number, line in enumerate(lines, start=1):
        if number == len(lines) and not content.complete:
            must = f"gzip data must be complete (it ends after byte {content.stored_bytes})"
            raise InputError(must, "truncated file", f"{path}:{number}")
        if line.strip():
            yield number, line


def _object(line: str | bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        must = f"line must be one complete JSON object: {error.msg} at column {error.colno}"
        raise InputError(must, _excerpt(line), where) from None
    except UnicodeDecodeError as error:
        must = f"line must be UTF-8 text: {error.reason} at byte {error.start}"
        raise InputError(must, _excerpt(line), where) from None
    except _RepeatedKeyError as error:
        raise InputError("a key must occur once in an object", error.key, where) from None
    except (ValueError, RecursionError) as error:
        must = f"line must be JSON that can be read: {error}"
        raise InputError(must, _excerpt(line), where) from None
    if not isinstance(value, dict):
        raise InputError("line must be one JSON object", _excerpt(line), where)
    return value


class _RepeatedKeyError(ValueError):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise _RepeatedKeyError(key)
        result[key] = value
    return result


def _excerpt(line: str | bytes, length: int = 40) -> str:
    text = line if isinstance(line, str) else line.decode("utf-8", errors="replace")
    text = text.strip()
    return text if len(text) <= length else f"{text[:length]}..."


def _model_of(plain: dict[str, Any], where: str) -> type[MeasuredRun] | type[MeasuredInference]:
    schema = plain.get("schema")
    if not isinstance(schema, str) or schema not in SCHEMAS:
        raise InputError(f"schema must be one of {', '.join(SCHEMAS)}", schema, f"{where}:schema")
    return SCHEMAS[schema]


def _unknown_first(error: ValidationError) -> ValidationError:
    """The same error led by its unknown field: a misspelt name says more than a missing one."""
    for detail in error.errors(include_url=False):
        if detail["type"] == "extra_forbidden":
            unknown = InitErrorDetails(
                type="extra_forbidden", loc=detail["loc"], input=detail["input"]
            )
            return ValidationError.from_exception_data(error.title, [unknown])
    return error
