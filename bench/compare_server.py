#!/usr/bin/env python3
"""weir's server beside llama.cpp's: both serve the same file in turn, and `weir load` asks both the same.

    bench/compare_server.py [--weir build/weir] [--model FILE.gguf] [--hybrid [FILE.gguf]] [--clients 1,8] [--rounds 3]

In every round each server is started afresh, warmed up, put through all arms and stopped, while the other one does not
run; the order changes from round to round. Prompts are random words of a seed that differs between arms and rounds and
is the same for both servers. The arms:

    control   nothing shared, so that a cache can't help; at each number of clients
    repeated  each prompt three times
    part      three prompts share half of their tokens
    turns     conversations of four turns

The last three with one client; --hybrid runs part and turns once more with a model that has recurrent layers, by default
one with random weights (bench/hybrid_gguf.py). The first column of figures is weir's median of the rounds, then the peer's, their ratio (above 1: weir is better) and the lowest
and highest ratio of a round. llama-server is built into the cache on the first run, as bench/compare_llama.py does it,
with `native`; --build-only stops after that. --servers weir or llama measures one alone.
"""

import argparse
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import compare_llama
from compare_llama import BUILDS, CACHE, COMMON, ROOT

START_SECONDS = 120
# Name in the report, what is printed, whether more is better.
FIGURES = [("output_throughput", "tok/s out", True), ("mean_ttft_ms", "TTFT ms", False),
           ("p99_ttft_ms", "TTFT p99", False), ("mean_tpot_ms", "TPOT ms", False), ("p99_itl_ms", "ITL p99", False),
           ("cached_percent", "% cached", True)]


def llama_server():
    build = CACHE / "llama.cpp-native"
    program = build / "bin/llama-server"
    if not program.exists():
        print(f"building llama-server in {build}", file=sys.stderr)
        compare_llama.run(["cmake", "-G", "Ninja", "-S", compare_llama.sources(), "-B", build, *COMMON,
                           *BUILDS["native"]])
        compare_llama.run(["nice", "cmake", "--build", build, "--target", "llama-server", "-j1"])
    return program


def hybrid_model(words):
    path = CACHE / "qwen3next-152mb.Q8_0.gguf"
    if not path.exists():
        python = CACHE / "venv/bin/python"
        packages = [compare_llama.sources() / "gguf-py", "numpy"]  # sources() makes the environment, too
        compare_llama.run([python, "-m", "pip", "install", "--quiet", *packages])
        compare_llama.run([python, ROOT / "bench/hybrid_gguf.py", words, path.with_suffix(".part")])
        path.with_suffix(".part").rename(path)
    return path


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """A server between its start and its end."""

    def __init__(self, command, port):
        self.url = f"http://127.0.0.1:{port}"
        self.command = [str(part) for part in command]

    def __enter__(self):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=subprocess.STDOUT)
        end = time.monotonic() + START_SECONDS
        try:
            while not self.ready():
                if self.process.poll() is not None or time.monotonic() > end:
                    self.fail("did not start")
                time.sleep(0.1)
        except BaseException:
            self.__exit__()
            raise
        return self

    def ready(self):
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def fail(self, what):
        self.log.seek(0)
        sys.exit(f"{' '.join(self.command)}\n{self.log.read()[-2000:]}\n{what}")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def server(name, args, path):
    port = free_port()
    slots = max(args.clients)
    # Of a conversation's last turn, with room for the chat's own tokens.
    tokens = args.input + 4 * args.output + 256
    if name == "weir":
        return Server([args.weir, "serve", path, "--port", port, "--threads", args.threads, "--max-sequences", slots],
                      port)
    return Server([llama_server(), "-m", path, "--port", port, "--host", "127.0.0.1", "-t", args.threads, "-ngl", 0,
                   "-np", slots, "-c", slots * tokens], port)


def arms(args):
    """Name, options of `weir load`."""
    n, out = args.input, args.output
    for clients in args.clients:
        yield f"control, {clients}", ["--prompts", f"random:{n},{out}", "-c", clients, "-n", args.requests * clients]
    yield "repeated, 1", ["--prompts", f"repeat:3,{n},{out}", "-n", 3 * args.requests]
    yield from reusing_arms(args)


def reusing_arms(args):
    n, out = args.input, args.output
    yield "part, 1", ["--prompts", f"partial:{n // 2},{n},3,{out}", "-n", 3 * args.requests]
    yield "turns, 1", ["--prompts", f"turns:4,{n // 4},{out}", "-n", 4 * args.requests]


