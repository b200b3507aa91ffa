"""Which operator launched which GPU operation.

A launch and its GPU operation share a correlation number; the operator is the innermost one that
was open on the launching thread at that moment. `External id` names the operator directly in new
files, but repeats the correlation in old ones and is only trusted when it does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .trace_model import CpuOp


@dataclass(frozen=True, slots=True)
class Launch:
    """A host call that started a GPU operation."""

    correlation: int
    start_ps: int
    thread: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Links:
    """Answers, for a GPU operation, when and by which operator it was launched."""

    launches: Mapping[int, Launch]
    innermost: Mapping[int, str]
    by_external_id: Mapping[int, str]

    @classmethod
    def between(cls, cpu_ops: Sequence[CpuOp], launches: Iterable[Launch]) -> Links:
        """Link launches to the operators that contain them."""
        kept = {launch.correlation: launch for launch in launches}
        names = {op.external_id: op.name for op in cpu_ops if op.external_id is not None}
        return cls(kept, _innermost(cpu_ops, kept.values()), names)

    def launch_ps(self, correlation: int | None) -> int | None:
        """When the host launched it, None if the launch is not in the trace."""
        launch = None if correlation is None else self.launches.get(correlation)
        return None if launch is None else launch.start_ps

    def operator(self, correlation: int | None, external_id: int | None) -> str | None:
        """The operator that launched it, None if the trace does not say."""
        if external_id is not None and external_id != correlation:
            named = self.by_external_id.get(external_id)
            if named is not None:
                return named
        return None if correlation is None else self.innermost.get(correlation)


def _innermost(cpu_ops: Iterable[CpuOp], launches: Iterable[Launch]) -> dict[int, str]:
    threads: dict[tuple[str, str], tuple[list[CpuOp], list[Launch]]] = {}
    for op in cpu_ops:
        threads.setdefault(op.thread, ([], []))[0].append(op)
    for launch in launches:
        threads.setdefault(launch.thread, ([], []))[1].append(launch)
    found: dict[int, str] = {}
    for ops, calls in threads.values():
        found.update(_innermost_of_thread(ops, calls))
    return found


def _innermost_of_thread(ops: list[CpuOp], calls: list[Launch]) -> dict[int, str]:
    """Sweep one thread in time, keeping the stack of operators that are open."""
    ops.sort(key=lambda op: (op.start_ps, -op.duration_ps, op.name))
    calls.sort(key=lambda call: call.start_ps)
    found: dict[int, str] = {}
    open_ops: list[CpuOp] = []
    following = 0
    for call in calls:
        while following < len(ops) and ops[following].start_ps <= call.start_ps:
            op = ops[following]
            _close(open_ops, op.start_ps)
            open_ops.append(op)
            following += 1
        _close(open_ops, call.start_ps)
        if open_ops:
            found[call.correlation] = open_ops[-1].name
    return found


def _close(open_ops: list[CpuOp], now_ps: int) -> None:
    while open_ops and open_ops[-1].start_ps + open_ops[-1].duration_ps < now_ps:
        open_ops.pop()
