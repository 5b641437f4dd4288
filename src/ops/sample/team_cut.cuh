// top_k and top_p by a team. A round spreads the values still in question over bins and finds the bin in which the
// goal is reached; when it holds few, they are ranked one by one. The first round's bins are even in the scaled logit,
// later ones' in its key, so that every round leaves less.
#pragma once

#include "ops/sample/nucleus_weight.h"
#include "ops/sample/team.cuh"

namespace fathom::cuda {

// Aliased: bins of this block, then its list, then everybody's.
union TeamCutShared {
  struct {
    std::uint32_t low[kTeamBins], high[kTeamBins];
  } bins;
  std::uint64_t mine[kTeamListed];
  struct {
    std::uint64_t keys[kTeamListed], weights[kTeamListed];
  } all;
  std::uint64_t top[kTeamMost][kTeamTop];  // of describe()
};

template <bool kCount>
struct CutRule {
  std::uint64_t goal;
  float share;
  __device__ __forceinline__ std::uint64_t weight(float scaled) const {
    return kCount ? std::uint64_t{1} : nucleus_weight(scaled);
  }
  __device__ __forceinline__ bool reached(std::uint64_t run, std::uint64_t total) const {
    return run > 0 && (kCount ? run >= goal : nucleus_reached(run, total, share));
  }
};

// The inclusive sum over the threads before and this one.
__device__ __forceinline__ std::uint64_t scan_block(std::uint64_t v, std::uint64_t& total, TeamShared& s) {
  const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5);
#pragma unroll
  for (int offset = 1; offset < 32; offset <<= 1) {
    const std::uint64_t below = __shfl_up_sync(0xffffffffu, v, offset);
    if (lane >= offset) v += below;
  }
  __syncthreads();
  if (lane == 31) s.words[3][warp] = v;
  __syncthreads();
  total = 0;
  for (int w = 0; w < kTeamWarps; ++w) {
    const std::uint64_t sum = s.words[3][w];
    if (w < warp) v += sum;
    total += sum;
  }
  return v;
}

// The id of this block's `wanted`-th value (from 1) with that key that `before` keeps; in every thread.
__device__ inline int nth_tie(const TeamPart& part, const Cut& before, std::uint32_t key, int wanted, TeamShared& s) {
  const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5);
  const int share = (part.padded / 32 + kTeamWarps - 1) / kTeamWarps * 32;
  const int first = min(warp * share, part.padded), last = min(first + share, part.padded);
  const auto tie = [&](int i) {
    return part.values[i] != -INFINITY && key_of(part.values[i]) == key && before.keeps(part.values[i], part.begin + i);
  };
  int num = 0;
  for (int i = first + lane; i < last; i += 32) num += __popc(__ballot_sync(0xffffffffu, tie(i)));
  __syncthreads();
  if (lane == 0) s.words[3][warp] = static_cast<std::uint64_t>(num);
  __syncthreads();
  for (int w = 0; w < warp; ++w) wanted -= static_cast<int>(s.words[3][w]);
  if (wanted > 0 && wanted <= num) {
    for (int base = first; base < last; base += 32) {
      unsigned ties = __ballot_sync(0xffffffffu, tie(base + lane));
      const int here = __popc(ties);
      if (wanted <= here) {
        for (; wanted > 1; --wanted) ties &= ties - 1;
        if (lane == 0) s.cut_last = part.begin + base + __ffs(static_cast<int>(ties)) - 1;
        break;
      }
      wanted -= here;
    }
  }
  __syncthreads();
  return s.cut_last;
}

