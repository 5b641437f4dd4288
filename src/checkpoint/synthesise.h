// Writes a checkpoint of seeded random weights in the official layout: any shape of the architecture at its
// real size, without the real weights.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"
#include "checkpoint/config.h"
#include "checkpoint/expected_tensors.h"

namespace fathom {

struct SynthesiseOptions {
  ModelConfig config;
  ExpectedOptions tensors;    // which draft, which expert format, scale dtype
  std::uint64_t seed = 1;     // same seed and tensor name and shape: same values
  bool headers_only = false;  // sparse files: true sizes, all data zero, next to no disk
  std::string directory;      // created; must hold no checkpoint yet
  // Called after each shard part with bytes done and in total; may be empty.
  std::function<void(std::int64_t, std::int64_t)> progress;
};

struct SynthesiseResult {
  std::int64_t num_shards = 0;
  std::int64_t num_tensors = 0;
  std::int64_t tensor_bytes = 0;  // the index's total_size
};

// Shards as the official release: embed; one for each layer; norm, head and hc_head_*; one for each draft
// stage. Inside a shard tensors are grouped by dtype. Values are scaled by 1/sqrt(columns), so that
// activations stay near one. config.json and the index come last; after a failure (disk full, ...) nothing
// of what was written stays.
Result<SynthesiseResult> synthesise_checkpoint(const SynthesiseOptions& options);

// The first `num_layers` layers (0: all) and `num_experts` experts (0: all) of a config; draft keys follow.
Result<ModelConfig> shrink_config(const ModelConfig& config, std::int32_t num_layers, std::int32_t num_experts);

}  // namespace fathom
