"""GPU descriptors: all of the catalog loads, says where it comes from, and can be changed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archs.catalogs import DIRECTORY
from archs.errors import InputError
from archs.gpu import PLAIN_KEYS, Gpu, gpu_ids, load_gpu
from archs.overriding import plain_values
from archs.provenance import leaves
from archs.reading import read_toml
from tests.strategies import gpus

REFERENCE = DIRECTORY / "reference.toml"
REQUIRED = [
    "t4",
    "v100-sxm2-16gb",
    "v100-sxm2-32gb",
    "a100-sxm-40gb",
    "a100-sxm-80gb",
    "a100-pcie-80gb",
    "a800-sxm-80gb",
    "h100-sxm-80gb",
    "h100-pcie-80gb",
    "h100-nvl-94gb",
    "h800-sxm-80gb",
    "h20-96gb",
    "h200-sxm-141gb",
    "l40s",
    "rtx-4090",
    "b200-sxm",
    "gb200",
    "b300-sxm",
    "gb300",
    "rubin-r200",
    "rubin-ultra",
    "mi250x",
    "mi300x",
    "mi325x",
    "mi355x",
    "mi455x",
]


def test_the_catalog_holds_the_promised_gpus() -> None:
    """Every GPU that records and issues name is there."""
    assert set(REQUIRED) <= set(gpu_ids())


@pytest.mark.parametrize("gpu_id", gpu_ids())
def test_a_descriptor_loads_under_its_own_name(gpu_id: str) -> None:
    """The file is valid and its id is its file name."""
    assert load_gpu(gpu_id).id == gpu_id


@pytest.mark.parametrize("gpu_id", gpu_ids())
def test_every_value_says_where_it_comes_from(gpu_id: str) -> None:
    """Values and origins are the same set of paths, names of the product apart."""
    gpu = load_gpu(gpu_id)
    paths = {path for path, _ in leaves(plain_values(gpu)) if path.split(".")[0] not in PLAIN_KEYS}
    assert paths == set(gpu.provenance)


@pytest.mark.parametrize("gpu_id", gpu_ids())
def test_every_source_is_used(gpu_id: str) -> None:
    """A file lists no source that no value cites, so that a reader can trust the list."""
    gpu = load_gpu(gpu_id)
    cited = {origin.source for origin in gpu.provenance.values()}
    raw = read_toml(DIRECTORY / "gpus" / f"{gpu_id}.toml")
    assert set(raw["sources"].values()) - cited == {
        text for key, text in raw["sources"].items() if key == "sanity"
    }


@pytest.mark.parametrize("gpu_id", gpu_ids())
def test_an_unreleased_gpu_is_projected(gpu_id: str) -> None:
    """Figures of a product that is not out are never presented as its specification."""
    gpu = load_gpu(gpu_id)
    if gpu.status != "shipping":
        assert {origin.kind for origin in gpu.provenance.values()} == {"projected"}


def test_no_two_gpus_share_a_name() -> None:
    """Ids and aliases, in any case, mean one GPU each."""
    names = [n.casefold() for i in gpu_ids() for n in (i, *load_gpu(i).aliases)]
    assert len(names) == len(set(names))


def test_the_reference_descriptor_is_the_h200() -> None:
    """The annotated example says exactly what the catalog says, origins included."""
    assert load_gpu(REFERENCE) == load_gpu("h200-sxm-141gb")


def test_the_reference_explains_every_field() -> None:
    """No value or table of the annotated example stands without a comment above its group."""
    text = REFERENCE.read_text()
    tables = [name for name in re.findall(r"^\[(\w+)\]", text, re.MULTILINE) if name != "sources"]
    for name in tables:
        assert re.search(rf"^# .*\n\[{name}\]", text, re.MULTILINE), name
    for key in re.findall(r"^(\w+) = \{", text.split("[tensor_flops_per_s]")[0], re.MULTILINE):
        assert re.search(rf"^# .*\n{key} = ", text, re.MULTILINE), key


def test_known_values_of_the_h200() -> None:
    """Units come out right: dense peaks, one direction, decimal and binary bytes."""
    gpu = load_gpu("h200-sxm-141gb")
    assert gpu.sm_count == 132
    assert gpu.tensor_flops_per_s["bf16"] == 989.4e12
    assert gpu.hbm.bandwidth_bytes_per_s == 4.8e12
    assert gpu.hbm.capacity_bytes == 141e9
    assert gpu.scaleup is not None
    assert gpu.scaleup.bandwidth_bytes_per_s == 450e9
    assert gpu.l2_bytes == 60 * 2**20
    assert gpu.source_of("l2_bytes").kind == "measured"
    assert "50 MB" in (gpu.source_of("l2_bytes").note or "")


@pytest.mark.parametrize("name", ["H200-SXM-141GB", " h200 ", "VR200-R200", "rubin", "Rubin"])
def test_a_name_is_found_in_any_case(name: str) -> None:
    """Ids of other tables and short names lead to the same descriptor."""
    assert load_gpu(name).id in {"h200-sxm-141gb", "rubin-r200"}


def test_an_override_changes_the_value_and_its_origin() -> None:
    """The changed value is projected with source override; everything else is untouched."""
    gpu = load_gpu("h200", {"hbm.bandwidth_bytes_per_s": "6 TB/s", "sm_count": "144"})
    base = load_gpu("h200")
    assert (gpu.hbm.bandwidth_bytes_per_s, gpu.sm_count) == (6e12, 144)
    assert gpu.source_of("sm_count").model_dump(exclude_none=True) == {
        "source": "override",
        "kind": "projected",
    }
    assert gpu.source_of("l2_bytes") == base.source_of("l2_bytes")
    assert gpu.with_overrides({"hbm.bandwidth_bytes_per_s": "4.8 TB/s", "sm_count": "132"}).hbm == (
        base.hbm
    )
    assert base.sm_count == 132


def test_an_override_can_add_what_no_source_gives() -> None:
    """A missing value can be supplied, also a whole missing table."""
    gpu = load_gpu("rubin-ultra", {"power_limit_w": "3600 W"})
    assert gpu.power_limit_w == 3600.0
    links = load_gpu(
        "l40s",
        {"scaleup": '{kind="X", switched=true, in_switch_reduction=false, max_domain_gpus=4}'},
    )
    assert links.scaleup is not None
    assert links.source_of("scaleup.max_domain_gpus").source == "override"


def test_a_single_peak_may_be_changed_alone() -> None:
    """What-if questions need no second override only to stay consistent."""
    gpu = load_gpu("h200", {"tensor_flops_per_s.bf16": "3 PFLOP/s", "boost_clock_hz": "1.2 GHz"})
    assert gpu.tensor_flops_per_s["bf16"] == 3e15


@given(st.sampled_from(gpu_ids()), st.integers(1, 400))
def test_sms_added_by_override_are_of_the_same_strength(gpu_id: str, sms: int) -> None:
    """Changing the SM count alone scales every peak with it, and says that they are projected."""
    base = load_gpu(gpu_id)
    changed = base.with_overrides({"sm_count": str(sms)})
    factor = sms / base.sm_count
    for table in ("tensor_flops_per_s", "sparse_tensor_flops_per_s", "vector_flops_per_s"):
        peaks = getattr(base, table)
        assert getattr(changed, table) == pytest.approx({k: factor * v for k, v in peaks.items()})
        if sms != base.sm_count:
            origins = {changed.source_of(f"{table}.{key}").source for key in peaks}
            assert origins <= {"override"}
    assert changed.hbm == base.hbm


def test_a_peak_given_with_the_sm_count_is_kept() -> None:
    """Of the peaks, those that the user sets are not scaled; all others are."""
    overrides = {"sm_count": "66", "tensor_flops_per_s.bf16": "1 PFLOP/s"}
    changed, base = load_gpu("h200", overrides), load_gpu("h200")
    assert changed.tensor_flops_per_s["bf16"] == 1e15
    assert changed.tensor_flops_per_s["fp16"] == base.tensor_flops_per_s["fp16"] / 2


@given(gpus())
def test_overriding_with_the_own_values_changes_no_value(gpu: Gpu) -> None:
    """Writing a descriptor's numbers back gives the same numbers."""
    again = gpu.with_overrides({"boost_clock_hz": repr(gpu.boost_clock_hz)})
    assert plain_values(again) == plain_values(gpu)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (
            {"hbm.bandwith_bytes_per_s": "1"},
            (
                "key must be a known name, nearest: bandwidth_bytes_per_s "
                "(got bandwith_bytes_per_s) in overrides of h200-sxm-141gb:hbm.bandwith_bytes_per_s"
            ),
        ),
        (
            {"hbm.bandwidth_bytes_per_s": "-1 TB/s"},
            (
                "bandwidth_bytes_per_s must be greater than 0 (got -1 TB/s) "
                "in overrides of h200-sxm-141gb:hbm.bandwidth_bytes_per_s"
            ),
        ),
        (
            {"power_limit_w": "0"},
            (
                "power_limit_w must be greater than 0 (got 0 W) "
                "in overrides of h200-sxm-141gb:power_limit_w"
            ),
        ),
        (
            {"power_limit_w": "nan"},
            "power_limit_w must be finite (got nan W) in overrides of h200-sxm-141gb:power_limit_w",
        ),
        (
            {"sm_count": "-3"},
            "sm_count must be greater than 0 (got -3) in overrides of h200-sxm-141gb:sm_count",
        ),
        (
            {"sm_count": "1.5"},
            "sm_count must be a valid integer (got 1.5) in overrides of h200-sxm-141gb:sm_count",
        ),
        (
            {"hbm.capacity_bytes": "4.8 TB/s"},
            (
                "capacity_bytes must be a number or a size such as '141 GB' (got 4.8 TB/s) "
                "in overrides of h200-sxm-141gb:hbm.capacity_bytes"
            ),
        ),
        (
            {"sm_count.x": "1"},
            "sm_count must be a table to hold other keys (got 132) in sm_count.x",
        ),
        (
            {"provenance.sm_count": "1"},
            "path must name a value, not its provenance (got provenance.sm_count) in overrides",
        ),
        (
            {"base_clock_hz": "2 GHz", "boost_clock_hz": "1 GHz"},
            (
                "base_clock_hz must be at most boost_clock_hz, 1 GHz (got 2 GHz) "
                "in overrides of h200-sxm-141gb"
            ),
        ),
    ],
)
def test_a_bad_override_is_one_clear_line(overrides: dict[str, str], line: str) -> None:
    """Unknown paths, wrong units, signs, NaN and contradictions are named exactly."""
    with pytest.raises(InputError) as caught:
        load_gpu("h200", overrides)
    assert str(caught.value) == line


