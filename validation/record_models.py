"""The fields of a measured record, `measured-run/1` and `measured-inference/1`.

Every field that is not needed to identify a run may be missing or null, which means not stated.
A field that is not listed here is refused, so that no statement of a record is silently ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(min_length=1)]
Settings = Mapping[str, JsonValue]


class Part(BaseModel):
    """A frozen object of a record; unknown fields and values of another type are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, populate_by_name=True, protected_namespaces=()
    )


class Host(Part):
    """The host of one node: its launch costs are seconds a kernel."""

    cpu: str | None = None
    eager_launch_s: Positive | None = None
    graph_launch_s: Positive | None = None


class SystemUsed(Part):
    """The machine of a run: GPU id, counts, and the networks as the source states them."""

    gpu: Name
    num_gpus: Count
    gpus_per_node: Count | None = None
    network: str | None = None
    intra_node: str | None = None
    nvlink_domain: Count | None = None
    host: Host | None = None


class ModelShape(Part):
    """Shape of a model: `family` or `name` says what it is, the sizes say how large.

    `ffn` is the width of dense layers, `moe_ffn` of one expert; `proxy_of_layers` says of how
    many layers the model was before it was cut to `layers`.
    """

    family: Name | None = None
    name: Name | None = None
    hidden: Count | None = None
    layers: Count | None = None
    encoder_layers: Count | None = None
    decoder_layers: Count | None = None
    heads: Count | None = None
    kv_heads: Count | None = None
    head_dim: Count | None = None
    ffn: Count | None = None
    gated_ffn: bool | None = None
    vocab: Count | None = None
    tied_embeddings: bool | None = None
    bias: bool | None = None
    experts: Count | None = None
    topk: Count | None = None
    moe_ffn: Count | None = None
    moe_every: Count | None = None
    shared_experts: Whole | None = None
    dense_layers: Whole | None = None
    expert_capacity: Count | None = None
    q_lora_rank: Count | None = None
    kv_lora_rank: Count | None = None
    qk_nope_head_dim: Count | None = None
    qk_rope_head_dim: Count | None = None
    v_head_dim: Count | None = None
    sliding_window: Count | None = None
    sliding_window_every: Count | None = None
    chunked_attention: Count | None = None
    proxy_of_layers: Count | None = None
    image_size: Count | None = None
    classes: Count | None = None


class TrainingWorkload(Part):
    """What was trained: batches count sequences or images; `micro_batch` is that of one pass."""

    model: ModelShape
    seq_len: Count | None = None
    task: str | None = None
    benchmark: str | None = None
    micro_batch: Count | None = None
    grad_accum: Count | None = None
    global_batch: Count | None = None
    moe_routing: str | None = None


class PlanUsed(Part):
    """Degrees of parallelism, sharding of states and recomputation."""

    dp: Count | None = None
    tp: Count | None = None
    pp: Count | None = None
    vpp: Count | None = None
    cp: Count | None = None
    ep: Count | None = None
    attention_dp_ep: Count | None = None
    sharding: Literal["none", "zero1", "zero2", "zero3"] | None = None
    shard_group: Count | None = None
    sequence_parallel: bool | None = None
    recompute: Literal["none", "selective", "full"] | None = None
    recompute_modules: Annotated[tuple[str, ...], Field(strict=False)] | None = None
    schedule: str | None = None
    async_tp: bool | None = None


class StackUsed(Part):
    """Software of a run; names are kept as stated, the simulator decides which it knows."""

    framework: str | None = None
    framework_label: str | None = None
    version: str | None = None
    torch: str | None = None
    execution: str | None = None
    compile_scope: str | None = None
    attention: str | None = None
    precision: str | None = None
    param_dtype: str | None = None
    compute_dtype: str | None = None
    grad_reduce_dtype: str | None = None
    loss_dtype: str | None = None
    optimizer: str | None = None
    grad_clip: bool | None = None
    grad_bucket_overlap: bool | None = None
    overlap: str | None = None
    fsdp_mixed_precision: str | None = None
    channels_last: bool | None = None
    cudnn_benchmark: bool | None = None
    nccl_nvls: bool | None = None
    tf32: bool | None = None
    xla: bool | None = None
    recipe_extras: Settings | None = None
    config_vars: Settings | None = None


class KernelTotal(Part):
    """Calls and summed seconds of one kernel name in a profiled step."""

    name: str
    count: Count
    total_s: NonNegative


