#!/usr/bin/env bash
# Times training at tiny-protein, 8 sequences of 512: Hugging Face's Mixtral and Cistron on the same cores, alternating, in one run.
#   bench/train/compare.sh [ROUNDS]      default 3; needs build/cpu/bin/cistron and .venv (make bench makes both)
# Hugging Face's best variant is found first; then each round times both, and the ratio of the medians is printed.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-3}
peer=(.venv/bin/python bench/train/hf_mixtral_cpu.py)
ours=(build/cpu/bin/cistron bench train --preset tiny-protein --batch 8 --seq 512 --json --quiet)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"${peer[@]}" | tee "$scratch/variants"
best=$(python3 -c '
import json, sys
print(max(map(json.loads, sys.stdin), key=lambda x: x["tokens_per_second"])["variant"])' <"$scratch/variants")
for ((i = 0; i < rounds; ++i)); do
  "${peer[@]}" --only "$best" | tee -a "$scratch/peer"
  "${ours[@]}" | tee -a "$scratch/ours"
done
python3 - "$scratch" "$best" <<'PYTHON'
import json, statistics, sys
def median(file):
    return statistics.median(json.loads(line)["tokens_per_second"] for line in open(f"{sys.argv[1]}/{file}"))
peer, ours = median("peer"), median("ours")
print(f"Hugging Face {sys.argv[2]}: {peer:.0f} tokens/s;  Cistron: {ours:.0f} tokens/s;  ratio {ours / peer:.2f}")
PYTHON
