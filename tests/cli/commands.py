"""Running ``stepsim`` inside the test process, and reading what it wrote."""

from __future__ import annotations

import contextlib
import io
import json
import re
from dataclasses import dataclass
from typing import Any

from simulator.cli import main


@dataclass(frozen=True)
class Outcome:
    """Exit code, stdout and stderr of one command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as one JSON document; NaN and infinity are errors."""
        return json.loads(self.out, parse_constant=_refuse)


def stepsim(*arguments: str) -> Outcome:
    """Run one command; an exception that the command lets out reaches the test."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    return Outcome(code, out.getvalue(), err.getvalue())


def refused(*arguments: str) -> str:
    """The text of the one line that a command with bad input writes, and nothing else."""
    outcome = stepsim(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    (line,) = outcome.err.splitlines()
    assert line.startswith("stepsim: ")
    assert "Traceback" not in line
    return line.removeprefix("stepsim: ")


def masked(text: str) -> str:
    """Text without what depends on the calibration: numbers, units' prefixes, bars, spacing."""
    text = re.sub(r"[█#]+", "", text)
    text = re.sub(r"(?<![\w-])[+-]?\d[\d,.]*", "N", text)
    text = re.sub(r"N [pnumkMGT]?(s|B)\b", r"N \1", text)
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line.strip("─ "))


def _refuse(constant: str) -> None:
    raise ValueError(f"JSON must not hold {constant}")
