#!/usr/bin/env bash
# Installs the Debian packages that the build and the tests need and that are missing; says which.
# Needs no network when nothing is missing. Not root: says what to install and stops.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  g++ cmake ninja-build ccache pkg-config git python3 python3-venv ca-certificates
  libhwy-dev nlohmann-json3-dev libcli11-dev libspdlog-dev libfmt-dev
  libboost1.81-dev prometheus-cpp-dev zlib1g-dev
  libgtest-dev libgmock-dev librapidcheck-dev
)
# What only .ci/run and `make full` use.
if [[ "${1:-}" == "--ci" ]]; then
  packages+=(clang-19 clang-format-19 libclang-rt-19-dev valgrind chromium)
fi

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done

fetch_grammar_library() {
  tools/fetch_xgrammar.sh || echo "going on without constrained output (JSON schemas, strict tools)" >&2
}
if [[ ${#missing[@]} -eq 0 ]]; then
  fetch_grammar_library
  exit 0
fi

echo "missing packages: ${missing[*]}"
if [[ $EUID -ne 0 ]]; then
  echo "not root: install them with" >&2
  echo "  sudo apt-get update && sudo apt-get install ${missing[*]}" >&2
  echo "and run this again" >&2
  exit 1
fi
if ! command -v apt-get >/dev/null; then
  echo "no apt-get here: fathom's set-up knows Debian 12; install the packages above by hand" >&2
  exit 1
fi
echo "installing them"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
if ! { apt-get update -q && apt-get install -y -q --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "could not install: ${missing[*]}" >&2
  rm -f "$log"
  exit 1
fi
rm -f "$log"
fetch_grammar_library