def measure(name, args, path, chosen, round_number):
    """Reports of one server, by arm."""
    out = {}
    with server(name, args, path) as running:
        for number, (arm, options) in enumerate(chosen):
            command = [args.weir, "load", running.url, *options, "--seed", 1000 * round_number + number, "--warmup", 1,
                       "--output", "json"]
            done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True)
            if done.returncode != 0:
                running.fail(f"{name}, {arm}: {done.stderr.strip()}")
            out[arm] = json.loads(done.stdout)
            print(f"round {round_number + 1}, {name}, {arm}: {out[arm]['output_throughput']:.1f} tok/s out, "
                  f"TTFT {out[arm]['mean_ttft_ms']:.1f} ms", file=sys.stderr)
    return out


def rounds(args, path, chosen):
    """For every arm and server the reports of the rounds."""
    out = {arm: {name: [] for name in args.servers} for arm, _ in chosen}
    for number in range(args.rounds):
        busy = os.getloadavg()[0]
        if number == 0 and busy > 0.5:
            print(f"other work runs on this machine (load average {busy:.1f}): servers whose threads wait for each other by "
                  "spinning suffer from it more than others, so the ratios say little", file=sys.stderr)
        for name in args.servers if number % 2 == 0 else reversed(args.servers):
            for arm, report in measure(name, args, path, chosen, number).items():
                out[arm][name].append(report)
    return out


def rows(model, measured):
    for arm, by_server in measured.items():
        for key, label, more_is_better in FIGURES:
            row = {"model": model, "arm": arm, "figure": key, "label": label}
            values = {name: [report[key] for report in reports] for name, reports in by_server.items()}
            for name, list_ in values.items():
                if None not in list_:
                    row[name] = statistics.median(list_)
                    row[f"{name}_rounds"] = list_
            if "weir" in row and "llama" in row and key != "cached_percent":
                pairs = list(zip(values["weir"], values["llama"]))
                ratios = [a / b if more_is_better else b / a for a, b in pairs if a > 0 and b > 0]
                if ratios:
                    row |= {"ratio": statistics.median(ratios), "ratio_low": min(ratios), "ratio_high": max(ratios)}
            yield row


def print_rows(table):
    print(f"{'arm':12} {'figure':10} {'weir':>10} {'llama.cpp':>10} {'ratio':>7}  lowest and highest of the rounds")
    for row in table:
        figures = [f"{row[name]:10.1f}" if name in row else f"{'-':>10}" for name in ("weir", "llama")]
        ratio = f"{row['ratio']:7.2f}  {row['ratio_low']:.2f} .. {row['ratio_high']:.2f}" if "ratio" in row else ""
        print(f"{row['arm']:12} {row['label']:10} {figures[0]} {figures[1]} {ratio}".rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", type=pathlib.Path, default=ROOT / "build/weir")
    parser.add_argument("--model", help="GGUF file; default: SmolLM2-135M, Q4_1")
    parser.add_argument("--hybrid", nargs="?", const="", metavar="FILE.gguf", help="of a model with recurrent layers")
    parser.add_argument("--clients", default="1,8")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=4, help="of each client in an arm; prompts where they repeat")
    parser.add_argument("--input", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--output", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--servers", default="weir,llama")
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    parser.add_argument("--build-only", action="store_true")
    args = parser.parse_args()
    args.clients = [int(number) for number in args.clients.split(",")]
    args.servers = args.servers.split(",")
    if not set(args.servers) <= {"weir", "llama"}:
        parser.error("--servers: expected weir, llama or both")

    CACHE.mkdir(parents=True, exist_ok=True)
    if "llama" in args.servers:
        llama_server()
    if args.build_only:
        return
    model = args.model or compare_llama.run([ROOT / "tools/fetch_smollm2.sh"]).strip()
    work = [(model, list(arms(args)))]
    if args.hybrid is not None:
        work.append((args.hybrid or hybrid_model(compare_llama.run([ROOT / "tools/fetch_smollm2.sh"]).strip()),
                     list(reusing_arms(args))))
    table = []
    for path, chosen in work:
        part = list(rows(pathlib.Path(path).name, rounds(args, path, chosen)))
        table += part
        if not args.json:
            print(f"{pathlib.Path(path).name}, {args.threads} threads, {args.rounds} rounds; arms and their clients")
            print_rows(part)
    if args.json:
        print(json.dumps(table))


if __name__ == "__main__":
    main()
