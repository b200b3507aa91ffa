"""The discrete-event engine: a host process issues operators, a stream process runs their kernels.

Time is an integer number of picoseconds, so the order of events is total and runs are reproducible
bit by bit. Several equal steps follow each other, as in training: the host runs ahead of the GPU
until it must wait, so the last step is in steady state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import simpy

from .costs import Launch
from .schedule import Work

QUEUE_DEPTH = 1024
"""Launches that the driver accepts ahead of the GPU (measured on CUDA drivers since 11)."""

Process = Generator[simpy.Event, Any, None]


@dataclass(frozen=True, slots=True)
class Slice:
    """One kernel's run: when it was issued, started and ended, in picoseconds."""

    work: Work
    launch: Launch
    issued_ps: int
    start_ps: int
    end_ps: int


@dataclass(slots=True)
class Timeline:
    """What happened in the last of the simulated steps, from ``start_ps`` to ``end_ps``.

    ``host`` holds (work, start, end) of each issue in that step.
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


class GpuStream:
    """Runs submitted kernels in order; ``gap_ps`` passes between one kernel and the next."""

    def __init__(self, env: simpy.Environment, gap_ps: int) -> None:
        self.env, self.gap_ps = env, gap_ps
        self.queue: deque[tuple[Work, Launch, int, int, list[Slice]]] = deque()
        self.wake: simpy.Event | None = None
        self.drained: simpy.Event | None = None
        self.room: simpy.Event | None = None
        self.last_end = 0
        self.process = env.process(self._run())

    def submit(self, work: Work, launch: Launch, duration_ps: int, into: list[Slice]) -> None:
        """Queue one kernel now."""
        self.queue.append((work, launch, duration_ps, int(self.env.now), into))
        if self.wake is not None:
            wake, self.wake = self.wake, None
            wake.succeed()

    def idle(self) -> simpy.Event:
        """An event that fires when every submitted kernel has ended."""
        event = self.env.event()
        if not self.queue and self.wake is not None:
            event.succeed()
        else:
            self.drained = event
        return event

    def has_room(self) -> bool:
        """Whether the launch queue takes another kernel."""
        return len(self.queue) < QUEUE_DEPTH

    def wait_for_room(self) -> simpy.Event:
        """An event that fires when the launch queue has room again."""
        self.room = self.env.event()
        return self.room

    def _run(self) -> Process:
        env = self.env
        while True:
            if not self.queue:
                if self.drained is not None:
                    drained, self.drained = self.drained, None
                    drained.succeed()
                self.wake = env.event()
                yield self.wake
            work, launch, duration, issued, into = self.queue.popleft()
            if self.room is not None:
                room, self.room = self.room, None
                room.succeed()
            now = int(env.now)
            start = max(now, self.last_end + self.gap_ps, issued + self.gap_ps)
            end = start + duration
            yield env.timeout(end - now)
            self.last_end = end
            into.append(Slice(work, launch, issued, start, end))


def run(items: list[Work], clock_hz: float, gap_ps: int, steps: int = 2) -> Timeline:
    """Simulate ``steps`` equal steps of one rank and return the last one.

    ``items`` are the operators of a step, ``clock_hz`` the SM clock, ``gap_ps`` the time between
    consecutive kernels. Raises ValueError when a step has no kernel.
    """
    if not any(work.launches for work in items):
        raise ValueError("a step must have at least one kernel (got none)")
    env = simpy.Environment(0)
    stream = GpuStream(env, gap_ps)
    durations = {id(x): x.picoseconds(clock_hz) for work in items for x in work.launches}
    ends: list[int] = []
    timeline = Timeline()

    def host() -> Process:
        for step in range(steps):
            slices: list[Slice] = []
            timeline.slices, timeline.host = slices, []
            for work in items:
                yield from _issue(env, stream, work, durations, slices, timeline)
            finished = slices
            if step == steps - 2:
                ends.append(len(finished))
                previous.append(finished)
        yield stream.idle()

    previous: list[list[Slice]] = []
    env.run(env.process(host()))
    timeline.end_ps = timeline.slices[-1].end_ps
    timeline.start_ps = previous[0][-1].end_ps if previous else 0
    timeline.events = steps * (len(items) + sum(len(work.launches) for work in items))
    return timeline


def _issue(
    env: simpy.Environment,
    stream: GpuStream,
    work: Work,
    durations: dict[int, int],
    slices: list[Slice],
    timeline: Timeline,
) -> Process:
    """The host issues one operator: its time passes, then its kernels are queued."""
    begin = int(env.now)
    if work.host_ps:
        yield env.timeout(work.host_ps)
    for launch in work.launches:
        while not stream.has_room():
            yield stream.wait_for_room()
        stream.submit(work, launch, durations[id(launch)], slices)
    timeline.host.append((work, begin, int(env.now)))
    if work.operator.synchronises:
        yield stream.idle()
