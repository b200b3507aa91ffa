"""Scores: what a perfect, a shifted and a permuted prediction must score."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from validation.scores import (
    Row,
    Skipped,
    ValidationResult,
    coverage,
    mape,
    median_interval_width,
    p90_ape,
    score,
    score_groups,
    spearman,
)

SCORE_KEYS = [
    "n", "mape", "median_ape", "p90_ape", "bias", "coverage", "median_interval_width", "spearman",
    "memory_mape", "memory_n",
]  # fmt: skip
ROW_KEYS = [
    "id", "measured_s", "predicted_s", "interval_s", "ape", "measured_bytes", "predicted_bytes",
    "group",
]  # fmt: skip

seconds = st.floats(1e-6, 1e6)
sizes = st.floats(1.0, 1e12)


@st.composite
def intervals(draw: st.DrawFn) -> tuple[float, float]:
    """A prediction interval, its ends in order."""
    low, high = sorted((draw(seconds), draw(seconds)))
    return low, high


@st.composite
def rows(draw: st.DrawFn) -> Row:
    """A row of any kind: with or without interval and bytes, in one of three groups."""
    return Row(
        id="run",
        measured_s=draw(seconds),
        predicted_s=draw(seconds),
        interval_s=draw(st.none() | intervals()),
        measured_bytes=draw(st.none() | sizes),
        predicted_bytes=draw(st.none() | sizes),
        group=draw(st.sampled_from(["gpu-bound", "host-bound", "multi-node"])),
    )


def row(measured_s: float, predicted_s: float, **others: object) -> Row:
    """A row with an arbitrary id."""
    return Row("run", measured_s, predicted_s, **others)  # type: ignore[arg-type]


@given(st.lists(seconds, min_size=1, max_size=30))
def test_perfect_predictions_score_zero(measured: list[float]) -> None:
    """Every error is exactly zero when the prediction is the measurement."""
    scores = score(
        [row(value, value, measured_bytes=8.0, predicted_bytes=8.0) for value in measured]
    )
    assert (scores.mape, scores.median_ape, scores.p90_ape) == (0.0, 0.0, 0.0)
    assert (scores.bias, scores.memory_mape) == (0.0, 0.0)


@given(st.lists(rows(), max_size=20), st.randoms(use_true_random=False))
def test_order_of_rows_changes_nothing(unordered: list[Row], random: object) -> None:
    """Scores and group scores are equal, to the bit, for any order of the rows."""
    shuffled = list(unordered)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert score(shuffled) == score(unordered)
    assert score_groups(shuffled) == score_groups(unordered)


@given(st.lists(rows(), min_size=1, max_size=20), st.sampled_from([2.0**-9, 0.5, 4.0, 1024.0]))
def test_unit_of_time_does_not_matter(original: list[Row], factor: float) -> None:
    """Scores are relative: another unit of time leaves them as they are."""
    scaled = [
        row(
            value.measured_s * factor,
            value.predicted_s * factor,
            interval_s=value.interval_s
            and (value.interval_s[0] * factor, value.interval_s[1] * factor),
            measured_bytes=value.measured_bytes,
            predicted_bytes=value.predicted_bytes,
        )
        for value in original
    ]
    assert score(scaled) == score(original)


@given(st.lists(seconds, min_size=1, max_size=20), st.floats(0.01, 0.9))
def test_bias_has_the_sign_of_the_error(measured: list[float], error: float) -> None:
    """Predictions too high by a share have that bias, too low the negative of it."""
    high = score([row(value, value * (1 + error)) for value in measured])
    low = score([row(value, value * (1 - error)) for value in measured])
    assert high.bias == pytest.approx(error)
    assert low.bias == pytest.approx(-error)
    assert high.mape == pytest.approx(error)


def test_errors_are_relative_to_the_measurement() -> None:
    """Predicting 3 s for a measured 2 s is an error of one half, not of one third."""
    assert mape([2.0], [3.0]) == 0.5


def test_p90_lets_one_in_ten_be_worse() -> None:
    """Of eleven errors 0, 1, ... 10 percent the 90th percentile is 9 percent."""
    measured = np.full(11, 100.0)
    assert p90_ape(measured, measured + np.arange(11)) == pytest.approx(0.09)


@given(st.integers(0, 20), st.integers(0, 20))
def test_coverage_counts_the_rows_inside(inside: int, outside: int) -> None:
    """Coverage is the share of rows whose measurement lies in the interval; others are left out."""
    kept = [row(2.0, 2.0, interval_s=(1.0, 3.0))] * inside
    missed = [row(5.0, 2.0, interval_s=(1.0, 3.0))] * outside
    scores = score([*kept, *missed, row(5.0, 2.0)])
    total = inside + outside
    assert scores.coverage == (pytest.approx(inside / total) if total else None)
    assert scores.median_interval_width == (1.0 if total else None)


def test_coverage_includes_the_ends() -> None:
    """A measurement on an end of its interval is covered."""
    assert coverage([1.0, 3.0], [1.0, 1.0], [3.0, 3.0]) == 1.0


def test_width_is_relative_to_the_prediction() -> None:
    """An interval from 9 s to 11 s around a prediction of 10 s is 20 percent wide."""
    assert median_interval_width([10.0], [9.0], [11.0]) == pytest.approx(0.2)


@given(st.lists(seconds, min_size=3, max_size=20, unique=True))
def test_spearman_sees_order_alone(measured: list[float]) -> None:
    """Any increasing function of the measurements correlates with 1, any decreasing with -1."""
    ranks = np.argsort(np.argsort(measured)) + 1.0
    assert spearman(measured, ranks**3) == pytest.approx(1.0)
    assert spearman(measured, 1.0 / ranks) == pytest.approx(-1.0)


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=3, max_size=30),
)
def test_spearman_agrees_with_scipy(pairs: list[tuple[int, int]]) -> None:
    """With ties, the correlation is that of an independent implementation."""
    stats = pytest.importorskip("scipy.stats")
    x, y = [float(pair[0]) for pair in pairs], [float(pair[1]) for pair in pairs]
    ours = spearman(x, y)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert math.isnan(ours)
    else:
        assert ours == pytest.approx(float(stats.spearmanr(x, y).statistic), abs=1e-12)


@pytest.mark.parametrize(
    ("measured", "predicted"),
    [([1.0, 2.0], [1.0, 2.0]), ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]), ([1.0, 2.0, 3.0], [5.0] * 3)],
)
def test_spearman_needs_three_different_values(
    measured: list[float], predicted: list[float]
) -> None:
    """Fewer than three rows, or a constant side, give null, not a number."""
    pairs = zip(measured, predicted, strict=True)
    assert score([row(*pair) for pair in pairs]).spearman is None


def test_memory_is_scored_where_both_sides_are_known() -> None:
    """Rows without measured or predicted bytes do not enter the memory score."""
    scores = score(
        [
            row(1.0, 1.0, measured_bytes=100.0, predicted_bytes=110.0),
            row(1.0, 1.0, measured_bytes=100.0),
            row(1.0, 1.0, predicted_bytes=100.0),
        ]
    )
    assert scores.memory_mape == pytest.approx(0.1)
    assert scores.memory_n == 1


@given(st.lists(rows(), max_size=20))
def test_groups_partition_the_rows(mixed: list[Row]) -> None:
    """Group sizes sum to the whole, and each group scores as its rows alone."""
    groups = score_groups(mixed)
    assert sum(scores.n for scores in groups.values()) == len(mixed)
    for name, scores in groups.items():
        assert scores == score([value for value in mixed if value.group == name])


@given(st.lists(rows(), max_size=6))
def test_result_has_exactly_the_keys_of_the_contract(mixed: list[Row]) -> None:
    """The validate JSON has the contract's keys in its order, and is strict JSON."""
    result = ValidationResult.from_rows(mixed, [Skipped("moe", "experts are not simulated")])
    plain = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert list(plain) == [*SCORE_KEYS, "groups", "rows", "skipped"]
    assert all(list(group) == SCORE_KEYS for group in plain["groups"].values())
    assert all(list(value) == ROW_KEYS for value in plain["rows"])
    assert plain["skipped"] == [{"id": "moe", "reason": "experts are not simulated"}]


