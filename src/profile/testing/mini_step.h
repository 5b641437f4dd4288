// The embedded model and a decode step of it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/check.h"
#include "engine/load_model.h"
#include "profile/model_step.h"

namespace fathom {

inline LoadedModel load_mini(DeviceChoice device) {
  LoadOptions options;
  options.device = device;
  options.num_threads = 2;
  options.max_step_tokens = 64;
  options.max_logit_rows = 8;
  Result<LoadedModel> loaded = load_model(std::string(FATHOM_SOURCE_DIR) + "/models/mini-v4", options);
  FATHOM_CHECK(loaded.ok(), "the embedded model loads");
  return std::move(*loaded);
}

inline std::unique_ptr<ModelStep> make_mini_step(const LoadedModel& loaded, std::int32_t batch,
                                                 std::int64_t context_tokens) {
  ModelStepOptions options;
  options.batch = batch;
  options.context_tokens = context_tokens;
  options.chunk_tokens = 64;
  auto step = ModelStep::make(*loaded.model, options);
  FATHOM_CHECK(step.ok(), "a step of sequences that fit");
  return std::move(*step);
}

}  // namespace fathom
