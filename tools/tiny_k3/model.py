"""Kimi K3's text model in PyTorch, as trained here. Names of parameters are those of the published checkpoints, except
that the experts of a layer are stacked: experts.w1 [experts, out, in].

Activations have the type of `dtype`; norms, gates, the router and the delta rule are computed in FP32 at least.
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

import kda
import mxfp4


def rms_norm(x, weight, eps):
    wide = x if x.dtype == torch.float64 else x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * weight.to(wide.dtype)).to(x.dtype)


class Linear(nn.Module):
    def __init__(self, out, inputs, gain=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out, inputs) * gain / math.sqrt(inputs))

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype))


class Norm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return rms_norm(x, self.weight, self.eps)


class Glu(nn.Module):
    """SiTU-GLU."""

    def __init__(self, c, inter):
        super().__init__()
        self.gate_proj, self.up_proj = Linear(inter, c.hidden), Linear(inter, c.hidden)
        self.down_proj = Linear(c.hidden, inter, 0.5)
        self.betas = c.beta, c.linear_beta

    def forward(self, x):
        return self.down_proj(situ(self.gate_proj(x), self.up_proj(x), *self.betas))


def situ(gate, up, beta, linear_beta):
    wide = torch.promote_types(gate.dtype, torch.float32)
    g, u = gate.to(wide), up.to(wide)
    return (beta * torch.tanh(g / beta) * torch.sigmoid(g) * linear_beta * torch.tanh(u / linear_beta)).to(gate.dtype)


class Experts(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(c.experts, c.moe_inter, c.latent) / math.sqrt(c.latent))
        self.w3 = nn.Parameter(torch.randn(c.experts, c.moe_inter, c.latent) / math.sqrt(c.latent))
        self.w2 = nn.Parameter(torch.randn(c.experts, c.latent, c.moe_inter) / math.sqrt(c.moe_inter))
        self.betas = c.beta, c.linear_beta

    def forward(self, z, share):
        """All experts for all rows, as three products: `share` [rows, experts] is 0 for those not chosen."""
        w1, w2, w3 = (mxfp4.fake_quantize(w).to(z.dtype) for w in (self.w1, self.w2, self.w3))
        act = situ(z @ w1.flatten(0, 1).t(), z @ w3.flatten(0, 1).t(), *self.betas)
        act = act.unflatten(-1, (share.shape[-1], -1)) * share.unsqueeze(-1).to(z.dtype)
        return act.flatten(-2) @ w2.transpose(1, 2).flatten(0, 1)


class Router(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(c.experts, c.hidden) / math.sqrt(c.hidden))
        self.register_buffer("e_score_correction_bias", torch.zeros(c.experts))
        self.top_k = c.top_k

    def forward(self, x):
        wide = torch.promote_types(x.dtype, torch.float32)
        weight = self.weight.to(torch.bfloat16).to(wide) if x.dtype == torch.bfloat16 else self.weight.to(wide)
        score = torch.sigmoid(F.linear(x.to(wide), weight))
        chosen = torch.topk(score.detach() + self.e_score_correction_bias, self.top_k, -1).indices
        mask = torch.zeros_like(score).scatter(-1, chosen, 1.0)
        share = score * mask
        return share / (share.sum(-1, keepdim=True) + 1e-20), mask


class LatentMoe(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate = Router(c)
        self.routed_expert_down_proj = Linear(c.latent, c.hidden)
        self.routed_expert_norm = Norm(c.latent, c.eps)
        self.routed_expert_up_proj = Linear(c.hidden, c.latent, 0.5)
        self.shared_experts = Glu(c, c.moe_inter * c.shared)
        self.experts = Experts(c)

    def forward(self, x):
        """-> output, rows per expert."""
        share, mask = self.gate(x)
        routed = self.experts(self.routed_expert_down_proj(x), share)
        routed = self.routed_expert_up_proj(self.routed_expert_norm(routed))
        return routed + self.shared_experts(x), mask.flatten(0, -2).sum(0)


class Conv(nn.Module):
    """Causal depthwise taps, then SiLU. `position` in the document: taps do not reach over its beginning."""

    def __init__(self, width, taps):
        super().__init__()
        start = torch.zeros(width, 1, taps)
        start[:, :, -1] = 1
        self.weight = nn.Parameter(start + 0.1 * torch.randn(width, 1, taps))

    def forward(self, x, position):
        wide = torch.promote_types(x.dtype, torch.float32)
        taps = self.weight.shape[-1]
        out = x.to(wide) * self.weight[:, 0, -1]
        for back in range(1, taps):
            shifted = F.pad(x[:, :-back], (0, 0, back, 0)).to(wide)
            out = out + shifted * (position >= back).unsqueeze(-1) * self.weight[:, 0, taps - 1 - back]
        return F.silu(out)


class KdaAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        full = c.kda_heads * c.kda_dim
        self.q_proj, self.k_proj, self.v_proj = (Linear(full, c.hidden) for _ in range(3))
        self.q_conv1d, self.k_conv1d, self.v_conv1d = (Conv(full, c.taps) for _ in range(3))
        self.f_a_proj, self.f_b_proj = Linear(c.kda_dim, c.hidden), Linear(full, c.kda_dim, 0.5)
        self.A_log = nn.Parameter(torch.zeros(c.kda_heads))
        self.dt_bias = nn.Parameter(torch.empty(full).uniform_(-7, 0))
        self.b_proj = Linear(c.kda_heads, c.hidden)
        self.g_proj = Linear(full, c.hidden)
        self.o_norm = Norm(c.kda_dim, c.eps)
        self.o_proj = Linear(c.hidden, full, 0.5)

    def inputs(self, x, position):
        c = self.c
        heads = (c.kda_heads, c.kda_dim)
        q = self.q_conv1d(self.q_proj(x), position).unflatten(-1, heads)
        k = self.k_conv1d(self.k_proj(x), position).unflatten(-1, heads)
        v = self.v_conv1d(self.v_proj(x), position).unflatten(-1, heads)
        q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + 1e-6) * c.kda_dim**-0.5
        k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + 1e-6)
        z = self.f_b_proj(self.f_a_proj(x)).to(q.dtype) + self.dt_bias
        g = c.lower_bound * torch.sigmoid(z.unflatten(-1, heads) * self.A_log.exp().unsqueeze(-1))
        return q, k, v, g, torch.sigmoid(self.b_proj(x).to(q.dtype))

    def finish(self, x, out):
        gate = torch.sigmoid(self.g_proj(x).to(out.dtype)).unflatten(-1, out.shape[-2:])
        return self.o_proj((self.o_norm(out) * gate).flatten(-2).to(x.dtype))

    def forward(self, x, position, keep):
        return self.finish(x, kda.chunked(*self.inputs(x, position), keep))


class MlaAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_a_proj, self.q_a_layernorm = Linear(c.q_lora, c.hidden), Norm(c.q_lora, c.latent_eps)
        self.q_b_proj = Linear(c.heads * (c.nope + c.rope), c.q_lora)
        self.kv_a_proj_with_mqa = Linear(c.kv_lora + c.rope, c.hidden)
        self.kv_a_layernorm = Norm(c.kv_lora, c.latent_eps)
        self.kv_b_proj = Linear(c.heads * (c.nope + c.value), c.kv_lora)
        self.g_proj = Linear(c.heads * c.value, c.hidden)
        self.o_proj = Linear(c.hidden, c.heads * c.value, 0.5)

    def forward(self, x, mask):
        c = self.c
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).unflatten(-1, (c.heads, -1)).transpose(1, 2)
        latent, shared = self.kv_a_proj_with_mqa(x).split([c.kv_lora, c.rope], -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).unflatten(-1, (c.heads, -1)).transpose(1, 2)
        key, value = kv.split([c.nope, c.value], -1)
        key = torch.cat([key, shared.unsqueeze(1).expand(-1, c.heads, -1, -1)], -1)
        out = F.scaled_dot_product_attention(q, key, value, attn_mask=mask)
        out = out.transpose(1, 2).flatten(-2) * torch.sigmoid(self.g_proj(x))
        return self.o_proj(out)


class Read(nn.Module):
    """A read of the attention residual: a mean of the candidates, weighted by their scores."""

    def __init__(self, width, eps):
        super().__init__()
        self.norm, self.proj = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(1, width))
        self.eps = eps

    def forward(self, candidates):
        wide = [v.to(torch.promote_types(v.dtype, torch.float32)) for v in candidates]
        query = self.norm * self.proj[0]
        scores = [(v * query).sum(-1) * torch.rsqrt(v.square().mean(-1) + self.eps) for v in wide]
        weights = torch.softmax(torch.stack(scores, -1), -1)
        return sum(weights[..., i : i + 1] * v for i, v in enumerate(wide)).to(candidates[0].dtype)


class Layer(nn.Module):
    def __init__(self, c, index):
        super().__init__()
        self.kda = c.is_kda(index)
        self.first_of_block = index % c.block == 0
        self.input_layernorm, self.post_attention_layernorm = Norm(c.hidden, c.eps), Norm(c.hidden, c.eps)
        self.self_attention_res, self.mlp_res = Read(c.hidden, c.eps), Read(c.hidden, c.eps)
        self.self_attn = KdaAttention(c) if self.kda else MlaAttention(c)
        if index == 0:
            self.mlp = Glu(c, c.inter)
        else:
            self.block_sparse_moe = LatentMoe(c)

    def forward(self, stream, blocks, position, mask, keep):
        """-> stream, blocks, rows per expert."""
        x = self.self_attention_res([*blocks, stream]) if blocks else stream
        if self.first_of_block:
            blocks, stream = [*blocks, stream], None
        x = self.input_layernorm(x)
        a = self.self_attn(x, position, keep) if self.kda else self.self_attn(x, mask)
        stream = a if stream is None else stream + a
        x = self.post_attention_layernorm(self.mlp_res([*blocks, stream]))
        if hasattr(self, "mlp"):
            return stream + self.mlp(x), blocks, None
        m, load = self.block_sparse_moe(x)
        return stream + m, blocks, load


class Weights(nn.Module):
    def __init__(self, rows, width, scale):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, width) * scale)


class Model(nn.Module):
    def __init__(self, c, dtype=torch.float32):
        super().__init__()
        self.c, self.dtype = c, dtype
        self.embed_tokens = Weights(c.vocab, c.hidden, 0.5)
        self.layers = nn.ModuleList(Layer(c, i) for i in range(c.layers))
        self.output_attn_res = Read(c.hidden, c.eps)
        self.norm = Norm(c.hidden, c.eps)
        self.lm_head = Weights(c.vocab, c.hidden, 0.5 / math.sqrt(c.hidden))

    def forward(self, tokens, position):
        """tokens, position [batch, n]: ids, and places in their document. -> normed outputs, rows per expert of each
        layer. n is a multiple of kda.CHUNK, and documents begin at such."""
        document = (position == 0).cumsum(1)
        mask = (document.unsqueeze(2) == document.unsqueeze(1)).tril().unsqueeze(1)
        keep = (position[:, :: kda.CHUNK] != 0).to(torch.promote_types(self.dtype, torch.float32))

        stream, blocks, loads = F.embedding(tokens, self.embed_tokens.weight).to(self.dtype), [], []
        for layer in self.layers:
            stream, blocks, load = layer(stream, blocks, position, mask, keep)
            if load is not None:
                loads.append(load)
        return self.norm(self.output_attn_res([*blocks, stream])), torch.stack(loads)

    def logits(self, tokens):
        """Of one document [n]."""
        padded = -(-len(tokens) // kda.CHUNK) * kda.CHUNK
        ids = F.pad(torch.as_tensor(tokens, dtype=torch.long), (0, padded - len(tokens))).unsqueeze(0)
        x, _ = self(ids, torch.arange(padded).unsqueeze(0))
        return F.linear(x[0, : len(tokens)], self.lm_head.weight.to(x.dtype))
