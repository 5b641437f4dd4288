#!/usr/bin/env bash
# Every CUDA check and benchmark from a carried build, on any machine with an NVIDIA GPU:
#
#   tools/gpu_check.sh [FOLDER] [part ...]
#
# FOLDER holds fathom_gpu_check, and may hold fathom, lib/ (shared libraries the machine lacks), mini-v4/ (the model) and
# gpu_prompts.txt. Parts: correctness, model, sanitizer, selftest (fathom selftest), faults (server_fault_test.py on the
# card, from a source tree), bench, synthetic (16 GB of disk; only when named); all the others when none is named. The full output
# goes to $OUT/gpu_check.log, or FOLDER/gpu_check.log when OUT is unset; the exit code is 1 when any part failed.
set -uo pipefail
folder=$(cd "${1:-.}" && pwd)
shift || true
parts=("$@")
if [ ${#parts[@]} -eq 0 ]; then parts=(correctness model sanitizer selftest faults bench); fi
log="${OUT:-$folder}/gpu_check.log"
export LD_LIBRARY_PATH="$folder/lib:${LD_LIBRARY_PATH:-}"
if [ -d "$folder/mini-v4" ]; then export FATHOM_MINI_MODEL="$folder/mini-v4"; fi
if [ -f "$folder/gpu_prompts.txt" ]; then export FATHOM_GPU_PROMPTS="$folder/gpu_prompts.txt"; fi
check="$folder/fathom_gpu_check"
failed=0
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT

run() {  # name, command...
  local name=$1 begin=$SECONDS
  shift
  echo "== $name: $*"
  if "$@"; then echo "== $name passed in $((SECONDS - begin)) s"; else
    echo "== $name FAILED ($?) after $((SECONDS - begin)) s"
    failed=1
  fi
}

main() {
  date -u '+%Y-%m-%d %H:%M UTC'
  if command -v nvidia-smi > /dev/null; then
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
  else
    echo "nvidia-smi is not here: without a driver every check is skipped"
  fi
  for part in "${parts[@]}"; do
    case $part in
      correctness) run correctness "$check" --gtest_brief=1 --gtest_filter='Gpu.*' ;;
      model)
        if [ -n "${FATHOM_MINI_MODEL:-}" ]; then
          run model "$check" --gtest_brief=1 --gtest_filter='Model.*'
        else
          echo "== model: no mini-v4 beside the program, not run"
        fi
        ;;
      sanitizer)
        if command -v compute-sanitizer > /dev/null; then
          export FATHOM_GPU_REDUCED=1
          run memcheck timeout 150 compute-sanitizer --tool memcheck --error-exitcode 9 "$check" --gtest_brief=1 --gtest_filter='Gpu.*'
          run racecheck timeout 150 compute-sanitizer --tool racecheck --error-exitcode 9 "$check" --gtest_brief=1 --gtest_filter='Gpu.*'
          unset FATHOM_GPU_REDUCED
        else
          echo "== sanitizer: compute-sanitizer is not here, not run"
        fi
        ;;
      selftest)
        if [ -x "$folder/fathom" ]; then
          run selftest env XDG_CACHE_HOME="$cache" "$folder/fathom" selftest --device cuda --model "${FATHOM_MINI_MODEL:-}"
        else
          echo "== selftest: no fathom beside the checks, not run"
        fi
        ;;
      faults)
        if [ -x "$folder/fathom" ] && [ -f tests/server/server_fault_test.py ] && command -v nvidia-smi > /dev/null; then
          run faults env FATHOM_FAULT_DEVICE=cuda FATHOM_PROGRAM="$folder/fathom" python3 tests/server/server_fault_test.py
        else
          echo "== faults: needs fathom beside the checks, a source tree and a GPU, not run"
        fi
        ;;
      synthetic) run synthetic "$check" --gtest_brief=1 --gtest_filter='Synthetic.*' ;;
      bench) run bench "$check" --gtest_brief=1 --gtest_filter='Bench.*' ;;
      *) echo "unknown part $part: expected correctness, model, sanitizer, selftest, faults, bench or synthetic" && failed=1 ;;
    esac
  done
  if [ $failed -eq 0 ]; then echo "all parts passed"; else echo "some parts FAILED"; fi
}
main > >(tee "$log") 2>&1
wait
exit $failed
