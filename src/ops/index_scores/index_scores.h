// index_scores: the lightning indexer's logits over the compressed index keys (spec 2.6.3-4).
//
//   score[p][j] = sum_h relu(q[p,h] . k_j) * (weights_raw[p,h] * weight_scale),  j < (p + 1) div 4
//
// fp32 throughout. Rows whose visible count is at most topk are skipped: everything is selected there and
// their scores are not written. Entries at or beyond the visible count are never read or written: the cost
// follows the actual length, never the configured maximum.
#pragma once

#include "ops/cache_view.h"
#include "ops/numerics.h"
#include "ops/registry.h"
#include "ops/step_rows.h"

namespace fathom {

struct IndexScoresDesc {
  LayerCache cache;
  std::int32_t num_heads = 0;
  std::int32_t topk = 0;
  float weight_scale = 0.0f;  // index_head_dim^-0.5 * index_n_heads^-0.5
};
struct IndexScoresPlan {
  IndexScoresDesc desc;
  std::int64_t workspace_bytes = 0;
  std::int32_t num_multiprocessors = 0;  // CUDA
};
struct IndexScoresArgs {
  const StepRows* rows = nullptr;
  CachePools pools;
  std::int32_t first_row = 0;  // rows [first_row, first_row + scores.shape[0]) of the step
  View q;                      // [tokens, heads, index_head_dim], all rows of the step
  View weights_raw;            // [tokens, heads]
  View scores;                 // out [rows here, stride] f32, stride >= the largest visible count here
};

IndexScoresPlan plan_index_scores(const IndexScoresDesc& desc, const DeviceInfo& device);
void run_index_scores(ExecutionContext& context, const IndexScoresPlan& plan, const IndexScoresArgs& args);
OpCost cost_index_scores(const IndexScoresPlan& plan, const IndexScoresArgs& args, const HostLengths& lengths);

// Variants, by their registry names.
void index_scores_reference(ExecutionContext& context, const IndexScoresPlan& plan, const IndexScoresArgs& args);
void index_scores_cpu(ExecutionContext& context, const IndexScoresPlan& plan, const IndexScoresArgs& args);
std::int64_t index_scores_cpu_workspace(const IndexScoresDesc& desc, const DeviceInfo& device);
std::span<const Variant> index_scores_variants();

}  // namespace fathom
