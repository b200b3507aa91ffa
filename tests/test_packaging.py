"""The repository's frame: what the wheel ships, and who may import whom."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES: list[str] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
FOUNDATION = {"archs.errors", "archs.reading", "archs.units"}
TINY_MODULES = ["archs.gpu", "workloads.model", "simulator.cli", "simulator.engine"]
MAX_MODULE_LINES = 600
LINT_IMPORTS = "from importlinter.cli import lint_imports_command as run; run()"


def package_files() -> set[Path]:
    """Return every file of the four packages, without compiled ones."""
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*"))
    return {path for path in found if path.is_file() and "__pycache__" not in path.parts}


def contracts() -> dict[str, dict[str, Any]]:
    """Return the import contracts by their id."""
    return {contract["id"]: contract for contract in PROJECT["tool"]["importlinter"]["contracts"]}


def imported_modules(module: str) -> set[str]:
    """Return the absolute names of what `module` imports, at its top or inside a function."""
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*parents, *filter(None, [node.module])])
            names |= {base if node.module else f"{base}.{alias.name}" for alias in node.names}
    return names


def lint_imports(folder: Path, imports: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Check this repository's contracts on four tiny packages with `imports` (module: line)."""
    (folder / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    paths = {package: folder / package / "__init__.py" for package in PACKAGES}
    for module in [*FOUNDATION, *TINY_MODULES]:
        paths[module] = folder.joinpath(*module.split(".")).with_suffix(".py")
    for module, path in paths.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(imports.get(module, "") + "\n")
    assert set(imports) <= set(paths)
    command = [sys.executable, "-c", LINT_IMPORTS, "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_wheel_lists_the_four_packages() -> None:
    """The wheel's packages are the folders of the checkout that hold an `__init__.py`."""
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert sorted(PACKAGES) == sorted(folders)
    assert folders == {"archs", "simulator", "validation", "workloads"}


@pytest.mark.parametrize("name", ["__init__.py", "README.md", "py.typed"])
def test_every_package_is_typed_and_documented(name: str) -> None:
    """Each package has an `__init__.py`, a README and the marker that it is typed."""
    assert [package for package in PACKAGES if not (ROOT / package / name).is_file()] == []


def test_wheel_ships_every_file_of_the_packages() -> None:
    """Hatchling includes every module, descriptor and data file of the packages, and no other."""
    builder = WheelBuilder(str(ROOT))
    shipped = {Path(file.path) for file in builder.recurse_included_files()}
    assert shipped == package_files()


def test_packages_hold_descriptors() -> None:
    """There are TOML and JSONL files in the packages, so shipping all of them says something."""
    suffixes = {path.suffix for path in package_files()}
    assert {".toml", ".jsonl"} <= suffixes


def test_tests_are_not_a_package() -> None:
    """No folder of tests has an `__init__.py`: pytest imports them by path."""
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_modules_are_small() -> None:
    """No module has more than 600 lines."""
    modules = [path for path in package_files() if path.suffix == ".py"]
    modules += (ROOT / "tests").rglob("*.py")
    sizes = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in modules
    }
    assert {name: size for name, size in sizes.items() if size > MAX_MODULE_LINES} == {}


def test_command_exists() -> None:
    """The `stepsim` script names a function that can be called."""
    module, _, function = PROJECT["project"]["scripts"]["stepsim"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_every_runtime_dependency_has_a_lower_bound() -> None:
    """Each dependency states the oldest version that was tested, and no upper bound."""
    dependencies = PROJECT["project"]["dependencies"]
    assert [text for text in dependencies if not re.fullmatch(r"[a-z]+>=[0-9.]+", text)] == []


def test_changelog_starts_with_what_is_unreleased() -> None:
    """The first part of the changelog collects what the next release will have."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE)[0] == "Unreleased"


def test_foundation_exceptions_are_the_three_modules() -> None:
    """Workloads may import archs' errors, units and reading, and nothing else of archs."""
    exceptions = contracts()["layers"]["ignore_imports"]
    pairs = [line.split(" -> ") for line in exceptions]
    assert {target for source, target in pairs if source.startswith("workloads")} == FOUNDATION
    sources = {source for source, target in pairs if target in FOUNDATION}
    assert sources == {"workloads", "workloads.**"}


def test_only_the_command_line_may_pass_the_layers() -> None:
    """Besides the foundation, the one exception to the layers is simulator.cli."""
    pairs = [line.split(" -> ") for line in contracts()["layers"]["ignore_imports"]]
    others = {source for source, target in pairs if target not in FOUNDATION}
    assert others == {"simulator.cli", "simulator.cli.**"}


@pytest.mark.parametrize("module", sorted(FOUNDATION))
def test_foundation_stands_alone(module: str) -> None:
    """A foundation module imports nothing of the four packages but foundation modules."""
    own = {name for name in imported_modules(module) if name.split(".")[0] in PACKAGES}
    assert own <= FOUNDATION


def test_allowed_imports_pass(tmp_path: Path) -> None:
    """The contracts accept each import that the design allows."""
    allowed = {
        "archs.gpu": "from .errors import *",
        "workloads.model": "import archs.errors, archs.units, archs.reading",
        "simulator.engine": "import archs.gpu, workloads.model",
        "simulator.cli": "import validation",
        "validation": "import archs.gpu, workloads.model, simulator.engine",
    }
    result = lint_imports(tmp_path, allowed)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("workloads.model", "import archs.gpu", "layers"),
        ("workloads", "import archs", "layers"),
        ("archs.gpu", "import workloads.model", "layers"),
        ("archs.gpu", "import simulator.engine", "layers"),
        ("workloads.model", "import simulator.engine", "layers"),
        ("simulator.engine", "import validation", "validation-is-private"),
        ("validation", "import simulator.cli", "cli-is-outermost"),
        ("simulator.engine", "from . import cli", "cli-is-outermost"),
        ("archs.units", "import workloads", "foundation"),
    ],
)
def test_forbidden_imports_fail(tmp_path: Path, module: str, line: str, contract: str) -> None:
    """The contracts refuse each import that goes against the layers, and name the contract."""
    result = lint_imports(tmp_path, {module: line})
    assert result.returncode == 1, result.stdout
    report = re.sub(r"\x1b\[[0-9;]*m", "", result.stdout)
    assert f"{contracts()[contract]['name']} BROKEN" in report
