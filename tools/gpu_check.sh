#!/usr/bin/env bash
# Every CUDA check and benchmark from a carried build, on any machine with an NVIDIA GPU:
#
#   tools/gpu_check.sh [FOLDER] [part ...]
#
# FOLDER holds fathom_gpu_check, and may hold fathom, lib/ (shared libraries the machine lacks), mini-v4/ (the model) and
# gpu_prompts.txt. Parts, all of them when none is named:
#
#   correctness  every variant of every operation; planted truths of the profiler
#   model        the mini model: layers against the CPU, batches, drafts, faults, launches
#   sanitizer    memcheck and racecheck on the reduced table
#   selftest     fathom selftest
#   faults       server_fault_test.py on the card, from a source tree
#   bench        each operation at Flash's shapes
#   synthetic    captured steps of Flash's width, their launches, the configured maximum (20 GB of disk)
#   decode       fathom bench decode --synthetic flash: every operation of such steps against its floor (20 GB of disk)
#   draft        fathom bench draft: tokens a second by batch and depth
#
# Limits of time are several times what an H200 takes. The output goes to $OUT/gpu_check.log, or FOLDER/gpu_check.log when
# OUT is unset, with a table of the parts at its end. Exit code: 0 when parts ran and all of them passed, 1 when any
# failed, 77 when none failed and none was run (no GPU: each is skipped).
set -uo pipefail
folder=$(cd "${1:-.}" && pwd)
shift || true
parts=("$@")
if [ ${#parts[@]} -eq 0 ]; then parts=(correctness model sanitizer selftest faults bench synthetic decode draft); fi
log="${OUT:-$folder}/gpu_check.log"
export LD_LIBRARY_PATH="$folder/lib:${LD_LIBRARY_PATH:-}"
if [ -d "$folder/mini-v4" ]; then export FATHOM_MINI_MODEL="$folder/mini-v4"; fi
if [ -f "$folder/gpu_prompts.txt" ]; then export FATHOM_GPU_PROMPTS="$folder/gpu_prompts.txt"; fi
check="$folder/fathom_gpu_check"
failed=0
num_ran=0
table=()
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT

# Of the part's tests, when it has any; gtest's report is not there when they ended early.
num_tests() { cat "$cache/part.json" 2>/dev/null | grep -c "\"result\": \"$1\""; }

run() {  # name, limit in seconds, command...
  local name=$1 limit=$2 begin=$SECONDS result=passed code=0 num_skipped
  shift 2
  echo "== $name: $*"
  rm -f "$cache/part.json"
  GTEST_OUTPUT=json:"$cache/part.json" timeout "$limit" "$@" || code=$?
  num_skipped=$(num_tests SKIPPED)
  if [ "$code" -ne 0 ]; then
    result="FAILED ($code)" failed=1
  elif [ "$num_skipped" -gt 0 ] && [ "$(num_tests COMPLETED)" -eq 0 ]; then
    result=skipped
  else
    if [ "$num_skipped" -gt 0 ]; then result="passed, $num_skipped skipped"; fi
    num_ran=$((num_ran + 1))
  fi
  echo "== $name $result after $((SECONDS - begin)) s"
  table+=("$(printf '%-12s %-18s %4d s' "$name" "$result" $((SECONDS - begin)))")
}

leave_out() {  # name, why
  echo "== $1: $2, not run"
  table+=("$(printf '%-12s not run: %s' "$1" "$2")")
}

has_gpu() { [ -e /dev/nvidiactl ] || [ -e /dev/dxg ] || nvidia-smi -L > /dev/null 2>&1; }
has_disk() { [ "$(df --output=avail -BG "${TMPDIR:-/tmp}" | tail -1 | tr -dc 0-9)" -ge 20 ]; }

gtest() {  # name, limit in seconds, filter
  run "$1" "$2" "$check" --gtest_brief=1 --gtest_filter="$3"
}

main() {
  date -u '+%Y-%m-%d %H:%M UTC'
  if command -v nvidia-smi > /dev/null; then
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
  else
    echo "nvidia-smi is not here: without a driver nothing is run or each check is skipped"
  fi
  for part in "${parts[@]}"; do
    case $part in
      correctness) gtest correctness 180 'Gpu.*:Planted.*' ;;
      model)
        if [ -n "${FATHOM_MINI_MODEL:-}" ]; then gtest model 60 'Model.*'; else leave_out model "no mini-v4 beside the program"; fi
        ;;
      sanitizer)
        if command -v compute-sanitizer > /dev/null; then
          export FATHOM_GPU_REDUCED=1
          for tool in memcheck racecheck; do
            run $tool 150 compute-sanitizer --tool $tool --error-exitcode 9 "$check" --gtest_brief=1 --gtest_filter='Gpu.*'
          done
          unset FATHOM_GPU_REDUCED
        else
          leave_out sanitizer "compute-sanitizer is not here"
        fi
        ;;
      selftest)
        if [ -x "$folder/fathom" ] && has_gpu; then
          run selftest 60 env XDG_CACHE_HOME="$cache" "$folder/fathom" selftest --device cuda --model "${FATHOM_MINI_MODEL:-}"
        else
          leave_out selftest "needs fathom beside the checks and a GPU"
        fi
        ;;
      faults)
        if [ -x "$folder/fathom" ] && [ -f tests/server/server_fault_test.py ] && has_gpu; then
          run faults 120 env FATHOM_FAULT_DEVICE=cuda FATHOM_PROGRAM="$folder/fathom" python3 tests/server/server_fault_test.py
        else
          leave_out faults "needs fathom beside the checks, a source tree and a GPU"
        fi
        ;;
      bench) gtest bench 90 'Bench.*' ;;
      synthetic)
        if has_disk; then gtest synthetic 150 'Synthetic.*'; else leave_out synthetic "needs 20 GB of disk in ${TMPDIR:-/tmp}"; fi
        ;;
      decode)
        if [ ! -x "$folder/fathom" ] || ! has_gpu; then leave_out decode "needs fathom beside the checks and a GPU"
        elif ! has_disk; then leave_out decode "needs 20 GB of disk in ${TMPDIR:-/tmp}"
        else run decode 180 "$folder/fathom" bench decode --synthetic flash --layers 4 --device cuda; fi
        ;;
      draft)
        if [ -x "$folder/fathom" ] && [ -n "${FATHOM_MINI_MODEL:-}" ] && has_gpu; then
          run draft 150 "$folder/fathom" bench draft --device cuda --model "$FATHOM_MINI_MODEL" --repeats 7 --seconds 0.2
        else
          leave_out draft "needs fathom and mini-v4 beside the checks and a GPU"
        fi
        ;;
      *) echo "unknown part $part: expected correctness, model, sanitizer, selftest, faults, bench, synthetic, decode or draft" && failed=1 ;;
    esac
  done
  printf '%s\n' "${table[@]}"
  if [ $failed -ne 0 ]; then echo "some parts FAILED" && return 1; fi
  if [ $num_ran -eq 0 ]; then echo "nothing was run" && return 77; fi
  echo "all parts that were run passed"
}
main > >(tee "$log") 2>&1
code=$?
wait
exit $code
