"""How far predictions are from measurements: error scores of rows, overall and by group."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .metrics import (
    ape,
    bias,
    coverage,
    mape,
    median_ape,
    median_interval_width,
    p90_ape,
    relative_error,
    spearman,
)

__all__ = [
    "Row",
    "Scores",
    "Skipped",
    "ValidationResult",
    "ape",
    "bias",
    "coverage",
    "mape",
    "median_ape",
    "median_interval_width",
    "p90_ape",
    "relative_error",
    "score",
    "score_groups",
    "spearman",
]


@dataclass(frozen=True, slots=True)
class Row:
    """One measured quantity beside its prediction.

    Seconds and bytes; ``interval_s`` is (low, high) of the prediction or None; bytes are None
    where not measured or not predicted; ``group`` is the regime it is scored in. Raises
    ValueError for a value that is not positive and finite, and for an interval upside down.
    """

    id: str
    measured_s: float
    predicted_s: float
    interval_s: tuple[float, float] | None = None
    measured_bytes: float | None = None
    predicted_bytes: float | None = None
    group: str = "all"

    def __post_init__(self) -> None:
        for name in ("measured_s", "predicted_s", "measured_bytes", "predicted_bytes"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} of {self.id} must be positive and finite (got {value})")
        if self.interval_s is not None and not self.interval_s[0] <= self.interval_s[1]:
            low, high = self.interval_s
            raise ValueError(f"interval_s of {self.id} must be low <= high (got {low}, {high} s)")

    @property
    def ape(self) -> float:
        """Absolute relative error of the predicted time."""
        return abs(self.predicted_s / self.measured_s - 1.0)

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON values, keys in the order of the validate contract."""
        interval = None if self.interval_s is None else [_json(end) for end in self.interval_s]
        return {
            "id": self.id,
            "measured_s": self.measured_s,
            "predicted_s": self.predicted_s,
            "interval_s": interval,
            "ape": self.ape,
            "measured_bytes": self.measured_bytes,
            "predicted_bytes": self.predicted_bytes,
            "group": self.group,
        }


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of a set of rows: fractions, not percent; None where a score is not defined.

    ``n`` counts rows and ``memory_n`` those with both bytes; ``coverage`` and
    ``median_interval_width`` are over the rows that have an interval.
    """

    n: int
    mape: float | None
    median_ape: float | None
    p90_ape: float | None
    bias: float | None
    coverage: float | None
    median_interval_width: float | None
    spearman: float | None
    memory_mape: float | None
    memory_n: int

    def as_dict(self) -> dict[str, Any]:
        """The scores as JSON values, keys in the order of the validate contract."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A record that was not scored, and why."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """Scores over all rows and by group, the rows, and the records left out."""

    scores: Scores
    groups: Mapping[str, Scores]
    rows: tuple[Row, ...]
    skipped: tuple[Skipped, ...] = ()

    @classmethod
    def from_rows(cls, rows: Iterable[Row], skipped: Iterable[Skipped] = ()) -> ValidationResult:
        """Score rows, overall and by group, and keep their order."""
        kept = tuple(rows)
        return cls(score(kept), score_groups(kept), kept, tuple(skipped))

    def as_dict(self) -> dict[str, Any]:
        """The validate JSON: scores, `groups`, `rows` and `skipped`; never NaN or infinity."""
        return {
            **self.scores.as_dict(),
            "groups": {name: scores.as_dict() for name, scores in self.groups.items()},
            "rows": [row.as_dict() for row in self.rows],
            "skipped": [asdict(skipped) for skipped in self.skipped],
        }


def score(rows: Iterable[Row]) -> Scores:
    """Score rows; without any, all scores are None."""
    kept = list(rows)
    measured, predicted = [row.measured_s for row in kept], [row.predicted_s for row in kept]
    bounded = [(row, row.interval_s) for row in kept if row.interval_s is not None]
    low, high = [ends[0] for _, ends in bounded], [ends[1] for _, ends in bounded]
    memory = [
        (row.measured_bytes, row.predicted_bytes)
        for row in kept
        if row.measured_bytes is not None and row.predicted_bytes is not None
    ]
    width = median_interval_width([row.predicted_s for row, _ in bounded], low, high)
    return Scores(
        n=len(kept),
        mape=_json(mape(measured, predicted)),
        median_ape=_json(median_ape(measured, predicted)),
        p90_ape=_json(p90_ape(measured, predicted)),
        bias=_json(bias(measured, predicted)),
        coverage=_json(coverage([row.measured_s for row, _ in bounded], low, high)),
        median_interval_width=_json(width),
        spearman=_json(spearman(measured, predicted)),
        memory_mape=_json(mape([pair[0] for pair in memory], [pair[1] for pair in memory])),
        memory_n=len(memory),
    )


def score_groups(rows: Sequence[Row]) -> dict[str, Scores]:
    """Score each group of rows on its own, groups in alphabetical order."""
    names = sorted({row.group for row in rows})
    return {name: score(row for row in rows if row.group == name) for name in names}


def _json(value: float) -> float | None:
    return value if math.isfinite(value) else None
