#!/usr/bin/env bash
# Runs every fuzz target for SECONDS (default 30) from its seed corpus and prints executions and findings.
#   tools/run_fuzz.sh [SECONDS] [TARGET ...]
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-30}
shift || true
tools/setup.sh --ci
cmake --preset fuzz >build-fuzz.configure.log 2>&1 || { cat build-fuzz.configure.log; exit 1; }
rm -f build-fuzz.configure.log
targets=("$@")
if [[ ${#targets[@]} -eq 0 ]]; then
  for source in fuzz/*_fuzz.cc; do targets+=("$(basename "$source" .cc)"); done
fi
ninja -C build-fuzz -j"$(nproc)" "${targets[@]}"

failed=0
run_one() {
  local target=$1 work
  work=$(mktemp -d)
  mkdir -p "$work/new" "$work/seeds"
  [[ -d fuzz/corpus/${target%_fuzz} ]] && cp -r "fuzz/corpus/${target%_fuzz}/." "$work/seeds/"
  local options=(-max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -seed="${FATHOM_FUZZ_SEED:-1}"
    -artifact_prefix="$work/" -verbosity=0)
  [[ -f fuzz/dictionaries/${target%_fuzz}.txt ]] && options+=(-dict="fuzz/dictionaries/${target%_fuzz}.txt")
  if "build-fuzz/fuzz/$target" "${options[@]}" "$work/new" "$work/seeds" >"$work/log" 2>&1; then
    echo "$target: $(grep -o 'number_of_executed_units: [0-9]*' "$work/log" | cut -d' ' -f2) executions," \
      "$seconds s, no finding"
  else
    tail -n 60 "$work/log"
    echo "$target: FINDING, input kept in $work" >&2
    return 1
  fi
}
for ((i = 0; i < ${#targets[@]}; i += 2)); do
  run_one "${targets[i]}" &
  first=$!
  if ((i + 1 < ${#targets[@]})); then run_one "${targets[i + 1]}" || failed=1; fi
  wait "$first" || failed=1
done
exit "$failed"
