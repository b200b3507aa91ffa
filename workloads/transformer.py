"""GPT and Llama blocks as eager PyTorch runs them."""

from __future__ import annotations

from dataclasses import dataclass

from . import ops
from .kernels import Stream
from .model import TransformerModel
from .tape import Tape, Tensor


@dataclass(frozen=True)
class BlockParameters:
    """Parameters of one block by role; biases are None where the model has none."""

    attention_norm: tuple[Tensor, Tensor | None]
    projections: tuple[tuple[Tensor, Tensor | None], ...]
    output: tuple[Tensor, Tensor | None]
    ffn_norm: tuple[Tensor, Tensor | None]
    ffn_in: tuple[tuple[Tensor, Tensor | None], ...]
    ffn_out: tuple[Tensor, Tensor | None]

    def tensors(self) -> list[Tensor]:
        """All parameters in registration order."""
        pairs = [self.attention_norm, *self.projections, self.output, self.ffn_norm]
        pairs += [*self.ffn_in, self.ffn_out]
        return [t for pair in pairs for t in pair if t is not None]


def block_parameters(tape: Tape, model: TransformerModel, dtype: str) -> BlockParameters:
    """Declare the parameters of one block."""

    def pair(rows: int, cols: int, name: str) -> tuple[Tensor, Tensor | None]:
        bias = tape.parameter((rows,), dtype, f"{name}.bias") if model.bias else None
        return tape.parameter((rows, cols), dtype, f"{name}.weight"), bias

    def norm(name: str) -> tuple[Tensor, Tensor | None]:
        with_bias = model.norm == "layer_norm" and model.norm_bias
        bias = tape.parameter((model.hidden,), dtype, f"{name}.bias") if with_bias else None
        return tape.parameter((model.hidden,), dtype, f"{name}.weight"), bias

    h, q, kv = model.hidden, model.heads * model.head_size, model.kv_size
    if model.fused_qkv:
        projections: tuple[tuple[Tensor, Tensor | None], ...] = (pair(q + 2 * kv, h, "qkv"),)
    else:
        projections = (pair(q, h, "q"), pair(kv, h, "k"), pair(kv, h, "v"))
    ffn_in = tuple(pair(model.ffn, h, n) for n in (("gate", "up") if model.gated_ffn else ("up",)))
    return BlockParameters(
        norm("attention_norm"), projections, pair(h, q, "o"), norm("ffn_norm"), ffn_in,
        pair(h, model.ffn, "down"),
    )  # fmt: skip


def block(
    tape: Tape, model: TransformerModel, p: BlockParameters, x: Tensor, recomputing: bool = False
) -> Tensor:
    """One transformer block; when ``recomputing``, its last linear and addition are left out."""
    x = ops.add(tape, x, attention_part(tape, model, p, x))
    hidden = ffn_hidden(tape, model, p, x)
    with tape.mode(muted=recomputing):
        return ops.add(tape, x, ops.linear(tape, hidden, *p.ffn_out))


def attention_part(tape: Tape, model: TransformerModel, p: BlockParameters, x: Tensor) -> Tensor:
    """Norm, projections, rotary embedding, attention and output projection."""
    normed = ops.normalise(tape, x, *p.attention_norm, kind=model.norm)
    q_size = model.heads * model.head_size
    if len(p.projections) == 1:
        packed = ops.linear(tape, normed, *p.projections[0])
        parts = ops.split(tape, packed, (q_size, model.kv_size, model.kv_size))
        del packed
        heads = (model.heads, model.kv_heads, model.kv_heads)
        q, k, v = (ops.heads_first(tape, p, n) for p, n in zip(parts, heads, strict=True))
        del parts
    else:
        q, k, v = (
            ops.heads_first(tape, ops.linear(tape, normed, *pair), heads)
            for pair, heads in zip(
                p.projections, (model.heads, model.kv_heads, model.kv_heads), strict=True
            )
        )
    del normed
    if model.positions == "rotary":
        q, k = ops.rotary(tape, q), ops.rotary(tape, k)
    out = ops.attention(tape, q, k, v)
    del q, k, v
    return ops.linear(tape, ops.heads_last(tape, out), *p.output)


def ffn_hidden(tape: Tape, model: TransformerModel, p: BlockParameters, x: Tensor) -> Tensor:
    """Norm and the input side of the feed-forward: activation, gated where the model is."""
    normed = ops.normalise(tape, x, *p.ffn_norm, kind=model.norm)
    if not model.gated_ffn:
        return ops.activation(tape, ops.linear(tape, normed, *p.ffn_in[0]), "gelu")
    gate = ops.activation(tape, ops.linear(tape, normed, *p.ffn_in[0]), "silu")
    return ops.multiply(tape, gate, ops.linear(tape, normed, *p.ffn_in[1]))


@dataclass(frozen=True)
class OuterParameters:
    """Embeddings, final norm and output layer; a tied output layer is the token embedding."""

    tokens: Tensor
    positions: Tensor | None
    norm: tuple[Tensor, Tensor | None]
    output: Tensor

    def tensors(self) -> list[Tensor]:
        """Distinct parameters in registration order."""
        found = [self.tokens, self.positions, *self.norm]
        if self.output is not self.tokens:
            found.append(self.output)
        return [t for t in found if t is not None]


def outer_parameters(
    tape: Tape, model: TransformerModel, dtype: str, seq_len: int
) -> OuterParameters:
    """Declare the parameters outside the blocks."""
    tokens = tape.parameter((model.vocab, model.hidden), dtype, "tokens.weight")
    learned = model.positions == "learned"
    length = max(seq_len, model.max_positions)
    table = tape.parameter((length, model.hidden), dtype, "positions.weight") if learned else None
    with_bias = model.norm == "layer_norm" and model.norm_bias
    bias = tape.parameter((model.hidden,), dtype, "norm.bias") if with_bias else None
    norm = (tape.parameter((model.hidden,), dtype, "norm.weight"), bias)
    tied = model.tied_embeddings
    tokens.uses = 2 if tied else 1
    output = tokens if tied else tape.parameter((model.vocab, model.hidden), dtype, "output.weight")
    return OuterParameters(tokens, table, norm, output)


def embed(tape: Tape, p: OuterParameters, batch: int, seq: int) -> Tensor:
    """Token embedding plus learned positions where the model has them."""
    x = ops.embedding(tape, (batch, seq), p.tokens)
    if p.positions is None:
        return x
    tape.emit("arange", [Stream("scalar", seq, 1, 0, 8 * seq)])
    return ops.add(tape, x, ops.embedding(tape, (seq,), p.positions))


def head(tape: Tape, model: TransformerModel, p: OuterParameters, x: Tensor) -> Tensor:
    """Final norm, output layer and cross entropy on fp32 logits; returns the loss."""
    normed = ops.normalise(tape, x, *p.norm, kind=model.norm)
    logits = ops.linear(tape, normed, p.output)
    del normed
    rows = logits.elements // model.vocab
    flat = logits.viewed(rows, model.vocab)
    return ops.cross_entropy(tape, ops.cast(tape, flat, "fp32"))
