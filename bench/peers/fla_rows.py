#!/usr/bin/env python3
"""Kimi Delta Attention and Gated DeltaNet of flash-linear-attention: one layer, heads of 128, FP32 state.

    bench/peers/fla_rows.py [--parts kda32,kda96,gdn]

kda32 is Kimi Linear's gate (softplus), kda96 a gate bounded at -5. Decode counts state read and written; prompts are of
one sequence, or of eight that share the rows.
"""

import argparse
import importlib
import math
import sys

from common import attempt, need_gpu, normal, rotation, row, time_us, torch

DIM = 128
SEQUENCES = (1, 8, 32, 64, 128, 256)
PROMPTS = ((8192, 1), (512, 1), (2048, 1), (32768, 1), (8192, 8))  # 8192 first: the first shape decides the tuning


def gate(heads, channels):
    decay = torch.empty(heads, device="cuda").uniform_(1, 16).log()
    step = torch.exp(torch.empty(heads * channels, device="cuda").uniform_(math.log(1e-3), math.log(1e-1)))
    return decay, step + torch.log(-torch.expm1(-step))


class Layer:
    """A kind of layer: its heads, whether the gate has a value for each channel, and the library's functions."""

    def __init__(self, name, suffix, key_heads, heads, per_channel, bound=None):
        self.width = f"{heads} heads" if key_heads == heads else f"{heads}/{key_heads} heads"
        self.suffix, self.name, self.key_heads, self.heads, self.per_channel, self.bound = suffix, name, key_heads, heads, per_channel, bound
        decay, bias = gate(heads, DIM if per_channel else 1)
        self.options = dict(A_log=decay, dt_bias=bias, use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True,
                            use_beta_sigmoid_in_kernel=True, output_final_state=True)
        if bound is not None:
            self.options["lower_bound"] = bound

    def inputs(self, batch, tokens, states):
        gates = (batch, tokens, self.heads, DIM) if self.per_channel else (batch, tokens, self.heads)
        return (normal(batch, tokens, self.key_heads, DIM), normal(batch, tokens, self.key_heads, DIM),
                normal(batch, tokens, self.heads, DIM), normal(*gates), normal(batch, tokens, self.heads),
                normal(states, self.heads, DIM, DIM, dtype=torch.float32, scale=0.1))

    def row_bytes(self):
        return (2 * self.key_heads + (3 if self.per_channel else 2) * self.heads) * DIM * 2 + 4 * self.heads

    def state_bytes(self):
        return 2 * self.heads * DIM * DIM * 4


def decode(layer, function):
    for sequences in SEQUENCES:
        nbytes = sequences * (layer.state_bytes() + layer.row_bytes())
        sets = [layer.inputs(sequences, 1, sequences) for _ in range(rotation(nbytes))]
        calls = [lambda s=s: function(s[0], s[1], s[2], g=s[3], beta=s[4], initial_state=s[5], **layer.options)
                 for s in sets]
        row(f"{layer.name} decode{layer.suffix}", f"{layer.width}, {sequences} sequences", "FLA", time_us(calls), nbytes)


def prompt(layer, function):
    options = dict(layer.options)
    if layer.bound is not None:
        options["safe_gate"] = True
    for tokens, sequences in PROMPTS:
        nbytes = tokens * layer.row_bytes() + sequences * layer.state_bytes()
        if sequences > 1:
            options["cu_seqlens"] = torch.arange(0, tokens + 1, tokens // sequences, device="cuda", dtype=torch.long)
        sets = [layer.inputs(1, tokens, sequences) for _ in range(rotation(nbytes, most=12))]
        calls = [lambda s=s: function(s[0], s[1], s[2], g=s[3], beta=s[4], initial_state=s[5], **options) for s in sets]
        row(f"{layer.name} prompt{layer.suffix}", f"{layer.width}, {sequences} x {tokens // sequences}", "FLA", time_us(calls), nbytes,
            tokens * layer.heads * (6 * DIM * DIM + 8 * 64 * DIM))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="kda32,kda96,gdn")
    parts = parser.parse_args().parts.split(",")
    need_gpu()
    try:
        kda = importlib.import_module("fla.ops.kda")
        delta = importlib.import_module("fla.ops.gated_delta_rule")
    except ImportError as error:
        sys.exit(f"skipped: flash-linear-attention is not installed ({error})")
    layers = {
        "kda32": (lambda: Layer("kda", ", softplus", 32, 32, True), kda.fused_recurrent_kda, kda.chunk_kda),
        "kda96": (lambda: Layer("kda", ", bounded", 96, 96, True, -5.0), kda.fused_recurrent_kda, kda.chunk_kda),
        "gdn": (lambda: Layer("gdn", "", 16, 32, False), delta.fused_recurrent_gated_delta_rule,
                delta.chunk_gated_delta_rule),
    }
    for part in parts:
        make, recurrent, chunked = layers[part]
        layer = make()
        attempt(f"FLA {part} decode", decode, layer, recurrent)
        attempt(f"FLA {part} prompt", prompt, layer, chunked)


if __name__ == "__main__":
    main()
