#include "model/capacity.h"

#include <gtest/gtest.h>

#include "base/units.h"
#include "model/plans.h"

namespace fathom {
namespace {

CapacityRequest flash_request() {
  CapacityRequest request;
  request.weights_bytes = 159'609'485'896;
  request.num_draft_layers = 1;
  request.numerics = Numerics::serve();
  request.max_context_tokens = 131'072;
  request.max_sequences = 8;
  return request;
}

// Spec section 3 and architecture, Pinned 3: packed keys of 584 bytes, index keys of 68.
TEST(Capacity, FlashStateHasTheSpecsSizes) {
  CapacityRequest request = flash_request();
  request.num_draft_layers = 0;
  const CapacityPlan plan = plan_capacity(flash_config(), request, DeviceInfo{});
  EXPECT_DOUBLE_EQ(plan.bytes_per_token, 3514.25);
  EXPECT_EQ(plan.layout.context_block_bytes, 449'824);
  EXPECT_EQ(plan.layout.window_block_bytes, 3'214'336);
  EXPECT_EQ(plan.sequence_bytes, plan.fixed_sequence_bytes + 1024 * 449'824);
}

TEST(Capacity, DraftsOnACardHaveAPlaceForRowsOfNobody) {
  DeviceInfo card;
  card.backend = BackendKind::kCuda;
  card.num_multiprocessors = 132, card.compute_capability = 90, card.shared_memory_per_block_bytes = 232'448;
  CapacityRequest request = flash_request();
  const CapacityPlan plan = plan_capacity(flash_config(), request, card);
  EXPECT_EQ(plan.spare_bytes,
            plan.layout.context_block_bytes + plan.layout.window_block_bytes + plan.layout.state_slot_bytes);
  EXPECT_EQ(plan_capacity(flash_config(), request, DeviceInfo{}).spare_bytes, 0);
  request.num_draft_layers = 0;
  EXPECT_EQ(plan_capacity(flash_config(), request, card).spare_bytes, 0);
}

void expect_the_last_that_fits(const ModelConfig& config, const DeviceInfo& device, std::int64_t num_sequences) {
  CapacityRequest request = flash_request();
  request.max_sequences = num_sequences;
  request.weights_bytes = 1'000'000'000;
  request.max_context_tokens = std::min(request.max_context_tokens, std::int64_t{config.max_position_embeddings});
  request.memory_bytes = plan_capacity(config, request, device).total_bytes;
  EXPECT_TRUE(plan_capacity(config, request, device).fits);
  EXPECT_EQ(plan_capacity(config, request, device).largest_num_sequences, num_sequences);
  request.memory_bytes -= 1;
  const CapacityPlan tight = plan_capacity(config, request, device);
  EXPECT_TRUE(tight.weights_fit);
  EXPECT_FALSE(tight.fits);
  EXPECT_EQ(tight.largest_num_sequences, num_sequences - 1);
  EXPECT_LT(tight.largest_context_tokens, request.max_context_tokens);
  EXPECT_GT(tight.largest_context_tokens, 0);

  CapacityRequest shorter = request;
  shorter.max_context_tokens = tight.largest_context_tokens;
  EXPECT_TRUE(plan_capacity(config, shorter, device).fits);
  shorter.max_context_tokens += kBlockTokens;
  EXPECT_FALSE(plan_capacity(config, shorter, device).fits);
}

TEST(Capacity, WhatIsSaidToFitFitsAndOneMoreDoesNot) {
  DeviceInfo card;
  card.backend = BackendKind::kCuda;
  card.num_multiprocessors = 132, card.compute_capability = 90, card.shared_memory_per_block_bytes = 232'448;
  for (const ModelConfig& config : {flash_config(), pro_config(), mini_config()}) {
    expect_the_last_that_fits(config, DeviceInfo{}, 8);
    expect_the_last_that_fits(config, card, 128);  // their scores are more than the step's other activations
  }
}

TEST(Capacity, WeightsAlone) {
  CapacityRequest request = flash_request();
  request.memory_bytes = 141 * kGiB;
  const CapacityPlan plan = plan_capacity(flash_config(), request, DeviceInfo{});
  EXPECT_FALSE(plan.weights_fit);
  EXPECT_FALSE(plan.fits);
  EXPECT_EQ(plan.largest_context_tokens, 0);
  EXPECT_EQ(plan.largest_num_sequences, 0);
}

TEST(Capacity, IndexScoresOnACardFollowTheLongestContext) {
  const ModelConfig config = flash_config();
  DeviceInfo card;
  card.backend = BackendKind::kCuda;
  EXPECT_EQ(index_score_budget_bytes(config, 64, 0, 4 * kMiB, card), 64 * std::int64_t{config.max_position_embeddings});
  EXPECT_EQ(index_score_budget_bytes(config, 64, 131'072, 4 * kMiB, card), 64 * 131'072);
  EXPECT_EQ(index_score_budget_bytes(config, 1024, 131'072, 4 * kMiB, card), 128 * 131'072) << "at most 128 rows";
  EXPECT_EQ(index_score_budget_bytes(config, 64, 8192, 4 * kMiB, card), 4 * kMiB);
  EXPECT_EQ(index_score_budget_bytes(config, 64, 131'072, 4 * kMiB, DeviceInfo{}), 4 * kMiB);
}

}  // namespace
}  // namespace fathom
