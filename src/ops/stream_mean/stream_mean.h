// stream_mean: the mean over the residual streams of each row, into one slot of a wider row (spec 2.10: the taps of
// a DSpark drafter).
//
//   out[t][slot * hidden + i] = store( sum_j streams[t][j][i] / hc_mult ), the sum in ascending j, fp32
#pragma once

#include "ops/numerics.h"
#include "ops/registry.h"

namespace fathom {

struct StreamMeanDesc {
  std::int64_t hidden = 0;
  std::int32_t hc_mult = 4;
  std::int32_t num_slots = 1;
  Numerics numerics;
};
struct StreamMeanPlan {
  StreamMeanDesc desc;
  std::int64_t workspace_bytes = 0;
};
struct StreamMeanArgs {
  View streams;           // [tokens, hc, hidden]
  std::int32_t slot = 0;  // in [0, num_slots)
  View out;               // out [tokens, num_slots * hidden]: this slot's columns
};

StreamMeanPlan plan_stream_mean(const StreamMeanDesc& desc, const DeviceInfo& device);
void run_stream_mean(ExecutionContext& context, const StreamMeanPlan& plan, const StreamMeanArgs& args);
OpCost cost_stream_mean(const StreamMeanPlan& plan, const StreamMeanArgs& args);

// Variants, by their registry names.
void stream_mean_reference(ExecutionContext& context, const StreamMeanPlan& plan, const StreamMeanArgs& args);
void stream_mean_cpu(ExecutionContext& context, const StreamMeanPlan& plan, const StreamMeanArgs& args);
std::span<const Variant> stream_mean_variants();

}  // namespace fathom
