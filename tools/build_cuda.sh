#!/usr/bin/env bash
# Compiles the CUDA backend for every target once. Needs nvcc, no GPU. Says so and stops when nvcc is absent.
set -euo pipefail
cd "$(dirname "$0")/.."
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)
if [[ -z "$nvcc" ]]; then
  echo "nvcc is missing: the CUDA backend is not compiled here (install the CUDA 13.0 toolkit)"
  exit 0
fi
begin=$(date +%s)
CUDACXX=$nvcc cmake --preset cuda >build-cuda.configure.log 2>&1 || { cat build-cuda.configure.log; exit 1; }
rm -f build-cuda.configure.log
ninja -C build-cuda -j"$(nproc)" fathom fathom_gpu_check
echo "CUDA: compiled in $((($(date +%s) - begin) / 60)) min $((($(date +%s) - begin) % 60)) s," \
  "$(git ls-files '*.cu' | wc -l) units"
