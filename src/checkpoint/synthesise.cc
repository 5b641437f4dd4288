#include "checkpoint/synthesise.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/random_weights.h"

namespace fathom {
namespace {

// Order of dtypes inside an official shard.
int dtype_rank(DType dtype) {
  switch (dtype) {
    case DType::kI64: return 0;
    case DType::kF32: return 1;
    case DType::kBF16: return 2;
    case DType::kF8E8M0: return 3;
    case DType::kF8E4M3: return 4;
    default: return 5;
  }
}

using ShardTensors = std::vector<ExpectedTensor>;

std::vector<ShardTensors> assign_shards(std::vector<ExpectedTensor> tensors, std::int32_t num_layers,
                                        std::int32_t num_stages) {
  std::vector<ShardTensors> shards(static_cast<std::size_t>(2 + num_layers + num_stages));
  for (ExpectedTensor& tensor : tensors) {
    std::size_t shard = 0;
    if (tensor.component == Component::kDraft) {
      shard = static_cast<std::size_t>(2 + num_layers + tensor.layer);
    } else if (tensor.layer >= 0) {
      shard = static_cast<std::size_t>(1 + tensor.layer);
    } else if (tensor.component != Component::kEmbed) {
      shard = static_cast<std::size_t>(1 + num_layers);
    }
    shards[shard].push_back(std::move(tensor));
  }
  for (ShardTensors& shard : shards) {
    std::stable_sort(shard.begin(), shard.end(), [](const ExpectedTensor& a, const ExpectedTensor& b) {
      return dtype_rank(a.dtype) < dtype_rank(b.dtype);
    });
  }
  return shards;
}

}  // namespace

Result<ModelConfig> shrink_config(const ModelConfig& config, std::int32_t num_layers, std::int32_t num_experts) {
  ModelConfig small = config;
  if (num_layers < 0 || num_layers > config.num_hidden_layers) {
    return invalid_argument("--layers: found " + std::to_string(num_layers) + ", expected 1 to " +
                            std::to_string(config.num_hidden_layers));
  }
  if (num_experts < 0 || num_experts > config.n_routed_experts) {
    return invalid_argument("--experts: found " + std::to_string(num_experts) + ", expected 1 to " +
                            std::to_string(config.n_routed_experts));
  }
  if (num_layers > 0 && num_layers < config.num_hidden_layers) {
    small.num_hidden_layers = num_layers;
    small.compress_ratios.erase(small.compress_ratios.begin() + num_layers,
                                small.compress_ratios.begin() + config.num_hidden_layers);
    small.num_hash_layers = std::min(config.num_hash_layers, num_layers);
    auto& taps = small.dspark_target_layer_ids;
    const auto num_taps = std::min(static_cast<std::int32_t>(taps.size()), num_layers);
    taps.resize(static_cast<std::size_t>(num_taps));
    for (std::int32_t i = 0; i < num_taps; ++i) taps[static_cast<std::size_t>(i)] = num_layers - num_taps + i;
  }
  if (num_experts > 0) {
    small.n_routed_experts = num_experts;
    small.num_experts_per_tok = std::min(config.num_experts_per_tok, num_experts);
  }
  return small;
}

Result<SynthesiseResult> synthesise_checkpoint(const SynthesiseOptions& options) {
  const std::int32_t num_stages = options.tensors.draft == DraftKind::kNone ? 0 : options.tensors.num_draft_stages;
  std::vector<ExpectedTensor> tensors = expected_tensors(options.config, options.tensors);
  std::int64_t total_bytes = 0;
  for (const ExpectedTensor& tensor : tensors) total_bytes += tensor.num_bytes();
  const std::vector<ShardTensors> shards =
      assign_shards(std::move(tensors), options.config.num_hidden_layers, num_stages);
  FATHOM_ASSIGN_OR_RETURN(CheckpointWriter writer,
                          CheckpointWriter::open(options.directory, static_cast<std::int64_t>(shards.size()),
                                                 options.headers_only ? 0 : total_bytes));
  std::int64_t done_bytes = 0;
  for (const ShardTensors& shard : shards) {
    std::vector<TensorToWrite> layout;
    for (const ExpectedTensor& tensor : shard) layout.push_back({tensor.name, tensor.dtype, tensor.shape});
    const auto fill = [&](SafetensorsWriter& file) -> Status {
      for (const ExpectedTensor& tensor : shard) {
        if (options.headers_only) {
          FATHOM_RETURN_IF_ERROR(file.append_hole(tensor.num_bytes()));
        } else {
          FATHOM_RETURN_IF_ERROR(
              write_random_tensor(tensor, options.config, options.seed,
                                  [&file](std::span<const std::byte> bytes) { return file.append(bytes); }));
        }
        done_bytes += tensor.num_bytes();
        if (options.progress) options.progress(done_bytes, total_bytes);
      }
      return {};
    };
    FATHOM_RETURN_IF_ERROR(writer.write_shard(std::move(layout), fill));
  }
  ModelConfig config = options.config;
  if (num_stages == 0) config.num_nextn_predict_layers = 0;
  FATHOM_RETURN_IF_ERROR(writer.finish(config_to_json(config)));
  return SynthesiseResult{static_cast<std::int64_t>(shards.size()), writer.num_tensors(), writer.tensor_bytes()};
}

}  // namespace fathom
