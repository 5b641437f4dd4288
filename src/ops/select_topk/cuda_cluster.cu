// select_topk/cluster: exact. Up to eight blocks share a row (one on devices without clusters); each keeps a run of
// its scores in shared memory, so that a row is read once.
//
// Scores as words of the same order. A round spreads the words still in question evenly over 1,024 bins and finds
// the bin in which the topk-th best lies; the range of words narrows by ten bits, beginning at the row's own range
// rather than at all 32-bit words. As soon as few candidates are left they are ranked one by one. Then every entry
// above the threshold word is written, and the lowest-indexed of those equal to it.
#include <cooperative_groups.h>

#include "ops/cuda/device_rows.cuh"
#include "ops/cuda/kernel_image.cuh"
#include "ops/select_topk/plan.h"
#include "ops/select_topk/select_topk.h"

namespace fathom::cuda {
namespace {

constexpr int kWarps = kTopkThreads / 32;

// Larger scores give larger words; -0 counts as 0.
__device__ __forceinline__ std::uint32_t ordered(float score) {
  const std::uint32_t bits = __float_as_uint(score == 0.0f ? 0.0f : score);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// The blocks of a row: their barrier and each other's shared memory. One block alone needs neither.
struct Team {
  int size, rank;

  __device__ __forceinline__ void sync() const {
#if __CUDA_ARCH__ >= 900
    if (size > 1) {
      cooperative_groups::this_cluster().sync();
      return;
    }
#endif
    __syncthreads();
  }
  // Another block's shared memory may be touched once that block runs: announced at the start, awaited at first use.
  __device__ __forceinline__ void announce() const {
#if __CUDA_ARCH__ >= 900
    if (size > 1) cooperative_groups::this_cluster().barrier_arrive();
#endif
  }
  __device__ __forceinline__ void await() const {
#if __CUDA_ARCH__ >= 900
    if (size > 1) cooperative_groups::this_cluster().barrier_wait();
#endif
  }
  template <typename T>
  __device__ __forceinline__ T* of(T* mine, [[maybe_unused]] int other) const {
#if __CUDA_ARCH__ >= 900
    if (size > 1) return cooperative_groups::this_cluster().map_shared_rank(mine, static_cast<unsigned>(other));
#endif
    return mine;
  }
};

struct Candidate {
  std::uint32_t word;
  std::int32_t entry;
};

struct Shared {
  std::uint32_t lowest[kTopkMaxCluster], highest[kTopkMaxCluster];  // of each block, written by it
  int above[kTopkMaxCluster], equal[kTopkMaxCluster];
  int histogram[2][kTopkBins];
  std::uint32_t warp_words[2][kWarps];
  int warp_sums[2][kWarps];
  int num_mine;
  int digit, before, inside;  // what a round found
  std::uint32_t threshold;
  int wanted;
  Candidate mine[kTopkCandidates], all[kTopkCandidates];
};

__device__ __forceinline__ int scan_warp(int value) {
  const int lane = static_cast<int>(threadIdx.x & 31);
#pragma unroll
  for (int offset = 1; offset < 32; offset <<= 1) {
    const int below = __shfl_up_sync(0xffffffffu, value, offset);
    if (lane >= offset) value += below;
  }
  return value;
}

// Words of this block's run of entries: kept in shared memory, or read again.
struct Run {
  const float* scores;
  const std::uint32_t* kept;
  int size;
  __device__ __forceinline__ std::uint32_t word(int i) const { return kept != nullptr ? kept[i] : ordered(scores[i]); }
};

// The row's lowest and highest word, and the run into shared memory.
__device__ __forceinline__ uint2 load_run(const Run& run, std::uint32_t* keep, Shared& s, const Team& team) {
  const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = tid >> 5;
  std::uint32_t low = 0xffffffffu, high = 0;
  const auto take = [&](float score, int i) {
    const std::uint32_t word = ordered(score);
    if (keep != nullptr) keep[i] = word;
    low = min(low, word);
    high = max(high, word);
  };
  if ((reinterpret_cast<std::uintptr_t>(run.scores) & 15) == 0) {
    const int whole = run.size / 4;
#pragma unroll 4
    for (int i = tid; i < whole; i += kTopkThreads) {
      const float4 v = reinterpret_cast<const float4*>(run.scores)[i];
      take(v.x, 4 * i), take(v.y, 4 * i + 1), take(v.z, 4 * i + 2), take(v.w, 4 * i + 3);
    }
    if (const int i = 4 * whole + tid; i < run.size) take(run.scores[i], i);
  } else {
#pragma unroll 4
    for (int i = tid; i < run.size; i += kTopkThreads) take(run.scores[i], i);
  }
  low = __reduce_min_sync(0xffffffffu, low);
  high = __reduce_max_sync(0xffffffffu, high);
  if (lane == 0) s.warp_words[0][warp] = low, s.warp_words[1][warp] = high;
  __syncthreads();
  team.await();
  if (warp == 0) {
    low = __reduce_min_sync(0xffffffffu, s.warp_words[0][lane]);
    high = __reduce_max_sync(0xffffffffu, s.warp_words[1][lane]);
    if (lane < team.size) *team.of(&s.lowest[team.rank], lane) = low;
    if (lane < team.size) *team.of(&s.highest[team.rank], lane) = high;
  }
  team.sync();
  low = s.lowest[0], high = s.highest[0];
  for (int r = 1; r < team.size; ++r) low = min(low, s.lowest[r]), high = max(high, s.highest[r]);
  return make_uint2(low, high);
}

// The topk-th best word, and how many entries equal to it are taken.
__device__ __forceinline__ void find_threshold(const Run& run, int begin, int wanted, uint2 range, Shared& s,
                                               const Team& team) {
  const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = tid >> 5;
  std::uint32_t low = range.x, high = range.y;
  for (int round = 0;; ++round) {
    const std::uint32_t width = high - low;
    const int shift = max(0, 32 - __clz(static_cast<int>(width)) - 10);
    int* histogram = s.histogram[round & 1];
#pragma unroll 4
    for (int i = tid; i < run.size; i += kTopkThreads) {
      const std::uint32_t at = run.word(i) - low;
      if (at <= width) atomicAdd(&histogram[at >> shift], 1);
    }
    team.sync();
    const int bin = kTopkBins - 1 - tid;
    int count = 0;
#pragma unroll
    for (int r = 0; r < kTopkMaxCluster; ++r)
      if (r < team.size) count += team.of(histogram, r)[bin];
    // Nobody reads the other histogram any more: they all have passed this round's barrier.
    s.histogram[(round + 1) & 1][tid] = 0;
    if (tid == 0) s.num_mine = 0;
    const int inclusive = scan_warp(count);
    if (lane == 31) s.warp_sums[0][warp] = inclusive;
    __syncthreads();
    const int sums = scan_warp(s.warp_sums[0][lane]);
    const int sum = inclusive + __shfl_sync(0xffffffffu, sums, (warp + 31) & 31) * (warp > 0 ? 1 : 0);
    if (sum - count < wanted && sum >= wanted) s.digit = bin, s.before = sum - count, s.inside = count;
    __syncthreads();
    low += static_cast<std::uint32_t>(s.digit) << shift;
    high = low + min(high - low, (1u << shift) - 1u);
    wanted -= s.before;
    const int inside = s.inside;
    if (low == high) {
      if (tid == 0) s.threshold = low, s.wanted = wanted;
      __syncthreads();
      return;
    }
    if (inside <= kTopkCandidates) break;
  }
  // Few candidates: everyone gathers them all and ranks them.
  for (int i = tid; i < run.size; i += kTopkThreads) {
    const std::uint32_t word = run.word(i);
    if (word - low <= high - low) s.mine[atomicAdd(&s.num_mine, 1)] = {word, begin + i};
  }
  team.sync();
  int total = 0;
  for (int r = 0; r < team.size; ++r) {
    const int num = *team.of(&s.num_mine, r);
    const Candidate* from = team.of(&s.mine[0], r);
    for (int i = tid; i < num; i += kTopkThreads) s.all[total + i] = from[i];
    total += num;
  }
  __syncthreads();
  if (tid < total) {
    const Candidate me = s.all[tid];
    int above = 0, equal_before = 0;
#pragma unroll 8
    for (int i = 0; i < total; ++i) {
      const Candidate other = s.all[i];
      above += other.word > me.word ? 1 : 0;
      equal_before += other.word == me.word && other.entry < me.entry ? 1 : 0;
    }
    if (above + equal_before == wanted - 1) s.threshold = me.word, s.wanted = equal_before + 1;
  }
  __syncthreads();
}

// Entries above the threshold, and the first `wanted` equal to it, ascending. A warp owns a run of the run.
__device__ __forceinline__ void write_selected(const Run& run, int begin, std::int32_t* out, Shared& s,
                                               const Team& team) {
  const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = tid >> 5;
  const std::uint32_t threshold = s.threshold;
  const int wanted = s.wanted;
  const int share = (run.size + kTopkThreads - 1) / kTopkThreads * 32;
  const int first = min(warp * share, run.size), last = min(first + share, run.size);
  int above = 0, equal = 0;
#pragma unroll 4
  for (int i = first + lane; i < last; i += 32) {
    const std::uint32_t word = run.word(i);
    above += word > threshold ? 1 : 0;
    equal += word == threshold ? 1 : 0;
  }
  above = static_cast<int>(__reduce_add_sync(0xffffffffu, static_cast<unsigned>(above)));
  equal = static_cast<int>(__reduce_add_sync(0xffffffffu, static_cast<unsigned>(equal)));
  if (lane == 0) s.warp_sums[0][warp] = above, s.warp_sums[1][warp] = equal;
  __syncthreads();
  const int above_sums = scan_warp(s.warp_sums[0][lane]), equal_sums = scan_warp(s.warp_sums[1][lane]);
  int above_before = __shfl_sync(0xffffffffu, above_sums, (warp + 31) & 31) * (warp > 0 ? 1 : 0);
  int rank = __shfl_sync(0xffffffffu, equal_sums, (warp + 31) & 31) * (warp > 0 ? 1 : 0);
  if (team.size > 1) {
    if (warp == 0) {
      const int block_above = __shfl_sync(0xffffffffu, above_sums, 31),
                block_equal = __shfl_sync(0xffffffffu, equal_sums, 31);
      if (lane < team.size) *team.of(&s.above[team.rank], lane) = block_above;
      if (lane < team.size) *team.of(&s.equal[team.rank], lane) = block_equal;
    }
    team.sync();  // also: nobody reads another's shared memory after this
    for (int r = 0; r < team.rank; ++r) above_before += s.above[r], rank += s.equal[r];
  }
  int place = above_before + min(rank, wanted);
  const unsigned below = (1u << lane) - 1u;
  for (int base = first; base < last; base += 32) {
    const bool exists = base + lane < last;
    const std::uint32_t word = exists ? run.word(base + lane) : 0;
    const bool is_equal = exists && word == threshold;
    const unsigned equals = __ballot_sync(0xffffffffu, is_equal);
    const bool keep = exists && (word > threshold || (is_equal && rank + __popc(equals & below) < wanted));
    const unsigned kept = __ballot_sync(0xffffffffu, keep);
    if (keep) out[place + __popc(kept & below)] = begin + base + lane;
    place += __popc(kept);
    rank += __popc(equals);
  }
}

__global__ void __launch_bounds__(kTopkThreads, 1)
    select(const std::int32_t* positions, const float* scores, std::int64_t stride, std::int32_t* selected,
           int first_row, int topk, int ratio, int scores_in_shared) {
  extern __shared__ __align__(16) std::uint32_t kept[];
  __shared__ Shared s;
  const int row = static_cast<int>(blockIdx.y), token = first_row + row, tid = static_cast<int>(threadIdx.x);
  const Team team{static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x)};
  const int visible = (positions[token] + 1) / ratio;
  std::int32_t* out = selected + static_cast<std::int64_t>(token) * topk;
  if (visible <= topk) {  // the same for all blocks of the row
    if (team.rank == 0)
      for (int i = tid; i < topk; i += kTopkThreads) out[i] = i < visible ? i : -1;
    return;
  }
  team.announce();
  s.histogram[0][tid] = 0;
  const int share = (visible + 4 * team.size - 1) / (4 * team.size) * 4;
  const int begin = min(team.rank * share, visible);
  Run run{scores + row * stride + begin, nullptr, min(share, visible - begin)};
  const bool fits = share <= scores_in_shared;
  const uint2 range = load_run(run, fits ? kept : nullptr, s, team);
  if (fits) run.kept = kept;
  find_threshold(run, begin, topk, range, s, team);
  write_selected(run, begin, out, s, team);
}

}  // namespace

void select_topk_cluster(ExecutionContext& context, const SelectTopkPlan& plan, const SelectTopkArgs& args) {
  static const bool clusters = compiled_for_sm90(select);
  const std::int64_t rows = args.scores.shape[0];
  if (rows == 0) return;
  const TopkTiling tiling =
      topk_tiling(rows, args.scores.shape[1], plan.num_multiprocessors, plan.shared_memory_per_block_bytes, clusters);
  static const cudaError_t raised =
      cudaFuncSetAttribute(select, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(plan.shared_memory_per_block_bytes - 24 * 1024));
  static_cast<void>(raised);  // a failure shows as the launch's
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(tiling.cluster), static_cast<unsigned>(rows));
  config.blockDim = dim3(kTopkThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(tiling.scores_in_shared) * 4;
  config.stream = stream_of(context);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(tiling.cluster);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = tiling.cluster > 1 ? 1 : 0;
  // A failure shows as the launch's.
  static_cast<void>(cudaLaunchKernelEx(&config, select, args.rows->positions.as<std::int32_t>(),
                                       args.scores.as<float>(), args.scores.shape[1], args.selected.as<std::int32_t>(),
                                       args.first_row, plan.desc.topk, plan.desc.ratio,
                                       static_cast<int>(tiling.scores_in_shared)));
}

}  // namespace fathom::cuda
