// model.safetensors.index.json: which shard holds which tensor.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace fathom {

// Without a leading "model.".
std::string_view canonical_tensor_name(std::string_view name);

struct ShardIndex {
  std::map<std::string, std::string> weight_map;  // canonical tensor name -> file name in the model directory
  std::optional<std::int64_t> total_size;         // metadata.total_size: bytes of all tensors
};

// Messages say what was found, without a file name. File names that leave the directory are refused.
Result<ShardIndex> parse_shard_index(std::string_view text);

}  // namespace fathom
