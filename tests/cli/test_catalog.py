"""`stepsim list` and `stepsim show`: everything that is known, with its sources."""

from __future__ import annotations

import pytest

from archs.calibration import calibration_ids, load_calibration
from archs.gpu import gpu_ids, load_gpu
from archs.hbm import hbm_generations
from archs.systems import system_ids
from simulator.cli.catalog import KINDS
from tests.cli.commands import stepsim
from validation.records import read_runs
from validation.validate import RUNS
from workloads.catalog import load_model, model_ids, model_source

IDS = {
    "gpus": gpu_ids(),
    "systems": system_ids(),
    "models": model_ids(),
    "hbm": [each.name for each in hbm_generations()],
    "calibrations": calibration_ids(),
    "runs": [run.id for run in read_runs(RUNS)],
}


def test_the_kinds_are_counted() -> None:
    """Without a kind, `list` counts each; as JSON and for people."""
    assert stepsim("list", "--json").json == {kind: len(ids) for kind, ids in IDS.items()}
    out = stepsim("list").out
    assert all(kind in out for kind in KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_listing_holds_every_id(kind: str) -> None:
    """Each kind lists all its ids, in JSON in the catalog's order and in the table uncut."""
    listed = stepsim("list", kind, "--json").json
    assert [next(iter(row.values())) for row in listed] == IDS[kind]
    words = stepsim("list", kind).out.split()
    assert all(name in words for name in IDS[kind])


def test_a_kind_may_be_singular_or_plural() -> None:
    """`list gpu` and `show gpus NAME` mean what they seem to mean."""
    assert stepsim("list", "gpu", "--json").out == stepsim("list", "gpus", "--json").out
    assert stepsim("show", "gpus", "h200").out == stepsim("show", "gpu", "h200").out


def test_json_keys_carry_their_units() -> None:
    """A listed GPU has its numbers in base units, under keys that name them."""
    rows = {row["id"]: row for row in stepsim("list", "gpus", "--json").json}
    row, gpu = rows["h200-sxm-141gb"], load_gpu("h200-sxm-141gb")
    assert row["memory_bytes_per_s"] == gpu.hbm.bandwidth_bytes_per_s
    assert row["half_precision_flops_per_s"] == gpu.tensor_flops_per_s["bf16"]
    assert row["calibrated"] is True


def test_a_gpu_is_shown_with_the_source_of_every_number() -> None:
    """Each value's source and kind stand beside it, in JSON under its dotted path."""
    gpu = load_gpu("h200-sxm-141gb")
    shown = stepsim("show", "gpu", "h200-sxm-141gb", "--json").json
    assert shown["hbm"]["bandwidth_bytes_per_s"] == gpu.hbm.bandwidth_bytes_per_s
    assert shown["provenance"].keys() == gpu.provenance.keys()
    origin = shown["provenance"]["hbm.bandwidth_bytes_per_s"]
    assert origin["source"] == gpu.source_of("hbm.bandwidth_bytes_per_s").source
    table = stepsim("show", "gpu", "h200-sxm-141gb").out
    assert "hbm.bandwidth_bytes_per_s" in table
    assert "spec" in table


def test_an_alias_shows_the_same() -> None:
    """A GPU may be shown by any of its names."""
    assert stepsim("show", "gpu", "H200").out == stepsim("show", "gpu", "h200-sxm-141gb").out


@pytest.mark.parametrize("name", ["llama3-8b", "resnet50"])
def test_a_model_is_shown_with_its_source_and_size(name: str) -> None:
    """A model's page has its shape, its parameters and where the shape comes from."""
    shown = stepsim("show", "model", name, "--json").json
    assert shown["parameters"] == load_model(name).parameter_count()
    assert shown["source"] == model_source(name)
    assert model_source(name).split(",")[0] in stepsim("show", "model", name).out


def test_a_system_names_its_gpu() -> None:
    """A system's page gives its GPU by id and the source of its other values."""
    shown = stepsim("show", "system", "dgx-h100", "--json").json
    assert shown["gpu"] == "h100-sxm-80gb"
    assert shown["gpus"] == 8
    assert "gpus_per_node" in shown["provenance"]


def test_a_calibration_is_shown_whole_as_json() -> None:
    """As JSON a calibration is complete; for people, data and residuals are tables."""
    found = load_calibration("h200-sxm-141gb")
    shown = stepsim("show", "calibration", "h200-sxm-141gb", "--json").json
    assert shown == found.model_dump(mode="json")
    out = stepsim("show", "calibration", "h200-sxm-141gb").out
    assert all(name in out for name in found.residuals)
    assert all(source.file in out for source in found.sources)


def test_a_run_is_shown_as_it_was_recorded() -> None:
    """A run's page has the fields of its record."""
    (run,) = [run for run in read_runs(RUNS) if run.id == "h200-r50-256"]
    shown = stepsim("show", "run", "h200-r50-256", "--json").json
    assert shown["measured"]["step_time_s"] == run.measured.step_time_s


def test_an_hbm_generation_is_shown() -> None:
    """A generation of HBM has its bus and the sources of it."""
    shown = stepsim("show", "hbm", "hbm4", "--json").json
    assert shown["bus_bits"] == 2048
    assert "bus_bits" in shown["provenance"]
