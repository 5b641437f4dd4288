#include "engine/filled_step.h"

#include <gtest/gtest.h>

#include "engine/load_model.h"

namespace fathom {
namespace {

LoadedModel load_on(DeviceChoice device) {
  LoadOptions options;
  options.device = device;
  options.max_step_tokens = 300;
  options.max_logit_rows = 8;
  options.draft = false;
  auto loaded = load_model(std::string(FATHOM_SOURCE_DIR) + "/models/mini-v4", options);
  EXPECT_TRUE(loaded.ok()) << loaded.status().message();
  return std::move(*loaded);
}

// FLOPs of an operation's calls in one launch of the step.
double flops_of(const Result<std::unique_ptr<FilledStep>>& step, std::string_view operation) {
  EXPECT_TRUE(step.ok()) << step.status().message();
  StepTrace trace;
  (*step)->set_trace(&trace);
  EXPECT_TRUE((*step)->run(1024).ok());
  double flops = 0;
  for (const OpSample& sample : trace.samples)
    if (sample.scope.operation == operation) flops += sample.cost.flops;
  return flops;
}

TEST(FilledStep, AChunkIsOneSequencesRowsAndOneRowsLogits) {
  const LoadedModel loaded = load_on(DeviceChoice::kCpu);
  Model& model = *loaded.model;
  const double one = flops_of(FilledStep::make(model, 1, 1024), "linear");
  EXPECT_GT(one, 0);
  EXPECT_DOUBLE_EQ(flops_of(FilledStep::make(model, 8, 1024), "linear"), 8 * one);
  EXPECT_DOUBLE_EQ(flops_of(FilledStep::make_chunk(model, 300, 1024), "linear"), 300 * one);
  const double head = flops_of(FilledStep::make(model, 1, 1024), "lm_head");
  EXPECT_GT(head, 0);
  EXPECT_DOUBLE_EQ(flops_of(FilledStep::make(model, 8, 1024), "lm_head"), 8 * head);
  EXPECT_DOUBLE_EQ(flops_of(FilledStep::make_chunk(model, 300, 1024), "lm_head"), head);
  // A chunk that begins its prompt sees less than the same rows at the end of a longer one.
  const double whole = flops_of(FilledStep::make_chunk(model, 256, 256), "sparse_attention");
  EXPECT_GT(whole, 0);
  EXPECT_LT(whole, flops_of(FilledStep::make_chunk(model, 256, 1024), "sparse_attention"));
}

TEST(FilledStep, RefusesWhatTheModelWasNotLoadedFor) {
  const LoadedModel loaded = load_on(DeviceChoice::kCpu);
  Model& model = *loaded.model;
  const auto message = [](const Result<std::unique_ptr<FilledStep>>& step) {
    return step.ok() ? std::string("made") : std::string(step.status().message());
  };
  EXPECT_NE(message(FilledStep::make_chunk(model, 301, 1024)).find("a step of 301 rows"), std::string::npos);
  EXPECT_NE(message(FilledStep::make(model, 9, 1024)).find("8 of them with logits"), std::string::npos);
  EXPECT_NE(message(FilledStep::make(model, 1, 1000)).find("whole blocks of 128"), std::string::npos);
  EXPECT_NE(message(FilledStep::make_chunk(model, 256, 128)).find("not under a step's rows"), std::string::npos);
}

}  // namespace
}  // namespace fathom
