"""Muon (Jordan et al. 2024) for matrices, AdamW for the rest."""
import torch

ADAM = ("embed_tokens", "lm_head", "gate.weight", "b_proj", "conv1d")  # besides all that isn't a matrix


def orthogonal(update, steps=5):
    """The nearest orthogonal matrices [n, out, in], about, by Newton-Schulz."""
    x = update.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        b = torch.baddbmm(a, a, a, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, b, x, beta=3.4445)
    return (x.mT if tall else x).float()


class Muon:
    def __init__(self, parameters, momentum=0.95, decay=0.03):
        self.groups, self.momentum, self.decay = {}, momentum, decay
        for p in parameters:
            self.groups.setdefault(tuple(p.shape[-2:]), []).append(p)
        self.buffers = {id(p): torch.zeros_like(p) for group in self.groups.values() for p in group}

    @torch.no_grad()
    def step(self, rate):
        for (out, inputs), group in self.groups.items():
            grads, buffers = [p.grad for p in group], [self.buffers[id(p)] for p in group]
            torch._foreach_lerp_(buffers, grads, 1 - self.momentum)
            looked_ahead = torch._foreach_lerp(grads, buffers, self.momentum)
            stacked = torch.cat([x.reshape(-1, out, inputs) for x in looked_ahead])
            update = orthogonal(stacked) * max(1, out / inputs) ** 0.5
            parts = update.split([x.reshape(-1, out, inputs).shape[0] for x in looked_ahead])
            torch._foreach_mul_(group, 1 - rate * self.decay)
            torch._foreach_add_(group, [part.view_as(p) for part, p in zip(parts, group)], alpha=-rate)


def is_matrix(name, parameter):
    return parameter.ndim >= 2 and parameter.shape[-1] > 4 and parameter.shape[-2] > 4 and not any(x in name for x in ADAM)


def optimizers(model):
    """-> Muon, AdamW."""
    named = list(model.named_parameters())
    adam = [p for name, p in named if not is_matrix(name, p)]
    fused = adam[0].device.type == "cuda"
    return (Muon([p for name, p in named if is_matrix(name, p)]),
            torch.optim.AdamW(adam, lr=1e-3, betas=(0.9, 0.97), eps=1e-8, weight_decay=0.0, fused=fused))
