#!/usr/bin/env python3
"""The model against golden logits of a tiny K3 checkpoint that other implementations agree on.

    check_goldens.py [FOLDER]        default: tests/fixtures/kimi_k3/k3-tiny
"""
import os
import sys

try:
    import torch
except ImportError:
    print("skipped: torch is not installed")
    sys.exit(77)

import kda
from checkpoint import load_model, read_safetensors

TOLERANCE = 1.5e-4  # of the fixture, for FP32
DEFAULT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/fixtures/kimi_k3/k3-tiny")


def check(what, found, limit):
    print(f"{what}: {found:.2e} (limit {limit:.1e})")
    return found <= limit


def rule_difference():
    """The chunk form against the recurrence, in FP64, over two documents with decays up to the bound."""
    torch.manual_seed(1)
    tokens, begin = 6 * kda.CHUNK, 4 * kda.CHUNK
    q, k, v = (torch.randn(2, tokens, 3, 32, dtype=torch.float64) for _ in range(3))
    k = k / k.norm(dim=-1, keepdim=True)
    g = -5 * torch.sigmoid(4 * torch.randn(2, tokens, 3, 32, dtype=torch.float64))
    beta = torch.rand(2, tokens, 3, dtype=torch.float64)
    inputs = [x.requires_grad_() for x in (q, k, v, g, beta)]
    keep = torch.ones(2, tokens // kda.CHUNK, dtype=torch.float64)
    keep[:, [0, begin // kda.CHUNK]] = 0
    parts = [kda.recurrent(*(x[:, s] for x in inputs))[0] for s in (slice(0, begin), slice(begin, None))]
    expected, found = torch.cat(parts, 1), kda.chunked(*inputs, keep)
    weight = torch.randn_like(expected)
    grads = zip(torch.autograd.grad((expected * weight).sum(), inputs),
                torch.autograd.grad((found * weight).sum(), inputs))
    return (expected - found).abs().max().item(), max((a - b).abs().max().item() for a, b in grads)


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else DEFAULT
    golden = read_safetensors(f"{folder}/golden.safetensors")
    good = True
    value, gradient = rule_difference()
    good &= check("delta rule, chunks against recurrence", value, 1e-10)
    good &= check("the same, gradients", gradient, 1e-9)
    for dtype, limit in ((torch.float64, 1e-5), (torch.float32, TOLERANCE)):
        model = load_model(folder, dtype)
        with torch.no_grad():
            short = model.logits(golden["prompt97.tokens"])
            long = model.logits(golden["prompt1030.tokens"])[-8:]
        good &= check(f"{dtype}, 97 tokens", (short - golden["prompt97.logits"]).abs().max().item(), limit)
        good &= check(f"{dtype}, 1,030 tokens", (long - golden["prompt1030.last8.logits"]).abs().max().item(), limit)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