class ProfiledStep(Part):
    """One step under the profiler: busy times are unions of intervals, `comm_total_s` is a sum."""

    span_s: Positive
    gpu_busy_s: Positive
    compute_busy_s: NonNegative
    comm_total_s: NonNegative
    comm_exposed_s: NonNegative
    launches: Count
    streams: Count
    top_kernels: Annotated[tuple[KernelTotal, ...], Field(strict=False)] = ()


class RankMeasured(Part):
    """Figures of one rank."""

    step_time_s: Positive
    peak_memory_allocated_bytes: Count | None = None
    peak_memory_reserved_bytes: Count | None = None
    power_w: Positive | None = None
    sm_clock_mhz: Positive | None = None
    parameters: Count | None = None


class TrainingMeasured(Part):
    """What was measured of a training step; rates without `_per_gpu` are of the whole job.

    `peak_memory_gb` is in `peak_memory_unit`. `implied_*` and `published_*` are not inputs of any
    model: the former are computed from the record, the latter follow the source's own convention.
    """

    step_time_s: Positive
    step_time_p10_s: Positive | None = None
    step_time_p90_s: Positive | None = None
    step_time_source: str | None = None
    step_time_detail: str | None = None
    step_covers: str | None = None
    steps: Positive | None = None
    n_runs: Count | None = None
    first_step_s: Positive | None = None
    forward_s: Positive | None = None
    backward_s: Positive | None = None
    time_to_train_min: Positive | None = None
    tokens_per_s_per_gpu: Positive | None = None
    printed_tokens_per_s_per_gpu: Positive | None = None
    tokens_source: str | None = None
    images_per_s: Positive | None = None
    images_per_s_per_gpu: Positive | None = None
    sequences_per_s: Positive | None = None
    sequences_per_s_per_gpu: Positive | None = None
    rounding_rel: NonNegative | None = None
    peak_memory_allocated_bytes: Count | None = None
    peak_memory_reserved_bytes: Count | None = None
    peak_memory_gb: Positive | None = None
    peak_memory_unit: str | None = None
    power_w: Positive | None = None
    sm_clock_mhz: Positive | None = None
    parameters: Count | None = None
    host_bound: bool | None = None
    gpu_busy_share: NonNegative | None = None
    compute_busy_share: NonNegative | None = None
    published_tflops_per_gpu: Positive | None = None
    published_mfu: Positive | None = None
    published_hfu: Positive | None = None
    implied_model_tflops_per_gpu: Positive | None = None
    implied_fraction_of_peak: Positive | None = None
    ranks: Annotated[tuple[RankMeasured, ...], Field(strict=False)] | None = None
    profiled_step: ProfiledStep | None = None


class InferenceWorkload(Part):
    """What was served: `batch` is static, `concurrency` counts clients, lengths count tokens."""

    model: ModelShape
    batch: Count | None = None
    context: Count | None = None
    input_len: Whole | None = None
    output_len: Whole | None = None
    concurrency: Count | None = None
    load: str | None = None


class InferenceMeasured(Part):
    """What was measured of inference; rates without `_per_gpu` are of the whole job."""

    prefill_s: Positive | None = None
    decode_step_graph_s: Positive | None = None
    decode_step_eager_s: Positive | None = None
    tokens_per_s: Positive | None = None
    tokens_per_s_per_gpu: Positive | None = None
    prefill_tokens_per_s: Positive | None = None
    tokens_source: str | None = None
    latency_s: Positive | None = None
    ttft_s: Positive | None = None
    itl_s: Positive | None = None
    peak_memory_allocated_bytes: Count | None = None
    peak_memory_gb: Positive | None = None
    published_metric: str | None = None
    published_value: Positive | None = None
    implied_model_tflops_per_gpu: Positive | None = None
    implied_fraction_of_peak: Positive | None = None


class RecordBase(Part):
    """What both kinds of record share; `tier` 1 is fully specified, 2 has a doubtful field."""

    id: Name
    source: str | None = None
    tier: Literal[1, 2] | None = None
    system: SystemUsed
    plan: PlanUsed = PlanUsed()
    stack: StackUsed = StackUsed()
    assumptions: Annotated[tuple[str, ...], Field(strict=False)] = ()
    notes: str | None = None


class MeasuredRun(RecordBase):
    """One measured training run, the schema `measured-run/1`."""

    schema_id: Literal["measured-run/1"] = Field(alias="schema")
    workload: TrainingWorkload
    measured: TrainingMeasured


class MeasuredInference(RecordBase):
    """One measured inference run, the schema `measured-inference/1`."""

    schema_id: Literal["measured-inference/1"] = Field(alias="schema")
    workload: InferenceWorkload
    measured: InferenceMeasured
