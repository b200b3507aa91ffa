"""Files: errors name file and line, overrides reach nested keys, writes are whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from archs.errors import InputError
from archs.reading import parse_value, read_toml, set_path, split_assignment, write_atomic


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"a = 1\nb = = 2\n", 2),
        (b"a = 1\na = 2\n", 2),
        (b"a = 1\nb = 2\nc = [1, 2\n", 3),
        (b'a = 1\nb = "cut', 2),
        (b'a = 1\nb = "\xff"\n', 2),
    ],
)
def test_a_malformed_file_names_its_line(tmp_path: Path, content: bytes, line: int) -> None:
    """A wrong, repeated, cut off or undecodable value is found by file and line."""
    path = tmp_path / "my.toml"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_toml(path)
    assert caught.value.where == f"{path}:{line}"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A path that leads nowhere is an input error, with the system's reason."""
    with pytest.raises(InputError, match=r"file must be readable \(got No such file .*none.toml"):
        read_toml(tmp_path / "none.toml")


def test_endless_nesting_is_refused(tmp_path: Path) -> None:
    """A file built to exhaust the stack is an input error too."""
    path = tmp_path / "deep.toml"
    path.write_text("a = " + "[" * 20_000)
    with pytest.raises(InputError, match="deep"):
        read_toml(path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ('"8"', "8"),
        ("700 W", "700 W"),
        ("bf16", "bf16"),
        ("1\nother = 2", "1\nother = 2"),
    ],
)
def test_a_value_follows_toml_else_it_is_text(text: str, value: object) -> None:
    """What TOML can read has TOML's type, everything else stays as written."""
    assert parse_value(text) == value


def test_a_path_reaches_nested_tables() -> None:
    """Missing tables are made and what stood beside is kept."""
    mapping: dict[str, Any] = {"hbm": {"stacks": 6}}
    set_path(mapping, "hbm.bandwidth_bytes_per_s", "6 TB/s")
    set_path(mapping, "plan.tp", "8")
    assert mapping == {
        "hbm": {"stacks": 6, "bandwidth_bytes_per_s": "6 TB/s"},
        "plan": {"tp": 8},
    }


@pytest.mark.parametrize("path", ["", ".", "a..b", "a.", "sm_count.x"])
def test_an_impossible_path_is_refused(path: str) -> None:
    """Empty parts and paths through a value change nothing and say so."""
    mapping: dict[str, Any] = {"sm_count": 132}
    with pytest.raises(InputError):
        set_path(mapping, path, "1")
    assert mapping == {"sm_count": 132}


@pytest.mark.parametrize("text", ["hbm", "=1", "a=", "a = "])
def test_an_assignment_needs_both_sides(text: str) -> None:
    """path=value is split at the first equals sign, and neither side may be missing."""
    assert split_assignment("a.b = c=d") == ("a.b", "c=d")
    with pytest.raises(InputError, match="path=value"):
        split_assignment(text)


def test_a_write_replaces_the_whole_file(tmp_path: Path) -> None:
    """After a write the file holds exactly the new content and nothing else is left."""
    path = tmp_path / "out.json"
    write_atomic(path, "a long first content")
    write_atomic(path, b"second")
    assert path.read_bytes() == b"second"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the rename fails, the old content stands and no temporary file is left."""
    path = tmp_path / "out.json"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(InputError, match=r"writable \(got No space left on device\)"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_into_nowhere_is_refused(tmp_path: Path) -> None:
    """A missing folder is an input error that names the path."""
    with pytest.raises(InputError, match=r"file must be writable .*missing"):
        write_atomic(tmp_path / "missing" / "out.json", "x")


def test_a_write_follows_a_link(tmp_path: Path) -> None:
    """A symbolic link stays a link to the file that is rewritten."""
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_atomic(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
