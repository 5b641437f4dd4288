// select_topk: the topk best visible entries of each row, ascending; equal scores: lowest entry first (spec 2.6.5).
// A row with at most topk visible entries selects them all and its scores are not read.
#pragma once

#include "ops/registry.h"
#include "ops/step_rows.h"

namespace fathom {

struct SelectTopkDesc {
  std::int32_t topk = 0;
  std::int32_t ratio = 4;
};
struct SelectTopkPlan {
  SelectTopkDesc desc;
  std::int64_t workspace_bytes = 0;
  std::int32_t num_multiprocessors = 0;            // CUDA
  std::int64_t shared_memory_per_block_bytes = 0;  // CUDA: what a block may ask for
};
struct SelectTopkArgs {
  const StepRows* rows = nullptr;
  std::int32_t first_row = 0;  // as in index_scores
  View scores;                 // [rows here, stride] f32
  View selected;               // out [tokens, topk] i32, all rows of the step: ascending, then -1
};

SelectTopkPlan plan_select_topk(const SelectTopkDesc& desc, const DeviceInfo& device);
void run_select_topk(ExecutionContext& context, const SelectTopkPlan& plan, const SelectTopkArgs& args);
OpCost cost_select_topk(const SelectTopkPlan& plan, const SelectTopkArgs& args, const HostLengths& lengths);

// Variants, by their registry names.
void select_topk_reference(ExecutionContext& context, const SelectTopkPlan& plan, const SelectTopkArgs& args);
void select_topk_cpu(ExecutionContext& context, const SelectTopkPlan& plan, const SelectTopkArgs& args);
std::span<const Variant> select_topk_variants();

}  // namespace fathom
