#include "checkpoint/expected_tensors.h"

#include <gtest/gtest.h>

#include <array>

namespace fathom {
namespace {

struct Totals {
  std::int64_t num_tensors = 0;
  std::int64_t num_trunk_tensors = 0;
  std::int64_t bytes = 0;
  std::int64_t trunk_parameters = 0;
  std::int64_t draft_parameters = 0;
  std::array<std::int64_t, kNumComponents> component_bytes{};
};

Totals add_up(const ModelConfig& config, const ExpectedOptions& options) {
  Totals totals;
  for (const ExpectedTensor& tensor : expected_tensors(config, options)) {
    const bool is_draft = tensor.component == Component::kDraft;
    ++totals.num_tensors;
    totals.num_trunk_tensors += is_draft ? 0 : 1;
    totals.bytes += tensor.num_bytes();
    (is_draft ? totals.draft_parameters : totals.trunk_parameters) += tensor.num_parameters;
    totals.component_bytes[static_cast<std::size_t>(tensor.component)] += tensor.num_bytes();
  }
  return totals;
}

ExpectedOptions with_draft(DraftKind draft, std::int32_t num_stages) {
  ExpectedOptions options;
  options.draft = draft;
  options.num_draft_stages = num_stages;
  return options;
}

// Published totals: spec section 0.1.
TEST(ExpectedTensors, PreviewFlashHasThePublishedCountAndBytes) {
  const Totals totals = add_up(flash_config(), with_draft(DraftKind::kMtp, 1));
  EXPECT_EQ(totals.num_tensors, 69'187);
  EXPECT_EQ(totals.num_trunk_tensors, 67'612);
  EXPECT_EQ(totals.bytes, 159'609'485'896);
  EXPECT_EQ(totals.trunk_parameters, 284'332'240'471);
  EXPECT_EQ(totals.draft_parameters, 6'610'048'891);
}

TEST(ExpectedTensors, Flash0731HasThePublishedCountAndBytes) {
  const Totals totals = add_up(flash_dspark_config(), with_draft(DraftKind::kDspark, 3));
  EXPECT_EQ(totals.num_tensors, 72'317);
  EXPECT_EQ(totals.bytes, 166'878'536'440);
  EXPECT_EQ(totals.component_bytes[static_cast<std::size_t>(Component::kDraft)], 10'862'838'300);
}

TEST(ExpectedTensors, ProHasThePublishedCountAndBytes) {
  const Totals totals = add_up(pro_config(), with_draft(DraftKind::kMtp, 1));
  EXPECT_EQ(totals.num_tensors, 145'116);
  EXPECT_EQ(totals.bytes, 864'704'792'696);
}

TEST(ExpectedTensors, Nvfp4FlashHasThePublishedBytes) {
  ExpectedOptions options = with_draft(DraftKind::kMtp, 1);
  options.expert_format = ExpertFormat::kNvfp4;
  EXPECT_EQ(add_up(flash_config(), options).bytes, 168'266'793'544);
}

// Spec section 5, bytes by component.
TEST(ExpectedTensors, FlashBytesByComponent) {
  const Totals totals = add_up(flash_config(), with_draft(DraftKind::kNone, 0));
  const auto bytes = [&](Component component) { return totals.component_bytes[static_cast<std::size_t>(component)]; };
  EXPECT_EQ(totals.bytes, 156'015'698'140);
  EXPECT_EQ(bytes(Component::kRoutedExperts), 147'169'738'752);
  EXPECT_EQ(bytes(Component::kAttention), 4'599'478'144);
  EXPECT_EQ(bytes(Component::kSharedExpert), 1'082'196'480);
  EXPECT_EQ(bytes(Component::kCompressor), 525'722'624);
  EXPECT_EQ(bytes(Component::kIndexer), 275'353'344);
  EXPECT_EQ(bytes(Component::kHyperConnection), 135'275'592);
  EXPECT_EQ(bytes(Component::kRouter), 108'834'816);
  EXPECT_EQ(bytes(Component::kNorm), 704'512);
  EXPECT_EQ(bytes(Component::kFinal), 270'356);
  EXPECT_EQ(bytes(Component::kEmbed), 1'059'061'760);
  EXPECT_EQ(bytes(Component::kHead), 1'059'061'760);
}

// One layer of each kind: spec section 5, "Whole layers".
TEST(ExpectedTensors, FlashBytesOfWholeLayers) {
  std::array<std::int64_t, 43> layers{};
  for (const ExpectedTensor& tensor : expected_tensors(flash_config(), ExpectedOptions{})) {
    if (tensor.layer >= 0) layers[static_cast<std::size_t>(tensor.layer)] += tensor.num_bytes();
  }
  EXPECT_EQ(layers[0], 3'566'148'952);
  EXPECT_EQ(layers[2], 3'596'055'640);
  EXPECT_EQ(layers[3], 3'568'596'312);
  EXPECT_EQ(layers[4], 3'589'851'224);
}

TEST(ExpectedTensors, BaseReleaseStoresFp8ExpertsWithFloatScales) {
  ExpectedOptions options;
  options.expert_format = ExpertFormat::kFp8;
  options.block_scale_dtype = DType::kF32;
  bool seen_weight = false;
  bool seen_scale = false;
  for (const ExpectedTensor& tensor : expected_tensors(flash_config(), options)) {
    if (tensor.name == "layers.7.ffn.experts.255.w2.weight") {
      seen_weight = true;
      EXPECT_EQ(tensor.dtype, DType::kF8E4M3);
      EXPECT_EQ(tensor.shape, (Shape{4096, 2048}));
    } else if (tensor.name == "layers.7.ffn.experts.255.w2.scale") {
      seen_scale = true;
      EXPECT_EQ(tensor.dtype, DType::kF32);
      EXPECT_EQ(tensor.shape, (Shape{32, 16}));
    }
  }
  EXPECT_TRUE(seen_weight);
  EXPECT_TRUE(seen_scale);
}

}  // namespace
}  // namespace fathom
