// moe_route: the gate as one launch of linear's kernels (fp32 out), then a block a row chooses.
#include "ops/cuda/device_rows.cuh"
#include "ops/linear/kernels.cuh"
#include "ops/moe_route/moe_route.h"

namespace fathom::cuda {
namespace {

constexpr int kMaxTopk = 16;
constexpr int kThreads = 256;

__device__ __forceinline__ float score_of(float z) { return sqrtf(z > 20.0f ? z : log1pf(expf(z))); }

// A score as an unsigned number of the same order, never 0: 0 marks an expert that is taken or not there.
__device__ __forceinline__ std::uint32_t order_of(float score) {
  const std::uint32_t bits = __float_as_uint(score + 0.0f);  // -0 orders as 0
  return max((bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u, 1u);
}

// One block a row: every thread makes scores (the exponentials and logarithms are most of the work), then one warp has
// experts lane, lane + 32, ... in registers over the topk rounds. Lane k keeps the choice of round k; lanes
// 0 .. topk - 1 write one each, in ascending order of ids.
template <int kWords>
__global__ void __launch_bounds__(kThreads)
    choose_experts(const float* logits, const float* bias, const std::int64_t* tid2eid, const std::int32_t* token_ids,
                   std::int32_t* ids, float* weights, int num_experts, int topk, float factor, bool normalise) {
  __shared__ float score[32 * kWords];
  __shared__ std::uint32_t order_of_expert[32 * kWords];
  const std::int64_t token = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x);
  const float* z = logits + token * num_experts;
  const bool hashed = tid2eid != nullptr;
  if (!hashed) {
    for (int e = lane; e < 32 * kWords; e += kThreads) {
      score[e] = e < num_experts ? score_of(z[e]) : 0.0f;
      order_of_expert[e] = e < num_experts ? order_of(score[e] + bias[e]) : 0u;
    }
    __syncthreads();
  }
  if (lane >= 32) return;
  int chosen = -1;
  float s = 0.0f;  // of the choice, without the bias
  if (hashed) {
    if (lane < topk) {
      chosen = static_cast<int>(tid2eid[static_cast<std::int64_t>(token_ids[token]) * topk + lane]);
      s = score_of(z[chosen]);
    }
  } else {
    std::uint32_t order[kWords];
#pragma unroll
    for (int w = 0; w < kWords; ++w) order[w] = order_of_expert[lane + 32 * w];
    for (int k = 0; k < topk; ++k) {
      std::uint32_t best = 0;
      unsigned best_id = ~0u;
#pragma unroll
      for (int w = 0; w < kWords; ++w)
        if (order[w] > best) best = order[w], best_id = static_cast<unsigned>(lane + 32 * w);
      const std::uint32_t most = __reduce_max_sync(~0u, best);
      const int id = static_cast<int>(__reduce_min_sync(~0u, best == most ? best_id : ~0u));
      if (lane == k) chosen = id;
#pragma unroll
      for (int w = 0; w < kWords; ++w)
        if (lane + 32 * w == id) order[w] = 0;
    }
    if (lane < topk) s = score[chosen];
  }
  // Rank by id; equal ids keep their order.
  int rank = 0;
  float sum = 0.0f;
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
  auto* sorted = reinterpret_cast<Bf16Bits*>(context.scratch + moe_route_logits_bytes(d));
  const LinearItem item{device_weight(*args.gate), logits, true, false, 0, 0};
  launch(LinearCall{args.x.as<Bf16Bits>(), d.hidden, num_tokens}, std::span<const LinearItem>(&item, 1), sorted);
  const auto choose = d.num_experts <= 256 ? choose_experts<8> : choose_experts<32>;
  choose<<<static_cast<unsigned>(num_tokens), kThreads, 0, stream_of(context)>>>(
      logits, args.bias.as<float>(), args.tid2eid.as<std::int64_t>(), args.token_ids.as<std::int32_t>(),
      args.expert_ids.as<std::int32_t>(), args.expert_weights.as<float>(), d.num_experts, d.topk,
      d.routed_scaling_factor, d.norm_topk_prob);
}

}  // namespace

void moe_route_naive(ExecutionContext& context, const MoeRoutePlan& plan, const MoeRouteArgs& args) {
  route(context, plan, args, [&](const LinearCall& call, std::span<const LinearItem> items, Bf16Bits*) {
    launch_linear_naive(call, items, nullptr, stream_of(context));
  });
}

void moe_route_mma(ExecutionContext& context, const MoeRoutePlan& plan, const MoeRouteArgs& args) {
  route(context, plan, args, [&](const LinearCall& call, std::span<const LinearItem> items, Bf16Bits* sorted) {
    launch_linear_wgmma(call, items, sorted, stream_of(context));
  });
}

}  // namespace fathom::cuda
