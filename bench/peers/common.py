"""What the peers' benches share: timing of calls inside a CUDA graph over inputs that take turns, and rows in the format
of bench/cuda_table.py (the same as bench/cuda_timing.h prints)."""

import json
import math
import sys

try:
    import torch
except ImportError:
    sys.exit("skipped: torch is not installed")

L2_BYTES = 60e6


def need_gpu():
    if not torch.cuda.is_available():
        sys.exit("skipped: no GPU")
    torch.manual_seed(0)


def normal(*shape, dtype=torch.bfloat16, scale=1.0):
    return (torch.randn(*shape, device="cuda", dtype=torch.float32) * scale).to(dtype)


def rotation(bytes_per_set, most=48):
    """How many sets of inputs it takes so that none is in the L2 cache when its turn comes."""
    return int(min(most, max(2, math.ceil(5 * L2_BYTES / bytes_per_set) + 1)))


def _elapsed_us(work):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def time_us(calls, round_us=2000, budget_us=200e3):
    """Microseconds of a call: median over the replays of a graph that holds all calls, several times when they are short."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls[:3]:
            call()
    stream.synchronize()

    def capture(times):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(times):
                for call in calls:
                    call()
        graph.replay()
        torch.cuda.synchronize()
        return graph

    times, graph = 1, capture(1)
    us = _elapsed_us(graph.replay)
    if us < round_us:
        times = int(min(math.ceil(round_us / us), max(1, 4000 // len(calls))))
        graph = capture(times)
        us = _elapsed_us(graph.replay)
    samples = sorted(_elapsed_us(graph.replay) for _ in range(int(min(200, max(9, budget_us / us)))))
    return samples[len(samples) // 2] / times / len(calls)


def row(what, shape, by, us, nbytes=0, flops=0):
    out = {"what": what, "shape": shape, "by": by, "us": round(us, 2)}
    if nbytes:
        out["gbs"] = round(nbytes / us * 1e-3)
    if flops:
        out["tflops"] = round(flops / us * 1e-6, 1)
    print(json.dumps(out), flush=True)


def attempt(name, work, *arguments):
    """A peer that fails says so and doesn't stop the others."""
    try:
        with torch.inference_mode():
            work(*arguments)
    except Exception as error:  # pylint: disable=broad-except
        print(json.dumps({"failed": name, "why": f"{type(error).__name__}: {str(error)[:200]}"}), flush=True)
    torch.cuda.empty_cache()
