"""From operators to work: host costs by class and host, and kernels costed once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archs.calibration import load_calibration
from simulator.costs import Coster
from simulator.schedule import HostModel, all_launches, host_seconds, works
from tests.simulator.handmade import h200
from tests.strategies import stacks, workloads
from workloads.lowering import lower
from workloads.plan import Plan, Stack, Workload
from workloads.program import Operator

PARAMETERS = load_calibration("h200-sxm-141gb").host
REFERENCE = HostModel(PARAMETERS, PARAMETERS.reference_launch_s)


def default_s(host: HostModel) -> float:
    """Host time of an operator of a class that nobody measured."""
    return host.seconds(Operator("op", "forward", "new.forward"))


@pytest.mark.parametrize("name", sorted(PARAMETERS.classes))
def test_host_costs_are_in_proportion_to_those_measured(name: str) -> None:
    """Operators of two classes relate as measured; one of an unknown class takes the default."""
    found = REFERENCE.seconds(Operator("op", "forward", name)) / default_s(REFERENCE)
    assert found == pytest.approx(PARAMETERS.classes[name] / PARAMETERS.default_s)


def test_bookkeeping_costs_the_host_nothing() -> None:
    """Releases at the end of a segment are no operators of the framework."""
    assert REFERENCE.seconds(Operator("release", "forward", "none.forward")) == 0.0


@given(st.integers(1, 10_000))
def test_each_further_tensor_adds_its_time(units: int) -> None:
    """A multi-tensor operator costs the host a fixed time and one for each further tensor."""
    one, many = (
        REFERENCE.seconds(Operator("op", "optimizer", "foreach.optimizer", units=n))
        for n in (1, units)
    )
    further = (units - 1) * PARAMETERS.unit_s / PARAMETERS.default_s
    assert many == pytest.approx(one + further * default_s(REFERENCE))


@given(st.floats(1e-7, 1e-3), st.sampled_from(sorted(PARAMETERS.classes)))
def test_host_costs_scale_with_the_host(launch_s: float, name: str) -> None:
    """A host whose launch loop is n times as slow issues every operator n times as slowly."""
    operator = Operator("op", "forward", name)
    factor = launch_s / PARAMETERS.reference_launch_s
    slow = HostModel(PARAMETERS, launch_s)
    assert slow.seconds(operator) == pytest.approx(factor * REFERENCE.seconds(operator))


@given(workloads(), stacks())
def test_work_keeps_every_operator_in_order(workload: Workload, stack: Stack) -> None:
    """Each operator of a role becomes one work with at least one launch for each kernel."""
    role = lower(workload, Plan(), stack).roles[0]
    coster = Coster(h200())
    found = works(role, coster, REFERENCE)
    assert [(w.label, w.operator) for w in found] == list(role.operators())
    for each in found:
        expected = [x for k in each.operator.kernels for x in coster.launches(k)]
        assert list(each.launches) == expected
        assert len(expected) >= len(each.operator.kernels)
    assert list(all_launches(found)) == [x for w in found for x in w.launches]
    assert host_seconds(found) == pytest.approx(sum(w.host_ps for w in found) * 1e-12)
