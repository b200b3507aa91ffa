"""How long predictions take; run with `make bench`."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.scenario import Scenario
from simulator.simulation import simulate
from workloads.lowering import lower

STEPS: dict[str, dict[str, Any]] = {
    "one GPU": {"workload": {"model": "llama3-8b", "seq_len": 4096}},
    "accumulated": {"workload": {"model": "gpt2", "seq_len": 1024, "grad_accum": 16}},
    "pipeline": {
        "workload": {"model": "llama3-8b", "seq_len": 4096, "grad_accum": 16},
        "plan": {"pp": 4},
    },
}


def scenario(name: str) -> Scenario:
    """One of the steps on H200s."""
    return Scenario.from_mapping({"system": {"gpu": "h200-sxm-141gb"}, **STEPS[name]})


@pytest.mark.parametrize("name", STEPS)
def test_simulate(benchmark: Any, name: str) -> None:
    """From a scenario to a result."""
    assert benchmark(simulate, scenario(name)).step_time_s > 0.0


@pytest.mark.parametrize("name", STEPS)
def test_lower(benchmark: Any, name: str) -> None:
    """From workload, plan and stack to a program."""
    found = scenario(name)
    assert benchmark(lower, found.workload, found.plan, found.stack).roles
