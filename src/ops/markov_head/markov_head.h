// markov_head: a draft token's logits corrected for the token before it, and how sure the drafter is (spec 2.10).
//
//   out[i] = logits[row_i] + markov_w2 . markov_w1[previous_i]                      fp32
//   confidence[i] = confidence_proj . concat(collapsed[row_i], markov_w1[previous_i])   fp32, higher = likelier
//
// Drafts of one block are drawn one after the other, each call with the tokens that the call before led to.
// Row invariance: out[i] and confidence[i] are bitwise functions of their own row and previous token.
#pragma once

#include "ops/numerics.h"
#include "ops/registry.h"
#include "tensor/weights.h"

namespace fathom {

struct MarkovHeadDesc {
  std::int64_t max_rows = 0;
  std::int64_t hidden = 0;
  std::int64_t rank = 0;
  std::int64_t vocab = 0;
};
struct MarkovHeadPlan {
  MarkovHeadDesc desc;
  std::int64_t workspace_bytes = 0;
};
struct MarkovHeadArgs {
  View previous;                                  // [rows] i32, each in [0, vocab)
  View row_indices;                               // [rows] i32: which rows of logits and collapsed
  View logits;                                    // [all rows, vocab] f32
  View collapsed;                                 // [all rows, hidden]: streams after hc_head, before the norm
  View markov_w1;                                 // [vocab, rank] bf16, maybe misaligned
  const LinearWeight* markov_w2 = nullptr;        // [vocab, rank] bf16
  const LinearWeight* confidence_proj = nullptr;  // [1, hidden + rank] bf16
  View out;                                       // out [rows, vocab] f32
  View confidence;                                // out [rows] f32
};

MarkovHeadPlan plan_markov_head(const MarkovHeadDesc& desc, const DeviceInfo& device);
void run_markov_head(ExecutionContext& context, const MarkovHeadPlan& plan, const MarkovHeadArgs& args);
OpCost cost_markov_head(const MarkovHeadPlan& plan, const MarkovHeadArgs& args);

// Variants, by their registry names.
void markov_head_reference(ExecutionContext& context, const MarkovHeadPlan& plan, const MarkovHeadArgs& args);
void markov_head_cpu(ExecutionContext& context, const MarkovHeadPlan& plan, const MarkovHeadArgs& args);
std::int64_t markov_head_cpu_workspace(const MarkovHeadDesc& desc, const DeviceInfo& device);
std::span<const Variant> markov_head_variants();

}  // namespace fathom
