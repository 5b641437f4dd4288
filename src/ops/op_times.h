// Time and calls of every operation since a model was loaded: always on, two clock readings a call.
#pragma once

#include <array>
#include <cstdint>

#include "ops/op_kind.h"

namespace fathom {

struct OpTimes {
  std::array<double, kNumOpKinds> time_us{};
  std::array<std::int64_t, kNumOpKinds> num_calls{};
};

}  // namespace fathom
