#!/bin/sh
# The program beside a driver that it can't use: `--device cuda` says why in one line, `auto` computes on the CPU.
# usage: broken_driver_test.sh WEIR FOLDER-OF-THE-DRIVER
weir=$1
LD_LIBRARY_PATH=$2
export LD_LIBRARY_PATH
failed=0

expect() { # what, in which output
  case $2 in
    *"$1"*) ;;
    *) echo "expected: $1"; echo "found: $2"; failed=1 ;;
  esac
}

for version in 12000 99000; do
  BROKEN_DRIVER_VERSION=$version
  export BROKEN_DRIVER_VERSION
  case $version in
    12000) why="the NVIDIA driver supports CUDA 12.0, this program needs " ;;
    *) why="no usable device: " ;;
  esac
  out=$("$weir" run --device cuda -p hi --max-tokens 1 2>&1) && { echo "--device cuda: exit code 0"; failed=1; }
  expect "weir: --device cuda: $why" "$out"
  [ "$(printf '%s\n' "$out" | wc -l)" = 1 ] || { echo "more than a line: $out"; failed=1; }
  out=$("$weir" run --device auto -p hi --max-tokens 1 --temperature 0 2>&1) || { echo "auto: failed: $out"; failed=1; }
  out=$("$weir" bench --device auto -p 4 -n 0 -r 1 2>&1) || { echo "auto: failed: $out"; failed=1; }
  expect "pp4" "$out"
done
exit $failed
