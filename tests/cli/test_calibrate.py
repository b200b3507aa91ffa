"""`stepsim calibrate`: what the fit gives is shown and written."""

from __future__ import annotations

from pathlib import Path

import pytest

from archs.calibration import Calibration, load_calibration
from tests.cli.commands import refused, stepsim
from validation import calibrate as fitting

GPU = "h200-sxm-141gb"


@pytest.fixture(name="fitted")
def quick_fit(monkeypatch: pytest.MonkeyPatch) -> Calibration:
    """Replace the fit, which takes seconds, by its shipped result; reading stays real."""
    found = load_calibration(GPU)
    monkeypatch.setattr(fitting, "calibrate", lambda *_: found)
    return found


def test_the_calibration_is_written_and_reads_back(fitted: Calibration, tmp_path: Path) -> None:
    """--out holds the whole calibration as TOML; progress goes to stderr."""
    out = tmp_path / "own.toml"
    outcome = stepsim("calibrate", "--out", str(out))
    assert outcome.code == 0
    assert load_calibration(out) == fitted
    assert f"wrote {out}" in outcome.err
    assert "wrote" not in outcome.out


def test_the_residuals_are_shown(fitted: Calibration) -> None:
    """Every operator class has its row, as JSON and for people; without --out no file is."""
    outcome = stepsim("calibrate", "--json")
    assert outcome.json == {name: r.model_dump() for name, r in fitted.residuals.items()}
    assert "wrote" not in outcome.err
    table = stepsim("calibrate").out
    assert all(name in table for name in fitted.residuals)


def test_an_unwritable_place_leaves_nothing(fitted: Calibration, tmp_path: Path) -> None:
    """A calibration that cannot be written gives an error and no table, as if it had not run."""
    out = tmp_path / "missing" / "own.toml"
    outcome = stepsim("calibrate", "--out", str(out))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.splitlines()[-1].startswith("stepsim: file must be writable")
    assert list(tmp_path.iterdir()) == []
    assert fitted.gpu == GPU


def test_the_gpu_must_be_known() -> None:
    """An unknown GPU is refused before anything is read."""
    assert "nearest: h20, h200" in refused("calibrate", "--gpu", "h201")
