// Every variant of every operation on this machine: held against its slow twin on a real model, timed at a real width,
// the fastest right one chosen.
//
// Right: with the variant in place of the twin (CUDA: `naive`; CPU: `reference`) and everything else equal, the model's
// layers, fed with the same streams, give the same rows within the bounds of the layer-forced check (median <= 5e-3,
// p99 <= 5e-2 of a row's norm, all finite), for a prompt's rows and for a decode step; operations outside the layers
// are held to the same bounds on the logits. An operation with one variant on a card is held against the CPU's.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/load_model.h"
#include "engine/variant_choice.h"
#include "ops/registry.h"

namespace fathom {

enum class Verdict : std::uint8_t { kTwin, kRight, kWrong, kNotReached };

struct VariantReport {
  OpKind op = OpKind::kEmbed;
  std::string variant;
  Verdict verdict = Verdict::kNotReached;
  double median_error = 0, worst_error = 0;  // worst: p99 of the rows
  double us_one = 0, us_many = 0;            // of one call in decode steps of 1 and kSelftestBatch rows; 0: not timed
  double share_of_ceiling = 0;               // its bytes (or FLOPs, where they weigh more) at 1 row over its time
  bool is_default = false;
  bool is_chosen = false;
};

inline constexpr int kSelftestBatch = 32;

struct SelftestOptions {
  DeviceChoice device = DeviceChoice::kCpu;
  int num_threads = 0;
  std::string model;  // whose layers are compared
  // Three cache blocks; more compressed entries than the mini model selects.
  std::int64_t prompt_rows = 290;
  std::string timed_model;  // whose decode steps are timed; empty: `model`
  // For tests: may add variants.
  std::function<void(OpRegistry&)> register_more;
  std::function<void(const std::string& what)> progress;
};

struct SelftestResult {
  std::string device_name;
  std::string key;                      // of variant_choices
  std::int32_t compute_capability = 0;  // CUDA
  double ceiling_bytes_per_s = 0;
  std::vector<VariantReport> variants;  // by operation, in registration order
  double seconds = 0;

  bool all_right() const;
  VariantChoices choices() const;
};

Result<SelftestResult> run_selftest(const SelftestOptions& options);

}  // namespace fathom
