"""The command ``stepsim``: its subcommands, and errors as one line with an exit code.

Exit codes: 0 done, 1 a check failed, 2 bad input. Commands import what they need when they run, so
that ``stepsim --help`` is quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer
from typer.exceptions import TyperException

from .calibrate import calibrate
from .catalog import list_, show
from .doctor import doctor
from .simulate import simulate
from .validate import validate

BAD_INPUT = 2
INTERRUPTED = 130

app = typer.Typer(
    name="stepsim",
    help="Predict the time, memory, energy and cost of a training step, and say why.",
    epilog="Example: stepsim simulate --run h200-l1-s4k-mb2",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(simulate)
app.command()(validate)
app.command()(calibrate)
app.command("list")(list_)
app.command()(show)
app.command()(doctor)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``stepsim`` with these arguments, or the process's own, and return its exit code.

    Bad input becomes one line on stderr and code 2; any other exception is a bug and propagates.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(args=given or ["--help"], prog_name="stepsim", standalone_mode=False)
        sys.stdout.flush()
    except TyperException as error:
        return _refuse(error.format_message())
    except ValueError as error:
        if not _expected(error):
            raise
        return _refuse(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except (BrokenPipeError, SystemExit):
        # The reader of a pipe has left (`stepsim list | head`), which typer turns into SystemExit:
        # nothing remains to be said, and the interpreter must not flush what nobody reads.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return int(code or 0)


def _expected(error: ValueError) -> bool:
    from archs.errors import StepsimError

    return isinstance(error, StepsimError)


def _refuse(text: str) -> int:
    sys.stderr.write(f"stepsim: {' '.join(text.split())}\n")
    return BAD_INPUT
