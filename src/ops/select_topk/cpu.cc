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

// How many scores reach `key`, which is above the smallest one.
HWY_INLINE std::int64_t count_at_least(const float* scores, std::int64_t n, std::int32_t key) {
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
HWY_INLINE std::int32_t threshold_of(const float* scores, std::int64_t n, std::int64_t topk, std::int64_t& reach) {
  std::int32_t threshold = INT32_MIN;
  reach = n;
  for (int bit = 31; bit >= 0 && reach != topk; --bit) {
    const auto candidate =
        static_cast<std::int32_t>(bit == 31 ? 0u : static_cast<std::uint32_t>(threshold) | std::uint32_t{1} << bit);
    const std::int64_t count = count_at_least(scores, n, candidate);
    if (count < topk) continue;
    threshold = candidate;
    reach = count;
  }
  return threshold;
}

// The topk best of n > topk scores, ascending; of those equal to the worst of them the first.
void select_row(const float* scores, std::int64_t n, std::int64_t topk, std::int32_t* selected) {
  const IntTag di;
  std::int64_t reach = 0;
  const std::int32_t threshold = threshold_of(scores, n, topk, reach);
  // Scores above the threshold are all taken; `ties` of those on it.
  const std::int64_t above = reach == topk || threshold == INT32_MAX ? reach : count_at_least(scores, n, threshold + 1);
  std::int64_t ties = reach == topk ? n : topk - above;
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
