#!/usr/bin/env bash
# Fails when an object that was compiled for one instruction set defines a symbol that the linker may merge with another
# object's: a weak or unique symbol whose name does not belong to that instruction set (weir::avx2::, weir::avx512::).
# Merged, code for AVX-512 could be what generic code calls on a processor that lacks it.
#   usage: isa_symbols.sh BUILD_DIR [NM]
set -euo pipefail
build=$1
nm=${2:-nm}

if grep -q '^WEIR_SANITIZE:[A-Z]*=.' "$build/CMakeCache.txt"; then
  echo "skipped: sanitizers keep inline functions out of line"
  exit 0
fi

objects=0
offenders=0
for isa in avx2 avx512 avx512vnni; do
  while IFS= read -r -d '' object; do
    objects=$((objects + 1))
    # Definitions: weak function (W), weak object (V), unique (u). DW.ref.* are pointers for exception tables: data, no code.
    found=$("$nm" -C --defined-only "$object" | sed -nE 's/^[0-9a-f]+ [WVu] //p' |
      grep -v -e "weir::$isa::" -e '^DW\.ref\.' || true)
    if [ -n "$found" ]; then
      offenders=$((offenders + 1))
      printf '%s:\n' "${object#"$build"/}"
      sed 's/^/  /' <<<"$found"
    fi
  done < <(find "$build/CMakeFiles" -path "*_$isa.dir/*" -name '*.o' -print0)
done

if [ "$objects" = 0 ]; then
  echo "no objects of *_cpu.cpp files under $build/CMakeFiles: nothing was checked"
  exit 1
fi
echo "$objects objects, $offenders with symbols that other objects could merge with"
[ "$offenders" = 0 ]
