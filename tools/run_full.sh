#!/usr/bin/env bash
# Tier `full`: the release build's full tests, ASan/UBSan over the quick tests, TSan over the engine's and
# server's scripted tests, and fuzzing for 30 s a target. At most 30 minutes on 2 cores.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh --ci
jobs=$(nproc)
part() {
  local name=$1 begin
  shift
  begin=$(date +%s)
  echo "== full: $name"
  "$@"
  echo "== full: $name took $((($(date +%s) - begin))) s"
}
# The clients people use, from PyPI: the official SDKs and a browser's driver.
clients() {
  [[ -f .cache/venv/ready ]] && return
  /usr/bin/python3 -m venv .cache/venv
  .cache/venv/bin/pip install -q openai anthropic playwright
  touch .cache/venv/ready
}
release_full() {
  clients
  PATH="$PWD/.cache/venv/bin:$PATH" ctest --test-dir build -L '^full$' --output-on-failure -j"$jobs"
}
asan() {
  cmake --preset asan >/dev/null
  ninja -C build-asan -j"$jobs"
  # The sanitizer's own leak check needs ptrace rights that some containers refuse.
  ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 FATHOM_SLOW_BUILD=1 \
    ctest --test-dir build-asan -L '^quick$' --output-on-failure -j"$jobs"
  # The grammar library is in no fuzz target: random schemas, expressions and tools under the sanitizers here, 25 s.
  ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 ctest --test-dir build-asan -R '^server_full_test$' --output-on-failure
}
tsan() {
  cmake --preset tsan >/dev/null
  local targets
  targets=$(ninja -C build-tsan -t targets all | grep -oE '^(base|engine|server)_(test|scripted_test)\b' | sort -u || true)
  ninja -C build-tsan -j"$jobs" $targets
  for target in $targets; do
    local program
    program=$(find build-tsan -type f -name "$target" -perm -u+x | head -n 1)
    # The scripted executor; the model's own tests are the release build's.
    FATHOM_SLOW_BUILD=1 TSAN_OPTIONS=halt_on_error=1 "$program" --gtest_brief=1 --gtest_filter='-Mtp*:Dspark*:Model*'
  done
}
part release release_full
python3 tools/check_skips.py build/Testing/Temporary/LastTest.log
part asan asan
python3 tools/check_skips.py build-asan/Testing/Temporary/LastTest.log
part tsan tsan
part fuzz tools/run_fuzz.sh 30
