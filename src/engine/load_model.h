// A checkpoint on disk to a model that runs: verify, map, bind, plan.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/verify.h"
#include "model/model.h"

namespace fathom {

enum class DeviceChoice : std::uint8_t {
  kCpu,
  kCuda,
  kEmulated,  // the engine's device side without a device, for tests: CPU operations in memory of their own
};
// "cpu", "cuda", "emulated".
std::optional<DeviceChoice> parse_device(std::string_view name);

struct LoadOptions {
  DeviceChoice device = DeviceChoice::kCpu;
  Numerics numerics = Numerics::serve();
  int num_threads = 0;                 // 0: all CPUs this process may use
  std::int64_t device_timeout_us = 0;  // a device that does not answer for longer has failed; 0: never
  std::vector<std::pair<std::string, std::string>> variants;  // operation (or *), variant
  bool remembered_variants = false;                           // what fathom selftest chose, before `variants`
  std::function<void(OpRegistry&)> register_more;             // for tests: variants beside this program's own
  std::int64_t max_step_tokens = 512;                         // prefill chunk
  std::int64_t max_logit_rows = 16;
  std::int64_t max_context_tokens = 0;  // of a sequence; 0: what the model takes
  bool draft = true;                    // bind draft blocks where the checkpoint has them
  LoadProgress progress;                // hears of every tensor, in bytes of the checkpoint; never less than before
};

// Members in the order of their dependence; the model refers to all before it.
struct LoadedModel {
  std::unique_ptr<const Checkpoint> checkpoint;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<const VariantTable> variants;
  std::unique_ptr<Model> model;
  // Of config, weights (sampled) and numerics: cached state of another model never matches.
  std::uint64_t weights_fingerprint = 0;
  double load_ms = 0;
};

// What the choices of selftest are remembered under: the card, its driver, this program's variants.
std::string variant_choices_key(const Backend& backend, const OpRegistry& registry);
// The variants of this program on such a backend, `more` included.
OpRegistry registry_for(DeviceChoice device, const std::function<void(OpRegistry&)>& more = {});

// `path`: a model directory or a .safetensors file.
Result<LoadedModel> load_model(const std::string& path, const LoadOptions& options);

}  // namespace fathom
