#!/bin/sh
# Marlin's times in the format of bench/cuda_table.py. The bar of its rows is the floor itself: 2 us and the bytes.
#   bench/peers/marlin_rows.sh CHECKOUT [nvcc's arguments] > marlin.jsonl
# CHECKOUT is a copy of https://github.com/IST-DASLab/marlin (Apache 2.0): its marlin/marlin_cuda_kernel.cu is used,
# but for the cache hint of its copies: compiled by nvcc 13 for Hopper that is an illegal instruction.
set -e
marlin=$(realpath "$1")
shift
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
mkdir "$folder/marlin"
sed -e '/\.reg \.b64 p;/d' -e '/createpolicy/d' -e 's/\.L2::cache_hint \[%0\], \[%1\], %2, p;/ [%0], [%1], %2;/' \
  "$marlin/marlin/marlin_cuda_kernel.cu" > "$folder/marlin/marlin_cuda_kernel.cu"
nvcc -std=c++20 -O3 --expt-relaxed-constexpr -arch=sm_90a -Isrc -I. -I"$folder" -o "$folder/marlin_rows" "$@" \
  bench/peers/marlin_rows.cu src/device/cuda_device_cuda.cu src/device/cuda_roof_cuda.cu src/device/cuda_backend.cpp \
  src/base/error.cpp
"$folder/marlin_rows"