def test_an_unknown_gpu_gives_the_nearest() -> None:
    """A slip of the pen is answered with what was probably meant."""
    with pytest.raises(
        InputError, match=r"gpu must be a known name, nearest: h100-sxm.*got h100-sx"
    ):
        load_gpu("h100-sx")


@pytest.mark.parametrize("name", ["", " ", "x" * 5000, "a\0b", "a\0b.toml", "/", "no/such.toml"])
def test_any_text_that_names_no_gpu_is_refused(name: str) -> None:
    """Empty, endless and impossible names are input errors like every other."""
    with pytest.raises(InputError):
        load_gpu(name)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (
            'sm_count = { value = 132, source = "core", kind = "spec" }',
            "sm_count = 132",
            "sm_count must be a table with value, source and kind (got 132) in {path}:sm_count",
        ),
        (
            "sm_count = { value = 132",
            "sm_count = { value = 0",
            "sm_count must be greater than 0 (got 0) in {path}:sm_count",
        ),
        (
            "sm_count = { value = 132",
            "sm_cuont = { value = 132",
            "key must be a known name, nearest: sm_count (got sm_cuont) in {path}:sm_cuont",
        ),
        (
            'value = "4.8 TB/s"',
            "value = nan",
            (
                "bandwidth_bytes_per_s must be finite (got nan bytes/s) "
                "in {path}:hbm.bandwidth_bytes_per_s"
            ),
        ),
        (
            'value = "700 W", source = "power"',
            'value = "700 W", source = "powr"',
            "source must be a known name, nearest: power (got powr) in {path}:power_limit_w.source",
        ),
        (
            'value = "700 W", source = "power", kind = "spec"',
            'value = "700 W", source = "power", kind = "guess"',
            (
                "kind must be 'spec', 'measured' or 'projected' (got guess) "
                "in {path}:power_limit_w.kind"
            ),
        ),
        (
            'bf16 = { value = "1978.9',
            'bf16 = { value = "500',
            (
                "tensor_flops_per_s.bf16 must be at most sparse_tensor_flops_per_s.bf16, "
                "500 TFLOP/s (got 989.4 TFLOP/s) in {path}"
            ),
        ),
        (
            "bf16 = {",
            "bf61 = {",
            (
                "bf61 must be 'fp64', 'fp32', 'tf32', 'fp16', 'bf16', 'fp8', 'int8', 'fp6', "
                "'fp4' or 'int4' (got bf61) in {path}:tensor_flops_per_s.bf61"
            ),
        ),
    ],
)
def test_a_bad_file_is_one_clear_line(tmp_path: Path, old: str, new: str, line: str) -> None:
    """A descriptor of one's own that breaks a rule is refused with file and dotted key."""
    text = (DIRECTORY / "gpus" / "h200-sxm-141gb.toml").read_text()
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new))
    with pytest.raises(InputError) as caught:
        load_gpu(path)
    assert str(caught.value) == line.format(path=path)


