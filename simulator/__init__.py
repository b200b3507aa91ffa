"""How long a training step takes: costs, engine, power, memory, results."""

from .result import StepResult
from .scenario import Scenario
from .simulate import simulate

__all__ = ["Scenario", "StepResult", "simulate"]
