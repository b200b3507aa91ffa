"""Systems: the catalog loads, hosts are filled in from a measurement, single hosts can be built."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archs.catalogs import DIRECTORY
from archs.errors import InputError
from archs.gpu import Gpu, load_gpu
from archs.overriding import plain_values
from archs.provenance import leaves
from archs.system import PLAIN_KEYS, System
from archs.systems import load_system, single_node, system_ids
from tests.strategies import gpus, systems

REQUIRED = [
    "dgx-1-v100",
    "dgx-a100",
    "dgx-h100",
    "dgx-h200",
    "dgx-b200",
    "gb200-nvl72",
    "pcie-l40s-8",
]


def _paths_of(system: System) -> set[str]:
    values = plain_values(system)
    return {path for path, _ in leaves(values) if path.split(".")[0] not in PLAIN_KEYS}


def test_the_catalog_holds_the_promised_systems() -> None:
    """Every system that the plan names is there."""
    assert set(REQUIRED) <= set(system_ids())


@pytest.mark.parametrize("system_id", system_ids())
def test_a_system_loads_with_all_origins(system_id: str) -> None:
    """The file is valid, its id is its file name, and each value cites a source."""
    system = load_system(system_id)
    assert system.id == system_id
    assert _paths_of(system) == set(system.provenance)


@pytest.mark.parametrize("system_id", system_ids())
def test_network_figures_agree(system_id: str) -> None:
    """Ports times port bandwidth is what all GPUs together get, where all three are printed."""
    network = load_system(system_id).network
    if network is None or network.nics is None:
        assert system_id in {"pcie-l40s-8", "rubin-ultra-nvl576"}
        return
    assert network.nic_bandwidth_bytes_per_s is not None
    per_gpu = network.bandwidth_per_gpu_bytes_per_s
    assert per_gpu == network.nics * network.nic_bandwidth_bytes_per_s / load_system(system_id).gpus


@pytest.mark.parametrize("system_id", system_ids())
def test_in_switch_reduction_needs_switch_and_gpu(system_id: str) -> None:
    """Only switches add in flight, and only for GPUs that can ask them to."""
    system = load_system(system_id)
    if system.fabric.in_switch_reduction:
        assert system.fabric.switched
        assert system.gpu.scaleup is not None
        assert system.gpu.scaleup.in_switch_reduction


def test_known_values() -> None:
    """Bits become bytes, one direction; racks have small hosts and one large domain."""
    dgx = load_system("DGX-H200")
    assert (dgx.gpu.id, dgx.gpus, dgx.gpus_per_node, dgx.nodes) == ("h200-sxm-141gb", 8, 8, 1)
    assert dgx.network is not None
    assert dgx.network.nic_bandwidth_bytes_per_s == 50e9
    rack = load_system("gb200-nvl72")
    assert (rack.gpus_per_node, rack.nodes, rack.fabric.domain_gpus) == (4, 18, 72)
    assert load_system("pcie-box").fabric.domain_gpus == 1


def test_an_unmeasured_host_takes_the_measured_default() -> None:
    """The launch times are those of the benchmark, and the origin says that they are another's."""
    system = load_system("dgx-a100")
    assert (system.host.eager_launch_s, system.host.graph_launch_s) == (7.8e-6, 8.8e-7)
    origin = system.source_of("host.eager_launch_s")
    assert origin.kind == "measured"
    assert "another host's" in (origin.note or "")


def test_a_host_of_its_own_is_kept(tmp_path: Path) -> None:
    """A file that gives its host's launch time keeps it, and its GPU may lie beside it."""
    text = (DIRECTORY / "systems" / "dgx-h200.toml").read_text()
    mine = 'eager_launch_s = { value = "5 us", source = "core", kind = "measured" }'
    text = text.replace("[host]", f"[host]\n{mine}").replace("h200-sxm-141gb", "gpu.toml")
    (tmp_path / "gpu.toml").write_text((DIRECTORY / "reference.toml").read_text())
    (tmp_path / "system.toml").write_text(text)
    system = load_system(tmp_path / "system.toml")
    assert system.host.eager_launch_s == 5e-6
    assert system.source_of("host.eager_launch_s").note is None
    assert system.gpu == load_gpu("h200")


