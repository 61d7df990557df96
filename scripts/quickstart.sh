#!/usr/bin/env bash
# Pretrains a small BERT on Python's own manual, from nothing, and shows what it learned. All of it is written to
# quickstart/. Arguments are those of scripts/quickstart.py, such as --seed=1; --help lists them.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/venv.sh
make_venv plot,vocab
exec .venv/bin/python scripts/quickstart.py "$@"
