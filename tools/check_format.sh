#!/usr/bin/env bash
# Fails when clang-format would change a source file.
set -euo pipefail
cd "$(dirname "$0")/.."
formatter=$(command -v clang-format-19 || true)
if [[ -z "$formatter" ]]; then
  echo "clang-format-19 is missing: tools/setup.sh --ci installs it" >&2
  exit 1
fi
git ls-files '*.h' '*.cc' '*.cu' '*.cuh' | xargs "$formatter" --dry-run -Werror
echo "format: clean"
