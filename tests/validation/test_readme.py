"""The package's README: its examples run."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import validation

README = Path(validation.__file__).with_name("README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_readme_has_examples() -> None:
    """The README shows records, traces and scores in use."""
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("example", EXAMPLES, ids=["records", "traces", "scores"])
def test_example_runs(example: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each example of the README runs as it stands and prints something."""
    script = tmp_path / "example.py"
    script.write_text(example, encoding="utf-8")
    runpy.run_path(str(script))
    assert capsys.readouterr().out.strip() != ""
