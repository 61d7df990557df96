#!/usr/bin/env bash
# Runs the test suite in .venv, which it makes where it is missing. Arguments are pytest's, such as -k tokenizer.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/venv.sh
make_venv test
# A process for each core; a file stays in one, whose fixtures it shares, and files keep the order of tests/conftest.py.
exec .venv/bin/python -m pytest --numprocesses=auto --dist=loadfile --no-loadscope-reorder "$@"
