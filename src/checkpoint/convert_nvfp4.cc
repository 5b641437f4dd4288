#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/mapped_file.h"
#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/nvfp4.h"
#include "checkpoint/verify.h"

namespace fathom {
namespace {

using OrderedJson = nlohmann::ordered_json;

// input_scale is about amax(X) / (6 * 448); the program does not use it (activations are quantised
// dynamically), other readers expect it.
constexpr float kInputScale = 10.0f / 2688.0f;

bool is_trunk_expert(const TensorInfo& tensor) {
  return tensor.name.starts_with("layers.") && tensor.name.find(".ffn.experts.") != std::string::npos;
}

std::string prefix_of(const TensorInfo& weight) {
  return weight.name.substr(0, weight.name.size() - sizeof("weight") + 1);  // keeps the final dot
}

Result<std::string> nvfp4_config(const Checkpoint& source) {
  const std::string path = (std::filesystem::path(source.catalog.directory()) / "config.json").string();
  FATHOM_ASSIGN_OR_RETURN(const std::string text, read_text_file(path));
  OrderedJson json = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return data_loss(path + ": not a JSON object");
  OrderedJson& quantization = json["quantization_config"];
  if (!quantization.is_object()) quantization = {{"quant_method", "fp8"}, {"fmt", "e4m3"}};
  quantization["moe_quant_algo"] = "NVFP4";
  quantization["group_size"] = 16;
  quantization["ignore"] = {"*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"};
  OrderedJson layers = OrderedJson::object();
  for (std::int32_t layer = 0; layer < source.config.num_hidden_layers; ++layer) {
    layers["layers." + std::to_string(layer) + ".ffn.experts"] = {{"quant_algo", "NVFP4"}, {"group_size", 16}};
  }
  quantization["quantized_layers"] = std::move(layers);
  return json.dump(2) + "\n";
}

class Converter {
 public:
  Converter(const Checkpoint& source, CheckpointWriter& writer,
            const std::function<void(std::int64_t, std::int64_t)>& progress)
      : source_(source), writer_(writer), progress_(progress), total_bytes_(source.catalog.total_bytes()) {}

  Status write_shard(std::int32_t shard) {
    std::vector<TensorToWrite> layout;
    std::vector<const TensorInfo*> parts;  // what to write for them, in the same order
    for (const TensorInfo& tensor : source_.catalog.tensors()) {
      if (tensor.shard != shard) continue;
      if (!is_trunk_expert(tensor)) {
        layout.push_back({tensor.name, tensor.dtype, tensor.shape});
        parts.push_back(&tensor);
      } else if (tensor.name.ends_with(".weight")) {
        const std::string prefix = prefix_of(tensor);
        layout.push_back({tensor.name, DType::kU8, tensor.shape});
        layout.push_back({prefix + "weight_scale", DType::kF8E4M3, {tensor.shape[0], tensor.shape[1] / 8}});
        layout.push_back({prefix + "weight_scale_2", DType::kF32, {}});
        layout.push_back({prefix + "input_scale", DType::kF32, {}});
        parts.push_back(&tensor);
      }
    }
    return writer_.write_shard(std::move(layout), [&](SafetensorsWriter& file) -> Status {
      for (const TensorInfo* tensor : parts) {
        FATHOM_RETURN_IF_ERROR(is_trunk_expert(*tensor) ? write_matrix(*tensor, file)
                                                        : file.append(source_.catalog.bytes(*tensor)));
        done_bytes_ += tensor->num_bytes;
        if (progress_) progress_(done_bytes_, total_bytes_);
      }
      return {};
    });
  }

  std::int64_t num_matrices() const { return num_matrices_; }

 private:
  Status write_matrix(const TensorInfo& weight, SafetensorsWriter& file) {
    const std::string prefix = prefix_of(weight);
    FATHOM_ASSIGN_OR_RETURN(const TensorInfo* scale, source_.catalog.require(prefix + "scale"));
    FATHOM_ASSIGN_OR_RETURN(const Nvfp4Matrix matrix,
                            mxfp4_to_nvfp4(source_.catalog.bytes(weight), source_.catalog.bytes(*scale),
                                           weight.shape[0], weight.shape[1] * 2, prefix.substr(0, prefix.size() - 1)));
    ++num_matrices_;
    FATHOM_RETURN_IF_ERROR(file.append(matrix.weight));
    FATHOM_RETURN_IF_ERROR(file.append(matrix.weight_scale));
    FATHOM_RETURN_IF_ERROR(file.append(std::as_bytes(std::span(&matrix.weight_scale_2, 1))));
    return file.append(std::as_bytes(std::span(&kInputScale, 1)));
  }

  const Checkpoint& source_;
  CheckpointWriter& writer_;
  const std::function<void(std::int64_t, std::int64_t)>& progress_;
  std::int64_t total_bytes_;
  std::int64_t done_bytes_ = 0;
  std::int64_t num_matrices_ = 0;
};

}  // namespace

Result<ConvertResult> convert_to_nvfp4(const std::string& source, const std::string& directory,
                                       const std::function<void(std::int64_t, std::int64_t)>& progress) {
  FATHOM_ASSIGN_OR_RETURN(const Checkpoint checkpoint, open_checkpoint(source));
  for (const TensorInfo& tensor : checkpoint.catalog.tensors()) {
    if (is_trunk_expert(tensor) && tensor.name.ends_with(".weight") && tensor.dtype != DType::kI8) {
      return failed_precondition(tensor.name + ": found " + std::string(dtype_name(tensor.dtype)) +
                                 ", expected I8 (MXFP4 experts) to convert");
    }
  }
  FATHOM_ASSIGN_OR_RETURN(const std::string config, nvfp4_config(checkpoint));
  const auto num_shards = static_cast<std::int64_t>(checkpoint.catalog.shards().size());
  FATHOM_ASSIGN_OR_RETURN(CheckpointWriter writer,
                          CheckpointWriter::open(directory, num_shards, checkpoint.catalog.total_bytes()));
  Converter converter(checkpoint, writer, progress);
  for (std::int32_t shard = 0; shard < static_cast<std::int32_t>(num_shards); ++shard) {
    FATHOM_RETURN_IF_ERROR(converter.write_shard(shard));
  }
  for (const char* name : {"generation_config.json", "tokenizer.json", "tokenizer_config.json"}) {
    const std::string path = (std::filesystem::path(checkpoint.catalog.directory()) / name).string();
    std::error_code error;
    if (!std::filesystem::exists(path, error)) continue;
    FATHOM_ASSIGN_OR_RETURN(const std::string contents, read_text_file(path));
    FATHOM_RETURN_IF_ERROR(writer.write_file(name, contents));
  }
  FATHOM_RETURN_IF_ERROR(writer.finish(config));
  return ConvertResult{converter.num_matrices(), writer.num_tensors(), writer.tensor_bytes()};
}

}  // namespace fathom
