"""How far predictions are from measured runs: records, traces, scores and calibration."""

from pathlib import Path

DATA = Path(__file__).parent / "data"
"""Folder of the measurements that are shipped with the package; see its README files."""

__all__ = ["DATA"]
