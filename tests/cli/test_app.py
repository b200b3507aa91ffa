"""The command as a whole: help, start-up, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import simulator
from simulator.cli import app as cli_app
from simulator.cli import main
from tests.cli.commands import refused, stepsim

COMMANDS = ("simulate", "validate", "calibrate", "list", "show", "doctor")
HEAVY = ("archs", "numpy", "pydantic", "rich", "scipy", "simpy", "validation", "workloads")
START = """
import sys, types
package = types.ModuleType("simulator")
package.__path__ = [sys.argv[1]]
sys.modules["simulator"] = package
from simulator.cli import main
code = main(["--help"])
print(sorted(set(sys.argv[2:]) & set(sys.modules)))
sys.exit(code)
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_shows_an_example(command: str) -> None:
    """The help of a command has an example that begins with the command itself."""
    outcome = stepsim(command, "--help")
    assert outcome.code == 0
    assert "Example" in outcome.out
    assert f"stepsim {command}" in outcome.out.split("Example", 1)[1]


def test_help_lists_the_commands_and_fits_the_terminal() -> None:
    """`stepsim --help` names every command, without cutting its sentence short."""
    outcome = stepsim("--help")
    assert outcome.code == 0
    for command in COMMANDS:
        assert f"\n  {command} " in outcome.out
    assert stepsim() == outcome


def test_help_imports_nothing_heavy() -> None:
    """The command line itself needs typer alone, so `stepsim --help` starts quickly."""
    folder = str(Path(simulator.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", START, folder, *HEAVY], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_module_runs_as_a_command() -> None:
    """`python -m simulator` is the command, and its exit code is the process's."""
    command = [sys.executable, "-m", "simulator", "show", "gpu", "h201"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("stepsim: gpu must be a known name")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("simulat",), "No such command 'simulat'"),
        (("simulate", "--gpux", "h200"), "No such option: --gpux"),
        (("simulate", "--seq-len", "many"), "--seq-len"),
        (("show", "gpu"), "NAME"),
    ],
)
def test_a_usage_error_is_one_line(arguments: tuple[str, ...], expected: str) -> None:
    """A misspelt command or option, a missing or malformed value: one line and exit code 2."""
    assert expected in refused(*arguments)


def test_a_bug_is_not_taken_for_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ValueError that is not about the input propagates with its traceback."""

    def broken(**_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(cli_app, "app", broken)
    with pytest.raises(ValueError, match="a bug"):
        main(["doctor"])


def test_an_interrupt_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends a command with the usual code 130."""

    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_app, "app", interrupted)
    assert main(["doctor"]) == 130


def test_a_closed_pipe_is_no_error() -> None:
    """When the reader of stdout is gone (`stepsim list runs | head -1`) a command ends quietly."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "simulator", "list", "hbm", "--json"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