def test_nothing_to_score_is_null_everywhere() -> None:
    """Without rows the counts are zero and every score is null."""
    empty = dict.fromkeys(SCORE_KEYS) | {"n": 0, "memory_n": 0}
    assert score([]).as_dict() == empty


def test_an_endless_interval_is_null_in_json() -> None:
    """An interval without a finite end covers, and neither it nor its width is in the JSON."""
    plain = ValidationResult.from_rows([row(2.0, 1.0, interval_s=(0.5, math.inf))]).as_dict()
    assert plain["coverage"] == 1.0
    assert plain["median_interval_width"] is None
    assert plain["rows"][0]["interval_s"] == [0.5, None]


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_row_refuses_values_that_cannot_be(value: float) -> None:
    """Times and sizes that are zero, negative or not finite are refused by name."""
    with pytest.raises(ValueError, match="measured_s of run must be positive and finite"):
        row(value, 1.0)
    with pytest.raises(ValueError, match="predicted_s of run must be positive and finite"):
        row(1.0, value)
    with pytest.raises(ValueError, match="predicted_bytes of run must be positive and finite"):
        row(1.0, 1.0, predicted_bytes=value)
    with pytest.raises(ValueError, match="measured must be positive and finite"):
        mape([value], [1.0])


def test_a_row_refuses_an_interval_upside_down() -> None:
    """An interval whose low end is above its high end is refused."""
    with pytest.raises(ValueError, match="interval_s of run must be low <= high"):
        row(1.0, 1.0, interval_s=(3.0, 2.0))


def test_arrays_must_have_one_length() -> None:
    """Measured and predicted values that do not pair up are refused."""
    with pytest.raises(ValueError, match="one shape"):
        mape([1.0, 2.0], [1.0])
