"""What to train and how: Workload, Plan (parallelism) and Stack (software)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from archs.errors import InputError

from .model import Model

PRECISIONS: dict[str, tuple[str, str, str | None]] = {
    "amp-bf16": ("fp32", "fp32", "bf16"),
    "amp-fp16": ("fp32", "fp32", "fp16"),
    "bf16": ("bf16", "bf16", None),
    "fp16": ("fp16", "fp16", None),
    "fsdp-mixed": ("fp32", "fp32", "bf16"),
}
"""Precision name to (parameter dtype, gradient dtype, compute dtype where it is another)."""


MAX_TOKENS = 2**26
"""Most tokens of a micro-batch: more than any machine's memory takes."""


class Workload(BaseModel):
    """One step's work: the model, the sequence length and the batch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Model
    seq_len: Annotated[int, Field(gt=0, le=2**24)] | None = None
    task: Literal["pretrain"] = "pretrain"
    micro_batch: Annotated[int, Field(gt=0, le=2**16)] = 1
    grad_accum: Annotated[int, Field(gt=0, le=2**14)] = 1
    global_batch: PositiveInt

    @model_validator(mode="before")
    @classmethod
    def _batches(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("global_batch") is None:
            micro, steps = data.get("micro_batch", 1), data.get("grad_accum", 1)
            if isinstance(micro, int) and isinstance(steps, int):
                return {**data, "global_batch": micro * steps}
        return data

    @model_validator(mode="after")
    def _sequence(self) -> Workload:
        if self.model.family != "resnet50" and self.seq_len is None:
            raise InputError("seq_len must be given for a language model", None)
        tokens = self.micro_batch * (self.seq_len or 1)
        if tokens > MAX_TOKENS:
            raise InputError(f"micro_batch x seq_len must be at most {MAX_TOKENS}", tokens)
        return self


class Plan(BaseModel):
    """How the step is spread over GPUs; ranks = dp x tp x pp x cp."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dp: PositiveInt = 1
    tp: PositiveInt = 1
    pp: PositiveInt = 1
    vpp: PositiveInt = 1
    cp: PositiveInt = 1
    ep: PositiveInt = 1
    sharding: Literal["none", "zero1", "zero2", "zero3"] = "none"
    sequence_parallel: bool = False
    recompute: Literal["none", "selective", "full"] = "none"
    schedule: str | None = None

    @property
    def ranks(self) -> int:
        """GPUs that the plan uses."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def sharded(self) -> bool:
        """Whether data-parallel ranks each keep a part of parameters or states."""
        return self.sharding != "none"


class Stack(BaseModel):
    """The software that runs the step and what it turns a layer into."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["pytorch"] = "pytorch"
    version: str | None = None
    execution: Literal["eager", "compile"] = "eager"
    compile_scope: Literal["block", "full"] | None = None
    attention: Literal["sdpa"] = "sdpa"
    precision: Literal["amp-bf16", "amp-fp16", "bf16", "fp16", "fsdp-mixed"] = "amp-bf16"
    optimizer: Literal["adamw-fused", "sgd-momentum"] = "adamw-fused"
    grad_clip: bool = True

    @property
    def param_dtype(self) -> str:
        """Dtype of parameters and optimizer states."""
        return PRECISIONS[self.precision][0]

    @property
    def autocast_dtype(self) -> str | None:
        """Compute dtype of an autocast region, or None without autocast."""
        return PRECISIONS[self.precision][2] if self.precision.startswith("amp") else None

    @property
    def compute_dtype(self) -> str:
        """Dtype of matrix products."""
        return PRECISIONS[self.precision][2] or self.param_dtype
