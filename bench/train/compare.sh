#!/usr/bin/env bash
# Times training at 8 sequences of 512, tiny-protein or the same with other experts: Hugging Face's Mixtral and Cistron on the same
# cores, alternating, in one run.
#   bench/train/compare.sh [ROUNDS] [RECIPE] [EXPERTS TOP_K INTERMEDIATE]
# ROUNDS: 3. RECIPE: bf16 (against the peer's best in any dtype) or fp32 (against its best in fp32). Experts: 8 2 256.
# Needs build/cpu/bin/cistron and .venv (make bench makes both). Hugging Face's best variant is found first; then each round times
# both. Prints medians of tokens a second, of CPU time and of peak memory, and their ratios.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-3} recipe=${2:-bf16} experts=${3:-8} top_k=${4:-2} intermediate=${5:-256}
peer=(.venv/bin/python bench/train/hf_mixtral_cpu.py --experts "$experts" --top-k "$top_k" --intermediate "$intermediate")
ours=(build/cpu/bin/cistron bench train --preset tiny-protein --set model.experts="$experts" --set model.top_k="$top_k"
      --set model.intermediate="$intermediate" --batch 8 --seq 512 --recipe "$recipe" --json --quiet)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

variants=(eager/fp32 grouped_mm/fp32)
[[ $recipe == fp32 ]] || variants+=(eager/bf16 grouped_mm/bf16)
for variant in "${variants[@]}"; do "${peer[@]}" --only "$variant"; done | tee "$scratch/variants"
best=$(python3 -c '
import json, sys
print(max(map(json.loads, sys.stdin), key=lambda x: x["tokens_per_second"])["variant"])' <"$scratch/variants")
for ((i = 0; i < rounds; ++i)); do
  "${peer[@]}" --only "$best" | tee -a "$scratch/peer"
  "${ours[@]}" | tee -a "$scratch/ours"
done
python3 - "$scratch" "$best" <<'PYTHON'
import json, statistics, sys
def median(file, key):
    return statistics.median(json.loads(line)[key] for line in open(f"{sys.argv[1]}/{file}"))
def compare(words, key, form, larger_is_better):
    peer, ours = median("peer", key), median("ours", key)
    print(f"{words}: Hugging Face {sys.argv[2]} {form(peer)}, Cistron {form(ours)}, ratio {ours / peer if larger_is_better else peer / ours:.2f}")
compare("tokens/s", "tokens_per_second", lambda x: f"{x:.0f}", True)
compare("CPU time a step", "cpu_milliseconds", lambda x: f"{x:.0f} ms", False)
compare("peak resident memory", "peak_resident_bytes", lambda x: f"{x / 1e6:.0f} MB", False)
PYTHON
