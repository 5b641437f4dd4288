// Any text as config.json: a failure, or a config that survives a round trip and whose tensors can be listed.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "checkpoint/config.h"
#include "checkpoint/expected_tensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)fathom::parse_generation_config(text, "fuzzed generation_config.json");
  const auto config = fathom::parse_config(text, "fuzzed config.json");
  FATHOM_CHECK(config.ok() || !config.status().message().empty(), "a failure says why");
  if (!config.ok()) return 0;
  const std::string printed = fathom::config_to_json(*config);
  const auto again = fathom::parse_config(printed, "round trip");
  FATHOM_CHECK(again.ok(), again.ok() ? "" : again.status().message().c_str());
  FATHOM_CHECK(fathom::config_to_json(*again) == printed, "the round trip keeps every key");
  // The list is bounded by the config's limits; large ones only cost time here.
  if (std::int64_t{config->num_hidden_layers} * config->n_routed_experts > 4096) return 0;
  fathom::ExpectedOptions options;
  options.draft = config->has_dspark_keys() ? fathom::DraftKind::kDspark : fathom::DraftKind::kMtp;
  options.num_draft_stages = 1;
  for (const fathom::ExpectedTensor& tensor : fathom::expected_tensors(*config, options)) {
    FATHOM_CHECK(tensor.num_bytes() > 0, "every expected tensor has a size");
  }
  return 0;
}
