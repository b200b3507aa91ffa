"""Several ranks: collectives against the wire, bubbles against the textbook, runs against H200s."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.costs.collective import collective_launch
from simulator.engine import Clocked, Interference, run_ranks
from simulator.scenario import Scenario
from simulator.schedule import Work
from simulator.simulation import simulate
from tests.simulator.handmade import CLOCK_HZ, US, h200, launch, machine
from workloads.kernels import Collective
from workloads.pipeline import Stage, schedule
from workloads.program import Operator

H200 = h200()
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send")


@given(st.sampled_from(OPS), st.integers(1, 2**32), st.integers(2, 8))
def test_no_collective_beats_its_links(op: str, size: int, ranks: int) -> None:
    """Wire bytes never move faster than one GPU's one-way bandwidth."""
    kernel = Collective(op, size, ranks, "bf16")
    link = H200.gpu.scaleup
    assert link is not None
    assert link.bandwidth_bytes_per_s is not None
    seconds = collective_launch(H200, kernel).seconds(CLOCK_HZ)
    assert seconds > kernel.wire_bytes / link.bandwidth_bytes_per_s


@given(st.sampled_from(OPS), st.integers(1, 2**32), st.integers(1, 2**32), st.integers(2, 8))
def test_more_bytes_take_no_less_time(op: str, one: int, other: int, ranks: int) -> None:
    """Duration never falls with the size of the buffer."""
    few, many = sorted((one, other))
    times = [
        collective_launch(H200, Collective(op, size, ranks, "bf16")).seconds(CLOCK_HZ)
        for size in (few, many)
    ]
    assert times[0] <= times[1]


@pytest.mark.parametrize("op", OPS)
def test_a_collective_of_one_rank_takes_no_time(op: str) -> None:
    """There is no one to talk to."""
    assert collective_launch(H200, Collective(op, 2**20, 1, "bf16")).seconds(CLOCK_HZ) == 0.0


def test_a_gpu_without_links_has_no_collectives() -> None:
    """A GPU that only has PCIe is refused in one line that says so."""
    with pytest.raises(ValueError, match=r"gpu must have scale-up links .* \(got none on l40s\)"):
        collective_launch(machine("l40s"), Collective("all_reduce", 2**20, 2, "bf16"))


def message(stream: str, name: str, index: int) -> list[Work]:
    """A message of 1 ps on a stream; the receiver's computation waits for it."""
    after = ("compute",) if stream == "send" else ()
    moves = Operator(stream, "forward", "op.forward", stream=stream, after=after, meets=name)
    kernel = launch(1e-6).__class__("send", "collective", 1e-12, 0.0, 0.0, 0.0, 0.0, 0.0)
    found = [Work("", moves, 0, (kernel,), index)]
    if stream == "receive":
        waits = Operator("wait", "forward", "op.forward", after=("receive",))
        found.append(Work("", waits, 0, ()))
    return found


def passes(stage: Stage, micro_batches: int, kind: str) -> list[Work]:
    """A stage whose forward passes take 10 us and backward passes 20 us."""
    found: list[Work] = []
    here, before, after = stage.index, stage.index - 1, stage.index + 1
    for which, i in schedule(stage, micro_batches, kind):
        forward = which == "F"
        source, target = (before, after) if forward else (after, before)
        if 0 <= source < stage.count:
            found += message("receive", f"{which}:{source}->{here}", i)
        compute = Operator(which, "forward", "op.forward")
        found.append(Work("", compute, 0, (launch(10 if forward else 20),), i))
        if 0 <= target < stage.count:
            found += message("send", f"{which}:{here}->{target}", i)
    return found


@pytest.mark.parametrize("kind", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("stages", "count"), [(2, 1), (2, 4), (4, 4), (4, 16), (3, 5)])
def test_bubble_of_equal_stages_is_that_of_the_textbook(stages: int, count: int, kind: str) -> None:
    """A step of m micro-batches on p equal stages takes (m + p - 1) forward and backward times."""
    ranks = [Clocked(passes(Stage(i, stages, 1), count, kind), CLOCK_HZ) for i in range(stages)]
    timelines = run_ranks(ranks, 0, steps=1)
    assert timelines[0].duration_ps == pytest.approx((count + stages - 1) * 30 * US, rel=1e-6)


