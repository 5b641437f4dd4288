// index_scores/naive and /full: one thread a score. `full` is the campaign's pathology (S4), kept for
// comparison: it scores every entry up to the configured maximum (the stride of the scores), whatever the
// length, and every row; entries that do not exist score -inf.
#include "ops/index_scores/index_keys.cuh"

namespace fathom::cuda {
namespace {

__device__ __forceinline__ float score(const IndexCall& call, int token, int sequence, int entry) {
  const IndexKey key = index_key(call, sequence, entry);
  float sum = 0.0f;
  for (int h = 0; h < call.num_heads; ++h) {
    const Bf16Bits* q = call.q + (static_cast<std::int64_t>(token) * call.num_heads + h) * kIndexDim;
    float dot = 0.0f;
    for (int c = 0; c < kIndexDim; ++c) {
      const std::uint32_t byte = key.data[c / 2];
      dot += bf16_to_f32(q[c]) * (e2m1_to_f32((c & 1) != 0 ? byte >> 4 : byte & 15u) * e8m0_to_f32(key.scale[c / 32]));
    }
    const float w =
        bf16_to_f32(call.weights[static_cast<std::int64_t>(token) * call.num_heads + h]) * call.weight_scale;
    sum += fmaxf(dot, 0.0f) * w;
  }
  return sum;
}

template <bool kFull>
__global__ void __launch_bounds__(128) score_entries(IndexCall call) {
  const int row = static_cast<int>(blockIdx.y), token = call.first_row + row;
  const std::int64_t entry = static_cast<std::int64_t>(blockIdx.x) * 128 + threadIdx.x;
  if (entry >= call.stride) return;
  const int visible = (call.rows.positions[token] + 1) / call.cache.ratio;
  float* out = call.scores + row * call.stride + entry;
  if (kFull) {
    // The key of an entry that does not exist yet is read from the row's first block: the cost is the maximum's.
    const int sequence = call.rows.sequence_of[token];
    const bool exists = entry < visible;
    const float value = score(call, token, sequence, exists ? static_cast<int>(entry) : static_cast<int>(entry % 32));
    *out = exists ? value : -INFINITY;
  } else if (entry < visible && visible > call.topk) {
    *out = score(call, token, call.rows.sequence_of[token], static_cast<int>(entry));
  }
}

template <bool kFull>
void launch(ExecutionContext& context, const IndexScoresPlan& plan, const IndexScoresArgs& args) {
  if (args.scores.shape[0] == 0) return;
  score_entries<kFull>
      <<<dim3(static_cast<unsigned>((args.scores.shape[1] + 127) / 128), static_cast<unsigned>(args.scores.shape[0])),
         128, 0, stream_of(context)>>>(index_call(plan, args));
}

}  // namespace

void index_scores_naive(ExecutionContext& context, const IndexScoresPlan& plan, const IndexScoresArgs& args) {
  launch<false>(context, plan, args);
}
void index_scores_full(ExecutionContext& context, const IndexScoresPlan& plan, const IndexScoresArgs& args) {
  launch<true>(context, plan, args);
}

}  // namespace fathom::cuda
