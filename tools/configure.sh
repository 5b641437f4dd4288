#!/usr/bin/env bash
# Configures FOLDER (preset release) where that is due: tools/configure.sh FOLDER [1|0]
#
# 1: with the CUDA backend, 0: without. Not given: a folder that is configured stays as it is; a new one gets CUDA where
# nvcc and a GPU are found, with code for the GPUs that are here (1 without a GPU: for every target).
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1
asked=${2:-}
case "$asked" in
  "" | 0 | 1) ;;
  *)
    echo "CUDA: found $asked, expected 1 or 0" >&2
    exit 1
    ;;
esac
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)
# "9.0" a line for each GPU that the driver can open.
gpus=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -E '^[0-9]+\.[0-9]+$' | sort -u || true)

flags=()
cache="$folder/CMakeCache.txt"
if [[ -f "$folder/build.ninja" ]]; then
  if grep -q '^FATHOM_CUDA:BOOL=ON' "$cache"; then has=1; else has=0; fi
  if [[ -z "$asked" || "$asked" == "$has" ]]; then exit 0; fi
elif [[ -z "$asked" ]]; then
  if [[ -n "$nvcc" && -n "$gpus" ]]; then asked=1; else asked=0; fi
fi
if [[ "$asked" == 1 ]]; then
  if [[ -z "$nvcc" ]]; then
    echo "CUDA=1: nvcc is missing; install the CUDA 13.0 toolkit, or put its bin folder on PATH" >&2
    exit 1
  fi
  targets=""
  for gpu in $gpus; do
    case "$gpu" in
      9.0) targets+="90a-real;" ;;
      12.0) targets+="120-real;" ;;
      8.*) [[ "$targets" == *80-real* ]] || targets+="80-real;" ;;
      *)
        echo "a GPU of compute capability $gpu: expected 8.x, 9.0 or 12.0; code for all of these is compiled" >&2
        targets=""
        break
        ;;
    esac
  done
  export CUDACXX=$nvcc
  flags=(-DFATHOM_CUDA=ON "-DFATHOM_CUDA_ARCHITECTURES=${targets:+${targets%;}}")
  if [[ -z "$targets" ]]; then flags=(-DFATHOM_CUDA=ON "-DFATHOM_CUDA_ARCHITECTURES=80-real;90a-real;120-real"); fi
  echo "with the CUDA backend (${flags[1]#*=})"
else
  flags=(-DFATHOM_CUDA=OFF)
fi
log="$folder.configure.log"
cmake --preset release -B "$folder" "${flags[@]}" >"$log" 2>&1 || {
  cat "$log"
  exit 1
}
rm -f "$log"
