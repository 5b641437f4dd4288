// What one step leaves behind for the profiler, the metrics and the web page (architecture: Pinned 7).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace fathom {

// Bytes moved and floating-point operations of one operation call, from its cost model.
struct OpCost {
  double bytes = 0;
  double flops = 0;
};

// Which call this is: one OpScope a call. `operation` and `variant` point to string literals.
struct OpScope {
  std::int32_t layer = -1;  // trunk layer; -1 outside layers; num_layers + k for draft block k
  std::string_view operation;
  std::string_view variant;
};

struct OpSample {
  OpScope scope;
  double time_us = 0;  // host time of the call on the CPU backend
  OpCost cost;
};

struct StepTrace {
  std::int64_t step = 0;
  std::int32_t num_tokens = 0;
  std::int32_t num_sequences = 0;
  double schedule_us = 0, launch_us = 0, wait_us = 0, sample_us = 0, detokenise_us = 0;
  std::vector<OpSample> samples;  // empty unless collection is on
};

}  // namespace fathom
