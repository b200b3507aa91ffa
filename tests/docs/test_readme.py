"""Every command and every Python block of the documentation runs.

What the commands print is not compared: predictions move with every calibration.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.cli.commands import stepsim

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
SIMULATOR_README = ROOT / "simulator" / "README.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ENVIRONMENT = ("python3", "cd", "git", ".venv/bin/pip", ".venv/bin/stepsim")
"""First words of set-up commands, which would need a fresh machine; make is looked up."""


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return [text for name, text in BLOCK.findall(path.read_text("utf-8")) if name == language]


def commands(path: Path) -> list[str]:
    """Commands of the console blocks, continued lines joined."""
    joined = "".join(blocks(path, "console")).replace("\\\n", " ")
    return [line[2:] for line in joined.splitlines() if line.startswith("$ ")]


def python_blocks() -> list[tuple[str, str]]:
    """File name and text of every Python block."""
    return [(path.name, text) for path in (README, SIMULATOR_README)
            for text in blocks(path, "python")]  # fmt: skip


@pytest.fixture(autouse=True)
def in_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a folder that holds the examples, so that files are found and written there."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", commands(README) + commands(SIMULATOR_README))
def test_every_command_runs(command: str) -> None:
    """A shown stepsim command ends with exit code 0 and says something; make targets exist."""
    program, *arguments = shlex.split(command, comments=True)
    if program == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
        assert set(arguments) <= set(targets)
    elif program == "stepsim":
        outcome = stepsim(*arguments)
        assert outcome.code == 0, outcome.err
        assert outcome.out
    else:
        assert program in ENVIRONMENT


@pytest.mark.parametrize(("name", "text"), python_blocks())
def test_every_python_block_runs(name: str, text: str) -> None:
    """A shown Python block runs as it stands, its assertions included."""
    exec(compile(text, name, "exec"), {"__name__": "readme"})  # noqa: S102 - the documentation


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.toml")), ids=lambda p: p.stem)
def test_every_example_says_how_to_run_it_and_runs(path: Path) -> None:
    """Each example scenario carries its own command, and that command succeeds."""
    (line,) = re.findall(r"^# (stepsim .*)$", path.read_text("utf-8"), re.MULTILINE)
    outcome = stepsim(*shlex.split(line)[1:])
    assert outcome.code == 0, outcome.err
    assert path.name in line


def test_the_readme_shows_every_kind_of_block() -> None:
    """The patterns above still find the documentation's blocks."""
    assert len(commands(README)) >= 10
    assert len(python_blocks()) >= 2


def test_links_of_the_readmes_lead_somewhere() -> None:
    """Every relative link names a file of the repository."""
    for path in (README, SIMULATOR_README):
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", path.read_text("utf-8")):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"
