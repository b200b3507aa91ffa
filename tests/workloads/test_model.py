"""Model shapes: published parameter counts, what a family implies, FLOPs, and refused shapes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archs.errors import InputError
from tests.strategies import transformers
from workloads import resnet, transformer
from workloads.catalog import load_model, parse_model
from workloads.model import FAMILY_DEFAULTS, ResNet50, TransformerModel
from workloads.tape import Tape, Tensor

PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "resnet50": 25_557_032,
}
"""Parameters as the released checkpoints count them (resnet50: torchvision)."""

TINY: dict[str, Any] = {"family": "llama", "hidden": 64, "layers": 1, "heads": 4, "vocab": 10}


def declared_parameters(model: TransformerModel, seq_len: int) -> int:
    """Elements of the parameters that lowering declares: those of a block count for each layer."""
    tape = Tape()
    outer = transformer.outer_parameters(tape, model, "bf16", seq_len).tensors()
    block = transformer.block_parameters(tape, model, "bf16").tensors()
    return sum(p.elements for p in outer) + model.layers * sum(p.elements for p in block)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_are_the_published_ones(name: str) -> None:
    """A catalog model has exactly as many parameters as its released checkpoint."""
    assert load_model(name).parameter_count() == PUBLISHED[name]


@given(transformers(max_layers=100), st.integers(1, 10_000))
def test_parameter_count_is_what_lowering_declares(model: TransformerModel, seq_len: int) -> None:
    """The formula and the parameters declared on a tape agree for every transformer."""
    assert model.parameter_count(seq_len) == declared_parameters(model, seq_len)


@pytest.mark.parametrize("classes", [10, 1000])
def test_resnet_parameters_are_those_of_its_layers(classes: int) -> None:
    """The declared parameters of ResNet-50 sum to its count, for any number of classes."""
    network = resnet.Network(Tape(), "fp32", compiled=False)
    network.forward(Tensor((1, 3, 224, 224), "fp32", None), classes)
    model = ResNet50(family="resnet50", classes=classes)
    assert sum(p.elements for p in network.parameters) == model.parameter_count()
    assert len(network.parameters) == 161


@pytest.mark.parametrize("family", FAMILY_DEFAULTS)
def test_family_supplies_what_is_not_given(family: str) -> None:
    """Every default of a family holds, with as many key heads as heads and a four-fold FFN."""
    model = TransformerModel.model_validate({**TINY, "family": family})
    found = {key: getattr(model, key) for key in FAMILY_DEFAULTS[family]}
    assert found == FAMILY_DEFAULTS[family]
    assert (model.kv_heads, model.ffn, model.head_size) == (4, 256, 16)


@pytest.mark.parametrize("family", FAMILY_DEFAULTS)
def test_what_is_given_wins_over_the_family(family: str) -> None:
    """Each default of a family can be overridden, and null means not given."""
    changed = {
        key: (not value if isinstance(value, bool) else other)
        for key, value in FAMILY_DEFAULTS[family].items()
        for other in ["rms_norm" if key == "norm" else "alibi" if value == "rotary" else "rotary"]
    }
    given_fields = {**TINY, "family": family}
    model = TransformerModel.model_validate({**given_fields, **changed})
    assert {key: getattr(model, key) for key in changed} == changed
    nulls = dict.fromkeys(changed)
    plain = TransformerModel.model_validate({**given_fields, **nulls})
    assert plain == TransformerModel.model_validate(given_fields)


@given(transformers())
def test_matmul_flops_follow_the_weights(model: TransformerModel) -> None:
    """Forward matmul FLOPs a token are twice the weights of the linear and output layers."""
    biases_and_norms = model.layers * 2 * model.norm_parameter_count()
    if model.bias:
        kv, ffn = model.kv_size, model.ffn * (2 if model.gated_ffn else 1)
        q = model.heads * model.head_size
        biases_and_norms += model.layers * (q + 2 * kv + ffn + 2 * model.hidden)
    blocks = model.layers * model.block_parameter_count() - biases_and_norms
    expected = 2 * (blocks + model.vocab * model.hidden)
    assert model.matmul_flops_per_token() == expected


@given(transformers(), st.integers(1, 100_000))
def test_causal_attention_counts_half_of_the_square(model: TransformerModel, seq_len: int) -> None:
    """Two products of seq x seq x head size a head, halved by the mask, spread over the tokens."""
    width = model.heads * model.head_size
    full = 2 * 2.0 * seq_len * seq_len * width * model.layers
    assert model.attention_flops_per_token(seq_len) == full / 2 / seq_len


def test_head_dim_sets_the_width_of_attention() -> None:
    """A head size of its own frees the hidden size from the number of heads."""
    model = TransformerModel.model_validate({**TINY, "hidden": 100, "heads": 3, "head_dim": 32})
    assert (model.head_size, model.kv_size) == (32, 96)
    assert declared_parameters(model, 8) == model.parameter_count(8)


@pytest.mark.parametrize(
    ("change", "rule", "got", "key"),
    [
        ({"hidden": 0}, "hidden must be greater than 0", "0", "hidden"),
        ({"layers": -1}, "layers must be greater than 0", "-1", "layers"),
        ({"hidden": float("nan")}, "hidden must be a finite number", "nan", "hidden"),
        ({"heads": 2.5}, "heads must be a valid integer", "2.5", "heads"),
        ({"heads": "many"}, "heads must be a valid integer", "many", "heads"),
        ({"hiden": 64}, "key must be a known name", "hiden", "hiden"),
        ({"norm": "batch_norm"}, "norm must be 'layer_norm' or 'rms_norm'", "batch_norm", "norm"),
    ],
)
def test_bad_shapes_are_refused(change: dict[str, Any], rule: str, got: str, key: str) -> None:
    """Each shape that cannot be is one line: the field's rule, the value, and where it stands."""
    with pytest.raises(InputError) as caught:
        parse_model({**TINY, **change}, "here")
    text = str(caught.value)
    assert text.startswith(rule)
    assert text.endswith((f".{key}", f":{key}"))
    assert f"(got {got}) in here:" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"heads": 3}, "heads must divide hidden 64 (got 3)"),
        ({"kv_heads": 3}, "kv_heads must divide heads 4 (got 3)"),
        ({"family": "gtp"}, "family must be a known name, nearest: gpt (got gtp)"),
    ],
)
def test_shapes_that_do_not_fit_together_are_refused(change: dict[str, Any], rule: str) -> None:
    """Indivisible heads and unknown families are one line with the rule and the place."""
    with pytest.raises(InputError) as caught:
        parse_model({**TINY, **change}, "here")
    text = str(caught.value)
    assert text.startswith(rule)
    assert "in here" in text
    assert text.count("(got ") == 1


@pytest.mark.parametrize("key", ["hidden", "layers", "heads", "vocab", "family"])
def test_missing_shapes_are_named(key: str) -> None:
    """A shape without one of the sizes that have no default is refused by name."""
    with pytest.raises(InputError, match=key):
        parse_model({k: v for k, v in TINY.items() if k != key}, "here")
