#!/usr/bin/env bash
# Public harnesses, unmodified, against `fathom serve` with the embedded model: lm-eval's API models on local tasks, and
# llama-benchy. Installs them from PyPI into .cache/harness (once, without torch). Prints everything; ends with the
# number of harness runs that failed.
#   tests/harness/run.sh [PATH_TO_FATHOM]
set -uo pipefail
cd "$(dirname "$0")/../.."
fathom=${1:-build/fathom}
venv=.cache/harness
if [[ ! -x $venv/bin/llama-benchy || ! -x $venv/bin/lm_eval ]]; then
  python3 -m venv "$venv" && "$venv/bin/pip" install -q "lm_eval[api]==0.4.13" "llama-benchy==0.4.0" || exit 77
fi
work=$(mktemp -d)
"$fathom" serve --model models/mini-v4 --port 0 --thinking off --log warning >"$work/serve.out" 2>"$work/serve.err" &
server=$!
(cd models/mini-v4 && exec python3 -u -m http.server 0 --bind 127.0.0.1 >"$work/text.out" 2>/dev/null) &
text=$!
trap 'kill $server $text 2>/dev/null; wait; rm -rf "$work"' EXIT
for _ in $(seq 600); do
  grep -q ready "$work/serve.out" && grep -q port "$work/text.out" && break
  sleep 0.1
done
url=$(sed -nE 's/^fathom listens on (.*)/\1/p' "$work/serve.out")
text_port=$(sed -nE 's/.* port ([0-9]+) .*/\1/p' "$work/text.out")
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME="$work/hf" HOME="$work" OPENAI_API_KEY=none TQDM_DISABLE=1
failed=0
harness() {
  echo "\$ ${*//$work/WORK}"
  "$@" 2>&1 | grep -vE "^\s*$|INFO|WARNING|it/s|Warn|warn" || true
  local code=${PIPESTATUS[0]}
  echo "exit code $code"
  [[ $code == 0 ]] || failed=$((failed + 1))
}
echo "fathom $("$fathom" --version 2>/dev/null | head -1), commit $(git rev-parse --short HEAD), $(date -u +%F)"
harness "$venv/bin/lm_eval" --model local-completions --include_path tests/harness/tasks \
  --tasks fathom_arithmetic,fathom_capitals --batch_size 8 \
  --model_args "model=mini-v4,base_url=$url/v1/completions,tokenizer_backend=remote,num_concurrent=1,max_retries=1"
harness "$venv/bin/lm_eval" --model local-completions --include_path tests/harness/tasks \
  --tasks fathom_capitals --batch_size 1 \
  --model_args "model=mini-v4,base_url=$url/v1/completions,tokenizer_backend=remote,num_concurrent=8,max_retries=1"
harness "$venv/bin/lm_eval" --model local-chat-completions --include_path tests/harness/tasks --apply_chat_template \
  --tasks fathom_arithmetic_chat \
  --model_args "model=mini-v4,base_url=$url/v1/chat/completions,num_concurrent=8,max_retries=1"
harness "$venv/bin/llama-benchy" --base-url "$url/v1" --model mini-v4 --tokenizer models/mini-v4 \
  --book-url "http://127.0.0.1:$text_port/tokenizer.json" --pp 128 512 --tg 32 --exact-tg --depth 0 512 --runs 2 \
  --concurrency 1 4 --enable-prefix-caching --skip-coherence --exit-on-first-fail
echo "$failed harness runs failed"
exit $((failed > 0))
