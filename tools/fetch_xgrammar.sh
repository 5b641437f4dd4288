#!/usr/bin/env bash
# Fetches the grammar library's source package from PyPI into .cache/xgrammar, once. Without it fathom builds
# all the same, with constrained output switched off.
set -euo pipefail
cd "$(dirname "$0")/.."
version=0.2.9
target=.cache/xgrammar
[[ -f $target/version && $(<"$target/version") == "$version" ]] && exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "fetching xgrammar $version from PyPI (constrained output)"
/usr/bin/python3 -m venv "$work/venv"
"$work/venv/bin/pip" download -q --no-deps --no-binary xgrammar "xgrammar==$version" -d "$work" >"$work/log" 2>&1 || {
  tail -n 5 "$work/log" >&2
  echo "could not fetch xgrammar $version" >&2
  exit 1
}
mkdir -p "$work/source"
tar -xzf "$work/xgrammar-$version.tar.gz" -C "$work/source" --strip-components=1
echo "$version" >"$work/source/version"
mkdir -p .cache
rm -rf "$target"
mv "$work/source" "$target"
