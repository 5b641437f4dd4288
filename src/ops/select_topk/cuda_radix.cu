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
    // Eight loads in flight a thread. Scores share few leading digits, so in the first round equal digits of a
    // warp are counted by one lane.
    for (int base = 0; base < visible; base += 8 * kThreads) {
      std::uint32_t keys[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int i = base + k * kThreads + tid;
        keys[k] = i < visible ? ordered(s[i]) : 0;
      }
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        if (base + k * kThreads >= visible) break;  // the same for the whole block
        const bool counts = base + k * kThreads + tid < visible && (keys[k] & mask) == prefix;
        const std::uint32_t digit = counts ? (keys[k] >> shift) & static_cast<std::uint32_t>(bins - 1) : 0xffffffffu;
        if (round == 0 && visible > 8 * kThreads) {
          const unsigned same = __match_any_sync(0xffffffffu, digit);
          if (counts && (tid & 31) == __ffs(static_cast<int>(same)) - 1) atomicAdd(&histogram[digit], __popc(same));
        } else if (counts) {
          atomicAdd(&histogram[digit], 1);
        }
      }
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
  // `prefix` is the topk-th best; `wanted` of its equals are taken, lowest index first. A warp owns a run of
  // entries, so that places ascend with warps, and reads it 32 at a time.
  const int lane = tid & 31, warp = tid >> 5;
  const int run = ((visible + 31) / 32 + 31) / 32 * 32, begin = min(warp * run, visible),
            end = min(begin + run, visible);
  int above = 0, equal = 0;
#pragma unroll 4
  for (int i = begin + lane; i < end; i += 32) {
    const std::uint32_t key = ordered(s[i]);
    above += key > prefix ? 1 : 0;
    equal += key == prefix ? 1 : 0;
  }
  // Counts of the warps before this one: the scan runs over threads, whose order is that of the warps.
  const int above_scan = scan_block(above, warps);
  const int above_before = __shfl_sync(0xffffffffu, above_scan - above, 0);
  __syncthreads();
  const int equal_scan = scan_block(equal, warps);
  int equal_rank = __shfl_sync(0xffffffffu, equal_scan - equal, 0);
  int place = above_before + min(equal_rank, wanted);
  const unsigned below = (1u << lane) - 1u;
#pragma unroll 4
  for (int base = begin; base < end; base += 32) {
    const std::uint32_t key = base + lane < end ? ordered(s[base + lane]) : 0;
    const bool is_equal = base + lane < end && key == prefix;
    const unsigned equals = __ballot_sync(0xffffffffu, is_equal);
    const bool keep = base + lane < end && (key > prefix || (is_equal && equal_rank + __popc(equals & below) < wanted));
    const unsigned kept = __ballot_sync(0xffffffffu, keep);
    if (keep) out[place + __popc(kept & below)] = base + lane;
    place += __popc(kept);
    equal_rank += __popc(equals);
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
