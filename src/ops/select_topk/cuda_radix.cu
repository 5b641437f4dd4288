// select_topk/radix: exact. The topk-th best score is found digit by digit (11, 11, 10 bits of the order-
// preserving form), then entries above it, and the lowest-indexed of those equal to it, are written in order.
#include "ops/cuda/device_rows.cuh"
#include "ops/select_topk/select_topk.h"

namespace fathom::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kBins = 2048;

// Larger scores give larger words; -0 counts as 0.
__device__ __forceinline__ std::uint32_t ordered(float score) {
  const std::uint32_t bits = __float_as_uint(score == 0.0f ? 0.0f : score);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// Inclusive sums over the block, in thread order.
__device__ __forceinline__ int scan_block(int value, int* warps) {
  const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5);
#pragma unroll
  for (int offset = 1; offset < 32; offset <<= 1) {
    const int below = __shfl_up_sync(0xffffffffu, value, offset);
    if (lane >= offset) value += below;
  }
  __syncthreads();
  if (lane == 31) warps[warp] = value;
  __syncthreads();
  if (warp == 0) {
    int total = warps[lane];
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
      const int below = __shfl_up_sync(0xffffffffu, total, offset);
      if (lane >= offset) total += below;
    }
    warps[lane] = total;
  }
  __syncthreads();
  return value + (warp > 0 ? warps[warp - 1] : 0);
}

__global__ void __launch_bounds__(kThreads)
    select(const std::int32_t* positions, const float* scores, std::int64_t stride, std::int32_t* selected,
           int first_row, int topk, int ratio) {
  __shared__ int histogram[kBins], warps[32], digit_found, wanted_left;
  const int row = static_cast<int>(blockIdx.x), token = first_row + row, tid = static_cast<int>(threadIdx.x);
  const int visible = (positions[token] + 1) / ratio;
  std::int32_t* out = selected + static_cast<std::int64_t>(token) * topk;
  if (visible <= topk) {
    for (int i = tid; i < topk; i += kThreads) out[i] = i < visible ? i : -1;
    return;
  }
  const float* s = scores + row * stride;
  std::uint32_t prefix = 0, mask = 0;
  int wanted = topk;  // of those that match the prefix
  constexpr int kShifts[3] = {21, 10, 0}, kBits[3] = {11, 11, 10};
#pragma unroll
  for (int round = 0; round < 3; ++round) {
    const int shift = kShifts[round], bins = 1 << kBits[round];
    for (int i = tid; i < kBins; i += kThreads) histogram[i] = 0;
    __syncthreads();
    for (int i = tid; i < visible; i += kThreads) {
      const std::uint32_t key = ordered(s[i]);
      if ((key & mask) == prefix) atomicAdd(&histogram[(key >> shift) & static_cast<std::uint32_t>(bins - 1)], 1);
    }
    __syncthreads();
    // Bins from the top, two a thread: find where the running count reaches `wanted`.
    const int top = kBins - 1 - 2 * tid;
    const int high = histogram[top], low = histogram[top - 1];
    const int sum = scan_block(high + low, warps);
    const int before = sum - high - low;
    if (before < wanted && sum >= wanted) {
      const bool in_high = before + high >= wanted;
      digit_found = in_high ? top : top - 1;
      wanted_left = wanted - before - (in_high ? 0 : high);
    }
    __syncthreads();
    prefix |= static_cast<std::uint32_t>(digit_found) << shift;
    mask |= static_cast<std::uint32_t>(bins - 1) << shift;
    wanted = wanted_left;
    __syncthreads();
  }
  // `prefix` is the topk-th best; `wanted` of its equals are taken, lowest index first. A thread owns a run of
  // entries, so that places ascend with threads.
  const int run = (visible + kThreads - 1) / kThreads, begin = min(tid * run, visible), end = min(begin + run, visible);
  int above = 0, equal = 0;
  for (int i = begin; i < end; ++i) {
    const std::uint32_t key = ordered(s[i]);
    above += key > prefix ? 1 : 0;
    equal += key == prefix ? 1 : 0;
  }
  const int equal_before = scan_block(equal, warps) - equal;
  __syncthreads();
  const int above_before = scan_block(above, warps) - above;
  int equal_rank = equal_before, place = above_before + min(equal_before, wanted);
  for (int i = begin; i < end; ++i) {
    const std::uint32_t key = ordered(s[i]);
    const bool keep = key > prefix || (key == prefix && equal_rank++ < wanted);
    if (keep) out[place++] = i;
  }
}

}  // namespace

void select_topk_radix(ExecutionContext& context, const SelectTopkPlan& plan, const SelectTopkArgs& args) {
  const auto rows = static_cast<unsigned>(args.scores.shape[0]);
  if (rows == 0) return;
  select<<<rows, kThreads, 0, stream_of(context)>>>(args.rows->positions.as<std::int32_t>(), args.scores.as<float>(),
                                                    args.scores.shape[1], args.selected.as<std::int32_t>(),
                                                    args.first_row, plan.desc.topk, plan.desc.ratio);
}

}  // namespace fathom::cuda
