#!/usr/bin/env python3
"""Seeds for the fuzz targets, from the fixtures: small files that are right. Standard library only.

    tools/fuzz_seeds.py safetensors DIR    shards cut to their smallest tensors, and bare headers
    tools/fuzz_seeds.py json DIR           configurations, indexes
"""

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


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("safetensors", "json"):
        sys.exit(__doc__)
    kind, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(FIXTURES.rglob("*." + kind)):
        seed = small_safetensors(path) if kind == "safetensors" else path.read_bytes()[: JSON_BYTES + 1]
        if seed and (kind == "safetensors" or len(seed) <= JSON_BYTES):
            (folder / "-".join(path.relative_to(FIXTURES).parts)).write_bytes(seed)


if __name__ == "__main__":
    main()
