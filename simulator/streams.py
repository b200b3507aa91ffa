"""GPU streams of the engine: kernels in order, dependencies between streams, meetings of ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import simpy

from .costs import Launch
from .costs.collective import COLLECTIVE
from .schedule import Work

QUEUE_DEPTH = 1024
"""Launches that the driver accepts ahead of the GPU (measured on CUDA drivers since 11)."""

Process = Generator[simpy.Event, Any, None]


@dataclass(frozen=True, slots=True)
class Slice:
    """One kernel's run: when it was issued, started and ended, in picoseconds.

    ``waited_ps`` is the part of it that was spent waiting for another rank.
    """

    work: Work
    launch: Launch
    issued_ps: int
    start_ps: int
    end_ps: int
    waited_ps: int = 0


@dataclass(slots=True, eq=False)
class Meeting:
    """Two ranks that exchange a message: it moves when both have arrived."""

    env: simpy.Environment
    first_ps: int | None = None
    both: simpy.Event = field(init=False)

    def __post_init__(self) -> None:
        self.both = self.env.event()

    def arrive(self) -> None:
        """One side is ready now; the second arrival starts the transfer."""
        if self.first_ps is None:
            self.first_ps = int(self.env.now)
        else:
            self.both.succeed()


@dataclass(slots=True, eq=False)
class Item:
    """One submitted kernel: its nominal duration and what it must wait for."""

    work: Work
    launch: Launch
    duration_ps: int
    issued_ps: int
    into: list[Slice]
    waits: tuple[Item, ...] = ()
    meeting: Meeting | None = None
    ended: bool = False
    done: simpy.Event | None = None

    def finished(self, env: simpy.Environment) -> simpy.Event:
        """An event that fires when the kernel ends; ask only while it has not."""
        if self.done is None:
            self.done = env.event()
        return self.done

    def end(self) -> None:
        """Note the end and wake who waits for it."""
        self.ended = True
        if self.done is not None:
            self.done.succeed()


@dataclass(frozen=True, slots=True)
class Interference:
    """How much longer work takes while communication and computation share the GPU.

    ``gemm`` and ``memory`` slow computation, ``communication`` slows what runs beside it.
    """

    gemm: float = 1.0
    memory: float = 1.0
    communication: float = 1.0

    def of(self, launch: Launch) -> float:
        """The factor on a computing kernel beside communication."""
        return self.gemm if launch.flops else self.memory


class GpuStream:
    """Runs submitted kernels in order; ``gap_ps`` passes between one kernel and the next."""

    def __init__(
        self, env: simpy.Environment, gap_ps: int, interference: Interference, computes: bool
    ) -> None:
        self.env, self.gap_ps, self.interference = env, gap_ps, interference
        self.queue: deque[Item] = deque()
        self.others: list[GpuStream] = []
        self.wake: simpy.Event | None = None
        self.drained: simpy.Event | None = None
        self.room: simpy.Event | None = None
        self.last: Item | None = None
        self.last_end = 0
        self.busy_until = 0
        self.computes = computes
        self.running: Launch | None = None
        self.waits_for_peer = False
        env.process(self._run())

    def submit(self, item: Item) -> None:
        """Queue one kernel now."""
        self.queue.append(item)
        self.last = item
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
        while True:
            if not self.queue:
                if self.drained is not None:
                    drained, self.drained = self.drained, None
                    drained.succeed()
                self.wake = self.env.event()
                yield self.wake
            item = self.queue.popleft()
            if self.room is not None:
                room, self.room = self.room, None
                room.succeed()
            yield from self._execute(item)

    def _execute(self, item: Item) -> Process:
        env = self.env
        for awaited in item.waits:
            if not awaited.ended:
                yield awaited.finished(env)
        now = int(env.now)
        start = max(now, self.last_end + self.gap_ps, item.issued_ps + self.gap_ps)
        waited = 0
        if item.meeting is not None:
            yield env.timeout(start - now)
            item.meeting.arrive()
            self.waits_for_peer = True
            yield item.meeting.both
            self.waits_for_peer = False
            now = int(env.now)
            waited = now - start
            end = now + item.duration_ps
        else:
            end = start + self._stretched(item, start)
        self.running, self.busy_until = item.launch, end
        if item.launch.kind == COLLECTIVE:
            for other in self.others:
                other.disturb(start + waited, end)
        while env.now < self.busy_until:
            yield env.timeout(self.busy_until - int(env.now))
        self.running, end = None, self.busy_until
        self.last_end = end
        item.into.append(Slice(item.work, item.launch, item.issued_ps, start, end, waited))
        item.end()

    def disturb(self, start: int, end: int) -> None:
        """Communication on another stream, from start to end, slows the kernel that runs now."""
        if self.computes and self.running is not None and self.busy_until > start:
            left = self.busy_until - start
            factor = self.interference.of(self.running)
            self.busy_until = start + _beside(left, end - start, factor)

    def _stretched(self, item: Item, start: int) -> int:
        """Duration beside what the other kind of stream is running now."""
        duration = item.duration_ps
        communication = item.launch.kind == COLLECTIVE
        for other in self.others:
            if communication:
                if other.computes and (other.queue or other.busy_until > start):
                    return round(duration * self.interference.communication)
            elif other.busy_until > start and not other.waits_for_peer:
                factor = self.interference.of(item.launch)
                return _beside(duration, other.busy_until - start, factor)
        return duration


def _beside(duration: int, overlap: int, factor: float) -> int:
    """How long work takes of which the first ``overlap`` ps run slower by ``factor``."""
    if duration * factor <= overlap:
        return round(duration * factor)
    return round(duration + overlap * (1.0 - 1.0 / factor))
