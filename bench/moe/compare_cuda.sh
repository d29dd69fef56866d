#!/usr/bin/env bash
# Times the layer of experts on one card, ours and what others run, in turns, at the four shapes; prints medians and ratios.
#   bench/moe/compare_cuda.sh [ROUNDS]                   default 2
# Needs build/cuda/bin/cistron (or CISTRON=...) and a python3 (or PYTHON=...) as bench/moe/layer_peers_cuda.py says. PEERS= names the peers.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-2}
cistron=${CISTRON:-build/cuda/bin/cistron}
python=${PYTHON:-python3}
peers=${PEERS:-sonicmoe,compiled,hf_eager,hf_grouped_mm}
lines=${LINES_TO:-$(mktemp)}

for shape in "4096 14336 8 2 8192" "2048 1024 64 8 16384" "2048 768 128 8 16384" "1280 3840 8 2 32768"; do
  read -r hidden intermediate experts top_k tokens <<<"$shape"
  sizes=(--hidden "$hidden" --intermediate "$intermediate" --experts "$experts" --top-k "$top_k" --tokens "$tokens")
  for ((i = 0; i < rounds; ++i)); do
    "$python" bench/moe/layer_peers_cuda.py "${sizes[@]}" --peers "$peers" >>"$lines" || echo "a peer stopped" >&2
    "$cistron" bench moe "${sizes[@]}" --ablate --device cuda --json >>"$lines"
  done
done

python3 - "$lines" <<'PYTHON'
import collections, json, statistics, sys
runs = collections.defaultdict(lambda: collections.defaultdict(list))
for line in open(sys.argv[1]):
    row = json.loads(line)
    if "refused" not in row:
        runs[tuple(row["shape"].values())][row["variant"], row["recipe"]].append(row)
for shape, variants in runs.items():
    best = variants.get(("sonicmoe", "bf16"))
    print("hidden %d, intermediate %d, experts %d, top %d, tokens %d" % shape)
    for (variant, recipe), rows in variants.items():
        ms, forward, backward, saved = (statistics.median(row[key] for row in rows)
                                        for key in ("milliseconds", "forward_tflops", "backward_tflops", "bytes_saved_per_token"))
        ratio = statistics.median(row["milliseconds"] for row in best) / ms if best else float("nan")
        print(f"  {variant:<14} {recipe:<10} {forward:7.0f} / {backward:4.0f} TFLOP/s {ms:8.2f} ms {ratio:6.2f} of SonicMoE's speed {saved:9.0f} bytes a token")
PYTHON
