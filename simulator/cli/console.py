"""What commands write: tables for people and JSON for programs on stdout, progress on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod, RenderableType
    from rich.table import Table

BAR_CELLS = 30
WIDE = 160
"""Columns of what goes into a file or a pipe, where nobody asked for another width."""


def write_json(value: Any) -> None:
    """Write one JSON document and nothing else to stdout; never NaN."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def say(text: str) -> None:
    """One line of progress on stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def console() -> Console:
    """Standard output as people read it: the terminal's width, or wide when it is no terminal."""
    from rich.console import Console

    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDE
    return Console(highlight=False, emoji=False, width=wide)


def write(*parts: RenderableType) -> None:
    """Write lines and tables to stdout; text is taken literally."""
    out = console()
    for part in parts:
        out.print(part, markup=False)


def table(title: str, align: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table; ``align`` has a letter for each column: ``l`` for text and ``r`` for numbers.

    Text wraps where the terminal is narrow. Without any column name there is no header.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    found = Table(
        title=title or None, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold",
        pad_edge=False, show_header=any(columns),
    )  # fmt: skip
    for side, column in zip(align, columns, strict=True):
        justify: JustifyMethod = "right" if side == "r" else "left"
        found.add_column(column, justify=justify, overflow="fold")
    for row in rows:
        found.add_row(*map(Text, row))
    return found


def pairs(rows: Iterable[tuple[str, str]]) -> Table:
    """Names beside their values, without rules."""
    from rich.table import Table
    from rich.text import Text

    found = Table.grid(padding=(0, 2))
    found.add_column(no_wrap=True)
    found.add_column(overflow="fold")
    for name, value in rows:
        found.add_row(Text(name), Text(value))
    return found


def bar(share: float) -> str:
    """A bar as long as ``share`` (0 to 1) of ``BAR_CELLS``."""
    solid = "█" if (sys.stdout.encoding or "").lower().startswith("utf") else "#"
    return solid * round(max(0.0, min(1.0, share)) * BAR_CELLS)