// All that are left have one key: `total_num` of them, of which the first few are kept.
template <bool kCount, bool kCluster>
__device__ Cut cut_ties(Team<kCluster>& team, const TeamPart& part, const Cut& before, const CutRule<kCount>& rule,
                        std::uint32_t key, std::uint64_t above, std::uint64_t total, std::uint64_t total_num) {
  const std::uint64_t each = rule.weight(value_of(key));
  std::uint64_t few = 1, many = total_num;
  while (few < many) {
    const std::uint64_t middle = (few + many) / 2;
    if (rule.reached(above + middle * each, total)) {
      many = middle;
    } else {
      few = middle + 1;
    }
  }
  std::uint64_t earlier = 0;
  for (int r = 0; r < team.rank; ++r) earlier += team.heard(r, 2);
  const std::uint64_t own = team.heard(team.rank, 2);
  std::uint64_t id = 0;
  if (few > earlier && few <= earlier + own) {
    id = static_cast<std::uint64_t>(nth_tie(part, before, key, static_cast<int>(few - earlier), *team.s));
  }
  team.tell({id, 0, 0});
  Cut cut;
  cut.key = key;
  cut.last_id = static_cast<int>(team.heard_of_all().largest);
  return cut;
}

// The shortest run of what `before` leaves, highest first, ties to the lowest id, whose weights reach the goal.
template <bool kCount, bool kCluster>
__device__ Cut find_cut(Team<kCluster>& team, const TeamPart& part, const Cut& before, const CutRule<kCount>& rule,
                        TeamCutShared& shared) {
  TeamShared& s = *team.s;
  const int tid = static_cast<int>(threadIdx.x);
  // What is further below than this has one bin: cuts rarely end there, a nucleus where weights are 1e-7 of the
  // highest.
  constexpr float kBinsEach = kTeamBins / (kCount ? 32.0f : 16.0f);
  std::uint32_t low = 0, high = 0xffffffffu;
  int shift = 0;
  std::uint64_t above = 0, total = 0;
  const auto asked = [&](float v, int i, bool first) {
    if (v == -INFINITY || (!kCount && v <= -31.0f)) return false;
    const std::uint32_t key = key_of(v);
    return (first || (key >= low && key <= high)) && before.keeps(v, part.begin + i);
  };
  const auto bin_of = [&](float v, bool first) {
    return first ? static_cast<int>(fminf(-v * kBinsEach, kTeamBins - 1.0f))
                 : static_cast<int>((high - key_of(v)) >> shift);
  };
  for (bool first = true;; first = false) {
    const int round = team.round++;
    __syncthreads();
    for (int b = tid; b < kTeamBins; b += kTeamThreads) shared.bins.low[b] = shared.bins.high[b] = 0;
    __syncthreads();
    const auto add = [&](int bin, std::uint64_t w) {
      if constexpr (kCount) {
        atomicAdd(&shared.bins.low[bin], static_cast<std::uint32_t>(w));
      } else {
        const auto w_low = static_cast<std::uint32_t>(w);
        const std::uint32_t had = atomicAdd(&shared.bins.low[bin], w_low);
        const std::uint32_t carried = static_cast<std::uint32_t>(w >> 32) + (had + w_low < had ? 1u : 0u);
        if (carried != 0) atomicAdd(&shared.bins.high[bin], carried);
      }
    };
    std::uint64_t far = 0;  // the last bin's, which has many
#pragma unroll 2
    for (int i = tid; i < part.padded; i += kTeamThreads) {
      const float v = part.values[i];
      if (!asked(v, i, first)) continue;
      const int bin = bin_of(v, first);
      const std::uint64_t w = rule.weight(v);
      if (bin == kTeamBins - 1) {
        far += w;
      } else {
        add(bin, w);
      }
    }
    far = warp_sum(far);
    if ((tid & 31) == 0 && far != 0) add(kTeamBins - 1, far);
    __syncthreads();
    for (int b = tid; b < kTeamBins; b += kTeamThreads) {
      const std::uint64_t sum = static_cast<std::uint64_t>(shared.bins.high[b]) << 32 | shared.bins.low[b];
      if (sum != 0) {
        atomicAdd(reinterpret_cast<unsigned long long*>(&team.area->bins[round & 1][b]),
                  static_cast<unsigned long long>(sum));
      }
    }
    team.empty_round(round + 1);
    team.sync();
    const std::uint64_t bin0 = load_shared_word(&team.area->bins[round & 1][2 * tid]),
                        bin1 = load_shared_word(&team.area->bins[round & 1][2 * tid + 1]);
    std::uint64_t inside = 0;
    const std::uint64_t run = above + scan_block(bin0 + bin1, inside, s);
    if (first) total = inside;
    if (kCount && first && total <= rule.goal) {
      team.sync();  // all have read the bins
      return before;
    }
    const std::uint64_t before0 = run - bin0 - bin1, before1 = run - bin1;
    if (!rule.reached(before0, total) && rule.reached(before1, total)) s.bin = 2 * tid, s.above = before0;
    if (!rule.reached(before1, total) && rule.reached(run, total)) s.bin = 2 * tid + 1, s.above = before1;
    if (tid == 0) s.num_mine = 0;
    __syncthreads();
    above = s.above;
    const int bin = s.bin;
    std::uint32_t lowest_key = 0xffffffffu, highest_key = 0;
    for (int i = tid; i < part.padded; i += kTeamThreads) {
      const float v = part.values[i];
      if (!asked(v, i, first) || bin_of(v, first) != bin) continue;
      const std::uint32_t key = key_of(v);
      lowest_key = min(lowest_key, key), highest_key = max(highest_key, key);
      const int place = atomicAdd(&s.num_mine, 1);
      if (place < kTeamListed) {
        shared.mine[place] = static_cast<std::uint64_t>(key) << 32 | ~static_cast<std::uint32_t>(part.begin + i);
      }
    }
    __syncthreads();
    const int mine = s.num_mine;
    if (tid == 0 && mine > 0) {
      s.num_before = static_cast<int>(atomicAdd(&team.area->num_listed[round % 3], static_cast<std::uint32_t>(mine)));
    }
    // ~lowest: its largest is of the lowest.
    Said said = team.of_block({highest_key, ~lowest_key & 0xffffffffu, 0});
    said.sum = static_cast<std::uint64_t>(mine);
    if (mine > 0 && s.num_before + mine <= kTeamListed) {
      for (int i = tid; i < mine; i += kTeamThreads) team.area->listed[s.num_before + i] = shared.mine[i];
    }
    team.tell(said);
    const Said heard = team.heard_of_all();
    const int num = static_cast<int>(heard.sum);
    if (num <= kTeamListed) {
      for (int i = tid; i < num; i += kTeamThreads) {
        const std::uint64_t word = load_shared_word(&team.area->listed[i]);
        shared.all.keys[i] = word;
        shared.all.weights[i] = rule.weight(value_of(static_cast<std::uint32_t>(word >> 32)));
      }
      __syncthreads();
      if (tid < num) {
        const std::uint64_t key = shared.all.keys[tid];
        std::uint64_t run_before = above;
#pragma unroll 4
        for (int i = 0; i < num; ++i) run_before += shared.all.keys[i] > key ? shared.all.weights[i] : 0;
        if (!rule.reached(run_before, total) && rule.reached(run_before + shared.all.weights[tid], total)) {
          s.cut_key = static_cast<std::uint32_t>(key >> 32),
          s.cut_last = static_cast<int>(~static_cast<std::uint32_t>(key));
        }
      }
      __syncthreads();
      Cut cut;
      cut.key = s.cut_key, cut.last_id = s.cut_last;
      return cut;
    }
    low = ~static_cast<std::uint32_t>(heard.other), high = static_cast<std::uint32_t>(heard.largest);
    if (low == high) return cut_ties(team, part, before, rule, low, above, total, heard.sum);
    shift = max(0, 32 - __clz(static_cast<int>(high - low)) - 10);
  }
}

}  // namespace fathom::cuda
