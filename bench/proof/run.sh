#!/usr/bin/env bash
# The training proof on one card: configs/protein-100m.toml in bf16 (three seeds), MXFP8 (both groups) and fp32 (as far as it gets), and
# Hugging Face's Mixtral from the weights and on the batches of bf16's first seed.
#   bench/proof/run.sh STORE OUT [RUN]...       STORE: see configs/protein-100m.toml. OUT gets RUN.jsonl (metrics) and RUN.log
# RUN: bf16-SEED, mxfp8-GROUP-SEED, fp32, hugging-face.
# CISTRON, DUMP_BATCHES (target dump_batches, -DCISTRON_BENCH=ON) and PYTHON (torch for CUDA, transformers) name the programs;
# FP32_SECONDS is how long fp32 gets.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
config=$here/../../configs/protein-100m.toml
store=$1 out=$2
runs=("${@:3}")
((${#runs[@]})) || runs=(fp32 mxfp8-32-1 bf16-2 bf16-3 bf16-1 mxfp8-128-1 hugging-face)
cistron=${CISTRON:-build/cuda/bin/cistron} dump=${DUMP_BATCHES:-build/cuda/bench/dump_batches} python=${PYTHON:-python3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$out"

# RUN SECONDS COMMAND...: its output and how long it took. On SIGINT a run of ours ends well.
timed() {
  local run=$1 seconds=$2 begin=$EPOCHREALTIME
  shift 2
  timeout -s INT -k 20 "$seconds" "$@" >"$out/$run.log" 2>&1
  local status=$?
  echo "wall $(awk "BEGIN { print $EPOCHREALTIME - $begin }") s, exit status $status" >>"$out/$run.log"
  cp "$scratch/$run/metrics.jsonl" "$out/$run.jsonl"
  echo "$(date +%T) $run: $(tail -n 1 "$out/$run.log"); $(tail -n 1 "$out/$run.jsonl")"
}

ours() {
  local run=$1 seconds=$2
  shift 2
  timed "$run" "$seconds" "$cistron" train "$config" --out "$scratch/$run" --device cuda --set data.store="$store" "$@"
}

# Loads while others run; trains when it is its turn.
start_hugging_face() {
  ours initial 60 --set train.steps=1 --set optimizer.lr=0
  "$cistron" export "$scratch/initial" --out "$scratch/exported"
  "$dump" "$config" "$scratch" data.store="$store"
  timed hugging-face 3600 "$python" "$here/hf_mixtral.py" "$scratch/exported" "$scratch" "$scratch/hugging-face" --start-when "$scratch/go" &
}

[[ " ${runs[*]} " != *" hugging-face "* ]] || start_hugging_face
for run in "${runs[@]}"; do
  IFS=- read -r recipe group seed <<<"$run"
  [[ $recipe == bf16 ]] && seed=$group
  case $run in
    bf16-*) ours "$run" 600 --set train.seed="$seed" ;;
    mxfp8-*) ours "$run" 600 --set precision.recipe=mxfp8 --set precision.mxfp8.group="$group" --set precision.mxfp8.statistics=true \
      --set train.seed="$seed" ;;
    fp32) ours fp32 "${FP32_SECONDS:-60}" --set precision.recipe=fp32 ;;
    hugging-face) touch "$scratch/go" && wait ;;
    *) echo "no run '$run'" >&2 && exit 2 ;;
  esac
done
