"""Memory over a step: what is resident, what comes and goes, and when the peak is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from simulator.memory import profile, workspace_bytes
from tests.strategies import plans, stacks, workloads
from workloads.lowering import lower
from workloads.plan import Plan, Stack, Workload
from workloads.program import MemoryEvent, Operator, Placement, Role, Segment

WORKSPACE = workspace_bytes("hopper")


def role(resident: dict[str, int], *operators: tuple[str, list[MemoryEvent]]) -> Role:
    """A rank whose operators allocate and free these bytes."""
    found = tuple(Operator(name, "forward", "op", memory=tuple(m)) for name, m in operators)
    return Role("rank", 1, (Placement(Segment("s", found), "layer0"),), resident)


def test_peak_is_the_largest_sum() -> None:
    """The peak is reached in the middle, and says where and what it consists of."""
    found = profile(
        role(
            {"parameters": 1000},
            ("first", [("activations", 500)]),
            ("second", [("activations", 700), ("gradients", 30)]),
            ("third", [("activations", -1200), ("gradients", 40)]),
        ),
        "hopper",
    )
    assert found.peak_bytes == WORKSPACE + 1000 + 1200 + 30
    assert found.parts == {
        "parameters": 1000, "workspace": WORKSPACE, "activations": 1200, "gradients": 30,
    }  # fmt: skip
    assert found.where == "layer0 second"


def test_without_allocations_the_peak_is_the_start() -> None:
    """A step that allocates nothing has its residents as its peak."""
    found = profile(role({"parameters": 1000}, ("op", [])), "hopper")
    assert (found.peak_bytes, found.where) == (WORKSPACE + 1000, "start")


def test_order_inside_an_operator_counts() -> None:
    """Memory freed before the next allocation of the same operator is not counted twice."""
    events = [[("activations", 100), ("activations", -100), ("activations", 100)]]
    assert profile(role({}, ("op", events[0])), "hopper").peak_bytes == WORKSPACE + 100


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=20))
def test_peak_of_nested_allocations_is_their_sum(sizes: list[int]) -> None:
    """Allocations that are freed in reverse order are all alive at the peak."""
    up: list[tuple[str, list[MemoryEvent]]] = [("up", [("activations", n)]) for n in sizes]
    down: list[tuple[str, list[MemoryEvent]]] = [("down", [("activations", -n)]) for n in sizes]
    assert profile(role({}, *up, *down), "hopper").peak_bytes == WORKSPACE + sum(sizes)


@given(workloads(), plans(), stacks())
def test_parts_sum_to_the_peak(workload: Workload, plan: Plan, stack: Stack) -> None:
    """Whatever the step, the parts at the peak are its peak, and none is negative."""
    only = lower(workload, plan, stack).roles[0]
    found = profile(only, "hopper")
    assert sum(found.parts.values()) == found.peak_bytes
    assert min(found.parts.values()) >= 0
    assert found.peak_bytes >= sum(only.resident_bytes.values()) + WORKSPACE
    assert found.parts["parameters"] == only.resident_bytes["parameters"]


def test_larger_workspaces_since_hopper() -> None:
    """cuBLAS keeps 32 MiB a handle on Hopper and about 8 MiB before."""
    assert workspace_bytes("hopper") == 2 * 32 * 2**20
    assert workspace_bytes("ampere") < workspace_bytes("hopper")
