"""Reading files that may be gzipped, whatever their name says, and may have been cut short."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

from archs.errors import InputError

GZIP_MAGIC = b"\x1f\x8b"
GZIP_WINDOW_BITS = 31


@dataclass(frozen=True, slots=True)
class Content:
    """The bytes of a file after decompression.

    ``stored_bytes`` is the size on disk; ``complete`` is False when gzip data ended early, and
    ``data`` then holds what came before.
    """

    data: bytes
    stored_bytes: int
    complete: bool


def read_content(path: Path) -> Content:
    """Read a plain or gzipped file; raises InputError when it cannot be read or is damaged."""
    try:
        stored = path.read_bytes()
    except OSError as error:
        raise InputError("file must be readable", error.strerror, str(path)) from None
    if not stored.startswith(GZIP_MAGIC):
        return Content(stored, len(stored), complete=True)
    try:
        return _gunzip(stored)
    except zlib.error as error:
        raise InputError("gzip data must be undamaged", error, str(path)) from None


def _gunzip(stored: bytes) -> Content:
    parts, rest = [], stored
    while rest.startswith(GZIP_MAGIC):
        member = zlib.decompressobj(GZIP_WINDOW_BITS)
        parts.append(member.decompress(rest))
        rest = member.unused_data
        if not member.eof:
            return Content(b"".join(parts), len(stored), complete=False)
    return Content(b"".join(parts), len(stored), complete=True)
