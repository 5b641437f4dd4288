// Views of linear weights in the checkpoint's own bits (spec sections 5 and 6). Nothing is widened.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/view.h"

namespace fathom {

enum class WeightFormat : std::uint8_t {
  kF32,
  kBf16,
  kFp8Block128,  // e4m3 [n, k], one scale per 128x128 block, E8M0 or (Base release) F32
  kMxfp4,        // e2m1 pairs [n, k/2] (low nibble = even column), E8M0 per 32 columns
  kNvfp4,        // e2m1 pairs [n, k/2], E4M3 per 16 columns, times one fp32
};

// Which part of a tensor this rank holds; world 1 holds all of it (architecture: Pinned 9).
struct WeightShard {
  int axis = -1;
  int rank = 0;
  int world = 1;
};

// W of y = x W^T.
struct LinearWeight {
  WeightFormat format = WeightFormat::kBf16;
  std::int64_t out_features = 0;  // n
  std::int64_t in_features = 0;   // k
  View values;                    // codes or elements, row-major; may be misaligned for its dtype
  View scale;                     // kFp8Block128 [ceil(n/128), ceil(k/128)]; kMxfp4 [n, k/32]; kNvfp4 [n, k/16]
  float scale_2 = 1.0f;           // kNvfp4: weight_scale_2
  WeightShard shard;

  bool empty() const { return values.empty(); }
  // Inputs of F8 and FP4 linears go through AQ 1x128 (spec 2.1) unless the call says otherwise (wo_a).
  bool quantises_input() const { return format != WeightFormat::kF32 && format != WeightFormat::kBf16; }
  std::int64_t num_bytes() const { return values.num_bytes() + (scale.empty() ? 0 : scale.num_bytes()); }
};

// One expert: w1 gate [inter, hidden], w3 up [inter, hidden], w2 down [hidden, inter].
struct ExpertWeights {
  LinearWeight w1, w2, w3;
};

}  // namespace fathom
