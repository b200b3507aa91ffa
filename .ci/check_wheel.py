"""Check what a built wheel holds: `python .ci/check_wheel.py WHEEL CHECKOUT`.

The top level is the contract (the four packages and the metadata folder, nothing else), and
inside the packages the wheel holds exactly the checkout's files, data and READMEs included.
"""

from __future__ import annotations

import sys
import tomllib
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any


def project(checkout: Path) -> dict[str, Any]:
    """Return the parsed pyproject.toml of `checkout`."""
    return tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))


def wheel_packages(config: dict[str, Any]) -> list[str]:
    """Return the package names that the build configuration lists."""
    packages: list[str] = config["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    return packages


def checkout_files(checkout: Path, packages: list[str]) -> set[str]:
    """Return the posix paths of the packages' files, without compiled ones."""
    return {
        path.relative_to(checkout).as_posix()
        for package in packages
        for path in (checkout / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def complaints(wheel: Path, checkout: Path) -> list[str]:
    """Return one line for each way in which `wheel` differs from what `checkout` promises."""
    config = project(checkout)
    packages = wheel_packages(config)
    metadata = f"{config['project']['name']}-{config['project']['version']}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    top = {PurePosixPath(name).parts[0] for name in names}
    inside = {name for name in names if PurePosixPath(name).parts[0] != metadata}
    expected = checkout_files(checkout, packages)
    required = {f"{metadata}/licenses/LICENSE", f"{metadata}/entry_points.txt"}
    required |= {f"{package}/{name}" for package in packages for name in ("py.typed", "README.md")}
    lines = [f"top level must not hold {name}" for name in sorted(top - {*packages, metadata})]
    lines += [f"wheel must hold {name}" for name in sorted((expected | required) - names)]
    lines += [f"wheel must not hold {name}" for name in sorted(inside - expected)]
    if not any(name.endswith(".toml") for name in inside):
        lines.append("wheel must hold the descriptors' TOML files (got none)")
    return lines


def main() -> int:
    """Print the complaints about the wheel named on the command line; 1 if there are any."""
    wheel, checkout = Path(sys.argv[1]), Path(sys.argv[2])
    lines = complaints(wheel, checkout)
    for line in lines:
        print(f"{wheel.name}: {line}", file=sys.stderr)
    if not lines:
        print(f"{wheel.name}: the four packages with all their files, and nothing else")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
