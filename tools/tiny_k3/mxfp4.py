"""MXFP4: E2M1 elements, an E8M0 scale for each 32 of a row (OCP Microscaling 1.0), as compressed-tensors packs them."""
import torch

BLOCK = 32
LARGEST = 6.0


def scales(weight):
    """Exponents [..., in / 32]: the least with which no element of the block is cut."""
    largest = weight.unflatten(-1, (-1, BLOCK)).abs().amax(-1)
    exponent = torch.ceil(torch.log2(largest.clamp_min(2.0**-100) / LARGEST))
    return exponent.clamp(-126, 127)


def round_to_grid(weight):
    """The nearest values that MXFP4 can hold; ties to even."""
    scale = torch.exp2(scales(weight)).unsqueeze(-1)
    y = weight.unflatten(-1, (-1, BLOCK)) / scale
    size = y.abs()
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    rounded = (torch.round(size / step) * step).clamp_max(LARGEST)
    return (torch.copysign(rounded, y) * scale).flatten(-2)


def fake_quantize(weight):
    """Values on the grid; gradients pass as if they were the weights themselves."""
    return weight + (round_to_grid(weight) - weight).detach()


def pack(weight):
    """-> codes U8 [..., in / 2], scales U8 [..., in / 32] of weights that lie on the grid."""
    exponent = scales(weight)
    y = weight.unflatten(-1, (-1, BLOCK)) / torch.exp2(exponent).unsqueeze(-1)
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=y.dtype, device=y.device)
    code = torch.searchsorted(grid, y.abs().flatten(-2).contiguous())
    if not torch.equal(grid[code], y.abs().flatten(-2)):
        raise ValueError("mxfp4: expected weights on the grid")
    code = code + 8 * torch.signbit(y).flatten(-2)
    return (code[..., 0::2] | code[..., 1::2] << 4).to(torch.uint8), (exponent + 127).to(torch.uint8)


def unpack(codes, scale):
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float32)
    code = torch.stack([codes & 15, codes >> 4], -1).flatten(-2).long()
    return (grid[code].unflatten(-1, (-1, BLOCK)) * torch.exp2(scale.float() - 127).unsqueeze(-1)).flatten(-2)
