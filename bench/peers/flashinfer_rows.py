#!/usr/bin/env python3
"""FlashInfer's kernels of the delta rule: KDA decode with convolution and gated norm, GDN decode, GDN prompts. One layer,
heads of 128, FP32 state.

    bench/peers/flashinfer_rows.py [--parts kda,gdn,gdn_prompt]
"""

import argparse
import importlib

from common import attempt, need_gpu, normal, rotation, row, time_us, torch
from fla_rows import DIM, PROMPTS, SEQUENCES, gate


def kda_decode():
    fused = importlib.import_module("flashinfer.kda_decode").fused_kda_decode
    for name, heads, bound in (("softplus", 32, None), ("bounded", 96, -5.0)):
        decay, bias = gate(heads, DIM)
        width = heads * DIM
        taps = normal(3, 4, width, dtype=torch.float32, scale=0.3)
        norm = torch.ones(DIM, device="cuda")
        for sequences in SEQUENCES:
            nbytes = sequences * (2 * heads * DIM * DIM * 4 + 3 * width * 2 + 2 * 3 * 3 * width * 2 + 3 * width * 2
                                  + 2 * heads)
            slots = torch.arange(1, sequences + 1, device="cuda", dtype=torch.int32)
            calls = []
            for _ in range(rotation(nbytes, most=32)):
                x = normal(sequences, 3 * width)
                window = normal(sequences + 1, 3, 3 * width).transpose(1, 2)
                raw_gate, raw_beta = normal(1, sequences, heads, DIM), normal(1, sequences, heads)
                state = normal(sequences + 1, heads, DIM, DIM, dtype=torch.float32, scale=0.1)
                out_gate = normal(sequences, heads, DIM)
                y = torch.empty(1, sequences, heads, DIM, device="cuda", dtype=torch.bfloat16)
                calls.append(lambda x=x, w=window, g=raw_gate, b=raw_beta, s=state, o=out_gate, y=y: fused(
                    x, taps, w, g, b, decay, bias, slots, s, o, norm, bound, 1e-5, y))
            row(f"kda decode, {name}", f"{heads} heads, {sequences} sequences", "FlashInfer", time_us(calls), nbytes)


def gdn_decode(key_heads=16, heads=32):
    function = importlib.import_module("flashinfer.gdn_decode").gated_delta_rule_decode_pretranspose
    decay, bias = gate(heads, 1)
    for sequences in SEQUENCES:
        nbytes = sequences * (2 * heads * DIM * DIM * 4 + (2 * key_heads + 2 * heads) * DIM * 2 + 4 * heads)
        calls = []
        for _ in range(rotation(nbytes)):
            q, k = normal(sequences, 1, key_heads, DIM), normal(sequences, 1, key_heads, DIM)
            v, a, b = normal(sequences, 1, heads, DIM), normal(sequences, 1, heads), normal(sequences, 1, heads)
            state = normal(sequences, heads, DIM, DIM, dtype=torch.float32, scale=0.1)
            y = torch.empty(sequences, 1, heads, DIM, device="cuda", dtype=torch.bfloat16)
            calls.append(lambda q=q, k=k, v=v, a=a, b=b, s=state, y=y: function(q, k, v, s, decay, a, bias, b,
                                                                                output=y))
        row("gdn decode", f"{heads}/{key_heads} heads, {sequences} sequences", "FlashInfer", time_us(calls), nbytes)


def gdn_prompt(key_heads=16, heads=32):
    function = importlib.import_module("flashinfer.gdn_prefill").chunk_gated_delta_rule
    for tokens, sequences in PROMPTS:
        nbytes = (tokens * ((2 * key_heads + 2 * heads) * DIM * 2 + 8 * heads)
                  + 2 * sequences * heads * DIM * DIM * 4)
        starts = torch.arange(0, tokens + 1, tokens // sequences, device="cuda", dtype=torch.int64)
        calls = []
        for _ in range(rotation(nbytes, most=8)):
            q, k, v = normal(tokens, key_heads, DIM), normal(tokens, key_heads, DIM), normal(tokens, heads, DIM)
            q = torch.nn.functional.normalize(q.float(), dim=-1).to(torch.bfloat16)
            k = torch.nn.functional.normalize(k.float(), dim=-1).to(torch.bfloat16)
            g = torch.exp(-torch.rand(tokens, heads, device="cuda") * 0.2)
            beta = torch.rand(tokens, heads, device="cuda")
            state = normal(sequences, heads, DIM, DIM, dtype=torch.float32, scale=0.1)
            y, after = torch.empty_like(v), torch.empty_like(state)
            calls.append(lambda q=q, k=k, v=v, g=g, b=beta, s=state, y=y, a=after: function(
                q, k, v, g, b, None, s, True, starts, True, y, a, max_seqlen=tokens // sequences))
        row("gdn prompt", f"{heads}/{key_heads} heads, {sequences} x {tokens // sequences}", "FlashInfer", time_us(calls), nbytes,
            tokens * heads * (6 * DIM * DIM + 8 * 64 * DIM))


def main():
    parts = {"kda": kda_decode, "gdn": gdn_decode, "gdn_prompt": gdn_prompt}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(parts))
    chosen = parser.parse_args().parts.split(",")
    need_gpu()
    for part in chosen:
        attempt(f"FlashInfer {part}", parts[part])


if __name__ == "__main__":
    main()
