#!/usr/bin/env python3
"""Runs a program under compute-sanitizer's racecheck and fails for every report that tests/racecheck_suppressions.txt does
not explain.

    tools/racecheck.py build/kda_layer_cuda_test --gtest_filter='*Whole*'
    tools/racecheck.py --kernel multiply_few --launches 8 build/moe_cuda_test --gtest_filter='*AnyNumberOfRows'

The second checks the first launches of kernels whose name contains a string, and leaves the others as fast as they are.

A line of that file: PROGRAM FILE TAG FUNCTION FUNCTION. It covers hazards of the program between accesses in the two
functions (the innermost, after inlining), and only while src/FILE has the comment "racecheck TAG: ..." beside the barrier
that orders them.
"""

import argparse
import pathlib
import re
import subprocess
import sys
from collections import Counter

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIRST = re.compile(r"Race reported between (Read|Write) access at (.*)\+0x[0-9a-f]+ in (\S+?):(\d+)")
OTHER = re.compile(r"and (Read|Write) access at (.*)\+0x[0-9a-f]+ in (\S+?):(\d+) \[(\d+) hazards?\]")


def function_name(signature):
    """`ns::C<(ns::E)3>::f<x>(int, ns::T*)` -> `C::f`"""
    while (shorter := re.sub(r"<[^<>]*>", "", signature)) != signature:
        signature = shorter
    return "::".join(signature.split("(")[0].split()[-1].split("::")[-2:])


def suppressions(program):
    out = []
    for number, line in enumerate((ROOT / "tests/racecheck_suppressions.txt").read_text().splitlines(), 1):
        fields = line.split("#")[0].split()
        if not fields:
            continue
        if len(fields) != 5:
            sys.exit(f"tests/racecheck_suppressions.txt:{number}: expected PROGRAM FILE TAG FUNCTION FUNCTION, found {line!r}")
        name, file, tag, *functions = fields
        source = ROOT / "src" / file
        if not source.exists() or f"racecheck {tag}:" not in source.read_text():
            sys.exit(f"tests/racecheck_suppressions.txt:{number}: src/{file} has no comment 'racecheck {tag}:'")
        if name == program:
            out.append((tag, sorted(functions)))
    return out


def access(match):
    return match.group(1), function_name(match.group(2)), f"{pathlib.Path(match.group(3)).name}:{match.group(4)}"


def hazards(output):
    """Pairs of accesses, (kind, function, file:line) each, and how often."""
    found, first = Counter(), None
    for line in output.splitlines():
        if match := FIRST.search(line):
            first = access(match)
        elif first is not None and (match := OTHER.search(line)):
            found[first, access(match)] += int(match.group(5))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", help="checks only kernels whose (mangled) name contains this")
    parser.add_argument("--launches", type=int, default=0, help="and so many launches of them; 0: all")
    parser.add_argument("program")
    args, rest = parser.parse_known_args()
    known = suppressions(pathlib.Path(args.program).name)
    selection = ["--launch-count", str(args.launches)] + (["--kernel-name", f"kns={args.kernel}"] if args.kernel else [])
    result = subprocess.run(["compute-sanitizer", "--tool", "racecheck", "--racecheck-report", "analysis", "--print-limit",
                             "100000", "--show-backtrace", "no", *selection, args.program, *rest], capture_output=True,
                            text=True)
    output = result.stdout + result.stderr
    reports, counted = output.count("Race reported"), sum(1 for line in output.splitlines() if FIRST.search(line))
    if "COMPUTE-SANITIZER" not in output:
        sys.exit(f"compute-sanitizer did not run: {output[:500]}")
    unexplained, explained = [], Counter()
    for (first, second), count in sorted(hazards(output).items()):
        tags = [tag for tag, functions in known if functions == sorted([first[1], second[1]])]
        if tags:
            explained[tags[0]] += count
        else:
            unexplained.append(f"{count} hazards: {first[0]} {first[1]} {first[2]}, {second[0]} {second[1]} {second[2]}")
    if counted < reports:
        unexplained.append(f"{reports - counted} reports without a line of the source: compile with -lineinfo")
    ran = re.findall(r"\[  PASSED  \] \d+ tests?\.|\[  FAILED  \].*", output)
    print(f"{args.program}: {' '.join(ran) or 'no test ran'}; explained: "
          f"{', '.join(f'{tag} x {n}' for tag, n in explained.items()) or 'none'}; unexplained: {len(unexplained)}")
    for line in unexplained:
        print("  " + line)
    passed = bool(ran) and not any("FAILED" in line for line in ran)
    sys.exit(0 if passed and not unexplained else 1)


if __name__ == "__main__":
    main()
