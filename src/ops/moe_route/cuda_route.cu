// moe_route: the gate as one launch of linear's kernels (fp32 out), then one warp a row chooses.
#include "ops/cuda/device_rows.cuh"
#include "ops/linear/kernels.cuh"
#include "ops/moe_route/moe_route.h"

namespace fathom::cuda {
namespace {

constexpr int kMaxTopk = 16;
constexpr int kWarps = 4;

__device__ __forceinline__ float score_of(float z) { return sqrtf(z > 20.0f ? z : log1pf(expf(z))); }

// Every lane keeps the chosen ids; lanes 0 .. topk - 1 write one each, in ascending order.
__global__ void __launch_bounds__(kWarps * 32)
    choose_experts(const float* logits, const float* bias, const std::int64_t* tid2eid, const std::int32_t* token_ids,
                   std::int32_t* ids, float* weights, int num_tokens, int num_experts, int topk, float factor,
                   bool normalise) {
  const int token = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x >> 5);
  const int lane = static_cast<int>(threadIdx.x & 31);
  if (token >= num_tokens) return;
  const float* z = logits + static_cast<std::int64_t>(token) * num_experts;
  int chosen = -1;  // lane k's choice, before sorting
  if (tid2eid != nullptr) {
    if (lane < topk) chosen = static_cast<int>(tid2eid[static_cast<std::int64_t>(token_ids[token]) * topk + lane]);
  } else {
    std::uint32_t mine = 0;  // experts lane, lane + 32, ... already taken
    for (int k = 0; k < topk; ++k) {
      float best = -INFINITY;
      int best_id = num_experts;
      for (int e = lane, word = 0; e < num_experts; e += 32, ++word) {
        const bool taken = (mine >> word & 1u) != 0;
        const float s = score_of(z[e]) + bias[e];
        if (!taken && (best_id == num_experts || s > best)) best = s, best_id = e;
      }
#pragma unroll
      for (int offset = 16; offset > 0; offset >>= 1) {
        const float other = __shfl_xor_sync(0xffffffffu, best, offset);
        const int other_id = __shfl_xor_sync(0xffffffffu, best_id, offset);
        if (other_id < num_experts &&
            (best_id == num_experts || other > best || (other == best && other_id < best_id))) {
          best = other;
          best_id = other_id;
        }
      }
      if (lane == k) chosen = best_id;
      if (lane == best_id % 32) mine |= 1u << (best_id / 32);
    }
  }
  // Rank by id; equal ids keep their order.
  int rank = 0;
  float sum = 0.0f;
  const float s = lane < topk ? score_of(z[chosen]) : 0.0f;
  for (int j = 0; j < topk; ++j) {
    const int other = __shfl_sync(0xffffffffu, chosen, j);
    if (other < chosen || (other == chosen && j < lane)) ++rank;
  }
  // The sum runs in the order written, like the host's.
  for (int r = 0; r < topk; ++r) {
    const unsigned holder = __ballot_sync(0xffffffffu, lane < topk && rank == r);
    sum += __shfl_sync(0xffffffffu, s, __ffs(static_cast<int>(holder)) - 1);
  }
  if (lane >= topk) return;
  ids[token * topk + rank] = chosen;
  weights[token * topk + rank] = normalise ? factor * s / sum : factor * s;
}

template <typename Launch>
void route(ExecutionContext& context, const MoeRoutePlan& plan, const MoeRouteArgs& args, Launch&& launch) {
  const MoeRouteDesc& d = plan.desc;
  const auto num_tokens = static_cast<std::int32_t>(args.x.shape[0]);
  FATHOM_CHECK(d.topk <= kMaxTopk, "at most 16 experts a row");
  FATHOM_CHECK(d.num_experts <= 1024, "at most 1024 experts");
  if (num_tokens == 0) return;
  auto* logits = reinterpret_cast<float*>(context.scratch);
  const LinearItem item{device_weight(*args.gate), logits, true, false, 0, 0};
  launch(LinearCall{args.x.as<Bf16Bits>(), d.hidden, num_tokens}, std::span<const LinearItem>(&item, 1));
  choose_experts<<<static_cast<unsigned>((num_tokens + kWarps - 1) / kWarps), kWarps * 32, 0, stream_of(context)>>>(
      logits, args.bias.as<float>(), args.tid2eid.as<std::int64_t>(), args.token_ids.as<std::int32_t>(),
      args.expert_ids.as<std::int32_t>(), args.expert_weights.as<float>(), num_tokens, d.num_experts, d.topk,
      d.routed_scaling_factor, d.norm_topk_prob);
}

}  // namespace

void moe_route_naive(ExecutionContext& context, const MoeRoutePlan& plan, const MoeRouteArgs& args) {
  route(context, plan, args, [&](const LinearCall& call, std::span<const LinearItem> items) {
    launch_linear_naive(call, items, nullptr, stream_of(context));
  });
}

void moe_route_mma(ExecutionContext& context, const MoeRoutePlan& plan, const MoeRouteArgs& args) {
  route(context, plan, args, [&](const LinearCall& call, std::span<const LinearItem> items) {
    launch_linear_mma(call, items, nullptr, stream_of(context));
  });
}

}  // namespace fathom::cuda
