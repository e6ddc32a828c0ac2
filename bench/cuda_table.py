#!/usr/bin/env python3
"""One table of what the CUDA benches and the peers' (bench/peers) measured.

    build/linear_cuda_bench > weir.jsonl; bench/peers/cublas_rows.py > cublas.jsonl
    bench/cuda_table.py weir.jsonl cublas.jsonl

Lines that are not JSON rows of a measurement are passed over. A row has "what", "shape", "by" and "us", and may have
"gbs", "tflops", "bar_us". Times of the same "what" and "shape" stand in one line; "/ peer" is weir's time as a share of
the fastest peer's.
"""

import json
import sys


def rows(paths):
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for line in file:
                if not line.startswith("{"):
                    continue
                try:
                    found = json.loads(line)
                except ValueError:
                    continue
                if "us" in found and "what" in found:
                    yield found
                elif "failed" in found:
                    print(f"not measured: {found['failed']}: {found['why']}\n")


def table(found):
    makers = list(dict.fromkeys(["weir", *(row.get("by", "weir") for row in found)]))
    cases = {}
    for row in found:
        cases.setdefault((row["what"], row["shape"]), {})[row.get("by", "weir")] = row
    header = ["what", "shape", *(f"{maker} us" for maker in makers), "/ peer", "weir GB/s", "weir TFLOP/s", "/ bar"]
    lines = [header, ["---"] * len(header)]
    for (what, shape), by in cases.items():
        own = by.get("weir", {})
        peers = [row["us"] for maker, row in by.items() if maker != "weir"]
        cells = [what, shape]
        cells += [f"{by[maker]['us']:.2f}" if maker in by else "" for maker in makers]
        cells.append(f"{own['us'] / min(peers):.2f}" if own and peers else "")
        cells.append(f"{own['gbs']:.0f}" if "gbs" in own else "")
        cells.append(f"{own['tflops']:.1f}" if "tflops" in own else "")
        cells.append(f"{own['us'] / own['bar_us']:.2f}" if own.get("bar_us") else "")
        lines.append(cells)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def main():
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    found = list(rows(sys.argv[1:]))
    if not found:
        sys.exit("no rows in these files")
    print(table(found))


if __name__ == "__main__":
    main()
