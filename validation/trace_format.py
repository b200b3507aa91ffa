"""Decoding of kineto's Chrome-trace JSON: the file as it is written, field by field.

The dialect is described in pytorch/kineto, libkineto/src/output_json.cpp. Only the fields that
are used are decoded; arguments are left raw until an event of interest needs them.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from archs.errors import InputError

from .compressed import Content, read_content

PS_PER_US = 1_000_000
PS_PER_NS = 1_000


class Event(msgspec.Struct, gc=False):
    """One entry of `traceEvents`; times in microseconds, exactly as written."""

    ph: str = ""
    cat: str | None = None
    name: str | int | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: Decimal | None = None
    dur: Decimal | None = None
    args: msgspec.Raw = msgspec.Raw(b"{}")

    @property
    def label(self) -> str:
        """The name as text."""
        return "" if self.name is None else str(self.name)


_KEYS = {
    "base_ns": "baseTimeNanoseconds",
    "events": "traceEvents",
    "devices": "deviceProperties",
    "distributed": "distributedInfo",
}


class Document(msgspec.Struct, rename=_KEYS):
    """The top level of a trace file."""

    events: list[Event]
    base_ns: int = 0
    devices: list[dict[str, Any]] = msgspec.field(default_factory=list)
    distributed: dict[str, Any] | None = None
    cuda_driver_version: int | str | None = None
    cuda_runtime_version: int | str | None = None
    cupti_version: int | str | None = None
    hip_driver_version: int | str | None = None
    hip_runtime_version: int | str | None = None


_DOCUMENT = msgspec.json.Decoder(Document)
_EVENTS = msgspec.json.Decoder(list[Event])
_ARGS = msgspec.json.Decoder(dict[str, Any])


def read_document(path: Path) -> Document:
    """Decode a trace file, plain or gzipped, an object or a bare list of events.

    Raises InputError with the byte offset for a truncated or malformed file.
    """
    content = read_content(path)
    _check_complete(content, path)
    try:
        if content.data.lstrip()[:1] == b"[":
            return Document(_EVENTS.decode(content.data))
        return _DOCUMENT.decode(content.data)
    except msgspec.ValidationError as error:
        raise InputError(f"trace must be in kineto's format: {error}", where=str(path)) from None
    except msgspec.DecodeError as error:
        must = f"trace must be complete JSON: {_with_offset(str(error), len(content.data))}"
        raise InputError(must, where=str(path)) from None
    except UnicodeDecodeError as error:
        must = f"trace must be UTF-8 text: {error.reason} at byte {error.start}"
        raise InputError(must, where=str(path)) from None


def arguments(event: Event) -> dict[str, Any]:
    """The arguments of an event; empty when it has none."""
    value = bytes(event.args)
    return {} if value in (b"", b"null") else _ARGS.decode(value)


def to_ps(time_us: Decimal | None) -> int:
    """Microseconds of a trace as whole picoseconds; missing counts as zero."""
    return 0 if time_us is None else round(time_us * PS_PER_US)


def _check_complete(content: Content, path: Path) -> None:
    if not content.complete:
        must = f"gzip data must be complete (it ends after byte {content.stored_bytes})"
        raise InputError(must, "truncated file", str(path))
    if not content.data.strip():
        raise InputError("trace must hold JSON", "an empty file", str(path))


def _with_offset(message: str, length: int) -> str:
    return message if "(byte" in message else f"{message} (byte {length})"
