"""Where a step's time went: parts that sum to the step, in seconds."""

from __future__ import annotations

from collections import defaultdict

from .costs.launch import PICOSECONDS
from .engine import Timeline
from .streams import Slice

PARTS = ("compute", "optimizer", "exposed_communication", "bubble", "host", "launch_gaps")


def breakdown(timeline: Timeline, gap_ps: int) -> dict[str, float]:
    """Parts of the step seen from the compute stream.

    Time in which it is idle is exposed communication (or a bubble, where communication itself waits
    for another rank), else a gap of ``gap_ps`` between kernels, else waiting for the host.
    """
    parts: dict[str, int] = defaultdict(int)
    computing = [s for s in timeline.slices if s.work.operator.stream == "compute"]
    spans = _Spans([s for s in timeline.slices if s.work.operator.stream != "compute"])
    previous = timeline.start_ps
    for piece in computing:
        _idle(parts, previous, piece.start_ps, spans, gap_ps)
        optimizer = piece.work.operator.phase == "optimizer"
        parts["optimizer" if optimizer else "compute"] += piece.end_ps - piece.start_ps
        previous = piece.end_ps
    _idle(parts, previous, timeline.end_ps, spans, gap_ps)
    return {name: parts[name] / PICOSECONDS for name in PARTS}


def _idle(parts: dict[str, int], start: int, end: int, communication: _Spans, gap_ps: int) -> None:
    """Attribute one idle interval of the compute stream."""
    if end <= start:
        return
    moving, waiting = communication.within(start, end)
    rest = end - start - moving - waiting
    parts["exposed_communication"] += moving
    parts["bubble"] += waiting
    parts["launch_gaps"] += min(rest, gap_ps)
    parts["host"] += max(0, rest - gap_ps)


class _Spans:
    """Communication kernels in order of start, walked once as idle intervals ask for them."""

    def __init__(self, slices: list[Slice]) -> None:
        self.slices = sorted(slices, key=lambda s: s.start_ps)
        self.position = 0

    def within(self, start: int, end: int) -> tuple[int, int]:
        """Picoseconds of an interval in which messages move, and in which they wait."""
        moving, waiting = [], []
        while self.position < len(self.slices) and self.slices[self.position].end_ps <= start:
            self.position += 1
        for piece in self.slices[self.position :]:
            if piece.start_ps >= end:
                break
            begins = piece.start_ps + piece.waited_ps
            waiting.append((max(start, piece.start_ps), min(end, begins)))
            moving.append((max(start, begins), min(end, piece.end_ps)))
        moved = covered(moving)
        return moved, covered([*moving, *waiting]) - moved


def covered(intervals: list[tuple[int, int]]) -> int:
    """Length of the union of intervals; empty and reversed ones count nothing."""
    total, reached = 0, 0
    for begin, end in sorted(intervals):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total
