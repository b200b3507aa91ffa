"""From a scenario to a StepResult: lower, cost, settle the clock, run, summarise."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass

from archs.calibration import Calibration, best_calibration
from archs.errors import InputError
from workloads.lowering import lower
from workloads.plan import PRECISIONS, Stack
from workloads.program import Program, Role

from .breakdown import breakdown
from .costs import Coster, Launch
from .costs.launch import PICOSECONDS
from .costs.machine import Machine
from .engine import Clocked, Interference, Timeline, run_ranks
from .intervals import LEVEL, interval, regime
from .memory import MemoryProfile, profile
from .power import PowerModel
from .result import EngineStatistics, StepResult
from .scenario import Scenario
from .schedule import HostModel, all_launches, busy_seconds, host_seconds, works

HOST_BOUND_SHARE = 0.1
WAITING_SHARE = 0.25
"""Shares of the step beyond which the host, or waiting for other ranks, is said to bind."""


def machine_of(scenario: Scenario, calibration: Calibration | None = None) -> Machine:
    """The scenario's GPU with the calibration given, or else the best that is installed."""
    gpu = scenario.gpu
    if calibration is not None:
        return Machine(gpu, calibration, calibration.gpu == gpu.id)
    calibration, own = best_calibration(gpu.id, gpu.architecture)
    return Machine(gpu, calibration, own)


@dataclass(frozen=True)
class SimulatedRole:
    """One role of a simulated step: what its ranks ran, at which clock, with which memory."""

    role: Role
    clock_hz: float
    launches: list[Launch]
    timeline: Timeline
    memory: MemoryProfile


@dataclass(frozen=True)
class Simulated:
    """One simulated step before it is summarised."""

    scenario: Scenario
    program: Program
    machine: Machine
    power: PowerModel
    roles: list[SimulatedRole]

    @property
    def step_s(self) -> float:
        """Length of the step, in seconds."""
        return self.roles[0].timeline.duration_ps / PICOSECONDS

    def energy_j(self) -> float:
        """Energy of all GPUs over the step, in joules."""
        total = 0.0
        for each in self.roles:
            dynamic = self.power.dynamic_j(each.launches, each.clock_hz)
            total += each.role.ranks * (self.power.idle_w * self.step_s + dynamic)
        return total

    def mean_clock_hz(self, each: SimulatedRole) -> float:
        """A role's clock averaged over the step: the highest one while nothing computes."""
        gap_s = self.machine.calibration.host.gap_s
        busy = min(1.0, busy_seconds(each.launches, each.clock_hz, gap_s) / self.step_s)
        return self.machine.max_clock_hz - busy * (self.machine.max_clock_hz - each.clock_hz)


def simulate(scenario: Scenario, calibration: Calibration | None = None) -> StepResult:
    """Predict one training step of a scenario, with the installed calibration unless one is given.

    Raises InputError or ValueError when the scenario needs what is not modelled.
    """
    begin = time.perf_counter()
    done = run_scenario(scenario, calibration)
    wall_s = time.perf_counter() - begin
    events = sum(each.timeline.events for each in done.roles)
    return _summarise(done, EngineStatistics(events, len(done.roles), wall_s))


def run_scenario(scenario: Scenario, calibration: Calibration | None = None) -> Simulated:
    """Lower, cost, settle the clocks and run, without summarising."""
    _check_precision(scenario)
    program = lower(scenario.workload, scenario.plan, scenario.stack)
    machine = machine_of(scenario, calibration)
    host = HostModel(machine.calibration.host, scenario.host_launch_s)
    coster = Coster(machine)
    power = PowerModel(machine, scenario.power_limit_w)
    items = [works(role, coster, host) for role in program.roles]
    launches = [list(all_launches(each)) for each in items]
    gap_s = machine.calibration.host.gap_s
    alone = len(items) == 1 and program.roles[0].ranks == 1
    least_s = [host_seconds(each) if alone else 0.0 for each in items]
    clocks = [power.clock_hz(x, gap_s, s) for x, s in zip(launches, least_s, strict=True)]
    slow = machine.calibration.interference
    timelines = run_ranks(
        [Clocked(each, clock_hz) for each, clock_hz in zip(items, clocks, strict=True)],
        round(gap_s * PICOSECONDS),
        Interference(slow.gemm, slow.memory, slow.communication),
    )
    architecture = scenario.gpu.architecture
    roles = [
        SimulatedRole(role, clock_hz, each, timeline, profile(role, architecture))
        for role, clock_hz, each, timeline in zip(
            program.roles, clocks, launches, timelines, strict=True
        )
    ]
    return Simulated(scenario, program, machine, power, roles)


