"""The measured models in PyTorch: GPT, Llama and ResNet-50 as in the records' recipe."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
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
        """One block."""
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
        return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding in fp32, cast back."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


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
        """One block."""
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


class Transformer(nn.Module):
    """Embedding, blocks, final norm and output layer."""

    def __init__(self, s: Shape, seq: int, recompute: bool) -> None:
        super().__init__()
        self.llama, self.recompute = s.family == "llama", recompute
        self.tok = nn.Embedding(s.vocab, s.hidden)
        self.blocks = nn.ModuleList(
            (LlamaBlock if self.llama else GptBlock)(s) for _ in range(s.layers)
        )
        self.head = nn.Linear(s.hidden, s.vocab, bias=False)
        if self.llama:
            self.norm: nn.Module = RmsNorm(s.hidden)
            half = s.hidden // s.heads // 2
            angle = torch.outer(torch.arange(seq), 1e4 ** -(torch.arange(half) / half))
            self.register_buffer("cos", angle.cos()[None, None], persistent=False)
            self.register_buffer("sin", angle.sin()[None, None], persistent=False)
        else:
            self.norm = nn.LayerNorm(s.hidden)
            self.pos = nn.Embedding(seq, s.hidden)
            self.head.weight = self.tok.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of a batch of token ids."""
        x = self.tok(tokens)
        if not self.llama:
            x = x + self.pos(torch.arange(tokens.shape[1], device=tokens.device))
        extra = (self.cos.float(), self.sin.float()) if self.llama else ()
        for block in self.blocks:
            if self.recompute:
                x = checkpoint(block, x, *extra, use_reentrant=False)
            else:
                x = block(x, *extra)
        return self.head(self.norm(x))
