#!/usr/bin/env bash
# All tests of the clients. Usage: test.sh [--without-types] [--without-storm]
# In the environment: ONCEGATE_BIN, PAYMENTS_PROVIDER_BIN, PAYMENTS_API_BIN, the programs; TSC and MYPY, the checkers of types.
set -euo pipefail
cd "$(dirname "$0")"

types=yes storm=yes
for argument in "$@"; do
  case $argument in
    --without-types) types=no ;;
    --without-storm) storm=no ;;
    *) echo "unknown: $argument; usage: test.sh [--without-types] [--without-storm]" >&2; exit 2 ;;
  esac
done
needs() {
  for name in "$@"; do
    [[ -x $(command -v "${!name:-}" || true) ]] || { echo "$name should name a program, and is '${!name:-}'" >&2; exit 2; }
  done
}
step() { printf '\n== %s\n' "$*"; "$@"; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

needs ONCEGATE_BIN
[[ $storm = no ]] || needs PAYMENTS_PROVIDER_BIN PAYMENTS_API_BIN

if [[ $types = yes ]]; then
  needs TSC MYPY
  # The types of Node are installed beside the compiler.
  roots=$(dirname "$(dirname "$(readlink -f "$(command -v "$TSC")")")")/../@types
  step "$TSC" -p typescript --outDir "$work/dist" --typeRoots "$roots"
  step "$TSC" --noEmit --strict --target es2022 --module nodenext --typeRoots "$roots" --types node typescript/tests/types.ts
  step diff -r "$work/dist" typescript/dist
  export MYPYPATH=python:python/tests:storm
  step "$MYPY" --strict --cache-dir "$work/mypy" python/oncegate_client python/tests/*.py storm/storm.py examples/check.py
fi

export PYTHONPATH=$PWD/python:$PWD/python/tests PYTHONDONTWRITEBYTECODE=1
step node --test typescript/tests/*.test.mjs
step python3 -m unittest discover -s python/tests
step python3 examples/check.py

if [[ $storm = yes ]]; then
  step python3 storm/storm.py typescript -- node typescript/tests/driver.mjs
  step python3 storm/storm.py python -- python3 python/tests/driver.py
fi
