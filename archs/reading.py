"""Files in and out: TOML that fails with file and line, overrides, and writes that never halve."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from .errors import InputError


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file; a missing or malformed file raises InputError with file and line.

    A file that was cut off inside a value is reported at its last line.
    """
    content = _read_bytes(Path(path))
    try:
        return tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        must = f"TOML must be UTF-8 text: {error.reason}"
        raise InputError(must, content[error.start : error.end], f"{path}:{line}") from None
    except tomllib.TOMLDecodeError as error:
        raise _malformed(str(error), content.decode("utf-8"), path) from None
    except RecursionError:
        raise InputError("TOML must not be nested this deep", where=str(path)) from None


def parse_value(text: str) -> Any:
    """One value by TOML's rules ("8", "true", "[1, 2]"); anything else is a string ("700 W")."""
    try:
        parsed = tomllib.loads(f"value = {text.strip()}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text.strip()
    return parsed["value"] if list(parsed) == ["value"] else text.strip()


def set_path(mapping: MutableMapping[str, Any], dotted_path: str, text: str) -> None:
    """Set ``mapping["a"]["b"]`` for the dotted path "a.b" to ``parse_value(text)``, in place.

    Missing tables are made. Raises InputError for an empty part and for a path that leads through
    something that is no table.
    """
    *parents, last = _parts(dotted_path)
    table = mapping
    for part in parents:
        inner = table.setdefault(part, {})
        if not isinstance(inner, MutableMapping):
            raise InputError(f"{part} must be a table to hold other keys", inner, dotted_path)
        table = inner
    table[last] = parse_value(text)


def split_assignment(assignment: str) -> tuple[str, str]:
    """The path and the text of ``path=value``; raises InputError when there is no such pair."""
    path, equals, text = assignment.partition("=")
    if not equals or not path.strip() or not text.strip():
        raise InputError("override must have the form path=value", assignment)
    return path.strip(), text.strip()


def write_atomic(path: str | Path, content: str | bytes) -> None:
    """Write a whole file or nothing: to a temporary file beside it that is then renamed.

    Something that exists and is no regular file (a pipe, /dev/stdout) is written directly. Raises
    InputError when the place cannot be written.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(data)
        else:
            _write_and_rename(target, data)
    except OSError as error:
        raise InputError("file must be writable", error.strerror, str(path)) from None


def _write_and_rename(target: Path, data: bytes) -> None:
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError("file must be readable", error.strerror, str(path)) from None
    except ValueError as error:
        raise InputError("path must be one that a file can have", error, str(path)) from None


def _malformed(message: str, text: str, path: str | Path) -> InputError:
    at = re.search(r"\(at (?:line (\d+), column \d+|end of document)\)", message)
    line = int(at[1]) if at and at[1] else len(text.splitlines()) or 1
    reason = message[: at.start()].strip() if at else message
    if at and not at[1]:
        reason += " (the file ends here)"
    return InputError(f"TOML must be well formed: {reason}", where=f"{path}:{line}")


def _parts(dotted_path: str) -> list[str]:
    parts = [part.strip() for part in dotted_path.split(".")]
    if not all(parts):
        raise InputError("path must be keys joined by single dots", dotted_path)
    return parts
