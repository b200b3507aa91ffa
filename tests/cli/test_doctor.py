"""`stepsim doctor`: each check passes on a whole installation and fails on a broken one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from archs.errors import InputError, StepsimError
from simulator.cli import checks
from tests.cli.commands import stepsim


def test_this_installation_is_whole() -> None:
    """Where the tests run every check passes, and the exit code is 0."""
    outcome = stepsim("doctor", "--json")
    assert outcome.code == 0
    assert all(check["passed"] for check in outcome.json)
    assert stepsim("doctor").code == 0


def _broken(*_: object) -> list[str]:
    raise InputError("file must be readable", "nothing", "somewhere")


@pytest.mark.parametrize(
    ("function", "replacement", "failing"),
    [
        ("calibration_ids", _broken, "calibrations"),
        ("calibration_ids", list, "calibrations"),
        ("gpu_ids", list, "gpus"),
        ("load_system", _broken, "systems"),
        ("load_model", _broken, "models"),
        ("read_runs", _broken, "measurements"),
        ("owners", lambda: {"simulator": ["stepsim", "other"]}, "one owner"),
        ("OLDEST_PYTHON", (99, 0), "python"),
        ("DEPENDENCIES", ("a-distribution-that-nobody-has",), "dependencies"),
        ("TRACES", Path("nowhere"), "measurements"),
    ],
)
def test_a_broken_part_fails_its_check_alone(
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    replacement: Callable[..., object],
    failing: str,
) -> None:
    """One broken part fails one check, all others still run, and the exit code is 1."""
    monkeypatch.setattr(checks, function, replacement)
    outcome = stepsim("doctor", "--json")
    assert outcome.code == 1
    assert [check["name"] for check in outcome.json if not check["passed"]] == [failing]
    assert "FAILED" in stepsim("doctor").out


def test_packages_from_two_places_are_told() -> None:
    """When one package lies elsewhere the check names each place."""
    folders = {"simulator": Path("/a/simulator"), "archs": Path("/b/archs")}
    with pytest.raises(StepsimError, match=r"one folder .*simulator in /a, archs in /b"):
        checks.one_place(folders)


def test_a_second_owner_is_named() -> None:
    """Another distribution that owns a package is named, with what to do."""
    with pytest.raises(StepsimError, match=r"simulator: other.*environment of its own"):
        checks.one_owner({"simulator": ["other", "stepsim"], "archs": ["stepsim"]})


def test_no_owner_is_a_checkout() -> None:
    """When no distribution claims the packages nothing is wrong: it is a checkout."""
    assert "checkout" in checks.one_owner({"simulator": [], "archs": []})