def test_a_collective_waits_for_the_straggler() -> None:
    """The faster of two stages ends its message when the slower one arrives."""
    slow = [Work("", Operator("op", "forward", "op.forward"), 0, (launch(100),))]
    fast = [Work("", Operator("op", "forward", "op.forward"), 0, (launch(10),))]
    ranks = [
        Clocked(slow + message("send", "m", 0), CLOCK_HZ),
        Clocked(fast + message("receive", "m", 0), CLOCK_HZ),
    ]
    slower, faster = run_ranks(ranks, 0, steps=1)
    assert faster.slices[-1].waited_ps >= 90 * US
    assert faster.end_ps == slower.end_ps


def overlapped(factor: float) -> int:
    """Duration of 100 us of computation beside 50 us of communication."""
    communication = launch(1).__class__("all_reduce", "collective", 50e-6, 0, 0, 0, 0, 0)
    beside = Operator("all_reduce", "backward", "op.backward", stream="communication")
    items = [
        Work("", beside, 0, (communication,)),
        Work("", Operator("op", "backward", "op.backward"), 0, (launch(100),)),
    ]
    found = run_ranks([Clocked(items, CLOCK_HZ)], 0, Interference(memory=factor), steps=1)
    return found[0].duration_ps


def test_communication_slows_the_computation_beside_it() -> None:
    """Work done while both run proceeds at the interfered rate, the rest at full speed."""
    assert overlapped(1.0) == pytest.approx(100 * US, rel=1e-6)
    assert overlapped(2.0) == pytest.approx(125 * US, rel=1e-6)


def scenario(**plan: int) -> Scenario:
    """Llama 3.2 1B on H200s under a plan."""
    return Scenario.from_mapping(
        {
            "system": {"gpu": "h200-sxm-141gb"},
            "workload": {"model": "gpt2", "seq_len": 1024, "micro_batch": 16},
            "plan": plan,
        }
    )


def test_data_parallelism_scales_throughput_less_than_ranks() -> None:
    """Four ranks do more than three times and less than four times the work of one."""
    one, four = simulate(scenario()), simulate(scenario(dp=4))
    assert one.tokens_per_s is not None
    assert four.tokens_per_s is not None
    assert 3.0 < four.tokens_per_s / one.tokens_per_s < 4.0
    assert four.breakdown["exposed_communication"] > 0.0
    assert one.breakdown["exposed_communication"] == 0.0


def test_dp_follows_from_the_gpus() -> None:
    """The number of GPUs alone means data parallelism over them."""
    tables = {
        "system": {"gpu": "h200-sxm-141gb", "gpus": 4},
        "workload": {"model": "gpt2", "seq_len": 1024},
    }
    found = Scenario.from_mapping(tables)
    assert (found.plan.dp, found.workload.global_batch) == (4, 4)


@pytest.mark.parametrize("plan", [{"dp": 8}, {"pp": 2}, {"pp": 4, "schedule": "gpipe"}])
def test_a_faster_host_is_never_slower_with_several_gpus(plan: dict[str, object]) -> None:
    """Step times fall with the host's launch time, but for the order of events (1e-5)."""
    tables = {
        "system": {"gpu": "h200-sxm-141gb"},
        "workload": {"model": "llama3-8b", "seq_len": 512, "micro_batch": 1, "grad_accum": 4},
        "plan": plan,
        "stack": {"precision": "bf16"},
    }
    times = [
        simulate(
            Scenario.from_mapping(tables, overrides={"system.host.eager_launch_s": seconds})
        ).step_time_s
        for seconds in ("2e-5", "1e-5", "5e-6", "1e-6")
    ]
    assert all(later <= (1 + 1e-5) * earlier for earlier, later in pairwise(times))


def test_a_limit_that_cannot_be_held_is_said() -> None:
    """At the lowest clock power may still be above the limit: a warning says so."""
    tables = {
        "system": {"gpu": "h200-sxm-141gb", "power_limit_w": 100.0},
        "workload": {"model": "gpt2", "seq_len": 1024, "micro_batch": 8},
    }
    found = simulate(Scenario.from_mapping(tables))
    assert found.average_power_w > 100.0
    (warning,) = found.warnings
    assert warning.startswith("the power limit of 100 W cannot be held")
