#!/usr/bin/env bash
# Do both sides of the proof see the same? On a CPU in fp32: the first batch's loss, load-balancing loss and gradient norm, to 1e-5.
#   bench/proof/check.sh STORE [section.key=value]...       as run.sh; e.g. model.layers=1 to be quick
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
config=$here/../../configs/protein-100m.toml
cistron=${CISTRON:-build/cpu/bin/cistron} dump=${DUMP_BATCHES:-build/cpu/bench/dump_batches} python=${PYTHON:-.venv/bin/python}
tokens=4096
keys=("data.store=$1" "train.batch_tokens=$tokens" train.steps=1 optimizer.lr=0 precision.recipe=fp32 "${@:2}")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$cistron" train "$config" --out "$scratch/run" --device cpu --quiet "${keys[@]/#/--set=}"
"$cistron" export "$scratch/run" --out "$scratch/exported" --quiet
"$dump" "$config" "$scratch" "${keys[@]}"
"$python" "$here/hf_mixtral.py" "$scratch/exported" "$scratch" "$scratch/peer" --batch-tokens $tokens --check "$scratch/run/metrics.jsonl"
