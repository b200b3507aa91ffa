"""The documentation of archs is executed."""

from __future__ import annotations

import doctest
from pathlib import Path

import archs

README = Path(archs.__file__).parent / "README.md"


def test_every_example_of_the_readme_gives_its_output() -> None:
    """Each Python block of the README runs and prints what it shows."""
    result = doctest.testfile(str(README), module_relative=False)
    assert result.attempted >= 10
    assert result.failed == 0
