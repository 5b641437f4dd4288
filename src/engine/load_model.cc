#include "engine/load_model.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "backend/open_cuda.h"
#include "base/log.h"
#include "engine/hash.h"
#include "engine/variant_choice.h"

namespace fathom {
namespace {

// Names and places of all tensors, and of each at most 64 words spread over its bytes.
std::uint64_t fingerprint(const Checkpoint& checkpoint, const Numerics& numerics, const LoadProgress& progress) {
  std::uint64_t hash = mix_hash(0, static_cast<std::uint64_t>(numerics.mode));
  const auto num_tensors = static_cast<std::int64_t>(checkpoint.catalog.tensors().size());
  std::int64_t num_done = 0;
  for (const TensorInfo& tensor : checkpoint.catalog.tensors()) {
    if (progress) progress(num_done++, num_tensors);
    for (const char c : tensor.name) hash = mix_hash(hash, static_cast<std::uint8_t>(c));
    const std::span<const std::byte> bytes = checkpoint.catalog.bytes(tensor);
    hash = mix_hash(hash, bytes.size());
    // Experts are many and alike: a word of each is enough.
    const bool expert = tensor.name.find(".experts.") != std::string::npos;
    const std::size_t num_words = bytes.size() / 8;
    const std::size_t step = std::max<std::size_t>(1, num_words / (expert ? 1 : 64));
    for (std::size_t word = 0; word < num_words; word += step) {
      std::uint64_t value = 0;
      std::memcpy(&value, bytes.data() + word * 8, 8);
      hash = mix_hash(hash, value);
    }
  }
  return hash;
}

// Of a load's time, the last fifth is reading the samples of the fingerprint.
LoadProgress part_of(const LoadProgress& progress, std::int64_t total_bytes, double from, double to) {
  if (!progress) return {};
  return [&progress, total_bytes, from, to](std::int64_t done, std::int64_t total) {
    const double share = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1.0;
    const double bytes = (from + (to - from) * share) * static_cast<double>(total_bytes);
    progress(std::min(static_cast<std::int64_t>(bytes), total_bytes), total_bytes);
  };
}

// Choices that selftest remembered and that this program has; none where there are none or they cannot be read.
VariantChoices remembered(const OpRegistry& registry, const Backend& backend) {
  const std::string path = variant_choices_path();
  if (path.empty()) return {};
  Result<VariantChoices> choices = read_variant_choices(path, variant_choices_key(backend, registry));
  if (!choices.ok()) {
    log_warning("the variants that selftest chose are not used: " + choices.status().message());
    return {};
  }
  std::erase_if(*choices, [&](const auto& choice) {
    return std::none_of(registry.variants().begin(), registry.variants().end(), [&](const Variant& variant) {
      return op_name(variant.op) == choice.first && variant.name == choice.second &&
             variant.backend == backend.device().backend;
    });
  });
  if (!choices->empty()) log_info("variants as fathom selftest chose them (" + path + ")");
  return *choices;
}

}  // namespace

std::string variant_choices_key(const Backend& backend, const OpRegistry& registry) {
  // Another set of variants is another program: what it chose says nothing here.
  std::uint64_t hash = 0;
  for (const Variant& variant : registry.variants()) {
    hash = mix_hash(hash, static_cast<std::uint64_t>(variant.op));
    for (const char c : variant.name) hash = mix_hash(hash, static_cast<std::uint8_t>(c));
  }
  return backend.device_name() + ", " + backend.driver_version() + ", variants " + std::to_string(hash % 1'000'000);
}

OpRegistry registry_for(DeviceChoice device, const std::function<void(OpRegistry&)>& more) {
  OpRegistry registry;
  if (device == DeviceChoice::kCuda) {
    register_cuda_variants_if_built(registry);
  } else {
    register_cpu_variants(registry);
  }
  if (more) more(registry);
  return registry;
}

std::optional<DeviceChoice> parse_device(std::string_view name) {
  if (name == "cpu") return DeviceChoice::kCpu;
  if (name == "cuda") return DeviceChoice::kCuda;
  if (name == "emulated") return DeviceChoice::kEmulated;
  return std::nullopt;
}

Result<LoadedModel> load_model(const std::string& path, const LoadOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  LoadedModel loaded;
  FATHOM_ASSIGN_OR_RETURN(Checkpoint checkpoint, open_checkpoint(path));
  loaded.checkpoint = std::make_unique<const Checkpoint>(std::move(checkpoint));
  for (const Finding& finding : loaded.checkpoint->report.findings) log_warning(finding.to_string());

  const int num_threads = options.num_threads > 0 ? options.num_threads : ThreadPool::available_cpus();
  const OpRegistry registry = registry_for(options.device, options.register_more);
  DeviceBackendOptions device;
  device.timeout_us = options.device_timeout_us;
  device.num_threads = num_threads;
  if (options.device == DeviceChoice::kCuda) {
    if (options.numerics != Numerics::serve()) {
      return invalid_argument("the CUDA backend computes in serve numerics only: found " +
                              std::string(numerics_name(options.numerics.mode)) + "; run the others on the CPU");
    }
    FATHOM_ASSIGN_OR_RETURN(loaded.backend, open_cuda_backend(device));
  } else if (options.device == DeviceChoice::kEmulated) {
    FATHOM_ASSIGN_OR_RETURN(loaded.backend, open_emulated_backend(device));
  } else {
    loaded.backend = std::make_unique<CpuBackend>(num_threads);
  }
  VariantChoices choices;
  if (options.remembered_variants) choices = remembered(registry, *loaded.backend);
  choices.insert(choices.end(), options.variants.begin(), options.variants.end());
  FATHOM_ASSIGN_OR_RETURN(VariantTable variants,
                          VariantTable::choose(registry, loaded.backend->device().backend, choices));
  loaded.variants = std::make_unique<const VariantTable>(variants);

  ModelOptions model;
  model.numerics = options.numerics;
  model.max_tokens = options.max_step_tokens;
  model.max_logit_rows = std::min(options.max_logit_rows, options.max_step_tokens);
  model.max_context_tokens = options.max_context_tokens;
  model.draft = options.draft;
  const std::int64_t total_bytes = loaded.checkpoint->catalog.total_bytes();
  model.progress = part_of(options.progress, total_bytes, 0.0, 0.8);
  FATHOM_ASSIGN_OR_RETURN(loaded.model, Model::make(*loaded.checkpoint, *loaded.backend, *loaded.variants, model));
  FATHOM_RETURN_IF_ERROR(loaded.checkpoint->catalog.check_unchanged());
  loaded.weights_fingerprint =
      fingerprint(*loaded.checkpoint, options.numerics, part_of(options.progress, total_bytes, 0.8, 1.0));
  if (options.progress) options.progress(total_bytes, total_bytes);
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - begin;
  loaded.load_ms = time.count();
  return loaded;
}

}  // namespace fathom
