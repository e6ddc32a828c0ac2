#!/usr/bin/env python3
"""Seeds for the fuzz targets, from the fixtures: small files that are right. Standard library only.

    tools/fuzz_seeds.py safetensors DIR    shards cut to their smallest tensors, and bare headers
    tools/fuzz_seeds.py json DIR           configurations, indexes
    tools/fuzz_seeds.py tokenizer DIR      tokenizers cut to a small vocabulary, with a text to encode
"""

import base64
import json
import struct
import sys
from pathlib import Path

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures"
TENSOR_BYTES = 512  # a seed's tensors are at most this large: the header is what is fuzzed
TENSORS = 6
JSON_BYTES = 16384


def small_safetensors(path):
    """The file with only its smallest tensors, or nothing when all are large."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    small = {}
    if "__metadata__" in header:
        small["__metadata__"] = header.pop("__metadata__")
    body = b""
    by_size = sorted(header.items(), key=lambda item: item[1]["data_offsets"][1] - item[1]["data_offsets"][0])
    for name, entry in by_size[:TENSORS]:
        begin, end = entry["data_offsets"]
        if end - begin > TENSOR_BYTES:
            break
        small[name] = {**entry, "data_offsets": [len(body), len(body) + end - begin]}
        body += data[8 + length + begin : 8 + length + end]
    if not body:
        return None
    text = json.dumps(small, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def small_tokenizer(path):
    """tokenizer.json with few tokens, behind a text, as src/text/tokenizer_fuzz.cpp reads it."""
    tokenizer = json.loads(path.read_text())
    model = tokenizer["model"]
    tokenizer["added_tokens"] = tokenizer["added_tokens"][:6]
    used = {token["content"] for token in tokenizer["added_tokens"]}
    if isinstance(model["vocab"], dict):
        names = [name for name in model["vocab"] if len(name) == 1][:60]
        names += [name for name in model["vocab"] if name.startswith("<0x")][::40]
        merges = []
        for left, right in model["merges"]:
            if left in names and right in names and len(merges) < 30:
                merges.append([left, right])
                names.append(left + right)
        names += [n for n in model["vocab"] if n in used or n == model.get("unk_token")]
        model["vocab"] = {name: model["vocab"][name] for name in names}
        model["merges"] = merges
    else:
        model["vocab"] = model["vocab"][:60]
    for token in tokenizer["added_tokens"]:
        if isinstance(model["vocab"], list) and token["id"] >= 60:
            token["id"] = token["id"] - 540
    text = "the river, caf\u00e9 12 " + tokenizer["added_tokens"][0]["content"]
    return text.encode() + b"\0" + json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")).encode()


def tokenizer_seeds(folder):
    for path in sorted(FIXTURES.rglob("tokenizer.json")):
        (folder / path.parent.name).write_bytes(small_tokenizer(path))
    ranks = "".join(f"{base64.b64encode(bytes([b])).decode()} {b}\n" for b in range(256)) + "dGg= 256\n"
    (folder / "tiktoken").write_bytes(b"the 12\0T" + ranks.encode())
    (folder / "gguf-gpt2").write_bytes("ab 12\0Ggpt2\nqwen2\n1a\n1b\n1ab\n1Ġ\n3<s>\n4<t>\n11\n12\nma b\n".encode())
    (folder / "gguf-llama").write_bytes("ab <s>\0Gllama\n\n2<unk>\n3<s>\n6<0x41>\n1a\n1b\n1ab\n1▁\n1▁a\n4  \n".encode())
    expressions = [r"[\p{L}&&[^\p{Han}]]+|(?i:'s|'t)", r"\s+(?!\S)|[^\S\n]{1,3}+", r"\b\w\x{41}[a-z\d\u0041]?"]
    for index, expression in enumerate(expressions):
        (folder / f"expression-{index}").write_bytes(b"\0R" + expression.encode())


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("safetensors", "json", "tokenizer"):
        sys.exit(__doc__)
    kind, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "tokenizer":
        return tokenizer_seeds(folder)
    for path in sorted(FIXTURES.rglob("*." + kind)):
        seed = small_safetensors(path) if kind == "safetensors" else path.read_bytes()[: JSON_BYTES + 1]
        if seed and (kind == "safetensors" or len(seed) <= JSON_BYTES):
            (folder / "-".join(path.relative_to(FIXTURES).parts)).write_bytes(seed)


if __name__ == "__main__":
    main()
