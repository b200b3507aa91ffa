"""The model catalog: complete, sourced, and helpful about names that it does not have."""

from __future__ import annotations

import pytest

from archs.errors import InputError
from workloads.catalog import load_model, model_ids, model_source
from workloads.model import TransformerModel

FAMILIES = {
    "gpt": ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt3-125m", "gpt3-350m", "gpt3-760m",
            "gpt3-1.3b", "gpt3-2.7b", "gpt3-6.7b", "gpt3-13b", "gpt3-175b", "megatron-22b",
            "megatron-175b", "megatron-530b", "megatron-1t"],
    "llama": ["llama2-7b", "llama2-13b", "llama2-70b", "llama3.2-1b", "llama3.2-3b", "llama3-8b",
              "llama3-70b", "llama3-405b"],
    "mpt": ["mpt-125m", "mpt-350m", "mpt-760m", "mpt-1b", "mpt-3b", "mpt-7b", "mpt-13b",
            "mpt-30b", "mpt-70b"],
    "resnet50": ["resnet50"],
}  # fmt: skip


def test_catalog_is_complete() -> None:
    """The catalog has the GPT-2, GPT-3, Megatron, Llama and MPT sizes and ResNet-50."""
    assert sorted(model_ids()) == sorted(name for names in FAMILIES.values() for name in names)


@pytest.mark.parametrize("name", model_ids())
def test_every_model_loads_under_its_name_with_a_source(name: str) -> None:
    """A catalog model validates, knows its name and family, and says where its shape is from."""
    model = load_model(name)
    assert model.name == name
    assert name in FAMILIES[model.family]
    assert len(model_source(name)) > 10


@pytest.mark.parametrize("name", [n for n in model_ids() if n[-1] in "bmt" and n[-2].isdigit()])
def test_size_in_the_name_is_the_size(name: str) -> None:
    """A model named after its parameters has within 10 percent of them (MPT-30B counts 29.96 B)."""
    model = load_model(name)
    text = name.rsplit("-", 1)[-1]
    named = float(text[:-1]) * {"m": 1e6, "b": 1e9, "t": 1e12}[text[-1]]
    assert isinstance(model, TransformerModel)
    counted = model.parameter_count()
    if name in ("llama3.2-1b", "mpt-1b", "mpt-3b", "mpt-70b", "llama3.2-3b"):
        assert counted == pytest.approx(named, rel=0.32)
    else:
        assert counted == pytest.approx(named, rel=0.1)


def test_unknown_name_is_answered_with_the_nearest() -> None:
    """A misspelt model is refused in one line that names the nearest models."""
    with pytest.raises(InputError) as caught:
        load_model("llama3-8")
    assert "nearest: llama3-8b" in str(caught.value)
    assert str(caught.value).endswith("(got llama3-8) in workload.model")
