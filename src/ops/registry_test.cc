#include "ops/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace fathom {
namespace {

using ::testing::HasSubstr;

OpRegistry cpu_registry() {
  OpRegistry registry;
  register_cpu_variants(registry);
  return registry;
}

// all_reduce is a function of its own, sample has one variant, and the parts of attention_rows run one by one on the
// CPU.
TEST(Registry, EveryOperationHasReferenceAndCpu) {
  const OpRegistry registry = cpu_registry();
  for (int i = 0; i < kNumOpKinds; ++i) {
    const auto op = static_cast<OpKind>(i);
    if (op == OpKind::kSample || op == OpKind::kAllReduce || op == OpKind::kAttentionRows) continue;
    const std::vector<Variant> variants = registry.variants_of(op, BackendKind::kCpu);
    ASSERT_EQ(variants.size(), 2u) << op_name(op);
    EXPECT_EQ(variants[0].name, "reference") << op_name(op);
    EXPECT_EQ(variants[1].name, "cpu") << op_name(op);
  }
}

TEST(Registry, NamesGoBothWays) {
  for (int i = 0; i < kNumOpKinds; ++i) {
    const auto op = static_cast<OpKind>(i);
    EXPECT_EQ(parse_op_name(op_name(op)), op);
  }
  EXPECT_EQ(parse_op_name("attention"), std::nullopt);
}

TEST(VariantTable, ChoosesTheLastOneAndThenTheOverrides) {
  const OpRegistry registry = cpu_registry();
  const Result<VariantTable> preferred = VariantTable::choose(registry, BackendKind::kCpu);
  ASSERT_TRUE(preferred.ok());
  EXPECT_EQ((*preferred)[OpKind::kLinear].name, "cpu");
  const std::pair<std::string, std::string> overrides[] = {{"*", "reference"}, {"linear", "cpu"}};
  const Result<VariantTable> table = VariantTable::choose(registry, BackendKind::kCpu, overrides);
  ASSERT_TRUE(table.ok());
  EXPECT_EQ((*table)[OpKind::kLinear].name, "cpu");
  EXPECT_EQ((*table)[OpKind::kRmsNorm].name, "reference");
}

TEST(VariantTable, UnknownNamesListTheChoices) {
  const OpRegistry registry = cpu_registry();
  const std::pair<std::string, std::string> no_op[] = {{"attention", "cpu"}};
  const std::pair<std::string, std::string> no_variant[] = {{"linear", "simt"}};
  const Result<VariantTable> first = VariantTable::choose(registry, BackendKind::kCpu, no_op);
  ASSERT_FALSE(first.ok());
  EXPECT_THAT(first.status().message(), HasSubstr("sparse_attention"));
  const Result<VariantTable> second = VariantTable::choose(registry, BackendKind::kCpu, no_variant);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.status().message(), HasSubstr("linear=simt"));
  EXPECT_THAT(second.status().message(), HasSubstr("reference, cpu"));
}

}  // namespace
}  // namespace fathom
