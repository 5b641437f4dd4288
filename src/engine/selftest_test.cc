#include "engine/selftest.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "ops/rms_norm/rms_norm.h"

namespace fathom {
namespace {

// One norm in four is off by a tenth.
void broken_norm(ExecutionContext& context, const RmsNormPlan& plan, const RmsNormArgs& args) {
  rms_norm_cpu(context, plan, args);
  for (std::int64_t i = 0; i < args.out.shape.num_elements(); i += 4) args.out.as<float>()[i] *= 1.1f;
}

TEST(Selftest, a_wrong_variant_is_found_and_not_chosen) {
  SelftestOptions options;
  options.model = FATHOM_SOURCE_DIR "/tests/data/models/tiny-random";
  options.num_threads = 1;
  options.prompt_rows = 24;
  options.register_more = [](OpRegistry& registry) {
    registry.add(make_variant(OpKind::kRmsNorm, "broken", BackendKind::kCpu, &broken_norm));
  };
  const Result<SelftestResult> result = run_selftest(options);
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_FALSE(result->all_right());
  bool seen = false;
  const VariantReport* chosen_norm = nullptr;
  double fastest_norm_us = INFINITY;
  for (const VariantReport& report : result->variants) {
    const std::string name = std::string(op_name(report.op)) + "/" + report.variant;
    if (report.variant == "broken") {
      seen = true;
      EXPECT_EQ(report.verdict, Verdict::kWrong);
      EXPECT_TRUE(report.is_default);  // the last registered: what would have run
      EXPECT_FALSE(report.is_chosen);
      continue;
    }
    EXPECT_NE(report.verdict, Verdict::kWrong) << name << " " << report.worst_error;
    if (report.op == OpKind::kRmsNorm) {
      if (report.is_chosen) chosen_norm = &report;
      fastest_norm_us = std::min(fastest_norm_us, report.us_one);
    }
    // The draft block stands outside the steps that are timed.
    if (report.verdict == Verdict::kRight && report.op != OpKind::kDraftInput) {
      EXPECT_GT(report.us_one, 0) << name;
      EXPECT_GT(report.share_of_ceiling, 0) << name;
    }
  }
  EXPECT_TRUE(seen);
  // The default is wrong, so the fastest of the others stands in, by whatever times this machine took.
  ASSERT_NE(chosen_norm, nullptr);
  EXPECT_EQ(chosen_norm->us_one, fastest_norm_us) << chosen_norm->variant;
}

TEST(VariantChoices, are_remembered_by_key) {
  const std::string folder = ::testing::TempDir() + "fathom-variants-" + std::to_string(getpid());
  const std::string path = folder + "/fathom/variants";
  EXPECT_TRUE(read_variant_choices(path, "card A")->empty());
  ASSERT_TRUE(write_variant_choices(path, "card A", {{"linear", "mma"}, {"embed", "simt"}}).ok());
  ASSERT_TRUE(write_variant_choices(path, "card B", {{"linear", "naive"}}).ok());
  ASSERT_TRUE(write_variant_choices(path, "card A", {{"linear", "wgmma"}}).ok());
  EXPECT_EQ(*read_variant_choices(path, "card A"), (VariantChoices{{"linear", "wgmma"}}));
  EXPECT_EQ(*read_variant_choices(path, "card B"), (VariantChoices{{"linear", "naive"}}));
  EXPECT_TRUE(read_variant_choices(path, "card C")->empty());
  std::ofstream(path) << "nonsense\n";
  EXPECT_FALSE(read_variant_choices(path, "card A").ok());
  ASSERT_TRUE(write_variant_choices(path, "card A", {{"linear", "mma"}}).ok());
  EXPECT_EQ(read_variant_choices(path, "card A")->size(), 1u);
  std::filesystem::remove_all(folder);
}

// A remembered choice becomes the default, a flag goes before it, and what this program lacks is passed over.
TEST(VariantChoices, load_model_uses_them) {
  const std::string folder = ::testing::TempDir() + "fathom-cache-" + std::to_string(getpid());
  ::setenv("XDG_CACHE_HOME", folder.c_str(), 1);
  LoadOptions load;
  load.num_threads = 1;
  load.remembered_variants = true;
  const std::string model = FATHOM_SOURCE_DIR "/tests/data/models/tiny-random";
  std::string key;
  {
    const auto loaded = load_model(model, load);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    EXPECT_EQ((*loaded->variants)[OpKind::kLinear].name, "cpu");
    key = variant_choices_key(*loaded->backend, registry_for(DeviceChoice::kCpu));
  }
  ASSERT_TRUE(write_variant_choices(variant_choices_path(), key,
                                    {{"linear", "reference"}, {"embed", "reference"}, {"linear", "of another day"}})
                  .ok());
  load.variants = {{"embed", "cpu"}};
  {
    const auto loaded = load_model(model, load);
    ASSERT_TRUE(loaded.ok());
    EXPECT_EQ((*loaded->variants)[OpKind::kLinear].name, "reference");
    EXPECT_EQ((*loaded->variants)[OpKind::kEmbed].name, "cpu");
  }
  load.remembered_variants = false;
  EXPECT_EQ((*load_model(model, load)->variants)[OpKind::kLinear].name, "cpu");
  ::unsetenv("XDG_CACHE_HOME");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace fathom
