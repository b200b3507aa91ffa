"""Fused attention: tensor-core products and softmax per (query, key) pair, tiles over the SMs."""

from __future__ import annotations

import math

from workloads.kernels import Attention

from .launch import Launch
from .machine import Machine

QUERY_TILE = 128


def attention_cycles(machine: Machine, kernel: Attention) -> float:
    """SM cycles of the main attention kernel, without its fixed time."""
    p = machine.calibration.attention[kernel.direction]
    products = 4.0 if kernel.direction == "forward" else 10.0
    rate = machine.flops_per_sm_cycle(kernel.dtype)
    per_pair = p.mma * products * kernel.head_dim / rate + p.pair_cycles
    tiles = kernel.batch * kernel.heads * math.ceil(kernel.seq / QUERY_TILE)
    pairs = pair_count(kernel)
    tail = p.tail * QUERY_TILE * kernel.kv_seq * per_pair
    waves = math.ceil(tiles / machine.sms)
    return pairs * per_pair / machine.sms + tail + p.tile_cycles * waves


def pair_count(kernel: Attention) -> float:
    """(query, key) pairs over all heads that the kernel visits, masked diagonal tiles included."""
    heads = kernel.batch * kernel.heads
    if not kernel.causal:
        return float(heads * kernel.seq * kernel.kv_seq)
    return heads * (kernel.seq * kernel.kv_seq / 2.0 + kernel.seq * QUERY_TILE / 2.0)


def attention_launch(machine: Machine, kernel: Attention) -> Launch:
    """The main kernel of fused attention in one direction."""
    p = machine.calibration.attention[kernel.direction]
    power = machine.calibration.power
    pair_j = power.pair_forward_j if kernel.direction == "forward" else power.pair_backward_j
    flop_j = power.flop_j.get(kernel.dtype, power.flop_j["bf16"])
    core_j = machine.energy_scale * (flop_j * kernel.flops + pair_j * pair_count(kernel))
    memory_s = kernel.hbm_bytes / machine.hbm_bytes_per_s
    cycles = attention_cycles(machine, kernel)
    return Launch(
        kernel.label, "attention", p.floor_s, cycles, memory_s, core_j,
        machine.memory_j(kernel.hbm_bytes), kernel.flops,
    )  # fmt: skip
