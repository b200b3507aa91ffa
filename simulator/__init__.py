"""How long a training step takes: costs, engine, power, memory, results."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .result import StepResult
    from .scenario import Scenario
    from .simulation import simulate

__all__ = ["Scenario", "StepResult", "simulate"]

_HOMES = {"Scenario": "scenario", "StepResult": "result", "simulate": "simulation"}


def __getattr__(name: str) -> object:
    """Import an export when it is first used, so that ``stepsim --help`` answers at once."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value
