// select_topk/naive: an entry is selected iff fewer than topk entries beat it; counted one by one.
#include "ops/cuda/device_rows.cuh"
#include "ops/select_topk/select_topk.h"

namespace fathom::cuda {
namespace {

constexpr int kThreads = 1024;

__global__ void __launch_bounds__(kThreads)
    count_better(const std::int32_t* positions, const float* scores, std::int64_t stride, std::int32_t* selected,
                 int first_row, int topk, int ratio) {
  __shared__ int taken;
  __shared__ unsigned ballots[kThreads / 32];
  const int row = static_cast<int>(blockIdx.x), token = first_row + row, tid = static_cast<int>(threadIdx.x);
  const int visible = (positions[token] + 1) / ratio;
  const float* s = scores + row * stride;
  std::int32_t* out = selected + static_cast<std::int64_t>(token) * topk;
  if (tid == 0) taken = 0;
  __syncthreads();
  for (int base = 0; base < visible; base += kThreads) {
    const int j = base + tid;
    bool keep = j < visible;
    if (keep && visible > topk) {
      int better = 0;
      for (int i = 0; i < visible; ++i) better += s[i] > s[j] || (s[i] == s[j] && i < j) ? 1 : 0;
      keep = better < topk;
    }
    const unsigned ballot = __ballot_sync(0xffffffffu, keep);
    if ((tid & 31) == 0) ballots[tid >> 5] = ballot;
    __syncthreads();
    int place = taken;
    for (int w = 0; w < tid >> 5; ++w) place += __popc(ballots[w]);
    place += __popc(ballot & ((1u << (tid & 31)) - 1u));
    if (keep) out[place] = j;
    __syncthreads();
    if (tid == kThreads - 1) taken = place + (keep ? 1 : 0);
    __syncthreads();
  }
  for (int i = taken + tid; i < topk; i += kThreads) out[i] = -1;
}

}  // namespace

void select_topk_naive(ExecutionContext& context, const SelectTopkPlan& plan, const SelectTopkArgs& args) {
  const auto rows = static_cast<unsigned>(args.scores.shape[0]);
  if (rows == 0) return;
  count_better<<<rows, kThreads, 0, stream_of(context)>>>(
      args.rows->positions.as<std::int32_t>(), args.scores.as<float>(), args.scores.shape[1],
      args.selected.as<std::int32_t>(), args.first_row, plan.desc.topk, plan.desc.ratio);
}

}  // namespace fathom::cuda
