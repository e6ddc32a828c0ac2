#!/usr/bin/env python3
"""Writes a model with random weights as a Hugging Face folder: config.json, generation_config.json, safetensors files.

    tools/make_model.py --preset k3-500m --out /tmp/k3-500m
    tools/make_model.py --config some/config.json --out /tmp/model --seed 7 --shard-mb 512
    tools/make_model.py --preset kimi-linear-240m --dry-run

Families: kimi_k3 (the published layout, routed experts MXFP4 when the config has a quantization_config; no vision
tower), kimi_linear, llama, qwen3_next. Tensor names, shapes and dtypes are those of published checkpoints. A tensor's values depend on the
seed and its name only. Needs numpy to write (tools/requirements.txt); --dry-run needs the standard library alone.
"""

import argparse
import hashlib
import json
import math
import os
import random
import shutil
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from model_layouts import Tensor, plan_tensors, text_config  # noqa: E402
from model_presets import PRESETS  # noqa: E402

DTYPE_BYTES = {"F32": 4, "BF16": 2, "U8": 1}
HEADER_ALIGNMENT = 8


class Failure(Exception):
    """One line for the user."""


def tensor_bytes(tensor):
    return math.prod(tensor.shape) * DTYPE_BYTES[tensor.dtype]


def cut_into_files(tensors, shard_bytes):
    """Lists of tensors, a list for each file: a new one before `shard_bytes` is passed or when the group changes."""
    files, size, group = [], 0, None
    for tensor in tensors:
        full = size > 0 and size + tensor_bytes(tensor) > shard_bytes
        if not files or full or (tensor.group is not None and tensor.group != group):
            files.append([])
            size = 0
        files[-1].append(tensor)
        size += tensor_bytes(tensor)
        group = tensor.group
    return files


def file_names(count, family):
    if count == 1:
        return ["model.safetensors"]
    digits = 6 if family == "kimi_k3" else 5  # Kimi K3's published names count with six digits
    return [f"model-{i + 1:05d}-of-{count:0{digits}d}.safetensors" for i in range(count)]


def header_of(tensors):
    """The header's bytes, and the tensors in file order: widest elements first, so that every tensor is aligned."""
    ordered = sorted(tensors, key=lambda t: (-DTYPE_BYTES[t.dtype], t.name))
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for tensor in ordered:
        end = offset + tensor_bytes(tensor)
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % HEADER_ALIGNMENT)
    return struct.pack("<Q", len(text)) + text, ordered


class Values:
    """Random values for a tensor, as blocks of bytes in the tensor's dtype."""

    BLOCK = 1 << 18  # elements made at a time: stays in cache

    def __init__(self, seed):
        import numpy

        self.np, self.seed = numpy, seed

    def blocks(self, tensor):
        np = self.np
        name = hashlib.blake2b(tensor.name.encode(), digest_size=8).digest()
        rng = np.random.Generator(np.random.SFC64([self.seed, int.from_bytes(name, "little")]))
        count = math.prod(tensor.shape)
        for begin in range(0, count, self.BLOCK):
            yield self._block(rng, tensor, begin, min(self.BLOCK, count - begin))

    def _block(self, rng, tensor, begin, n):
        np = self.np
        fill = tensor.fill
        if tensor.dtype == "U8":
            if fill.kind == "nibbles":  # every E2M1 code, -0 too, equally often
                return rng.integers(0, 256, n, dtype=np.uint8)
            return rng.integers(fill.low, fill.high + 1, n).astype(np.uint8)  # E8M0 codes
        if fill.kind == "normal":
            values = rng.standard_normal(n, dtype=np.float32)
            values *= np.float32(fill.scale)
            values += np.float32(fill.mean)
        elif fill.kind == "log_uniform_inverse_softplus":  # dt_bias: softplus(value) is log-uniform in [low, high]
            dt = np.exp(rng.uniform(math.log(fill.low), math.log(fill.high), n))
            values = (dt + np.log(-np.expm1(-dt))).astype(np.float32)
        elif fill.kind == "log_of_uniform":
            values = np.log(rng.uniform(fill.low, fill.high, n)).astype(np.float32)
        else:
            raise AssertionError(fill.kind)
        if fill.used is not None:  # the rest is padding
            values[max(0, fill.used - begin) :] = 0
        return values if tensor.dtype == "F32" else self._bf16(values)

    def _bf16(self, values):
        """Round to nearest, ties to even."""
        np = self.np
        bits = values.view(np.uint32)
        bits += ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
        return (bits >> np.uint32(16)).astype(np.uint16)


def write_file(path, tensors, values):
    header, ordered = header_of(tensors)
    with open(path, "wb") as out:
        out.write(header)
        for tensor in ordered:
            for block in values.blocks(tensor):
                out.write(block.data)


