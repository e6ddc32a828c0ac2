#!/bin/sh
# Lines of each model family's file, and of the files that several families share. A family over 250 lines needs a
# reason (docs/adding-a-model.md): the script then ends with 1.
cd "$(dirname "$0")/.." || exit 2
most=250
families=$(sed -n 's/^ModelSpec load_\([a-z0-9_]*\)(const Checkpoint& checkpoint);$/\1/p' src/models/family.cpp)
over=0
for family in $families; do
  file=src/models/$family.cpp
  # One file may hold a family with and without experts.
  [ -f "$file" ] || file=$(grep -l "ModelSpec load_${family}(const Checkpoint" src/models/*.cpp | grep -v family.cpp)
  lines=$(wc -l < "$file")
  printf '%5d  %-18s %s\n' "$lines" "$family" "$file"
  [ "$lines" -le $most ] || over=1
done
echo "shared by several:"
wc -l src/models/*_parts.cpp src/models/*_gguf.cpp src/models/*_config.cpp src/models/dense_decoder.cpp |
  grep -v -e total -e gguf_config -e quantization_config
exit $over
