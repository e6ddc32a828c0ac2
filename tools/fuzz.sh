#!/usr/bin/env bash
# Fuzzes the parsers of files, then reports the line coverage that the corpora reach; below 80 % fails.
#   tools/fuzz.sh [seconds per target, default 60] [folder for builds and corpora, default build-fuzz]
# JOBS: processes to compile with (default: one per processor). Corpora are kept in the folder and grow
# from run to run. Needs clang 19 with its runtime, and llvm-profdata / llvm-cov.
set -euo pipefail
seconds=${1:-60}
cd "$(dirname "$0")/.."
mkdir -p "${2:-build-fuzz}"
folder=$(cd "${2:-build-fuzz}" && pwd)
targets="safetensors_fuzz json_fuzz gguf_fuzz tokenizer_fuzz jinja_fuzz kimi_parser_fuzz kimi_json_fuzz
  call_parser_fuzz http_fuzz anthropic_fuzz responses_fuzz"
parsers="formats/safetensors.cpp formats/json.cpp formats/json_object.cpp formats/gguf_parse.cpp
  formats/gguf_metadata.cpp text/tokenizer_json.cpp text/tokenizer_json_parts.cpp text/tokenizer_tiktoken.cpp
  text/tokenizer_gguf.cpp text/tokenizer_pattern.cpp text/jinja_lexer.cpp text/jinja_parser.cpp
  text/jinja_parser_statements.cpp text/kimi_parser.cpp text/kimi_json.cpp
  text/call_parser.cpp text/call_parser_body.cpp server/http_request.cpp
  server/anthropic_request.cpp server/responses_request.cpp"
floor=80

build=$folder/build
cmake -S . -B "$build" -G Ninja -DCMAKE_CXX_COMPILER=clang++-19 -DWEIR_FUZZ=ON -DWEIR_SANITIZE=address,undefined \
  "-DCMAKE_CXX_FLAGS=-fprofile-instr-generate -fcoverage-mapping" >/dev/null
# shellcheck disable=SC2086
ninja -j "${JOBS:-$(nproc)}" -C "$build" $targets

# Seeds: small files from the fixtures, and one handmade file per rule. Those that begin with '{' have no length in front:
# see src/formats/safetensors_fuzz.cpp.
for target in $targets; do
  python3 tools/fuzz_seeds.py "${target%_fuzz}" "$folder/$target"
done
printf '[-1, 18446744073709551615, 1e30, 5e-324, 0.5, "\\ud83d\\ude00\\n", true, null, {"a": {"a": []}}]' \
  >"$folder/json_fuzz/seed-kinds"
printf '{"n": 1, "f": 2.0, "x": 0.5, "t": true, "s": "s", "l": [1, 2], "m": [1, "a"], "o": {"p": null}}' \
  >"$folder/json_fuzz/seed-fields"
seed() { printf '%s' "$2" >"$folder/safetensors_fuzz/seed-$1"; }
seed two '{"b":{"dtype":"BF16","shape":[2,1],"data_offsets":[4,8]},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}01234567'
seed metadata '{"__metadata__":{"format":"pt"},"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}abc'
seed empty '{"a":{"dtype":"F32","shape":[0,2],"data_offsets":[0,0]}}'
seed rest '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}abc'
seed overlap '{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}abc'
seed hole '{"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}abc'
seed overflow '{"a":{"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,0]}}'
printf '\65\0\0\0\0\0\0\0{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}abc' >"$folder/safetensors_fuzz/seed-whole"

for target in $targets; do
  echo "== $target, $seconds s"
  LLVM_PROFILE_FILE=/dev/null "$build/$target" -max_total_time="$seconds" -max_len=16384 -rss_limit_mb=2048 -timeout=10 -print_final_stats=1 \
    -verbosity=0 -artifact_prefix="$folder/$target-" "$folder/$target" >"$folder/$target.log" 2>&1 || {
    tail -n 60 "$folder/$target.log"
    echo "$target: failed; the input is in $folder/$target-*" >&2
    exit 1
  }
  grep '^stat::' "$folder/$target.log"
  LLVM_PROFILE_FILE="$folder/$target.profraw" "$build/$target" -runs=0 "$folder/$target" >"$folder/coverage.log" 2>&1
done

echo "== lines covered"
objects=()
profiles=()
for target in $targets; do
  objects+=(-object "$build/$target")
  profiles+=("$folder/$target.profraw")
done
llvm-profdata-19 merge -sparse "${profiles[@]}" -o "$folder/merged.profdata"
for parser in $parsers; do
  percent=$(llvm-cov-19 report "${objects[@]}" -instr-profile="$folder/merged.profdata" "src/$parser" 2>"$folder/coverage.log" |
    awk '$1 == "TOTAL" { print $10 + 0 }')
  echo "$parser: $percent %"
  awk -v p="$percent" -v floor="$floor" 'BEGIN { exit !(p >= floor) }' || {
    echo "$parser: expected at least $floor % of lines" >&2
    exit 1
  }
done
