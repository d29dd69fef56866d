#!/usr/bin/env bash
# Times whole training steps on one card: Hugging Face's Mixtral, eager and grouped_mm, and Cistron, in bf16 and in MXFP8, in turns, in one run;
# neither clips. The peer keeps weights and moments in bf16. So does ours in "bf16" (but gradients in fp32); "mxfp8" has fp32 masters and bf16
# moments; the two "-fp32" keep masters and moments in fp32, as the default is.
#   bench/train/compare_cuda.sh [ROUNDS] [SHAPE]...      default 2 rounds of all four shapes
# Needs build/cuda/bin/cistron (or CISTRON=...) and a python3 (or PYTHON=...) with torch for CUDA and transformers. PEERS= runs ours alone.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-2}
shift || true
shapes=("$@")
((${#shapes[@]})) || shapes=(mixtral-8x7b fine-grained-64 progen3-3b genos-1.2b)
cistron=${CISTRON:-build/cuda/bin/cistron}
python=${PYTHON:-python3}
read -ra peers <<<"${PEERS-eager grouped_mm}"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Both sides' options for a shape.
sizes() {
  case $1 in
    mixtral-8x7b) ours=(--layers 2 --batch 2 --seq 8192)
      peer=(--layers 2 --batch 2 --seq 8192) ;;
    fine-grained-64) ours=(--batch 8 --seq 2048)
      peer=(--layers 4 --batch 8 --seq 2048 --hidden 2048 --intermediate 1024 --experts 64 --top-k 8 --heads 16 --kv-heads 4 --vocabulary 512) ;;
    progen3-3b) ours=(--layers 4 --batch 8 --seq 2048)
      peer=(--layers 4 --batch 8 --seq 2048 --hidden 1280 --intermediate 3840 --heads 16 --kv-heads 16 --vocabulary 134) ;;
    genos-1.2b) ours=(--batch 4 --seq 8192)
      peer=(--layers 12 --batch 4 --seq 8192 --hidden 1024 --intermediate 4096 --heads 16 --kv-heads 8 --vocabulary 128) ;;
    *) echo "no shape '$1'" >&2; exit 2 ;;
  esac
}

states() {
  case $1 in
    bf16) kept=(--set optimizer.state_dtype=bf16 --set optimizer.masters=none) ;;
    mxfp8) kept=(--set optimizer.state_dtype=bf16) ;;
    *) kept=() ;;
  esac
}

for shape in "${shapes[@]}"; do
  sizes "$shape"
  for ((i = 0; i < rounds; ++i)); do
    for variant in "${peers[@]}"; do
      "$python" bench/train/hf_mixtral_cuda.py --experts-implementation "$variant" "${peer[@]}" 2>"$scratch/errors" |
        tee -a "$scratch/$shape.$variant" || tail -n 3 "$scratch/errors" >&2
    done
    for variant in bf16 mxfp8 bf16-fp32 mxfp8-fp32; do
      states "$variant"
      "$cistron" bench train --preset "$shape" "${ours[@]}" --device cuda --recipe "${variant%-fp32}" "${kept[@]}" --clip 0 --steps 20 --json |
        tee -a "$scratch/$shape.$variant"
    done
  done
done

python3 - "$scratch" "${shapes[@]}" <<'PYTHON'
import json, pathlib, statistics, sys
folder = pathlib.Path(sys.argv[1])
variants = ["eager", "grouped_mm", "bf16", "mxfp8", "bf16-fp32", "mxfp8-fp32"]
def lines(shape, variant):
    file = folder / f"{shape}.{variant}"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
def median(rows, key):
    return statistics.median([row[key] for row in rows]) if rows else float("nan")
print(f"{'tokens/s, medians':<17}" + "".join(f"{v:>12}" for v in variants))
for shape in sys.argv[2:]:
    runs = {v: lines(shape, v) for v in variants}
    speed = {v: median(runs[v], "tokens_per_second") for v in variants}
    peak = {v: median(runs[v], "peak_bytes" if v in variants[:2] else "planned_bytes") / 1e9 for v in variants}
    print(f"{shape:<17}" + "".join(f"{speed[v]:>12.0f}" for v in variants))
    for peer in variants[:2]:
        print(f"  / {peer:<13}" + "".join(f"{speed[v] / speed[peer]:>12.2f}" for v in variants))
    print(f"{'  peak GB':<17}" + "".join(f"{peak[v]:>12.1f}" for v in variants))
PYTHON