def read_header(path):
    """Name -> (dtype, shape) of a safetensors file, after checking it against the format's rules."""
    size = path.stat().st_size
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        if length % HEADER_ALIGNMENT or 8 + length > size:
            raise Failure(f"{path.name}: header of {length} bytes in a file of {size}")
        header = json.loads(f.read(length))
    header.pop("__metadata__", None)
    position, tensors = 0, {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        width = DTYPE_BYTES[entry["dtype"]]
        if begin != position or end - begin != math.prod(entry["shape"]) * width or (8 + length + begin) % width:
            raise Failure(f"{path.name}: {name}: bytes [{begin}, {end}) expected from {position}, aligned to {width}")
        position = end
        tensors[name] = (entry["dtype"], tuple(entry["shape"]))
    if 8 + length + position != size:
        raise Failure(f"{path.name}: {size} bytes, but the header describes {8 + length + position}")
    return tensors


def check_folder(folder, tensors):
    """Reads everything but the weights back: each tensor once, where the index says, with its dtype and shape."""
    expected = {t.name: (t.dtype, tuple(t.shape)) for t in tensors}
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, what in read_header(path).items():
            if name in found:
                raise Failure(f"{path.name}: {name} is also in {found[name][0]}")
            found[name] = (path.name, what)
    if {name: what for name, (_, what) in found.items()} != expected:
        raise Failure(f"{folder}: the files do not hold the tensors that were planned")
    index_path = folder / "model.safetensors.index.json"
    if index_path.exists():
        index = json.loads(index_path.read_text())
        if index["weight_map"] != {name: file for name, (file, _) in found.items()}:
            raise Failure(f"{index_path.name}: weight_map does not match the files")
        if index["metadata"]["total_size"] != sum(tensor_bytes(t) for t in tensors):
            raise Failure(f"{index_path.name}: total_size does not match the files")


def write_index(folder, files, names, seed):
    weight_map = [(t.name, name) for tensors, name in zip(files, names) for t in tensors]
    random.Random(seed).shuffle(weight_map)  # published indexes are not sorted either
    total = sum(tensor_bytes(t) for tensors in files for t in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": dict(weight_map)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def write_model(config, tensors, files, names, folder, seed):
    if folder.exists() and any(folder.iterdir()):
        raise Failure(f"{folder}: exists and is not empty")
    total = sum(tensor_bytes(t) for t in tensors)
    parent = folder.resolve()
    while not parent.exists():
        parent = parent.parent
    free = shutil.disk_usage(parent).free
    if total > free:
        raise Failure(f"{folder}: {total:,} bytes of weights, but {free:,} bytes are free there")
    values = Values(seed)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    eos = config.get("eos_token_id", text_config(config).get("eos_token_id"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}) + "\n")
    for name, part in zip(names, files):
        write_file(folder / name, part, values)
    if len(files) > 1:
        write_index(folder, files, names, seed)
    check_folder(folder, tensors)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--config", type=Path, metavar="FILE", help="a config.json of a known family")
    source.add_argument("--preset", choices=sorted(PRESETS))
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to make; must be absent or empty")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--shard-mb", type=float, default=4096, metavar="M", help="most megabytes in a file")
    parser.add_argument("--dry-run", action="store_true", help="print what would be written")
    arguments = parser.parse_args()
    if not arguments.dry_run and arguments.out is None:
        parser.error("--out is needed")
    if arguments.seed < 0 or not arguments.shard_mb > 0:
        parser.error("--seed is 0 or more, --shard-mb more than 0")
    return arguments


def main():
    arguments = parse_arguments()
    try:
        config = PRESETS[arguments.preset]() if arguments.preset else json.loads(arguments.config.read_text())
        tensors: list[Tensor] = plan_tensors(config)
        files = cut_into_files(tensors, arguments.shard_mb * 1e6)
        names = file_names(len(files), config["model_type"])
        if not arguments.dry_run:
            write_model(config, tensors, files, names, arguments.out, arguments.seed)
    except KeyError as error:
        sys.exit(f"make_model: config: field {error} is missing")
    except (Failure, ValueError, OSError) as error:
        sys.exit(f"make_model: {error}")
    except ImportError:
        sys.exit("make_model: needs numpy: python3 -m venv .venv && .venv/bin/pip install -r tools/requirements.txt")
    by_dtype = {}
    for tensor in tensors:
        by_dtype[tensor.dtype] = by_dtype.get(tensor.dtype, 0) + tensor_bytes(tensor)
    sizes = ", ".join(f"{dtype} {size / 1e6:.1f} MB" for dtype, size in sorted(by_dtype.items()))
    where = "would write" if arguments.dry_run else f"{arguments.out}:"
    total = sum(by_dtype.values())
    print(f"{where} {len(tensors)} tensors in {len(files)} files, {total:,} bytes ({sizes})")


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        os._exit(1)
