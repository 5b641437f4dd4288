// Writes shards, index and config of a checkpoint directory so that either all of it is there or nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "checkpoint/safetensors.h"

namespace fathom {

// The shard files of a set: "model-00003-of-00046.safetensors", or "model.safetensors" for a single one.
std::string shard_file_name(std::int64_t shard, std::int64_t num_shards);

class CheckpointWriter {
 public:
  // Creates the directory when needed; refuses one that holds a checkpoint. `expected_bytes` is compared
  // with the free space first (0: not checked).
  static Result<CheckpointWriter> open(const std::string& directory, std::int64_t num_shards,
                                       std::int64_t expected_bytes);
  ~CheckpointWriter();
  CheckpointWriter(CheckpointWriter&& other) noexcept;
  CheckpointWriter& operator=(CheckpointWriter&&) = delete;

  // `fill` appends the tensors' bytes in order.
  Status write_shard(std::vector<TensorToWrite> tensors, const std::function<Status(SafetensorsWriter&)>& fill);
  // One more file of the directory (tokenizer.json, ...).
  Status write_file(const std::string& name, const std::string& contents);
  // Index and config.json; from here on the directory stays.
  Status finish(const std::string& config_json);

  std::int64_t num_tensors() const { return static_cast<std::int64_t>(weight_map_.size()); }
  std::int64_t tensor_bytes() const { return tensor_bytes_; }

 private:
  CheckpointWriter() = default;

  std::string directory_;
  bool created_directory_ = false;
  bool finished_ = true;  // nothing to undo
  std::int64_t num_shards_ = 0;
  std::int64_t next_shard_ = 0;
  std::int64_t tensor_bytes_ = 0;
  std::vector<std::string> written_files_;
  std::vector<std::pair<std::string, std::string>> weight_map_;
};

}  // namespace fathom
