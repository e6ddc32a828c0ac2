#!/usr/bin/env python3
"""Store a file as what it shares with others: pieces to copy, and the bytes that are new.

  fixture_delta.py OUT.delta TARGET SOURCE [SOURCE ...]

Tests hold the same weights in several layouts (a folder, GGUF files converted from it, the multimodal layout). Such a
file is kept as NAME.delta; tests/support/delta.h puts it together again, checked by size and SHA-256. Format, little
endian: "WDELTA1\\n", u64 size of the target, its SHA-256 (32 bytes), u32 number of sources, each: u32 length and name
relative to the folder of the .delta file; u64 number of pieces, each: u32 source (0xFFFFFFFF: new bytes), u64 offset in it
(0 for new bytes), u64 length; then all new bytes.
"""
import hashlib
import os
import struct
import sys

BLOCK = 32  # shortest piece worth copying


def pieces(target, sources):
    """Greedy: at each position the longest run in a source that starts with the same BLOCK bytes."""
    index = {}
    for s, data in enumerate(sources):
        for at in range(0, len(data) - BLOCK + 1, 2):
            index.setdefault(data[at:at + BLOCK], (s, at))
    found, new, begin, at = [], [], 0, 0

    def flush(end):
        if end > begin:
            found.append((0xFFFFFFFF, 0, end - begin))
            new.append(target[begin:end])

    previous = None
    while at + BLOCK <= len(target):
        candidates = [index.get(target[at:at + BLOCK])]
        if previous and sources[previous[0]][previous[1]:previous[1] + BLOCK] == target[at:at + BLOCK]:
            candidates.insert(0, previous)
        best = None
        for candidate in candidates:
            if candidate is None:
                continue
            source = sources[candidate[0]]
            length = BLOCK
            limit = min(len(target) - at, len(source) - candidate[1])
            step = 4096
            while step:
                while length + step <= limit and (target[at + length:at + length + step] ==
                                                  source[candidate[1] + length:candidate[1] + length + step]):
                    length += step
                step //= 8
            if best is None or length > best[2]:
                best = (candidate[0], candidate[1], length)
        if best is None:
            at += 1
            continue
        flush(at)
        found.append(best)
        at += best[2]
        previous = (best[0], best[1] + best[2])
        begin = at
    flush(len(target))
    return found, b"".join(new)


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    out, target_path, source_paths = sys.argv[1], sys.argv[2], sys.argv[3:]
    with open(target_path, "rb") as file:
        target = file.read()
    sources = []
    for path in source_paths:
        with open(path, "rb") as file:
            sources.append(file.read())
    found, new = pieces(target, sources)
    with open(out, "wb") as file:
        file.write(b"WDELTA1\n" + struct.pack("<Q", len(target)) + hashlib.sha256(target).digest())
        file.write(struct.pack("<I", len(sources)))
        for path in source_paths:
            name = os.path.relpath(path, os.path.dirname(os.path.abspath(out))).encode()
            file.write(struct.pack("<I", len(name)) + name)
        file.write(struct.pack("<Q", len(found)))
        for piece in found:
            file.write(struct.pack("<IQQ", *piece))
        file.write(new)
    print(f"{out}: {os.path.getsize(out)} bytes for {len(target)}, {len(found)} pieces")


if __name__ == "__main__":
    main()
