"""Model shapes: dense transformers (GPT and Llama families) and ResNet-50."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from archs.errors import InputError

FAMILY_DEFAULTS: dict[str, dict[str, Any]] = {
    "gpt": {"norm": "layer_norm", "positions": "learned", "gated_ffn": False, "bias": True,
            "tied_embeddings": True, "fused_qkv": True},
    "llama": {"norm": "rms_norm", "positions": "rotary", "gated_ffn": True, "bias": False,
              "tied_embeddings": False, "fused_qkv": False},
    "mpt": {"norm": "layer_norm", "positions": "alibi", "gated_ffn": False, "bias": False,
            "tied_embeddings": True, "fused_qkv": True, "norm_bias": False},
}  # fmt: skip
"""What a family implies where a description does not say otherwise."""


class TransformerModel(BaseModel):
    """A dense decoder-only transformer; ``family`` supplies what is not given."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    family: Literal["gpt", "llama", "mpt"]
    name: str | None = None
    hidden: PositiveInt
    layers: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    ffn: PositiveInt
    vocab: PositiveInt
    head_dim: PositiveInt | None = None
    max_positions: int = 0
    norm: Literal["layer_norm", "rms_norm"]
    norm_bias: bool = True
    positions: Literal["learned", "rotary", "alibi"]
    gated_ffn: bool
    bias: bool
    tied_embeddings: bool
    fused_qkv: bool

    @model_validator(mode="before")
    @classmethod
    def _family_defaults(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        filled = {k: v for k, v in data.items() if v is not None}
        for key, value in FAMILY_DEFAULTS.get(filled.get("family", ""), {}).items():
            filled.setdefault(key, value)
        if "heads" in filled:
            filled.setdefault("kv_heads", filled["heads"])
        if isinstance(filled.get("hidden"), int):
            filled.setdefault("ffn", 4 * filled["hidden"])
        return filled

    @model_validator(mode="after")
    def _divisible(self) -> TransformerModel:
        if self.head_dim is None and self.hidden % self.heads:
            raise InputError(f"heads must divide hidden {self.hidden}", self.heads)
        if self.heads % self.kv_heads:
            raise InputError(f"kv_heads must divide heads {self.heads}", self.kv_heads)
        return self

    @property
    def head_size(self) -> int:
        """Width of one head."""
        return self.head_dim or self.hidden // self.heads

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads."""
        return self.kv_heads * self.head_size

    def block_parameter_count(self) -> int:
        """Parameters of one block."""
        h, q = self.hidden, self.heads * self.head_size
        matrices = 2 if self.gated_ffn else 1
        weights = h * (2 * q + 2 * self.kv_size) + (matrices + 1) * h * self.ffn
        biases = (q + 2 * self.kv_size + h + matrices * self.ffn + h) if self.bias else 0
        return weights + biases + 2 * self.norm_parameter_count()

    def norm_parameter_count(self) -> int:
        """Parameters of one normalisation."""
        return self.hidden * (2 if self.norm == "layer_norm" and self.norm_bias else 1)

    def parameter_count(self, seq_len: int = 0) -> int:
        """All parameters; learned positions reach to ``seq_len`` or the model's own maximum."""
        outer = self.vocab * self.hidden * (1 if self.tied_embeddings else 2)
        if self.positions == "learned":
            outer += max(seq_len, self.max_positions) * self.hidden
        return self.layers * self.block_parameter_count() + outer + self.norm_parameter_count()

    def matmul_flops_per_token(self) -> float:
        """Forward FLOPs of the linear layers for one token, output layer included."""
        h, q = self.hidden, self.heads * self.head_size
        matrices = 3 if self.gated_ffn else 2
        per_block = h * (2 * q + 2 * self.kv_size) + matrices * h * self.ffn
        return 2.0 * (self.layers * per_block + h * self.vocab)

    def attention_flops_per_token(self, seq_len: int) -> float:
        """Forward FLOPs of causal attention for one token: half of the full square."""
        return 2.0 * self.layers * self.heads * self.head_size * seq_len


class ResNet50(BaseModel):
    """torchvision's ResNet-50 (v1.5: stride in the 3x3 convolution)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    family: Literal["resnet50"]
    name: str | None = None
    image_size: PositiveInt = 224
    classes: PositiveInt = 1000

    def parameter_count(self) -> int:
        """All parameters (25.56 million with 1,000 classes)."""
        return 23_508_032 + 2048 * self.classes + self.classes


Model = Annotated[TransformerModel | ResNet50, Field(discriminator="family")]
