"""The package's README: its examples run and print what they say."""

from __future__ import annotations

import doctest
from pathlib import Path

import workloads

README = Path(workloads.__file__).with_name("README.md")


def test_examples_run_as_printed() -> None:
    """Each example of the README gives the output that stands below it."""
    outcome = doctest.testfile(str(README), module_relative=False)
    assert outcome.failed == 0
    assert outcome.attempted >= 15