def test_a_file_of_ones_own_is_read_afresh(tmp_path: Path) -> None:
    """Only shipped descriptors are remembered: an edited file takes effect at once."""
    text = REFERENCE.read_text()
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert load_gpu(str(path)).sm_count == 132
    path.write_text(text.replace("sm_count = { value = 132", "sm_count = { value = 140"))
    assert load_gpu(str(path)).sm_count == 140


def test_a_cut_off_file_names_its_last_line(tmp_path: Path) -> None:
    """A truncated descriptor is reported with file and line."""
    lines = REFERENCE.read_text().splitlines()[:40]
    path = tmp_path / "cut.toml"
    path.write_text("\n".join(lines) + "\nsm_count = { value = 132,")
    with pytest.raises(InputError) as caught:
        load_gpu(path)
    assert caught.value.where == f"{path}:41"


@pytest.mark.parametrize("gpu_id", gpu_ids())
def test_the_memory_interface_agrees_with_the_bandwidth(gpu_id: str) -> None:
    """Bandwidth over bus width is a pin rate that this kind of memory has, within 3 %."""
    hbm = load_gpu(gpu_id).hbm
    if hbm.bus_bits is None:
        assert gpu_id == "rubin-ultra"
        return
    low, high = {
        "HBM2": (1.7e9, 2.5e9), "HBM2e": (3.0e9, 3.6e9), "HBM3": (5.2e9, 6.4e9),
        "HBM3e": (5.8e9, 9.8e9), "HBM4": (7.5e9, 11.7e9), "GDDR6": (10e9, 18e9),
        "GDDR6X": (19e9, 23e9),
    }[hbm.memory_type]  # fmt: skip
    rate = hbm.bandwidth_bytes_per_s * 8 / hbm.bus_bits
    assert low * 0.97 <= rate <= high * 1.03
