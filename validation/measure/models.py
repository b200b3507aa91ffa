"""The measured models in PyTorch, and one training step of them, as in the records' recipe.

The order of operators within a block is that of the traces in validation/data/h200/traces.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from timing import DEVICE
from torch import nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Shape:
    """Shape of a transformer, with the field names of ``measured-run/1``."""

    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int


class GptBlock(nn.Module):
    """LayerNorm, fused QKV, GELU; biases everywhere."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.heads = s.heads
        self.ln1, self.ln2 = nn.LayerNorm(s.hidden), nn.LayerNorm(s.hidden)
        self.qkv = nn.Linear(s.hidden, 3 * s.hidden)
        self.proj = nn.Linear(s.hidden, s.hidden)
        self.up, self.down = nn.Linear(s.hidden, s.ffn), nn.Linear(s.ffn, s.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One block; ``x`` is [batch, seq, hidden]."""
        b, t, h = x.shape
        q, k, v = self.qkv(self.ln1(x)).split(h, dim=2)
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, h))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class RmsNorm(nn.Module):
    """torch's fused RMS norm."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension."""
        return F.rms_norm(x, (x.shape[-1],), self.weight)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding in fp32, cast back: x [batch, heads, seq, dim], cos and sin [seq, dim/2]."""
    a, b = x.float().chunk(2, dim=-1)
    cos, sin = cos[None, None], sin[None, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).type_as(x)


class LlamaBlock(nn.Module):
    """RMSNorm, rotary embedding, grouped-query attention, SwiGLU; no biases."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = s.heads, s.kv_heads, s.hidden // s.heads
        self.n1, self.n2 = RmsNorm(s.hidden), RmsNorm(s.hidden)
        self.q = nn.Linear(s.hidden, s.hidden, bias=False)
        self.k = nn.Linear(s.hidden, s.kv_heads * self.dim, bias=False)
        self.v = nn.Linear(s.hidden, s.kv_heads * self.dim, bias=False)
        self.o = nn.Linear(s.hidden, s.hidden, bias=False)
        self.gate = nn.Linear(s.hidden, s.ffn, bias=False)
        self.up = nn.Linear(s.hidden, s.ffn, bias=False)
        self.down = nn.Linear(s.ffn, s.hidden, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """One block; ``x`` is [batch, seq, hidden]."""
        b, t, _ = x.shape
        h = self.n1(x)
        q = self.q(h).view(b, t, self.heads, self.dim).transpose(1, 2)
        k = self.k(h).view(b, t, self.kv_heads, self.dim).transpose(1, 2)
        v = self.v(h).view(b, t, self.kv_heads, self.dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        gqa = self.kv_heads != self.heads
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=gqa)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, -1))
        h = self.n2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def rotary_tables(s: Shape, seq: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, fp32, each [seq, head_dim / 2]."""
    half = s.hidden // s.heads // 2
    angle = torch.outer(torch.arange(seq).float(), 1e4 ** -(torch.arange(half) / half))
    return angle.cos(), angle.sin()


class Transformer(nn.Module):
    """Embedding, blocks, final norm and output layer; GPT ties the output to the embedding."""

    def __init__(self, s: Shape, seq: int, recompute: bool) -> None:
        super().__init__()
        self.llama, self.recompute = s.family == "llama", recompute
        self.tok = nn.Embedding(s.vocab, s.hidden)
        self.blocks = nn.ModuleList(
            (LlamaBlock if self.llama else GptBlock)(s) for _ in range(s.layers)
        )
        self.norm = RmsNorm(s.hidden) if self.llama else nn.LayerNorm(s.hidden)
        self.head = nn.Linear(s.hidden, s.vocab, bias=False)
        # No buffers: Module.to(bfloat16) would round the tables, and a cast back is a kernel more.
        self.tables = rotary_tables(s, seq) if self.llama else ()
        if not self.llama:
            self.pos = nn.Embedding(seq, s.hidden)
            self.head.weight = self.tok.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits [batch, seq, vocab] of token ids [batch, seq]."""
        x = self.tok(tokens)
        if not self.llama:
            x = x + self.pos(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            if self.recompute:
                x = checkpoint(block, x, *self.tables, use_reentrant=False)
            else:
                x = block(x, *self.tables)
        return self.head(self.norm(x))


def compile_model(model: Any, scope: str | None) -> Any:
    """The model as it is, with each block compiled (``block``), or compiled as one (``full``)."""
    if scope == "block":
        for block in model.blocks:
            block.compile()
    return torch.compile(model) if scope == "full" else model


@dataclass(frozen=True)
class Config:
    """One run: what is trained (no shape: ResNet-50), and how."""

    id: str
    shape: Shape | None
    batch: int
    seq: int = 0
    precision: str = "bf16"
    scope: str | None = None
    recompute: bool = False
    accumulate: int = 1
    image: int = 224

    @property
    def amp(self) -> torch.dtype | None:
        """The compute dtype under autocast, if there is autocast."""
        return {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}.get(self.precision)


class Trainer:
    """Model, optimizer, data and one step of a configuration."""

    def __init__(self, config: Config) -> None:
        self.config = config
        torch.backends.cudnn.benchmark = True
        self.scaler = torch.amp.GradScaler(DEVICE) if config.precision == "amp-fp16" else None
        if config.shape is None:
            self._vision(config)
        else:
            self._language(config, config.shape)

    def _vision(self, config: Config) -> None:
        from torchvision.models import resnet50

        model = resnet50().to(DEVICE, memory_format=torch.channels_last)
        self.model = compile_model(model, config.scope)
        self.parameters = list(self.model.parameters())
        self.optimizer: Any = torch.optim.SGD(self.parameters, lr=1e-4, momentum=0.9)
        images = torch.randn((config.batch, 3, config.image, config.image), device=DEVICE)
        self.inputs = images.contiguous(memory_format=torch.channels_last)
        self.targets = torch.randint(0, 1000, (config.batch,), device=DEVICE)

    def _language(self, config: Config, shape: Shape) -> None:
        dtype = torch.float32 if config.amp else torch.bfloat16
        with torch.device(DEVICE):
            model = Transformer(shape, config.seq, config.recompute).to(dtype)
        self.model = compile_model(model, config.scope)
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-5, fused=True)
        size = (config.batch, config.seq)
        self.inputs = torch.randint(0, shape.vocab, size, device=DEVICE)
        self.targets = torch.randint(0, shape.vocab, size, device=DEVICE)

    def loss(self) -> torch.Tensor:
        """Forward of one micro-batch."""
        context = torch.autocast(DEVICE, self.config.amp) if self.config.amp else nullcontext()
        with context:
            logits, targets = self.model(self.inputs), self.targets
            if self.config.shape is not None:
                logits, targets = logits.flatten(0, 1).float(), targets.flatten()
            return F.cross_entropy(logits, targets) / self.config.accumulate

    def step(self) -> None:
        """One whole training step."""
        self.optimizer.zero_grad(set_to_none=True)
        for _ in range(self.config.accumulate):
            loss = self.loss()
            (self.scaler.scale(loss) if self.scaler else loss).backward()
        if self.config.shape is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()


LLAMA1 = Shape("llama", 2048, 16, 32, 8, 8192, 128256)
LLAMA7 = Shape("llama", 4096, 8, 32, 32, 11008, 32000)


def gpt(hidden: int, layers: int, heads: int) -> Shape:
    """A GPT shape with the usual widths."""
    return Shape("gpt", hidden, layers, heads, heads, 4 * hidden, 50304)


CONFIGS = (
    Config("r50-32", None, 32, precision="amp-bf16"),
    Config("r50-128-fp16", None, 128, precision="amp-fp16"),
    Config("r50-192", None, 192, precision="amp-bf16"),
    Config("r50-128-compile", None, 128, precision="amp-bf16", scope="full"),
    Config("g124-mb2-bf16", gpt(768, 12, 12), 2, 1024),
    Config("g124-s2k-mb8-compile", gpt(768, 12, 12), 8, 2048, scope="block"),
    Config("g350-mb1", gpt(1024, 24, 16), 1, 1024, "amp-bf16"),
    Config("g350-mb8", gpt(1024, 24, 16), 8, 1024, "amp-bf16"),
    Config("g1600-mb8-bf16", gpt(1600, 24, 25), 8, 1024),
    Config("g13-mb4", gpt(2048, 24, 16), 4, 2048, "amp-bf16"),
    Config("g2560-mb4-compile", gpt(2560, 16, 20), 4, 2048, scope="block"),
    Config("l1-s512-mb1", LLAMA1, 1, 512),
    Config("l1-s1k-mb4-amp", LLAMA1, 4, 1024, "amp-bf16"),
    Config("l1-s8k-mb1", LLAMA1, 1, 8192),
    Config("l1-s2k-mb8-compile", LLAMA1, 8, 2048, scope="block"),
    Config("l1-s4k-mb2-ga2", LLAMA1, 2, 4096, accumulate=2),
    Config("l3072-s2k-mb4", Shape("llama", 3072, 14, 24, 8, 8192, 32000), 4, 2048),
    Config("l7-s4k-mb2", LLAMA7, 2, 4096),
    Config("l7-s4k-mb2-full", LLAMA7, 2, 4096, recompute=True),
    Config("l8x16-s2k-mb2", Shape("llama", 4096, 16, 32, 8, 14336, 128256), 2, 2048),
)


def tiny(config: Config) -> Config:
    """The same run with a shape that any machine trains in milliseconds."""
    config = replace(config, id=f"{config.id}-quick", batch=2)
    if config.shape is None:
        return replace(config, image=64)
    kv_heads = 4 if config.shape.kv_heads == config.shape.heads else 2
    shape = replace(config.shape, hidden=64, layers=2, heads=4, kv_heads=kv_heads, ffn=128)
    return replace(config, shape=replace(shape, vocab=512), seq=64)


def workload(config: Config) -> dict[str, Any]:
    """The ``workload`` part of the record."""
    model = {"family": "resnet50", "image_size": config.image, "classes": 1000}
    sequence = {}
    if config.shape is not None:
        tied = config.shape.family == "gpt"
        model = {**asdict(config.shape), "tied_embeddings": tied, "bias": tied}
        sequence = {"seq_len": config.seq}
    batch = {"micro_batch": config.batch, "grad_accum": config.accumulate}
    return {"model": model, **sequence, "task": "pretrain", **batch,
            "global_batch": config.batch * config.accumulate}  # fmt: skip


def stack(config: Config) -> dict[str, Any]:
    """The ``stack`` part of the record."""
    shape, wide = config.shape, "fp32" if config.amp else "bf16"
    return {
        "framework": "pytorch", "torch": torch.__version__,
        "execution": "compile" if config.scope else "eager", "compile_scope": config.scope,
        "attention": "sdpa", "precision": config.precision, "param_dtype": wide,
        "compute_dtype": "fp16" if config.precision == "amp-fp16" else "bf16",
        "grad_reduce_dtype": wide, "optimizer": "adamw-fused" if shape else "sgd-momentum",
        "grad_clip": shape is not None, "loss_dtype": "fp32",
        "channels_last": None if shape else True, "cudnn_benchmark": True, "nccl_nvls": False,
    }  # fmt: skip
