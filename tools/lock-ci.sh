#!/usr/bin/env bash
# Writes the versions of this virtual environment, with the hashes of their files, to requirements/ci.txt.
# torch is left out: its CPU build comes from another index. usage: make lock
set -euo pipefail
cd "$(dirname "$0")/.."
readonly python=.venv/bin/python output=requirements/ci.txt

"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || {
  echo "error: the lock is made for Python 3.11"
  echo "hint: make PYTHON=python3.11 setup lock"
  exit 1
}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$python" -m venv "$scratch/uv"
"$scratch/uv/bin/pip" install -q uv
"$python" -m pip freeze --all --exclude-editable | grep -vE '^(torch|triton|nvidia-[a-z0-9-]+|pip|wheel)==' >"$scratch/in.txt"
{
  echo "# What CI installs (Python 3.11, Linux), with the hashes of every file of each version. Made by: make lock"
  "$scratch/uv/bin/uv" pip compile -q --no-deps --generate-hashes --no-header --no-annotate \
    --unsafe-package none --python-version 3.11 "$scratch/in.txt"
} >"$scratch/out.txt"
mkdir -p requirements
mv "$scratch/out.txt" "$output"
