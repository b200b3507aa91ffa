"""`make demo`: a measured run, its prediction beside it, and a timeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from validation import demo
from validation.records import read_runs
from validation.traces import read_trace
from validation.validate import RUNS


def test_the_demo_writes_report_and_timeline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report holds the measured step time and every table, and the timeline reads back."""
    assert demo.main(tmp_path / "out") == 0
    report = (tmp_path / "out" / "demo.md").read_text(encoding="utf-8")
    (run,) = [run for run in read_runs(RUNS) if run.id == demo.RUN]
    assert f"{run.measured.step_time_s * 1e3:.1f} ms" in report
    for word in ("predicted", "measured", "peak memory", "launch gaps", "gemm", "MFU"):
        assert word in report
    assert report in capsys.readouterr().out
    assert read_trace(tmp_path / "out" / "demo.trace.json.gz").launches > 1000


def test_the_tables_are_aligned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each table of the report has lines of one length, so that it reads well as plain text."""
    demo.main(tmp_path)
    tables = [
        block.splitlines()
        for block in capsys.readouterr().out.split("\n\n")
        if block.startswith("|")
    ]
    assert len(tables) == 3
    assert all(len({len(line) for line in lines}) == 1 for lines in tables)


def test_an_unwritable_folder_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the folder cannot be made the demo says so in one line, with exit code 2."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert demo.main(tmp_path / "file" / "out") == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.startswith("demo: folder must be writable")
    assert len(written.err.splitlines()) == 1
