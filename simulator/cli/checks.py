"""The checks of ``stepsim doctor``."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from archs.calibration import calibration_ids, load_calibration
from archs.errors import StepsimError
from archs.gpu import gpu_ids, load_gpu
from archs.systems import load_system, system_ids
from validation.records import read_runs
from validation.validate import RUNS, TRACES
from workloads.catalog import load_model, model_ids

DISTRIBUTION = "stepsim"
PACKAGES = ("simulator", "archs", "workloads", "validation")
DEPENDENCIES = ("msgspec", "numpy", "pydantic", "rich", "scipy", "simpy", "typer")
OLDEST_PYTHON = (3, 11)


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its name, whether it passed, and what was found."""

    name: str
    passed: bool
    detail: str

    def as_dict(self) -> dict[str, Any]:
        """The check as JSON values."""
        return asdict(self)


def run_checks() -> list[Check]:
    """Every check, in the order in which they are shown; a failing one stops no other."""
    return [
        _guarded("python", _python),
        _guarded("dependencies", _dependencies),
        _guarded("one place", lambda: one_place({n: package_folder(n) for n in PACKAGES})),
        _guarded("one owner", lambda: one_owner(owners())),
        _guarded("gpus", lambda: _loaded("GPUs", gpu_ids(), load_gpu)),
        _guarded("systems", lambda: _loaded("systems", system_ids(), load_system)),
        _guarded("models", lambda: _loaded("models", model_ids(), load_model)),
        _guarded("calibrations", _calibrations),
        _guarded("measurements", _measurements),
    ]


def _guarded(name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(name, True, check())
    except (StepsimError, OSError, metadata.PackageNotFoundError) as error:
        return Check(name, False, " ".join(str(error).split()))


def _python() -> str:
    if sys.version_info < OLDEST_PYTHON:
        raise StepsimError(f"Python must be 3.11 or newer (got {platform.python_version()})")
    return f"{platform.python_version()} at {sys.executable}"


def _dependencies() -> str:
    return ", ".join(f"{name} {metadata.version(name)}" for name in DEPENDENCIES)


def package_folder(name: str) -> Path:
    """The folder that a package was imported from."""
    return Path(str(import_module(name).__file__)).resolve().parent


def one_place(folders: dict[str, Path]) -> str:
    """All packages must lie side by side: otherwise some belong to another distribution."""
    parents = {folder.parent for folder in folders.values()}
    if len(parents) > 1:
        listed = ", ".join(f"{name} in {folder.parent}" for name, folder in folders.items())
        raise StepsimError(f"the packages must lie in one folder (got {listed})")
    return f"{', '.join(folders)} in {parents.pop()}"


def owners() -> dict[str, list[str]]:
    """Which installed distributions say that they hold each package."""
    known = metadata.packages_distributions()
    return {name: sorted(set(known.get(name, []))) for name in PACKAGES}


def one_owner(found: dict[str, list[str]]) -> str:
    """No other distribution may own a package: two that do overwrite each other silently."""
    strangers = {
        name: others
        for name, each in found.items()
        if (others := [owner for owner in each if owner != DISTRIBUTION])
    }
    if strangers:
        listed = "; ".join(f"{name}: {', '.join(each)}" for name, each in strangers.items())
        must = f"only {DISTRIBUTION} must own its packages (got also {listed})"
        raise StepsimError(f"{must}: install it into an environment of its own")
    if not any(found.values()):
        return "a checkout or an editable installation; no other distribution owns the packages"
    return f"{DISTRIBUTION} {metadata.version(DISTRIBUTION)}"


def _loaded(kind: str, ids: Iterable[str], load: Callable[[str], object]) -> str:
    names = list(ids)
    for name in names:
        load(name)
    if not names:
        raise StepsimError(f"the catalog must hold {kind} (got none)")
    return f"{len(names)} {kind}"


def _calibrations() -> str:
    names = calibration_ids()
    _loaded("calibrations", names, load_calibration)
    return f"{', '.join(names)}, fitted {max(load_calibration(name).date for name in names)}"


def _measurements() -> str:
    runs, traces = read_runs(RUNS), sorted(TRACES.glob("*.json.gz"))
    if not traces:
        raise StepsimError(f"traces must be present (got none) in {TRACES}")
    return f"{len(runs)} runs and {len(traces)} traces"
