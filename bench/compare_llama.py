#!/usr/bin/env python3
"""Speed of weir beside llama.cpp's on SmolLM2-135M, measured in turns in one run.

    bench/compare_llama.py [--weir build/weir] [--formats Q4_1,Q8_0,Q4_0,F16,BF16] [--threads 1,2] [--repeats 3]

Builds llama.cpp (from the PyPI source package llama-cpp-python 0.3.36) into the cache on the first run, about ten
minutes on two cores, once for this processor and once without AVX-512: a ratio is to the better of the two. Makes the
other formats out of the shipped Q4_1 file with llama-quantize. Everything lies in $XDG_CACHE_HOME/weir or
~/.cache/weir; --build-only stops after that.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tarfile

PACKAGE = "llama-cpp-python==0.3.36"
ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "weir"
COMMON = ["-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF",
          "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF"]
# The second one is faster on some processors that have AVX-512.
BUILDS = {
    "native": ["-DGGML_NATIVE=ON"],
    "avx2": ["-DGGML_NATIVE=OFF", "-DGGML_AVX=ON", "-DGGML_AVX2=ON", "-DGGML_FMA=ON", "-DGGML_F16C=ON",
             "-DGGML_BMI2=ON", "-DGGML_SSE42=ON", "-DGGML_AVX512=OFF"],
}


def run(command, **options):
    """Standard output of a command; ends the program with what it said when it fails."""
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}\nfailed "
                 f"({done.returncode})")
    return done.stdout


def sources():
    folder = CACHE / "llama.cpp"
    if not folder.exists():
        print("fetching", PACKAGE, file=sys.stderr)
        venv = CACHE / "venv"
        if not (venv / "bin/pip").exists():
            run([sys.executable, "-m", "venv", venv])
        run([venv / "bin/pip", "install", "--quiet", "scikit-build-core", "flit-core"])
        run([venv / "bin/pip", "download", "--quiet", "--no-binary", "llama-cpp-python", "--no-deps",
             "--no-build-isolation", "--dest", CACHE, PACKAGE])
        [archive] = CACHE.glob("llama_cpp_python-*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(CACHE, filter="data") if hasattr(tarfile, "data_filter") else tar.extractall(CACHE)
        [unpacked] = [f for f in CACHE.glob("llama_cpp_python-*") if f.is_dir()]
        (unpacked / "vendor/llama.cpp").rename(folder)
    return folder


def peers():
    """Paths of llama-bench, by build."""
    out = {}
    for name, flags in BUILDS.items():
        build = CACHE / f"llama.cpp-{name}"
        out[name] = build / "bin/llama-bench"
        if not out[name].exists():
            print(f"building llama.cpp ({name}) in {build}", file=sys.stderr)
            run(["cmake", "-G", "Ninja", "-S", sources(), "-B", build, *COMMON, *flags])
            run(["cmake", "--build", build, "--target", "llama-bench", "llama-quantize"])
    return out


def model(form, quantize):
    shipped = pathlib.Path(run([ROOT / "tools/fetch_smollm2.sh"]).strip())
    if form == "Q4_1":
        return shipped
    path = CACHE / f"SmolLM2-135M-Instruct.{form}.gguf"
    if not path.exists():
        whole = CACHE / "SmolLM2-135M-Instruct.F32.gguf"
        if not whole.exists():
            run([quantize, "--allow-requantize", shipped, whole, "F32"])
        run([quantize, "--allow-requantize", whole, path, form])
    return path


def weir_rates(program, path, threads, args):
    rows = json.loads(run([program, "bench", path, "-p", args.prompt, "-n", args.generate, "-d", args.depth, "-t",
                           threads, "-r", 1, "--json"]))
    return {row["test"]: row["tokens_per_second"] for row in rows}, {row["test"]: row["percent_of_roof"]
                                                                     for row in rows}


def llama_rates(program, path, threads, args):
    rows = json.loads(run([program, "-m", path, "-p", args.prompt, "-n", args.generate, "-d", args.depth, "-t", threads,
                           "-r", 1, "-o", "json", "-ngl", 0]))
    out = {}
    for row in rows:
        name = f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}"
        out[name + (f"@d{row['n_depth']}" if row["n_depth"] else "")] = row["avg_ts"]
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default=ROOT / "build/weir")
    parser.add_argument("--formats", default="Q4_1,Q8_0,Q4_0,F16,BF16")
    parser.add_argument("--threads", default=str(os.cpu_count()))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--prompt", default="512")
    parser.add_argument("--generate", default="128")
    parser.add_argument("--depth", default="0")
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    parser.add_argument("--build-only", action="store_true")
    args = parser.parse_args()

    CACHE.mkdir(parents=True, exist_ok=True)
    programs = peers()
    quantize = programs["native"].with_name("llama-quantize")
    paths = {form: model(form, quantize) for form in args.formats.split(",")}
    if args.build_only:
        return
    results = []
    if not args.json:
        print(f"{'format':6} {'t':>2} {'test':14} {'weir':>9} {'% roof':>7} {'llama.cpp':>10} {'build':7} {'ratio':>6}  "
              "lowest and highest of the repeats")
    for form, path in paths.items():
        for threads in args.threads.split(","):
            weir, roofs, llama = {}, {}, {name: {} for name in programs}
            # In turns, so that whatever else the machine does meets all of them.
            for _ in range(args.repeats):
                rates, percents = weir_rates(args.weir, path, threads, args)
                for test, rate in rates.items():
                    weir.setdefault(test, []).append(rate)
                    roofs.setdefault(test, []).append(percents[test])
                for name, program in programs.items():
                    for test, rate in llama_rates(program, path, threads, args).items():
                        llama[name].setdefault(test, []).append(rate)
            for test, rates in weir.items():
                best = max((name for name in llama if test in llama[name]),
                           key=lambda name: statistics.median(llama[name][test]))
                peer = llama[best][test]
                ratios = [a / b for a, b in zip(rates, peer)]
                row = {"format": form, "threads": int(threads), "test": test, "weir": statistics.median(rates),
                       "percent_of_roof": statistics.median(roofs[test]), "llama": statistics.median(peer),
                       "llama_build": best, "ratio": statistics.median(rates) / statistics.median(peer),
                       "ratio_low": min(ratios), "ratio_high": max(ratios)}
                results.append(row)
                if not args.json:
                    print(f"{form:6} {threads:>2} {test:14} {row['weir']:9.1f} {row['percent_of_roof']:7.1f} "
                          f"{row['llama']:10.1f} {best:7} {row['ratio']:6.2f}  {row['ratio_low']:.2f} .. "
                          f"{row['ratio_high']:.2f}", flush=True)
    if args.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
