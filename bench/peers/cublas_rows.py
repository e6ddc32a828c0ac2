#!/usr/bin/env python3
"""BF16 products of cuBLAS through torch.matmul: weights [N, K], x [rows, K].

    bench/peers/cublas_rows.py [--shapes 4096x4096,...] [--rows 1,2,4,...]
"""

import argparse

from common import attempt, need_gpu, normal, rotation, row, time_us, torch

# N x K of Kimi Linear 48B, Llama-8B and their heads.
SHAPES = "2304x9216,9216x2304,4096x2304,4096x4096,7168x7168,8192x8192,163840x2304"
ROWS = "1,2,4,8,16,32,64,128,256,512,2048,8192"


def measure(n, k, all_rows):
    sets = rotation(n * k * 2, most=32)
    weights = [normal(n, k, scale=0.02) for _ in range(sets)]
    for rows in all_rows:
        if rows > 512 and n > 100000:
            continue
        x = [normal(rows, k) for _ in range(sets)]
        y = [torch.empty(rows, n, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
        calls = [lambda i=i: torch.matmul(x[i], weights[i].t(), out=y[i]) for i in range(sets)]
        row("linear BF16", f"{n}x{k} m={rows}", "cuBLAS", time_us(calls), (n * k + rows * (n + k)) * 2,
            2 * rows * n * k)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--rows", default=ROWS)
    options = parser.parse_args()
    need_gpu()
    rows = [int(text) for text in options.rows.split(",")]
    for shape in options.shapes.split(","):
        n, k = map(int, shape.split("x"))
        attempt(f"cuBLAS {shape}", measure, n, k, rows)


if __name__ == "__main__":
    main()
