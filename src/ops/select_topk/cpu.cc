#include <algorithm>

#include "ops/select_topk/select_topk.h"
#include "ops/simd/products.h"
#include "ops/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/select_topk/cpu.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "ops/simd/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom {
namespace HWY_NAMESPACE {

using KeyVec = hn::Vec<IntTag>;

// Scores as integers in the same order; -0 counts as 0. Lanes beyond n hold the smallest key.
HWY_INLINE KeyVec load_keys(const float* scores, std::int64_t i, std::int64_t n) {
  const IntTag di;
  const auto lanes = static_cast<std::size_t>(n - i);
  const FloatVec score = hn::Add(load_some(scores + i, lanes), hn::Zero(FloatTag()));
  const KeyVec bits = hn::BitCast(di, score);
  const KeyVec key = hn::Xor(bits, hn::And(hn::ShiftRight<31>(bits), hn::Set(di, 0x7fffffff)));
  if (lanes >= kLanes) return key;
  return hn::IfThenElse(hn::FirstN(di, lanes), key, hn::Set(di, INT32_MIN));
}

// Scores that may be among the best, ascending by index.
constexpr std::int64_t kMostCandidates = 4096;
struct Candidates {
  HWY_ALIGN std::int32_t keys[kMostCandidates + kLanes];
  HWY_ALIGN std::int32_t indices[kMostCandidates + kLanes];
  std::int64_t count = 0;
  std::int32_t least = 0, largest = 0;  // bounds of their keys
};

// Compares keys as unsigned numbers do.
HWY_INLINE std::int32_t from_unsigned(std::uint32_t key) { return static_cast<std::int32_t>(key ^ 0x80000000u); }
HWY_INLINE std::uint32_t to_unsigned(std::int32_t key) { return static_cast<std::uint32_t>(key) ^ 0x80000000u; }

// `candidates.least`: a key that at least topk of the n >= topk scores reach. The scores are dealt to at least topk
// groups, and each group's best reaches the least of the groups' bests. False if there are too many groups.
HWY_INLINE bool bound_keys(const float* scores, std::int64_t n, std::int64_t topk, Candidates& candidates) {
  const IntTag di;
  constexpr auto kStep = static_cast<std::int64_t>(kLanes);
  const std::int64_t groups = (topk + kStep - 1) / kStep * kStep;
  if (groups > kMostCandidates) return false;
  std::int32_t* best = candidates.keys;
  for (std::int64_t g = 0; g < groups; g += kStep) {
    KeyVec largest = hn::Set(di, INT32_MIN);
    for (std::int64_t i = g; i < n; i += groups) largest = hn::Max(largest, load_keys(scores, i, n));
    hn::Store(largest, di, best + g);
  }
  KeyVec least = hn::Set(di, INT32_MAX), largest = hn::Set(di, INT32_MIN);
  for (std::int64_t g = 0; g < groups; g += kStep) {
    const KeyVec keys = hn::Load(di, best + g);
    least = hn::Min(least, keys);
    largest = hn::Max(largest, keys);
  }
  candidates.least = hn::GetLane(hn::MinOfLanes(di, least));
  candidates.largest = hn::GetLane(hn::MaxOfLanes(di, largest));
  return true;
}

// Keeps the scores that reach `candidates.least`; false if they are too many.
HWY_INLINE bool collect(const float* scores, std::int64_t n, Candidates& candidates) {
  const IntTag di;
  const KeyVec least = hn::Set(di, candidates.least);
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const KeyVec keys = load_keys(scores, i, n);
    auto in = hn::Not(hn::Lt(keys, least));
    if (n - i < static_cast<std::int64_t>(kLanes)) in = hn::And(in, hn::FirstN(di, static_cast<std::size_t>(n - i)));
    if (hn::AllFalse(di, in)) continue;
    if (count > kMostCandidates) return false;
    hn::StoreU(hn::Compress(keys, in), di, candidates.keys + count);
    hn::StoreU(hn::Compress(hn::Iota(di, static_cast<std::int32_t>(i)), in), di, candidates.indices + count);
    count += static_cast<std::int64_t>(hn::CountTrue(di, in));
  }
  candidates.count = count;
  // What lies beyond them is below every key that is looked for.
  if (count <= kMostCandidates) hn::StoreU(hn::Set(di, INT32_MIN), di, candidates.keys + count);
  return count <= kMostCandidates;
}