def _summarise(done: Simulated, engine: EngineStatistics) -> StepResult:
    scenario, program, machine = done.scenario, done.program, done.machine
    shown, step_s = done.roles[0], done.step_s
    memory = max((each.memory for each in done.roles), key=lambda m: m.peak_bytes)
    gpu_s = step_s * scenario.gpus
    parts = breakdown(shown.timeline, round(machine.calibration.host.gap_s * PICOSECONDS))
    energy = done.energy_j()
    peak_flops = _peak(machine, scenario)
    capacity = scenario.gpu.hbm.usable_bytes or scenario.gpu.hbm.capacity_bytes
    throttled = shown.clock_hz < 0.995 * machine.max_clock_hz
    bound = bound_by(parts, step_s, throttled, shown.timeline, shown.clock_hz)
    kind = regime(bound == "host", machine.own, scenario.plan.sharded)
    warnings = _warnings(scenario, machine, memory, capacity, energy / gpu_s)
    images = program.samples if not program.tokens else None
    tokens = program.tokens or None
    return StepResult(
        step_time_s=step_s,
        step_time_interval_s=interval(step_s, machine.calibration.intervals, kind),
        interval_level=LEVEL,
        tokens_per_s=tokens and tokens / step_s,
        tokens_per_s_per_gpu=tokens and tokens / gpu_s,
        images_per_s=images and images / step_s,
        images_per_s_per_gpu=images and images / gpu_s,
        model_tflops_per_gpu=program.model_flops / gpu_s / 1e12,
        mfu=program.model_flops / gpu_s / peak_flops,
        hfu=program.hardware_flops / gpu_s / peak_flops,
        peak_memory_bytes=memory.peak_bytes,
        fits_in_memory=memory.peak_bytes <= capacity,
        memory=memory.parts,
        breakdown=parts,
        bound_by=bound,
        energy_j=energy,
        average_power_w=energy / gpu_s,
        sm_clock_mhz=done.mean_clock_hz(shown) / 1e6,
        cost_usd=_cost(scenario, step_s),
        warnings=(*program.warnings, *warnings),
        engine=engine,
        timeline=shown.timeline,
    )


def _compute_dtype(precision: str) -> str:
    return Stack.model_validate({"precision": precision}).compute_dtype


def _check_precision(scenario: Scenario) -> None:
    """Refuse a precision in which the GPU has no tensor cores."""
    peaks = {str(dtype) for dtype in scenario.gpu.tensor_flops_per_s}
    usable = [name for name in PRECISIONS if _compute_dtype(name) in peaks]
    if scenario.stack.precision not in usable:
        known = f"one of {', '.join(usable)}" if usable else "one that the GPU has"
        raise InputError(
            f"precision must be {known} on {scenario.gpu.id}", scenario.stack.precision,
            "stack.precision",
        )  # fmt: skip


def _peak(machine: Machine, scenario: Scenario) -> float:
    """Dense tensor peak at the compute precision, in FLOP/s of one GPU."""
    return machine.peak_flops_per_s(scenario.stack.compute_dtype)


def _cost(scenario: Scenario, step_s: float) -> float | None:
    """Rental of the GPUs for one step at the system's dated cloud price, or None without one."""
    price = scenario.system.cloud_price_usd_per_gpu_h
    return None if price is None else price * scenario.gpus * step_s / 3600.0


def bound_by(
    parts: dict[str, float], step_s: float, throttled: bool, timeline: Timeline, clock_hz: float
) -> str:
    """What limits the step: host, power, tensor cores ("compute") or memory bandwidth."""
    if parts["host"] > HOST_BOUND_SHARE * step_s:
        return "host"
    for part, name in (("bubble", "bubble"), ("exposed_communication", "communication")):
        if parts[part] > WAITING_SHARE * step_s:
            return name
    tensor = sum(
        s.end_ps - s.start_ps for s in timeline.slices
        if s.launch.cycles / clock_hz > s.launch.memory_s and s.launch.flops
    )  # fmt: skip
    if 2 * tensor < timeline.duration_ps:
        return "memory_bandwidth"
    return "power" if throttled else "compute"


def _warnings(
    scenario: Scenario, machine: Machine, memory: MemoryProfile, capacity: float, power_w: float
) -> list[str]:
    found = []
    if power_w > 1.001 * scenario.power_limit_w:
        found.append(
            f"the power limit of {scenario.power_limit_w:.0f} W cannot be held: {power_w:.0f} W at "
            "the lowest clock"
        )
    if not machine.own:
        found.append(
            f"{scenario.gpu.id} has no calibration of its own: kernel costs are extrapolated from "
            f"{machine.calibration.gpu} through the descriptor"
        )
    if scenario.plan.sharded:
        found.append("no sharded run was held out: the interval is a flat 35 %")
    if memory.peak_bytes > capacity:
        found.append(
            f"peak memory {memory.peak_bytes / 1e9:.1f} GB exceeds the {capacity / 1e9:.1f} GB "
            f"of {scenario.gpu.id}: the step would run out of memory at {memory.where}"
        )
    return found


def class_seconds(timeline: Timeline) -> dict[str, tuple[int, float]]:
    """Launches and seconds of the step by kernel class."""
    totals: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for piece in timeline.slices:
        entry = totals[piece.launch.kind]
        entry[0] += 1
        entry[1] += (piece.end_ps - piece.start_ps) / PICOSECONDS
    return {kind: (int(n), s) for kind, (n, s) in sorted(totals.items())}
