"""Weights of `Model` to and from a folder in K3's published layout. Only numpy and torch are needed."""
import json
import os
import struct

import numpy as np
import torch

import mxfp4
from config import Config
from model import Model

PREFIX = "language_model.model."
FP32 = ("conv1d.weight", "A_log", "dt_bias", "o_norm.weight", "e_score_correction_bias")
A_LOG_LENGTH = 128  # as published, zeros behind the heads
TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "U8": torch.uint8, "I32": torch.int32}


def read_safetensors(path):
    with open(path, "rb") as file:
        raw = bytearray(file.read())
    (size,) = struct.unpack("<Q", raw[:8])
    out = {}
    for name, entry in json.loads(raw[8 : 8 + size]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            flat = torch.frombuffer(raw, dtype=torch.uint8, count=end - begin, offset=8 + size + begin).clone()
            out[name] = flat.view(TYPES[entry["dtype"]]).reshape(entry["shape"])
    return out


def write_safetensors(path, tensors):
    """Widest elements first, so that all are aligned. -> bytes of data."""
    names = {dtype: name for name, dtype in TYPES.items()}
    header, parts, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name in sorted(tensors, key=lambda n: (-tensors[n].element_size(), n)):
        tensor = tensors[name].detach().cpu().contiguous()
        data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(parts))
    return at


def published_name(name):
    """Of a parameter of `Model`: the name in a checkpoint."""
    if name == "lm_head.weight":
        return "language_model.lm_head.weight"
    for read in ("self_attention_res", "mlp_res", "output_attn_res"):
        name = name.replace(f"{read}.norm", f"{read}_norm.weight").replace(f"{read}.proj", f"{read}_proj.weight")
    return PREFIX + name


def load_model(folder, dtype=torch.float32):
    """A model that computes in `dtype`, from a folder of any tool that writes K3's layout; vision is ignored."""
    with open(f"{folder}/model.safetensors.index.json") as file:
        files = set(json.load(file)["weight_map"].values())
    tensors = {}
    for name in sorted(files):
        tensors.update(read_safetensors(f"{folder}/{name}"))
    config = Config.load(folder)
    model = Model(config, dtype)
    wide = torch.promote_types(dtype, torch.float32)
    model = model.to(wide)
    with torch.no_grad():
        for name, target in {**dict(model.named_parameters()), **dict(model.named_buffers())}.items():
            published = published_name(name)
            if ".experts.w" in name:
                stem, matrix = published.rsplit(".", 1)
                for e in range(config.experts):
                    parts = [tensors.pop(f"{stem}.{e}.{matrix}.weight_{kind}") for kind in ("packed", "scale")]
                    target[e] = mxfp4.unpack(*parts)
                continue
            value = tensors.pop(published)
            target.copy_(value[: target.shape[0]] if name.endswith("A_log") else value)
    left = [name for name in tensors if name.startswith("language_model.")]
    if left:
        raise ValueError(f"{folder}: tensors of unknown use, such as {left[0]}")
    return model


def shards(model):
    """{file number: {published name: tensor}}; a layer a file, then what belongs to none."""
    last = model.c.layers + 1
    out = {number: {} for number in range(1, last + 1)}
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        number = int(name.split(".")[1]) + 1 if name.startswith("layers.") else last
        published = published_name(name)
        if ".experts.w" in name:
            stem, matrix = published.rsplit(".", 1)
            packed, scale = mxfp4.pack(mxfp4.round_to_grid(value.detach().float()))
            for e in range(value.shape[0]):
                out[number][f"{stem}.{e}.{matrix}.weight_packed"] = packed[e]
                out[number][f"{stem}.{e}.{matrix}.weight_scale"] = scale[e]
        elif name.endswith("A_log"):
            padded = torch.zeros(A_LOG_LENGTH)
            padded[: len(value)] = value.detach().float()
            out[number][published] = padded
        else:
            out[number][published] = value.detach().to(torch.float32 if name.endswith(FP32) else torch.bfloat16)
    return out


def save_model(model, folder):
    os.makedirs(folder, exist_ok=True)
    parts = shards(model)
    where, total = {}, 0
    for number, tensors in parts.items():
        name = f"model-{number:05d}-of-{len(parts):06d}.safetensors"
        total += write_safetensors(f"{folder}/{name}", tensors)
        where.update(dict.fromkeys(tensors, name))
    with open(f"{folder}/model.safetensors.index.json", "w") as file:
        json.dump({"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}, file, indent=0)
    with open(f"{folder}/config.json", "w") as file:
        json.dump(model.c.published(), file, indent=1)
    with open(f"{folder}/generation_config.json", "w") as file:
        json.dump({"max_length": model.c.max_positions, "eos_token_id": model.c.vocab - 254}, file)
