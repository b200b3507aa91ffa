"""Hold predictions against measured records: every record by score, or one record in full."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from archs.calibration import Calibration
from archs.errors import InputError, unknown_name
from simulator import Scenario, StepResult, simulate
from simulator.breakdown import covered
from simulator.simulation import class_seconds

from . import DATA
from .kernel_classes import CLASSES
from .records import MeasuredInference, MeasuredRun, Record, read_runs, to_plain
from .scores import Row, Scores, Skipped, ValidationResult, score, score_groups
from .trace_times import ClassTotal
from .traces import class_totals, read_trace

RUNS = DATA / "h200" / "runs.jsonl"
"""The measured runs that ship with stepsim."""

TRACES = DATA / "h200" / "traces"
PICOSECONDS = 1e12
NOT_MODELLED = "inference is not modelled yet"


def validate_runs(
    records: Iterable[Record], calibration: Calibration | None = None
) -> ValidationResult:
    """Simulate every record and score the predictions.

    Groups: ``gpu_bound`` and ``host_bound`` as measured (``unstated`` where the record does not
    say), and besides each execution mode and each model family. A record that cannot be simulated
    is listed under ``skipped`` with the reason.
    """
    done: list[tuple[Row, MeasuredRun]] = []
    skipped: list[Skipped] = []
    for record in records:
        try:
            run = _training(record)
            done.append((_row(run, simulate(scenario_of(run), calibration)), run))
        except ValueError as error:
            skipped.append(Skipped(record.id, _reason(error)))
    rows = tuple(row for row, _ in done)
    groups = score_groups(rows) | _by(done, _execution) | _by(done, _family)
    return ValidationResult(score(rows), groups, rows, tuple(skipped))


def scenario_of(run: MeasuredRun) -> Scenario:
    """The scenario of a measured run; raises InputError for what is not modelled."""
    return Scenario.from_record({"plan": {}, "stack": {}, **to_plain(run)})


def _training(record: Record) -> MeasuredRun:
    if isinstance(record, MeasuredInference):
        raise InputError(NOT_MODELLED)
    return record


def _row(run: MeasuredRun, result: StepResult) -> Row:
    measured = run.measured
    return Row(
        run.id, measured.step_time_s, result.step_time_s, result.step_time_interval_s,
        peak_memory_of(run), result.peak_memory_bytes, regime_of(run),
    )  # fmt: skip


def peak_memory_of(run: MeasuredRun) -> int | None:
    """Peak allocated bytes of the rank that holds most, as predicted; records lead with rank 0."""
    found = [rank.peak_memory_allocated_bytes for rank in run.measured.ranks or ()]
    known = [peak for peak in found if peak is not None]
    return max(known) if known else run.measured.peak_memory_allocated_bytes


def _mean_power_w(run: MeasuredRun) -> float | None:
    """Power of a GPU averaged over the ranks, as predicted."""
    found = [rank.power_w for rank in run.measured.ranks or ()]
    known = [watts for watts in found if watts is not None]
    return sum(known) / len(known) if known else run.measured.power_w


def regime_of(run: MeasuredRun) -> str:
    """``host_bound`` or ``gpu_bound`` as measured, ``unstated`` where the record does not say."""
    bound = run.measured.host_bound
    return "unstated" if bound is None else "host_bound" if bound else "gpu_bound"


def _execution(run: MeasuredRun) -> str:
    return run.stack.execution or "eager"


def _family(run: MeasuredRun) -> str:
    return run.workload.model.family or "other"


def _by(
    done: Sequence[tuple[Row, MeasuredRun]], key: Callable[[MeasuredRun], str]
) -> dict[str, Scores]:
    names = sorted({key(run) for _, run in done})
    return {name: score(row for row, run in done if key(run) == name) for name in names}


def _reason(error: ValueError) -> str:
    """The reason on one line."""
    return " ".join(str(error).split())


@dataclass(frozen=True, slots=True)
class Quantity:
    """One quantity of a step as predicted and as measured, in ``unit``; None where not measured."""

    name: str
    unit: str
    predicted: float
    measured: float | None

    @property
    def error(self) -> float | None:
        """Relative error of the prediction."""
        return None if not self.measured else self.predicted / self.measured - 1.0


@dataclass(frozen=True, slots=True)
class ClassComparison:
    """Launches and seconds of one kernel class, predicted and in the trace."""

    name: str
    predicted: ClassTotal
    measured: ClassTotal

    @property
    def error(self) -> float | None:
        """Relative error of the predicted seconds; None for a class that was not measured."""
        measured = self.measured.total_s
        return self.predicted.total_s / measured - 1.0 if measured else None


@dataclass(frozen=True, slots=True)
class Explanation:
    """A measured run beside its prediction; ``classes`` is empty without a trace of the run."""

    run: MeasuredRun
    scenario: Scenario
    result: StepResult
    quantities: tuple[Quantity, ...]
    classes: tuple[ClassComparison, ...]


def explain(run: MeasuredRun, trace: str | Path | None = None) -> Explanation:
    """Predict one run and set everything that was measured beside it.

    ``trace`` is a kineto trace of one step of the run, by default the shipped one if there is one.
    Raises InputError or ValueError when the run cannot be simulated.
    """
    scenario = scenario_of(run)
    result = simulate(scenario)
    found = shipped_trace(run.id) if trace is None else Path(trace)
    classes = compare_classes(result, class_totals(read_trace(found))) if found else ()
    return Explanation(run, scenario, result, _quantities(run, result), classes)


def shipped_run(run_id: str) -> MeasuredRun:
    """A shipped measured run by id; raises InputError with the nearest ids for an unknown one."""
    return choose_run(read_runs(RUNS), run_id)


def choose_run(runs: Iterable[Record], run_id: str) -> MeasuredRun:
    """The training run with this id; InputError with the nearest for none or inference."""
    known = {run.id: run for run in runs}
    if run_id not in known:
        raise unknown_name("run", run_id, known)
    return _training(known[run_id])


def shipped_trace(run_id: str) -> Path | None:
    """The shipped trace of a run, None if there is none."""
    path = TRACES / f"{run_id}.rank0.json.gz"
    return path if path.is_file() else None


def compare_classes(
    result: StepResult, measured: Mapping[str, ClassTotal]
) -> tuple[ClassComparison, ...]:
    """Predicted and measured totals of every kernel class that either has."""
    predicted = class_seconds(result.timeline)
    none = ClassTotal(0, 0.0)
    return tuple(
        ClassComparison(name, ClassTotal(*predicted.get(name, (0, 0.0))), measured.get(name, none))
        for name in (*CLASSES, *sorted(set(predicted) - set(CLASSES)))
        if name in predicted or name in measured
    )


def _quantities(run: MeasuredRun, result: StepResult) -> tuple[Quantity, ...]:
    measured, slices = run.measured, result.timeline.slices
    profiled = measured.profiled_step
    busy_s = covered([(piece.start_ps, piece.end_ps) for piece in slices]) / PICOSECONDS
    return (
        Quantity("step time", "s", result.step_time_s, measured.step_time_s),
        Quantity("GPU busy", "s", busy_s, profiled.gpu_busy_s if profiled else None),
        Quantity("peak memory", "bytes", result.peak_memory_bytes, peak_memory_of(run)),
        Quantity("power", "W", result.average_power_w, _mean_power_w(run)),
        Quantity("SM clock", "MHz", result.sm_clock_mhz, measured.sm_clock_mhz),
        Quantity("launches", "", len(slices), profiled.launches if profiled else None),
    )  # fmt: skip


__all__ = [
    "RUNS", "ClassComparison", "Explanation", "Quantity", "choose_run",
    "compare_classes", "explain", "regime_of", "scenario_of", "shipped_run", "shipped_trace",
    "validate_runs",
]  # fmt: skip
