#include "model/capacity.h"

#include <algorithm>

#include "backend/backend.h"
#include "base/units.h"
#include "model/activations.h"
#include "model/plans.h"

namespace fathom {
namespace {

std::int64_t activation_bytes_of(const ModelConfig& config, const CapacityRequest& request, const CacheLayout& layout,
                                 const DeviceInfo& device, std::int64_t max_context_tokens) {
  ActivationLimits limits;
  limits.max_tokens = request.max_step_tokens;
  limits.max_logit_rows = std::max<std::int64_t>(limits.max_logit_rows, request.max_sequences);
  limits.index_score_bytes =
      index_score_budget_bytes(config, limits.max_logit_rows, max_context_tokens, 4 * kMiB, device);
  const ModelPlans plans =
      plan_model(config, layout, request.numerics, {limits.max_tokens, limits.max_logit_rows}, device);
  limits.workspace_bytes = plans.workspace_bytes;
  limits.num_arrivals = plans.num_arrivals;
  limits.quantised_inputs = keeps_quantised_inputs(config, request.numerics, device);
  limits.fused_rows = device.backend == BackendKind::kCuda;
  limits.draft = request.num_draft_layers > 0;
  // More than one stage is a DSpark drafter.
  if (request.num_draft_layers > 1) {
    limits.num_taps = static_cast<std::int32_t>(config.dspark_target_layer_ids.size());
  }
  const DType dtype = device.backend == BackendKind::kCpu ? DType::kF32 : DType::kBF16;
  return plan_activations(config, dtype, limits).total_bytes();
}

}  // namespace

CapacityPlan plan_capacity(const ModelConfig& config, const CapacityRequest& request, const DeviceInfo& device) {
  CapacityPlan plan;
  plan.request = request;
  plan.layout = plan_cache_layout(config, request.numerics, request.num_draft_layers);
  plan.activation_bytes = activation_bytes_of(config, request, plan.layout, device, request.max_context_tokens);
  // A decoding sequence holds the window blocks a single row can touch; the step that prefills holds more.
  const std::int64_t window_blocks = num_window_blocks(1);
  plan.fixed_sequence_bytes = plan.layout.state_slot_bytes + window_blocks * plan.layout.window_block_bytes;
  plan.prefill_window_bytes =
      (num_window_blocks(request.max_step_tokens) - window_blocks) * plan.layout.window_block_bytes;
  if (request.num_draft_layers > 0 && device.backend == BackendKind::kCuda) {
    plan.spare_bytes = plan.layout.context_block_bytes + plan.layout.window_block_bytes + plan.layout.state_slot_bytes;
  }
  plan.bytes_per_token = static_cast<double>(plan.layout.context_block_bytes) / static_cast<double>(kBlockTokens);
  plan.sequence_bytes =
      plan.fixed_sequence_bytes + num_context_blocks(request.max_context_tokens) * plan.layout.context_block_bytes;
  const std::int64_t base_bytes =
      request.weights_bytes + plan.activation_bytes + plan.prefill_window_bytes + plan.spare_bytes;
  plan.total_bytes = base_bytes + request.max_sequences * plan.sequence_bytes;

  const std::int64_t available = request.memory_bytes - base_bytes;
  plan.weights_fit = available >= 0;
  plan.fits = plan.total_bytes <= request.memory_bytes;
  if (!plan.weights_fit) return plan;
  plan.largest_num_sequences = available / plan.sequence_bytes;
  // By halves: activations grow with the context too, by its index scores.
  const std::int64_t longest = config.max_position_embeddings;
  const auto fits_with = [&](std::int64_t context_tokens) {
    const std::int64_t sequence_bytes =
        plan.fixed_sequence_bytes + num_context_blocks(context_tokens) * plan.layout.context_block_bytes;
    return request.weights_bytes + activation_bytes_of(config, request, plan.layout, device, context_tokens) +
               plan.prefill_window_bytes + plan.spare_bytes + request.max_sequences * sequence_bytes <=
           request.memory_bytes;
  };
  std::int64_t fitting = 0, beyond = ceil_div(longest, std::int64_t{kBlockTokens}) + 1;  // in blocks
  while (beyond - fitting > 1) {
    const std::int64_t middle = (fitting + beyond) / 2;
    (fits_with(std::min(middle * kBlockTokens, longest)) ? fitting : beyond) = middle;
  }
  plan.largest_context_tokens = std::min(fitting * kBlockTokens, longest);
  return plan;
}

}  // namespace fathom