// How many candidates reach `key`, which is above the smallest one.
HWY_INLINE std::int64_t count_at_least(const Candidates& candidates, std::int32_t key) {
  const IntTag di;
  const KeyVec below = hn::Set(di, key - 1);
  KeyVec count = hn::Zero(di);
  for (std::int64_t i = 0; i < candidates.count; i += kLanes) {
    const auto in = hn::Gt(hn::Load(di, candidates.keys + i), below);
    count = hn::Sub(count, hn::VecFromMask(di, in));  // a true lane is -1
  }
  return hn::GetLane(hn::SumOfLanes(di, count));
}

// The largest key that at least `topk` of the candidates reach, found bit by bit below what their bounds have in
// common, or a smaller one that no more do; `reach` is how many do.
HWY_INLINE std::int32_t threshold_of(const Candidates& candidates, std::int64_t topk, std::int64_t& reach) {
  const std::uint32_t least = to_unsigned(candidates.least), largest = to_unsigned(candidates.largest);
  int bits = 0;
  while (bits < 32 && least >> bits != largest >> bits) ++bits;
  std::uint32_t threshold = bits == 32 ? 0 : least >> bits << bits;
  reach = candidates.count;
  for (int bit = bits - 1; bit >= 0 && reach != topk; --bit) {
    const std::uint32_t larger = threshold | std::uint32_t{1} << bit;
    const std::int64_t count = count_at_least(candidates, from_unsigned(larger));
    if (count < topk) continue;
    threshold = larger;
    reach = count;
  }
  return from_unsigned(threshold);
}

// Candidates above the threshold are all taken, and the first of those on it.
HWY_INLINE void take(const Candidates& candidates, std::int32_t threshold, std::int64_t reach, std::int64_t topk,
                     std::int32_t* selected) {
  const IntTag di;
  std::int64_t ties = candidates.count;
  if (reach != topk) ties = topk - (threshold == INT32_MAX ? 0 : count_at_least(candidates, threshold + 1));
  const KeyVec least = hn::Set(di, threshold);
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < candidates.count && count < topk; i += kLanes) {
    const KeyVec keys = hn::Load(di, candidates.keys + i);
    const auto in = hn::Not(hn::Lt(keys, least));
    if (hn::AllFalse(di, in)) continue;
    if (reach == topk && count + static_cast<std::int64_t>(kLanes) <= topk) {
      hn::StoreU(hn::Compress(hn::Load(di, candidates.indices + i), in), di, selected + count);
      count += static_cast<std::int64_t>(hn::CountTrue(di, in));
      continue;
    }
    const std::int64_t end = std::min(i + static_cast<std::int64_t>(kLanes), candidates.count);
    for (std::int64_t at = i; at < end && count < topk; ++at) {
      const std::int32_t key = candidates.keys[at];
      if (key < threshold || (key == threshold && ties-- <= 0)) continue;
      selected[count++] = candidates.indices[at];
    }
  }
}

// How many scores reach `key`, which is above the smallest one.
HWY_INLINE std::int64_t count_scores_at_least(const float* scores, std::int64_t n, std::int32_t key) {
  const IntTag di;
  const KeyVec below = hn::Set(di, key - 1);
  KeyVec count = hn::Zero(di);
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const auto in = hn::Gt(load_keys(scores, i, n), below);
    count = hn::Sub(count, hn::VecFromMask(di, in));  // a true lane is -1
  }
  return hn::GetLane(hn::SumOfLanes(di, count));
}

