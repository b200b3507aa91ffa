"""Finding a descriptor: by id, by alias in any case, or by the path of a TOML file."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from .errors import InputError, unknown_name
from .reading import read_toml

DIRECTORY = Path(__file__).parent / "catalog"


class Catalog:
    """The descriptors of one ``kind`` ("gpu") that ship with stepsim, one file ``<id>.toml`` each.

    ``folder`` is below ``archs/catalog``.
    """

    def __init__(self, kind: str, folder: str) -> None:
        self.kind = kind
        self.directory = DIRECTORY / folder

    def ids(self) -> list[str]:
        """Ids of the shipped descriptors, sorted."""
        return sorted(path.stem for path in self.directory.glob("*.toml"))

    def holds(self, path: Path) -> bool:
        """Whether ``path`` is a shipped file, which never changes while stepsim runs."""
        return path.parent == self.directory

    def path(self, name_or_path: str | Path) -> Path:
        """The file that a user means; raises InputError with the nearest names for none."""
        if isinstance(name_or_path, Path) or _looks_like_file(name_or_path):
            return Path(name_or_path)
        name = name_or_path.strip().casefold()
        if not name:
            raise InputError(f"{self.kind} must be a name or the path of a TOML file", name_or_path)
        if name in self.ids():
            return self.directory / f"{name}.toml"
        names = _names(self.directory)
        if name not in names:
            raise unknown_name(self.kind, name_or_path, names)
        return names[name]


def _looks_like_file(name: str) -> bool:
    return name.endswith(".toml") or "/" in name


@cache
def _names(directory: Path) -> dict[str, Path]:
    """Every id and alias, in lower case, with its file."""
    names = {path.stem: path for path in sorted(directory.glob("*.toml"))}
    for path in list(names.values()):
        for alias in read_toml(path).get("aliases", []):
            names.setdefault(str(alias).casefold(), path)
    return names
