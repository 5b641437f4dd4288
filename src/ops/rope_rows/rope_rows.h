// rope_rows: cos and sin of every row's angles, once a step, for both frequency tables (spec 2.1).
//
// angle = fp32(position) * frequency[i], rounded to fp32; then the accurate cosine and sine of that fp32
// number. Frequencies are built on the host (make_rope_frequencies) with the spec's two roundings.
#pragma once

#include <vector>

#include "ops/registry.h"

namespace fathom {

struct YarnScaling {  // YaRN; factor 1 means none
  float factor = 1.0f;
  float beta_fast = 32.0f;
  float beta_slow = 1.0f;
  std::int64_t original_max_position_embeddings = 65536;
};

// [rope_dim / 2] f32: t_i = fp32(base^(2i/rope_dim)), f_i = fp32(1/t_i), then the YaRN blend in fp32.
std::vector<float> make_rope_frequencies(double base, std::int32_t rope_dim, const YarnScaling& scaling);

struct RopeRowsDesc {
  std::int32_t rope_dim = 64;
};
struct RopeRowsPlan {
  RopeRowsDesc desc;
  std::int64_t workspace_bytes = 0;
};
struct RopeRowsArgs {
  View positions;               // [tokens] i32
  View window_frequencies;      // [rope_dim / 2] f32: ratio-0 layers and draft blocks
  View compressed_frequencies;  // [rope_dim / 2] f32: ratio-4 and ratio-128 layers
  View window_rope;             // out [tokens, rope_dim / 2, 2] f32: cos, sin
  View compressed_rope;         // out [tokens, rope_dim / 2, 2] f32
};

RopeRowsPlan plan_rope_rows(const RopeRowsDesc& desc, const DeviceInfo& device);
void run_rope_rows(ExecutionContext& context, const RopeRowsPlan& plan, const RopeRowsArgs& args);
OpCost cost_rope_rows(const RopeRowsPlan& plan, const RopeRowsArgs& args);

// Variants, by their registry names.
void rope_rows_reference(ExecutionContext& context, const RopeRowsPlan& plan, const RopeRowsArgs& args);
void rope_rows_cpu(ExecutionContext& context, const RopeRowsPlan& plan, const RopeRowsArgs& args);
std::span<const Variant> rope_rows_variants();

}  // namespace fathom
