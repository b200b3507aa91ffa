"""A calibration as a TOML document."""

from __future__ import annotations

from typing import Any

from archs.calibration import Calibration


def as_toml(calibration: Calibration) -> str:
    """The calibration as a TOML document that ``load_calibration`` reads back."""
    lines = ["# Fitted by `stepsim calibrate`; do not edit by hand.", ""]
    tables: list[tuple[str, Any]] = []
    for key, value in calibration.model_dump(mode="json").items():
        if isinstance(value, dict):
            tables.append((key, value))
        elif key != "sources":
            lines.append(f"{key} = {_value(value)}")
    for source in calibration.sources:
        lines += ["", "[[sources]]"]
        lines += [f"{k} = {_value(v)}" for k, v in source.model_dump().items()]
    for name, table in tables:
        lines += _table(name, table)
    return "\n".join(lines) + "\n"


def _table(name: str, table: dict[str, Any]) -> list[str]:
    plain = {k: v for k, v in table.items() if not isinstance(v, dict)}
    lines = ["", f"[{name}]"] if plain or not table else []
    lines += [f"{_key(k)} = {_value(v)}" for k, v in plain.items()]
    for key, value in table.items():
        if isinstance(value, dict):
            lines += _table(f"{name}.{_key(key)}", value)
    return lines


def _key(key: str) -> str:
    return key if key.replace("_", "").isalnum() else f'"{key}"'


def _value(value: Any) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, list):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    if isinstance(value, float):
        return f"{value:.6g}" if value else "0.0"
    return str(value)
