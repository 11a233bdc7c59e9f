#!/usr/bin/env bash
# Run this checkout on an emulated arm64 processor (QEMU's user mode), from Debian's packages and Python's wheels alone.
#
#   bash scripts/arm64.sh CHECKOUT ARGUMENTS…     runs `python ARGUMENTS…` there, such as -m fredsim list
#   bash scripts/arm64.sh . tests/golden/matrix.py --every 10
#   bash scripts/arm64.sh . -m pytest -q -p no:cacheprovider tests/golden tests/vectors tests/numerics
#
# Needs an x86-64 Debian (12 or later), and root once, to install the emulator. FREDSIM_ARM64, ~/.cache/fredsim-arm64 if it
# is not set, takes 0.7 GB; it is made once and used again. NUMBA_CPU_NAME=neoverse-v2 NUMBA_CPU_FEATURES= compiles for
# another processor. Emulation shows bits. It does not show the order of memory accesses, in which x86 is stricter.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,11p' "$0" >&2; exit 2; }
checkout=$(cd "$1" && pwd)
shift
work=${FREDSIM_ARM64:-$HOME/.cache/fredsim-arm64}
mkdir -p "$work"
work=$(cd "$work" && pwd)
say() { printf '== %s\n' "$1" >&2; }

if ! command -v qemu-aarch64-static > /dev/null || ! command -v mmdebstrap > /dev/null; then
  say "installing the emulator"
  apt-get update -qq >&2
  apt-get install -y -qq --no-install-recommends qemu-user-static mmdebstrap >&2
fi

if [ ! -x "$work/python" ]; then
  say "unpacking a Python for arm64"
  packages=libc6,libstdc++6,libgomp1,zlib1g,python3.11-minimal,libpython3.11-stdlib
  rm -rf "$work/root"
  mmdebstrap --quiet --variant=extract --architectures=arm64 --include="$packages" bookworm "$work/root" >&2
  # The emulator looks for every path below the root first: these would hide the ones of this machine.
  rm -rf "$work/root/tmp" "$work/root/var" "$work/root/dev" "$work/root/etc"
  # A script, so that sys.executable is one, and processes that Python starts are emulated, too.
  printf '#!/bin/sh\nexec qemu-aarch64-static -L %s -0 "$0" %s "$@"\n' "$work/root" "$work/root/usr/bin/python3.11" \
    > "$work/python.part"
  chmod +x "$work/python.part"
  mv "$work/python.part" "$work/python"
fi

if [ ! -d "$work/site" ]; then
  say "installing the wheels for arm64"
  platforms=(--platform manylinux2014_aarch64)
  for glibc in 17 24 26 27 28 31 34; do platforms+=(--platform "manylinux_2_${glibc}_aarch64"); done
  mapfile -t needs < <(python3 - "$checkout/pyproject.toml" <<'PY'
import sys
import tomllib

with open(sys.argv[1], "rb") as file:
    print(*tomllib.load(file)["project"]["dependencies"], sep="\n")
PY
  )
  rm -rf "$work/site.part"
  python3 -m pip install -q --no-compile --target "$work/site.part" --only-binary=:all: --python-version 3.11 \
    --implementation cp --abi cp311 --abi abi3 --abi none "${platforms[@]}" -c "$checkout/constraints.txt" \
    "${needs[@]}" pytest pytest-timeout hypothesis mpmath >&2
  python3 -m pip install -q --no-compile --no-deps --target "$work/site.part" "$checkout" >&2 # for its version alone
  rm -rf "$work/site.part/fredsim"
  mv "$work/site.part" "$work/site"
fi

export PYTHONPATH="$checkout:$work/site" PYTHONNOUSERSITE=1 PYTHONPYCACHEPREFIX="$work/pyc" MPLCONFIGDIR="$work/mpl"
export FREDSIM_CACHE="$work/cache" NUMBA_CACHE_DIR="$work/numba"
cd "$checkout"
exec "$work/python" "$@"
