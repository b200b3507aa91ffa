"""The engine on hand-made steps: who waits for whom, in exact picoseconds."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine import QUEUE_DEPTH, Timeline, run
from simulator.schedule import Work
from tests.simulator.handmade import CLOCK_HZ, US, compute, work

GAP_PS = US

items = st.lists(
    st.builds(
        lambda host, kernels, waits: work(host, *kernels, synchronises=waits),
        st.integers(0, 50),
        st.lists(st.integers(1, 100), max_size=3),
        st.booleans(),
    ),
    min_size=1,
    max_size=20,
).filter(lambda found: any(each.launches for each in found))


def step(*found: Work, gap_ps: int = GAP_PS, steps: int = 2) -> Timeline:
    """The last of some equal steps."""
    return run(list(found), CLOCK_HZ, gap_ps, steps)


def spans(timeline: Timeline) -> list[tuple[int, int, int]]:
    """(issued, start, end) of each kernel, relative to the start of the step."""
    zero = timeline.start_ps
    return [(s.issued_ps - zero, s.start_ps - zero, s.end_ps - zero) for s in timeline.slices]


def test_host_bound_step_takes_the_time_of_the_host() -> None:
    """Kernels shorter than their issue wait for the host: the step is the host's time."""
    timeline = step(work(10, 1), work(20, 1), work(30, 1, 1))
    assert timeline.duration_ps == pytest.approx(60 * US, abs=2 * US + GAP_PS)
    longer = step(*[work(10, 1)] * 100)
    assert longer.duration_ps == 1000 * US


def test_gpu_bound_step_takes_its_kernels_and_gaps() -> None:
    """When the host is ahead, the step is the sum of the kernels and one gap before each."""
    timeline = step(work(1, 100), work(1, 200, 300))
    assert timeline.duration_ps == 600 * US + 3 * GAP_PS


def test_first_step_starts_with_the_host() -> None:
    """Alone, a step includes its first issue: nothing was ahead of it."""
    timeline = step(work(10, 100), steps=1)
    assert (timeline.start_ps, timeline.end_ps) == (0, 10 * US + GAP_PS + 100 * US)


def test_kernels_start_after_issue_and_predecessor() -> None:
    """A kernel starts one gap after it was issued and after its predecessor, whatever is later."""
    timeline = step(work(10, 5), work(10, 50), work(10, 5), steps=1)
    assert spans(timeline) == [
        (10 * US, 11 * US, 16 * US),
        (20 * US, 21 * US, 71 * US),
        (30 * US, 72 * US, 77 * US),
    ]


def test_synchronising_operator_drains_the_gpu() -> None:
    """After an operator that synchronises, the host goes on only when every kernel has ended."""
    timeline = step(work(1, 100), work(1, 50, synchronises=True), work(7, 1), steps=1)
    issued, ended = spans(timeline)[2][0], spans(timeline)[1][2]
    assert issued == ended + 7 * US


def test_synchronising_without_kernels_waits_for_earlier_ones() -> None:
    """Reading a value drains what is queued, and costs only the host when nothing is."""
    timeline = step(work(1, 100), work(1, synchronises=True), work(0, 1), steps=1)
    assert spans(timeline)[1][0] == 102 * US
    idle = step(work(1, synchronises=True), work(1, synchronises=True), work(0, 1), steps=1)
    assert spans(idle)[0][0] == 2 * US


def test_launch_queue_limits_how_far_the_host_runs_ahead() -> None:
    """The host issues at most a full queue ahead of the kernel that runs."""
    timeline = step(*[work(0, 10)] * (QUEUE_DEPTH + 100), gap_ps=0, steps=1)
    issued = [begin for begin, _, _ in spans(timeline)]
    assert issued[QUEUE_DEPTH - 1] == 0
    assert issued[-1] >= 90 * 10 * US
    started = [begin for _, begin, _ in spans(timeline)]
    for index in range(QUEUE_DEPTH + 2, len(issued)):
        assert issued[index] >= started[index - QUEUE_DEPTH - 2]


def test_queue_depth_is_no_limit_below_it() -> None:
    """As many kernels as the queue holds are issued at once."""
    timeline = step(*[work(0, 10)] * QUEUE_DEPTH, gap_ps=0, steps=1)
    assert {begin for begin, _, _ in spans(timeline)} == {0}


@given(items)
def test_steady_state_is_reached_in_the_second_step(found: list[Work]) -> None:
    """The second of equal steps takes as long as the third and the fifth."""
    durations = {step(*found, steps=n).duration_ps for n in (2, 3, 5)}
    assert len(durations) == 1


@given(items)
def test_slices_are_in_order_and_never_overlap(found: list[Work]) -> None:
    """A stream runs one kernel at a time, in issue order, with at least a gap between two."""
    timeline = step(*found)
    runs = timeline.slices
    assert [s.launch for s in runs] == [x for each in found for x in each.launches]
    for first, second in pairwise(runs):
        assert second.start_ps >= first.end_ps + GAP_PS
        assert second.issued_ps >= first.issued_ps


@given(items)
def test_time_is_whole_picoseconds(found: list[Work]) -> None:
    """Every time of a timeline is an integer, and no kernel starts before it was issued."""
    timeline = step(*found)
    for piece in timeline.slices:
        assert all(type(t) is int for t in (piece.issued_ps, piece.start_ps, piece.end_ps))
        assert piece.issued_ps < piece.start_ps < piece.end_ps
    assert type(timeline.duration_ps) is int


@given(items)
def test_step_is_never_shorter_than_its_parts(found: list[Work]) -> None:
    """Neither the host's time nor the kernels with their gaps fit into less than the step."""
    timeline = step(*found)
    host = sum(each.host_ps for each in found)
    kernels = sum(s.end_ps - s.start_ps + GAP_PS for s in timeline.slices)
    assert timeline.duration_ps >= max(host, kernels)
    assert timeline.duration_ps <= host + kernels


@given(items)
def test_equal_steps_are_equal_to_the_bit(found: list[Work]) -> None:
    """The same work gives the same slices and host times, twice."""
    first, second = step(*found), step(*found)
    assert first == second


@given(items, st.integers(0, 19))
def test_slower_host_is_never_faster(found: list[Work], index: int) -> None:
    """More host time for one operator never shortens the step."""
    changed = list(found)
    slow = changed[index % len(found)]
    changed[index % len(found)] = Work(
        slow.label, slow.operator, slow.host_ps + 30 * US, slow.launches
    )
    assert step(*changed).duration_ps >= step(*found).duration_ps


def test_host_times_are_those_of_the_last_step() -> None:
    """The timeline has one issue for each operator, each as long as its host time."""
    found = [work(3, 1), work(5), work(7, 2)]
    timeline = step(*found)
    assert [each for each, _, _ in timeline.host] == found
    assert [end - begin for _, begin, end in timeline.host] == [3 * US, 5 * US, 7 * US]


def test_durations_follow_the_clock() -> None:
    """A kernel of a million cycles takes a millisecond at 1 GHz and half at 2 GHz."""
    kernel = Work("op", work(0).operator, 0, (compute(1e6),))
    assert run([kernel], 1e9, 0).duration_ps == 1000 * US
    assert run([kernel], 2e9, 0).duration_ps == 500 * US


def test_step_without_kernels_is_refused() -> None:
    """A step that asks nothing of the GPU is an error, not a time of zero."""
    with pytest.raises(ValueError, match=r"must have at least one kernel \(got none\)"):
        step(work(10))
