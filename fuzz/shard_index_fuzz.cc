// Any text as model.safetensors.index.json: a failure, or file names that stay in the model directory.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "checkpoint/shard_index.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto index = fathom::parse_shard_index(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!index.ok()) return 0;
  for (const auto& [name, file] : index->weight_map) {
    FATHOM_CHECK(!file.empty() && file.find('/') == std::string::npos && file != "..", "a file of the directory");
  }
  return 0;
}
