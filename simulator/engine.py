"""The discrete-event engine: host processes issue operators, stream processes run their kernels.

Time is an integer number of picoseconds, so the order of events is total and runs are reproducible
bit by bit. Several equal steps follow each other, as in training: hosts run ahead of their GPUs
until they must wait, so the last step is in steady state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import simpy

from .schedule import Work
from .streams import QUEUE_DEPTH, GpuStream, Interference, Item, Meeting, Process, Slice

__all__ = ["QUEUE_DEPTH", "Interference", "Slice", "Timeline", "run", "run_ranks"]

STREAMS = ("compute", "communication", "send", "receive", "reduction")


@dataclass(slots=True)
class Timeline:
    """What happened on one rank in the last simulated step, from ``start_ps`` to ``end_ps``.

    ``slices`` are in order of their ends; ``host`` holds (work, start, end) of each issue.
    """

    start_ps: int = 0
    end_ps: int = 0
    slices: list[Slice] = field(default_factory=list)
    host: list[tuple[Work, int, int]] = field(default_factory=list)
    events: int = 0

    @property
    def duration_ps(self) -> int:
        """Length of the step."""
        return self.end_ps - self.start_ps


@dataclass
class Clocked:
    """One rank's step: its operators and the SM clock that they run at."""

    items: Sequence[Work]
    clock_hz: float


class _Rank:
    """Host and streams of one rank while the engine runs."""

    def __init__(self, world: _World, clocked: Clocked) -> None:
        self.world, self.items = world, clocked.items
        env = world.env
        self.streams = {
            name: GpuStream(env, world.gap_ps, world.interference, name == STREAMS[0])
            for name in STREAMS
        }
        for stream in self.streams.values():
            stream.others = [s for s in self.streams.values() if s is not stream]
        self.durations = {
            id(x): x.picoseconds(clocked.clock_hz) for work in self.items for x in work.launches
        }
        self.marks: dict[tuple[str, int], Item] = {}
        self.carried: tuple[Item, ...] = ()
        self.timeline = Timeline()
        self.ends: list[int] = []

    def host(self, steps: int) -> Process:
        """Issue every step's operators, then wait for the streams to drain."""
        for _ in range(steps):
            slices: list[Slice] = []
            self.steps_slices.append(slices)
            self.timeline.slices, self.timeline.host = slices, []
            for work in self.items:
                yield from self._issue(work, slices)
        for stream in self.streams.values():
            if stream.last is not None:
                yield stream.idle()

    @property
    def steps_slices(self) -> list[list[Slice]]:
        """The slices of each step so far."""
        return self.world.slices.setdefault(id(self), [])

    def _issue(self, work: Work, slices: list[Slice]) -> Process:
        """The host issues one operator: its time passes, then its kernels are queued."""
        env, operator = self.world.env, work.operator
        begin = int(env.now)
        if work.host_ps:
            yield env.timeout(work.host_ps)
        stream = self.streams[operator.stream]
        waits = self._waits(work)
        if not work.launches:
            self.carried += waits
        elif operator.stream == "compute":
            waits, self.carried = (*waits, *self.carried), ()
        item: Item | None = None
        for launch in work.launches:
            while not stream.has_room():
                yield stream.wait_for_room()
            item = Item(
                work, launch, self.durations[id(launch)], int(env.now), slices, waits,
                self.world.meeting(work),
            )  # fmt: skip
            waits = ()
            stream.submit(item)
        if operator.mark is not None and item is not None:
            self.marks[operator.mark, work.index] = item
        self.timeline.host.append((work, begin, int(env.now)))
        if operator.synchronises:
            yield stream.idle()

    def _waits(self, work: Work) -> tuple[Item, ...]:
        """Kernels that this operator's first kernel must wait for, besides its own stream's."""
        operator = work.operator
        found = [self.streams[name].last for name in operator.after if name != operator.stream]
        found += [self.marks.get((name, work.index + shift)) for name, shift in operator.waits]
        return tuple(item for item in found if item is not None and not item.ended)


class _World:
    """What ranks share: the clock, meetings, collected slices."""

    def __init__(self, gap_ps: int, interference: Interference) -> None:
        self.env = simpy.Environment(0)
        self.gap_ps, self.interference = gap_ps, interference
        self.meetings: dict[str, Meeting] = {}
        self.slices: dict[int, list[list[Slice]]] = {}

    def meeting(self, work: Work) -> Meeting | None:
        """The meeting of a point-to-point operator: the first side makes it, the second ends it."""
        key = work.operator.meets
        if key is None:
            return None
        full = f"{key}:{work.index}"
        found = self.meetings.pop(full, None)
        if found is None:
            found = self.meetings[full] = Meeting(self.env)
        return found


def run(items: Sequence[Work], clock_hz: float, gap_ps: int, steps: int = 2) -> Timeline:
    """Simulate ``steps`` equal steps of one rank and return the last one.

    ``items`` are the operators of a step, ``clock_hz`` the SM clock, ``gap_ps`` the time between
    consecutive kernels. Raises ValueError when a step has no kernel.
    """
    return run_ranks([Clocked(items, clock_hz)], gap_ps, steps=steps)[0]


def run_ranks(
    ranks: Sequence[Clocked], gap_ps: int, interference: Interference | None = None, steps: int = 2
) -> list[Timeline]:
    """Simulate ranks together and return each one's timeline of the last step.

    A step begins for all when the slowest rank has ended the one before. Raises ValueError when a
    rank has no kernel.
    """
    for clocked in ranks:
        if not any(work.launches for work in clocked.items):
            raise ValueError("a step must have at least one kernel (got none)")
    world = _World(gap_ps, interference or Interference())
    members = [_Rank(world, clocked) for clocked in ranks]
    hosts = [world.env.process(member.host(steps)) for member in members]
    world.env.run(world.env.all_of(hosts))
    start = max(_end(m.steps_slices[-2]) for m in members) if steps > 1 else 0
    end = max(_end(m.steps_slices[-1]) for m in members)
    for member in members:
        timeline = member.timeline
        timeline.start_ps, timeline.end_ps = start, end
        count = len(member.items) + sum(len(work.launches) for work in member.items)
        timeline.events = steps * count
    return [member.timeline for member in members]


def _end(slices: list[Slice]) -> int:
    return max(piece.end_ps for piece in slices)
