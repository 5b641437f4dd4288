#include "checkpoint/shard_index.h"

#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "checkpoint/safetensors.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

// A shard must be a file of the model directory itself.
bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

}  // namespace

std::string_view canonical_tensor_name(std::string_view name) {
  constexpr std::string_view kNamespace = "model.";
  if (name.starts_with(kNamespace)) name.remove_prefix(kNamespace.size());
  return name;
}

Result<ShardIndex> parse_shard_index(std::string_view text) {
  if (is_lfs_pointer(std::as_bytes(std::span(text)))) {
    return data_loss("a Git LFS pointer: fetch the file with `git lfs pull`");
  }
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return data_loss("no JSON object");
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object()) return data_loss("no object \"weight_map\"");
  ShardIndex index;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string() || !is_plain_file_name(file.get_ref<const std::string&>())) {
      return data_loss("weight_map[\"" + name +
                       "\"] = " + file.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 80) +
                       ", which is no plain file name");
    }
    index.weight_map.emplace(canonical_tensor_name(name), file.get<std::string>());
  }
  const auto metadata = json.find("metadata");
  if (metadata != json.end() && metadata->is_object()) {
    const auto size = metadata->find("total_size");
    if (size != metadata->end() && size->is_number_integer()) index.total_size = size->get<std::int64_t>();
  }
  return index;
}

}  // namespace fathom
