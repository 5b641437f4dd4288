// config.json and generation_config.json: refused with a reason, or numbers that the rest may rely on.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "checkpoint/config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = fathom::parse_config(text, "fuzz");
  if (config.ok()) {
    if (config->num_hidden_layers <= 0 || config->hidden_size <= 0 || config->vocab_size <= 0) std::abort();
    if (static_cast<std::int64_t>(config->compress_ratios.size()) < config->num_hidden_layers) std::abort();
    // What was accepted is accepted again in our own words.
    if (!fathom::parse_config(fathom::config_to_json(*config), "again").ok()) std::abort();
  } else if (config.status().message().empty()) {
    std::abort();
  }
  (void)fathom::parse_generation_config(text, "fuzz");
  return 0;
}
