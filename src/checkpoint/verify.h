// Does the checkpoint hold what its config implies? Headers only; seconds for 70,000 tensors.
//
// open_checkpoint is how everything loads a model: catalog, config, the same checks, and nothing allocated
// for weights before they pass.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/catalog.h"
#include "checkpoint/config.h"
#include "checkpoint/expected_tensors.h"
#include "checkpoint/finding.h"

namespace fathom {

struct VerifyReport {
  std::vector<Finding> findings;       // errors first
  DraftKind draft = DraftKind::kNone;  // usable draft: kNone when its tensors do not fit, see draft_problem
  std::int32_t num_draft_stages = 0;   // mtp.0 .. mtp.(n-1)
  std::string draft_problem;           // why a draft block that is there cannot be used; empty if none or fine
  std::int64_t num_tensors = 0;
  std::int64_t total_bytes = 0;

  bool ok() const { return !has_errors(findings); }
};

VerifyReport verify_checkpoint(const ModelConfig& config, const TensorCatalog& catalog);

struct Checkpoint {
  std::string path;
  ModelConfig config;
  GenerationDefaults generation;
  TensorCatalog catalog;
  VerifyReport report;  // ok(); its warnings are for the user
};

// Directory or single .safetensors file with config.json beside it. Any error finding becomes one failure
// that names the first few and counts the rest.
Result<Checkpoint> open_checkpoint(const std::string& path);

// The whole report, also for checkpoints that cannot be opened: a bad config.json is a finding too.
VerifyReport verify_path(const std::string& path);

}  // namespace fathom
