// What one step leaves behind for the profiler, the metrics and the web page (architecture: Pinned 7).
#pragma once

#include <chrono>
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
  double begin_us = 0;  // since StepTrace::origin
  double time_us = 0;   // host time of the call on the CPU backend, repeats included
  OpCost cost;
};

struct StepTrace {
  std::int64_t step = 0;
  std::int32_t num_tokens = 0;
  std::int32_t num_sequences = 0;
  std::int32_t num_drafts = 0;     // of the tokens, those that this step verifies
  std::int32_t num_committed = 0;  // tokens that its answers grew by
  double begin_us = 0;             // on the engine's clock
  double step_us = 0;              // until its answers were given
  double turn_us = 0;  // between the step before and this one: publishing, commands; 0 where the engine slept
  // Parts of the step, in this order.
  double schedule_us = 0, launch_us = 0, wait_us = 0, commit_us = 0, detokenise_us = 0;
  // Parts of launch_us and wait_us, in this order: rows and tables, the forward pass, drawing tokens, drafting.
  double prepare_us = 0, forward_us = 0, sample_us = 0, draft_us = 0;
  double collect_us = 0;                         // inside the forward pass: what taking these samples cost
  std::chrono::steady_clock::time_point origin;  // where the samples' times count from: the executor's launch
  std::vector<OpSample> samples;                 // empty unless collection is on
};

}  // namespace fathom
