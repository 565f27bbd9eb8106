#!/usr/bin/env bash
# What `cargo xtask test` has no tools for: the types of both clients, and that typescript/dist is what the compiler makes of typescript/src.
# In the environment: TSC and MYPY, the checkers (`npm install` in typescript, `pip install mypy`).
set -euo pipefail
cd "$(dirname "$0")"

for name in TSC MYPY; do
  [[ -x $(command -v "${!name:-}" || true) ]] || { echo "$name should name a program, and is '${!name:-}'" >&2; exit 2; }
done
step() { printf '\n== %s\n' "$*"; "$@"; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The types of Node are installed beside the compiler.
roots=$(dirname "$(dirname "$(readlink -f "$(command -v "$TSC")")")")/../@types
step "$TSC" -p typescript --outDir "$work/dist" --typeRoots "$roots"
step "$TSC" --noEmit --strict --target es2022 --module nodenext --typeRoots "$roots" --types node typescript/tests/types.ts
# What `npm run build` adds to it.
step diff -r --exclude made.json "$work/dist" typescript/dist
export MYPYPATH=python:python/tests:storm
step "$MYPY" --strict --cache-dir "$work/mypy" python/oncegate_client python/tests/*.py storm/storm.py storm/accepted.py examples/check.py
