#!/usr/bin/env bash
# compute-sanitizer's memcheck, synccheck and racecheck over small cases of the kernels' tests, all at once on one card.
#   tests/cuda/sanitize.sh build/cuda/tests/cuda_parity_tests [LOGS [SECONDS]]     default: a new folder, 100 seconds for each
#   TOOLS=racecheck GROUPS_OF_TESTS="attention embedding" tests/cuda/sanitize.sh ...     some of them
# A line for each tool and group; fails where a tool reports anything, a test fails, none ran, or the time was up.
# Where cuBLASLt is found, racecheck reports its kernels too: leave CISTRON_CUDA_LIBRARIES empty.
set -uo pipefail
binary=${1:?"the test program is missing: tests/cuda/sanitize.sh build/cuda/tests/cuda_parity_tests"}
logs=${2:-$(mktemp -d)} seconds=${3:-100}
mkdir -p "$logs"

# SUITE NUMBER...: those cases of a suite with parameters. (gtest's patterns have no [045].)
cases() {
  local suite=$1
  shift
  printf ":*$suite.*/%s" "$@"
}

declare -A tests=(
  # f32; by mma.sync, head_dim 7, 8, 96, 136; by wgmma 64, 80, 128, causal and not; mma.sync at wgmma's sizes
  [attention]=$(cases CudaAttention 1 3 23 25 29 31 27 28 30 38 39 41 52 53 54)
  [cross_entropy]=$(cases CudaCrossEntropy 0 5 8 10 14 20 25 26 28 30)
  [optimizer]='CudaOptimizer.*'
  [embedding]='CudaEmbedding.ForwardCopiesRows:CudaEmbedding.BackwardWithinRounding:CudaEmbedding.TokensOutsideTheVocabularyShow'
  [rows]='CudaRmsNorm.*:CudaRope.*:CudaElementwise.*'
  [router]='CudaRouter.*:CudaRoutedRows.G*'
  [products]=$(cases CudaPortable 2 4 10 12)$(cases CudaPortableMxfp8 0 1)$(cases CudaDenseKernels 0 4 9 14 15 19 37)
  [swiglu]=CudaSwiglu.L*$(cases CudaGroupedSwiglu 0 4)$(cases CudaMxfp8GroupedSwiglu 0 4)$(cases CudaMxfp8Quantize 0 4)
)

check() {  # TOOL GROUP
  local log=$logs/$1.$2 start=$SECONDS status=ok
  timeout "$seconds" compute-sanitizer --tool "$1" --error-exitcode 9 "$binary" --gtest_filter="${tests[$2]#:}" >"$log" 2>&1
  case $? in
    0) grep -q '\[  PASSED  \] [1-9]' "$log" || status="NO TEST RAN" ;;
    9) status="REPORTED" ;;
    124) status="TIME IS UP" ;;
    *) status="FAILED" ;;
  esac
  printf '%-9s %-13s %-11s %3d s  %s\n' "$1" "$2" "$status" $((SECONDS - start)) \
    "$(grep -hE 'SUMMARY|PASSED|FAILED  \]' "$log" | sed 's/=========//' | tr -s ' \n' ' ')"
  [[ $status == ok ]]
}

pids=()
for tool in ${TOOLS:-memcheck synccheck racecheck}; do
  for group in ${GROUPS_OF_TESTS:-"${!tests[@]}"}; do check "$tool" "$group" & pids+=($!); done
done
failed=0
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
echo "logs: $logs"
exit $failed
