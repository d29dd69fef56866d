#!/usr/bin/env bash
# Fuzzes with RUNS inputs each target (all of them, or those named), from the committed corpus and what earlier campaigns found, and tells
# the counts. The first finding of a target ends it and leaves the input in its folder.
# Usage: tests/fuzz/campaign.sh RUNS [BUILD [TARGET...]]     BUILD: build/fuzz (docs/robustness.md says how it is made)
set -euo pipefail
cd "$(dirname "$0")/../.."
runs=$1 build=${2:-build/fuzz}
shift $(($# < 2 ? $# : 2))
targets=("$@")
((${#targets[@]})) || targets=(sequences sequences_gzip configuration safetensors shard_index hugging_face store checkpoint)

failed=0
for target in "${targets[@]}"; do
  found=$build/found/$target
  mkdir -p "$found"
  longest=$(find "tests/fuzz/corpus/$target" -type f -printf '%s\n' | sort -n | tail -1)
  status=0
  "$build/tests/fuzz/fuzz_$target" -runs="$runs" -max_len=$((longest + 100)) -reduce_inputs=0 -entropic=0 -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 -artifact_prefix="$found/" \
    "$found" "tests/fuzz/corpus/$target" >"$build/found/$target.log" 2>&1 || status=$?
  number() { sed -n "s/^stat::$1: *//p" "$build/found/$target.log"; }
  echo "$target: $(number number_of_executed_units) inputs, $(number average_exec_per_sec) a second, $(ls "$found" | wc -l) kept, exit status $status"
  ((status == 0)) || failed=1
done
exit $failed