def test_overrides_reach_system_and_gpu() -> None:
    """Paths that start with gpu. change the GPU, all others the system."""
    system = load_system("dgx-h200", {"gpu.sm_count": "144", "host.eager_launch_s": "4 us"})
    assert (system.gpu.sm_count, system.host.eager_launch_s) == (144, 4e-6)
    assert system.source_of("gpu.sm_count").source == "override"
    assert system.source_of("host.eager_launch_s").source == "override"
    assert load_system("dgx-h200").gpu.sm_count == 132


@given(gpus(), st.integers(1, 8))
def test_a_single_host_has_what_was_asked_for(gpu: Gpu, count: int) -> None:
    """The GPU is kept with its overrides, and every value of the system has an origin."""
    system = single_node(gpu, count)
    assert (system.gpu, system.gpus, system.nodes) == (gpu, count, 1)
    assert 1 <= system.fabric.domain_gpus <= count
    assert _paths_of(system) == set(system.provenance)


@given(systems())
def test_a_system_written_back_is_the_same(system: System) -> None:
    """Overriding a value with itself changes nothing but its origin."""
    again = system.with_overrides({"host.graph_launch_s": repr(system.host.graph_launch_s)})
    assert plain_values(again) == plain_values(system)


def test_the_scale_up_domain_allows_more_than_eight() -> None:
    """A rack's domain can be taken as one host of up to 72 GPUs; an SXM board stops at 8."""
    assert single_node(load_gpu("gb200"), 72).fabric.domain_gpus == 72
    assert single_node(load_gpu("h100-pcie"), 8).fabric.domain_gpus == 2
    assert single_node(load_gpu("l40s"), 4).fabric.topology == "PCIe"


@pytest.mark.parametrize("count", [0, -1, 9])
def test_an_impossible_number_of_gpus_is_refused(count: int) -> None:
    """The message gives the possible range."""
    with pytest.raises(InputError, match=r"gpus must be a whole number from 1 to 8 .*got "):
        single_node(load_gpu("h200"), count)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"gpus": "12"}, "gpus must be a multiple of gpus_per_node, 8"),
        ({"fabric.domain_gpus": "16"}, "domain_gpus must be at most gpus, 8"),
        ({"host.eager_launch_s": "-1 us"}, "eager_launch_s must be greater than 0"),
        ({"host.eager_lunch_s": "1 us"}, "nearest: eager_launch_s"),
        ({"gpu.sm_cuont": "1"}, "nearest: sm_count"),
        ({"gpu": "t4"}, "gpu must be exchanged by naming another system"),
        ({"provenance": "1"}, "path must name a value"),
    ],
)
def test_a_bad_override_is_refused(overrides: dict[str, str], message: str) -> None:
    """Contradictions, wrong signs and unknown paths are named, also inside the GPU."""
    with pytest.raises(InputError, match=message):
        load_system("dgx-h200", overrides)


def test_an_unknown_system_or_gpu_gives_the_nearest(tmp_path: Path) -> None:
    """A wrong name is answered with near ones, also for the GPU that a file names."""
    with pytest.raises(InputError, match="system must be a known name, nearest: dgx-h"):
        load_system("dgx-h20")
    text = (DIRECTORY / "systems" / "dgx-h200.toml").read_text()
    path = tmp_path / "mine.toml"
    path.write_text(text.replace('"h200-sxm-141gb"', '"h200-sxm-141"'))
    with pytest.raises(InputError, match=r"gpu must be a known name, nearest: h200.*mine.toml:gpu"):
        load_system(path)
