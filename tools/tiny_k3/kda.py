"""Kimi Delta Attention: the recurrence, and the same in chunks, as matrix products that run side by side.

Shapes [batch, tokens, heads, dim]; q is normalised and scaled, k normalised, g = log decay in (-5, 0), beta [batch,
tokens, heads]. Documents begin at multiples of CHUNK: where one does, the state before it does not count.
"""
import torch

CHUNK = 32
GROUP = 8  # chunks whose transitions are multiplied together
SUB = 16  # rows that share an anchor of the exponentials: |g| <= 5 keeps them within e^40


def recurrent(q, k, v, g, beta, state=None):
    """-> outputs, final state [batch, heads, key, value]. One token after the other: the definition."""
    batch, tokens, heads, dim = q.shape
    if state is None:
        state = q.new_zeros(batch, heads, dim, v.shape[-1])
    out = []
    for t in range(tokens):
        state = state * g[:, t].exp().unsqueeze(-1)
        u = beta[:, t].unsqueeze(-1) * (v[:, t] - torch.einsum("bhk,bhkv->bhv", k[:, t], state))
        state = state + k[:, t].unsqueeze(-1) * u.unsqueeze(-2)
        out.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(out, 1), state


class UnitInverse(torch.autograd.Function):
    """(I + L)^-1 of strictly lower triangular L."""

    @staticmethod
    def forward(ctx, lower):
        eye = torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device)
        inverse = torch.linalg.solve_triangular(lower + eye, eye.expand_as(lower), upper=False, unitriangular=True)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx, grad):
        (inverse,) = ctx.saved_tensors
        return -(inverse.mT @ grad @ inverse.mT)


def recurrence(a, b):
    """S[0] = 0, S[c + 1] = a[c] S[c] + b[c] for a, b [chunks, n, key, key | value] -> all S [chunks, n, key, value].

    In groups, all at the same time: the products of each group's first matrices, then the states at the beginnings of
    groups, one after the other, then all states."""
    group = max(size for size in range(1, GROUP + 1) if a.shape[0] % size == 0)
    key = a.shape[-1]
    a, b = a.unflatten(0, (-1, group)), b.unflatten(0, (-1, group))
    part = torch.cat([torch.eye(key, dtype=a.dtype, device=a.device).expand_as(a[:, 0]), torch.zeros_like(b[:, 0])], -1)
    parts = []
    for j in range(group):
        parts.append(part)
        part = a[:, j] @ part
        part[..., key:] += b[:, j]
    state, starts = torch.zeros_like(b[0, 0]), []
    for step in part:
        starts.append(state)
        state = torch.baddbmm(step[..., key:], step[..., :key], state)
    parts = torch.stack(parts, 1)
    return (parts[..., :key] @ torch.stack(starts).unsqueeze(1) + parts[..., key:]).flatten(0, 1)


class Scan(torch.autograd.Function):
    """`recurrence`, whose gradient is the same recurrence backwards."""

    @staticmethod
    def forward(ctx, a, b):
        states = recurrence(a, b)
        ctx.save_for_backward(a, states)
        return states

    @staticmethod
    def backward(ctx, grad):
        a, states = ctx.saved_tensors
        total = recurrence(a.flip(0).mT, grad.flip(0)).flip(0)  # gradient of what a chunk leaves behind
        return total @ states.mT, total


def unit_inverse(lower):
    return UnitInverse.apply(lower)


def scan(a, b):
    return Scan.apply(a, b)


def pairs(q, k, v, g, beta):
    """Products of rows of a chunk with each other. -> lower [batch..., CHUNK, CHUNK], and what `transitions` needs."""
    batch, tokens, heads, dim = q.shape
    chunks = tokens // CHUNK
    q, k, v, g = (x.view(batch, chunks, CHUNK, heads, -1).permute(1, 0, 3, 2, 4) for x in (q, k, v, g))
    beta = beta.view(batch, chunks, CHUNK, heads).permute(1, 0, 3, 2)
    total = g.cumsum(-2)
    subs = total.unflatten(-2, (-1, SUB))
    anchor = subs[..., SUB // 2 - 1 : SUB // 2, :]
    left = torch.exp(subs - anchor)
    right = torch.exp((anchor - total.unsqueeze(-3)).clamp_max(45.0)) * k.unsqueeze(-3)
    rows = torch.cat([k.unflatten(-2, (-1, SUB)) * left, q.unflatten(-2, (-1, SUB)) * left], -2)
    products = rows @ right.mT  # [..., subs, 2 * SUB, CHUNK]
    lower = (products[..., :SUB, :].flatten(-3, -2) * beta.unsqueeze(-1)).tril(-1)
    return lower, products[..., SUB:, :].flatten(-3, -2).tril(0), q, k, v, total, beta


def transitions(inverse, k, v, total, beta, keep):
    """-> a, b (see recurrence), and the parts w, u of the updates: U = u - w S."""
    inverse = inverse * beta.unsqueeze(-2)
    w, u = inverse @ (k * torch.exp(total)), inverse @ v
    last = total[..., -1:, :]
    faded = (k * torch.exp(last - total)).mT
    a = (torch.diag_embed(torch.exp(last).squeeze(-2)) - faded @ w) * keep
    return a, faded @ u, w, u


def outputs(states, w, u, attention, q, total, keep):
    states = states * keep
    out = (q * torch.exp(total)) @ states + attention @ (u - w @ states)
    return out.permute(1, 0, 3, 2, 4).flatten(1, 2)


def chunked(q, k, v, g, beta, keep):
    """keep [batch, tokens / CHUNK]: 0 where a document begins. tokens: a multiple of CHUNK."""
    keep = keep.t()[:, :, None, None, None]
    lower, attention, q, k, v, total, beta = pairs(q, k, v, g, beta)
    a, b, w, u = transitions(unit_inverse(lower), k, v, total, beta, keep)
    states = scan(a.flatten(1, 2), b.flatten(1, 2)).unflatten(1, b.shape[1:3])
    return outputs(states, w, u, attention, q, total, keep)
