#!/usr/bin/env python3
"""Shows that the tests of layer_contract_test can fail: applies a fault to a copy of the sources, builds the test and
expects the row's test to fail. Needs what `make test` needs, and some minutes.

  tools/layer_mutations.py [--build DIR] [ROW...]      ROW: 06, 07, ...; all without
  --build: where the copy and its build lie and stay for the next call; without, a temporary folder
"""

import argparse
import filecmp
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
STATE = "src/state/sequence_state.cpp"
CACHE = "src/state/prefix_cache.cpp"
CACHE_STORE = "src/state/prefix_cache_store.cpp"
POOL = "src/state/block_pool.cpp"
ENGINE = "src/engine/engine.cpp"
CIRCUIT = "src/models/circuit.cpp"

# row, what is wrong then, file, text, replacement
MUTATIONS = [
    ("04", "a step allocates", CIRCUIT, "  for (Entry& entry : ops_) {",
     "  const std::vector<char> copy(size_t{1} << 18);\n  for (Entry& entry : ops_) {"),
    ("05", "an op is run that the list does not name", CIRCUIT, "    if (observer != nullptr)",
     "    if (observer != nullptr && &entry != &ops_.back())"),
    ("06", "a hit starts from no anchor", STATE, "  if (point.anchor) anchors_.push_back({position, point.anchor});",
     ""),
    ("07", "a restore point without its parts counts", CACHE, "const bool point = !needs_points() ||",
     "const bool point = true ||"),
    ("09", "rows of a batch take the first span's place", ENGINE, "static_cast<int32_t>(spans_.size()) - 1);", "0);"),
    ("11", "rows are resumed that the journal has not", STATE,
     "return journal_has_rows ? position : anchor;", "return journal_has_rows ? position : position;"),
    ("12", "a page is lost at every release of one", POOL, "  free_.push_back(id);\n}", "  if (id % 7 != 0) free_.push_back(id);\n}"),
    ("16", "positions start anew in every span", ENGINE, "request.sequence->length() + r);", "r + 0 * 16);\n"
     "      if (first > 0) positions_.back() += 1;"),
    ("18", "wished anchors are not written", STATE, "!on_backbone(position) && !wanted) continue;",
     "!on_backbone(position)) continue;\n      (void)wanted;"),
    ("19", "a refused step keeps its pages", STATE, "  pending_writes_.clear();\n  truncate_tables();\n",
     "  pending_writes_.clear();\n"),
    ("23", "rows are counted twice as written", STATE, "  length_ += prepared_;", "  length_ += prepared_ > 4 ? prepared_ - 1 : prepared_;"),
    ("27", "the store gets restore points without anchors", CACHE_STORE, "  if (n.point.anchor) {\n    const RawBlockPool& pool",
     "  if (false) {\n    const RawBlockPool& pool"),
    ("29", "pages of ended sequences stay", POOL, "  if (--references_[id] > 0) return;", "  if (--references_[id] > 0 || id == 1) return;"),
    ("33", "a layer is asked what it can", "src/models/circuit.h", "  size_t size() const {",
     "  bool supports_graphs() const { return false; }\n  size_t size() const {"),
]
NOT_HERE = {
    "01, 02": "loading: checkpoint_variants_test has its own wrong checkpoints",
    "03, 17, 21, 22, 24, 28": "kernels: the tests of the ops compare them with references; building all of them takes long",
    "10, 25": "as 09 and 16",
    "13": "as 06",
    "26": "kernels that read pages: their op tests permute pages",
    "30, 31, 32": "goldens",
    "08, 14, 15, 20": "skipped rows",
}


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--build", type=pathlib.Path)
    options = parser.parse_args()
    folder = options.build or pathlib.Path(tempfile.mkdtemp(prefix="weir-mutations-"))
    copy, build = folder / "copy", folder / "build"
    for path in filter(pathlib.Path.is_file, [ROOT / "CMakeLists.txt"] + [
            found for name in ("cmake", "src", "tests", "bench", "tools", "models") for found in (ROOT / name).rglob("*")]):
        target = copy / path.relative_to(ROOT)
        if target.exists() and filecmp.cmp(path, target, shallow=False):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        shutil.copymode(path, target)
    run(["cmake", "-S", copy, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"], check=True)

    def test(row):
        built = run(["ninja", "-C", build, "layer_contract_test"])
        if built.returncode != 0:
            return None, built.stdout
        result = run([build / "layer_contract_test", f"--gtest_filter=*Row{row}_*"], timeout=600)
        return result.returncode == 0, result.stdout

    wrong = 0
    for row, what, file, text, replacement in MUTATIONS:
        if options.rows and row not in options.rows:
            continue
        path = copy / file
        original = path.read_text()
        if original.count(text) != 1:
            print(f"row {row}: expected the text once in {file}, found it {original.count(text)} times: {text!r}")
            wrong += 1
            continue
        try:
            path.write_text(original.replace(text, replacement))
            passed, output = test(row)
        finally:
            path.write_text(original)
        if passed is None:
            print(f"row {row}: does not build with: {what}\n{output[-2000:]}")
            wrong += 1
        elif passed:
            print(f"row {row}: NOT caught: {what}")
            wrong += 1
        else:
            print(f"row {row}: caught: {what}")
    passed, output = test("*")
    if not passed:
        print("the unchanged copy fails too:\n" + output[-2000:])
        wrong += 1
    for rows, reason in NOT_HERE.items():
        print(f"rows {rows}: no mutation here: {reason}")
    if options.build is None:
        shutil.rmtree(folder)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
