// How much memory a model needs for a number of sequences of a length, and what fits where it does not:
// computed from config and shapes before anything is allocated (architecture: Pinned 3).
#pragma once

#include <cstdint>

#include "checkpoint/config.h"
#include "model/cache_layout.h"
#include "ops/numerics.h"
#include "ops/registry.h"

namespace fathom {

struct CapacityRequest {
  std::int64_t weights_bytes = 0;  // resident: the checkpoint's bits
  std::int32_t num_draft_layers = 0;
  Numerics numerics;
  std::int64_t max_step_tokens = 512;  // rows of one step
  std::int64_t max_context_tokens = 0;
  std::int64_t max_sequences = 1;
  std::int64_t memory_bytes = 0;  // what may be used in all
};

struct CapacityPlan {
  CapacityRequest request;
  CacheLayout layout;
  std::int64_t activation_bytes = 0;      // arena with workspace, for the largest step
  std::int64_t prefill_window_bytes = 0;  // window blocks that one step of max_step_tokens holds besides
  std::int64_t spare_bytes = 0;  // a GPU's, with drafts: where the rows of nobody that fill captured steps up lie
  // One sequence while it decodes: state that does not grow, and what each 128 tokens add.
  std::int64_t fixed_sequence_bytes = 0;
  double bytes_per_token = 0.0;
  std::int64_t sequence_bytes = 0;  // at max_context_tokens
  std::int64_t total_bytes = 0;

  bool weights_fit = false;  // with the activations; the rest is for sequences
  bool fits = false;
  // What the memory allows: the longest context of max_sequences sequences, and the most sequences of
  // max_context_tokens. 0 when nothing fits.
  std::int64_t largest_context_tokens = 0;
  std::int64_t largest_num_sequences = 0;
};

CapacityPlan plan_capacity(const ModelConfig& config, const CapacityRequest& request, const DeviceInfo& device);

}  // namespace fathom