// The largest key that at least `topk` scores reach, found bit by bit; `reach` is how many do.
HWY_INLINE std::int32_t threshold_of_scores(const float* scores, std::int64_t n, std::int64_t topk,
                                            std::int64_t& reach) {
  std::int32_t threshold = INT32_MIN;
  reach = n;
  for (int bit = 31; bit >= 0 && reach != topk; --bit) {
    const auto candidate =
        static_cast<std::int32_t>(bit == 31 ? 0u : static_cast<std::uint32_t>(threshold) | std::uint32_t{1} << bit);
    const std::int64_t count = count_scores_at_least(scores, n, candidate);
    if (count < topk) continue;
    threshold = candidate;
    reach = count;
  }
  return threshold;
}

// As select_row, with a pass over all scores for each bit.
HWY_INLINE void select_among_all(const float* scores, std::int64_t n, std::int64_t topk, std::int32_t* selected) {
  const IntTag di;
  std::int64_t reach = 0;
  const std::int32_t threshold = threshold_of_scores(scores, n, topk, reach);
  // Scores above the threshold are all taken; `ties` of those on it.
  std::int64_t ties = n;
  if (reach != topk) ties = topk - (threshold == INT32_MAX ? 0 : count_scores_at_least(scores, n, threshold + 1));
  const KeyVec least = hn::Set(di, threshold);
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < n && count < topk; i += kLanes) {
    const KeyVec keys = load_keys(scores, i, n);
    if (hn::AllTrue(di, hn::Lt(keys, least))) continue;
    HWY_ALIGN std::int32_t lane_keys[kLanes];
    hn::Store(keys, di, lane_keys);
    const std::int64_t lanes = n - i < static_cast<std::int64_t>(kLanes) ? n - i : static_cast<std::int64_t>(kLanes);
    for (std::int64_t lane = 0; lane < lanes && count < topk; ++lane) {
      if (lane_keys[lane] < threshold) continue;
      if (lane_keys[lane] == threshold && ties-- <= 0) continue;
      selected[count++] = static_cast<std::int32_t>(i + lane);
    }
  }
}

// The topk best of n > topk scores, ascending; of those equal to the worst of them the first.
void select_row(const float* scores, std::int64_t n, std::int64_t topk, std::int32_t* selected) {
  Candidates candidates;
  if (!bound_keys(scores, n, topk, candidates) || !collect(scores, n, candidates)) {
    return select_among_all(scores, n, topk, selected);
  }
  std::int64_t reach = 0;
  const std::int32_t threshold = threshold_of(candidates, topk, reach);
  take(candidates, threshold, reach, topk, selected);
}

}  // namespace HWY_NAMESPACE
}  // namespace fathom
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom {
HWY_EXPORT(select_row);

void select_topk_cpu(ExecutionContext& context, const SelectTopkPlan& plan, const SelectTopkArgs& args) {
  const std::int64_t topk = plan.desc.topk;
  const std::int64_t stride = args.scores.shape[1];
  const std::int64_t num_rows = args.scores.shape[0];
  const std::int32_t* positions = args.rows->positions.as<std::int32_t>() + args.first_row;
  const auto visible_of = [&](std::int64_t row) {
    return (static_cast<std::int64_t>(positions[row]) + 1) / plan.desc.ratio;
  };
  const std::int64_t longest = num_rows == 0 ? 0 : std::max(visible_of(0), visible_of(num_rows - 1));
  simd::for_rows(context, num_rows, topk + 4 * longest, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t visible = visible_of(row);
      std::int32_t* selected = args.selected.as<std::int32_t>() + (args.first_row + row) * topk;
      if (visible > topk) {
        FATHOM_CHECK(visible <= stride, "a row of scores holds the visible entries");
        HWY_DYNAMIC_DISPATCH(select_row)(args.scores.as<float>() + row * stride, visible, topk, selected);
        continue;
      }
      for (std::int64_t i = 0; i < topk; ++i) selected[i] = i < visible ? static_cast<std::int32_t>(i) : -1;
    }
  });
}

}  // namespace fathom
#endif  // HWY_ONCE
