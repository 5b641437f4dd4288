#include "checkpoint/checkpoint_writer.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/mapped_file.h"
#include "base/units.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

std::string join(const std::string& directory, const std::string& name) {
  return (fs::path(directory) / name).string();
}

}  // namespace

std::string shard_file_name(std::int64_t shard, std::int64_t num_shards) {
  if (num_shards == 1) return "model.safetensors";
  char text[64];
  std::snprintf(text, sizeof text, "model-%05d-of-%05d.safetensors", static_cast<int>(shard + 1),
                static_cast<int>(num_shards));
  return text;
}

Result<CheckpointWriter> CheckpointWriter::open(const std::string& directory, std::int64_t num_shards,
                                                std::int64_t expected_bytes) {
  CheckpointWriter writer;
  writer.directory_ = directory;
  writer.num_shards_ = num_shards;
  std::error_code error;
  writer.created_directory_ = fs::create_directories(directory, error);
  if (error) return io_error("cannot create directory " + directory + ": " + error.message());
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors") || name == "config.json") {
      return failed_precondition("output directory " + directory + ": found " + name +
                                 ", expected a directory without a checkpoint");
    }
  }
  if (error) return io_error("cannot read directory " + directory + ": " + error.message());
  writer.finished_ = false;
  if (expected_bytes > 0) {
    const fs::space_info space = fs::space(directory, error);
    if (!error && space.available < static_cast<std::uintmax_t>(expected_bytes)) {
      return resource_exhausted("output directory " + directory + ": found " +
                                format_bytes(static_cast<std::int64_t>(space.available)) + " of free disk, expected " +
                                format_bytes(expected_bytes));
    }
  }
  return writer;
}

CheckpointWriter::CheckpointWriter(CheckpointWriter&& other) noexcept
    : directory_(std::move(other.directory_)),
      created_directory_(other.created_directory_),
      finished_(std::exchange(other.finished_, true)),
      num_shards_(other.num_shards_),
      next_shard_(other.next_shard_),
      tensor_bytes_(other.tensor_bytes_),
      written_files_(std::move(other.written_files_)),
      weight_map_(std::move(other.weight_map_)) {}

CheckpointWriter::~CheckpointWriter() {
  if (finished_) return;
  std::error_code error;
  for (const std::string& file : written_files_) fs::remove(file, error);
  if (created_directory_) fs::remove(directory_, error);
}

Status CheckpointWriter::write_shard(std::vector<TensorToWrite> tensors,
                                     const std::function<Status(SafetensorsWriter&)>& fill) {
  const std::string name = shard_file_name(next_shard_++, num_shards_);
  const std::string path = join(directory_, name);
  for (const TensorToWrite& tensor : tensors) {
    weight_map_.emplace_back(tensor.name, name);
    tensor_bytes_ += tensor.shape.num_elements() * dtype_bytes(tensor.dtype);
  }
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsWriter> file,
                          SafetensorsWriter::open(path, std::move(tensors)));
  FATHOM_RETURN_IF_ERROR(fill(*file));
  FATHOM_RETURN_IF_ERROR(file->finish());
  written_files_.push_back(path);
  return {};
}

Status CheckpointWriter::write_file(const std::string& name, const std::string& contents) {
  const std::string path = join(directory_, name);
  FATHOM_RETURN_IF_ERROR(write_file_atomically(path, std::as_bytes(std::span(contents))));
  written_files_.push_back(path);
  return {};
}

Status CheckpointWriter::finish(const std::string& config_json) {
  if (num_shards_ > 1) {
    nlohmann::json map = nlohmann::json::object();
    for (const auto& [name, file] : weight_map_) map[name] = file;
    nlohmann::ordered_json index;
    index["metadata"]["total_size"] = tensor_bytes_;
    index["weight_map"] = std::move(map);
    FATHOM_RETURN_IF_ERROR(write_file("model.safetensors.index.json", index.dump(1) + "\n"));
  }
  FATHOM_RETURN_IF_ERROR(write_file("config.json", config_json));
  finished_ = true;
  return {};
}

}  // namespace fathom
