// Raw prompts: a string, token ids, or a list of either.
#pragma once

#include <string>
#include <vector>

#include "server/request_fields.h"
#include "server/server_options.h"

namespace fathom {

struct RawPrompt {
  std::vector<TokenId> ids;
  std::string text;  // as given, or what the ids decode to
};

// The value under `key`: "text", [1, 2], ["a", "b"], [[1], [2]]. Special tokens in text are recognised; no BOS is added
// (the tokenizer's own rule), but an empty prompt becomes BOS alone. Nothing and an empty list are refused, as are ids
// outside the vocabulary.
std::vector<RawPrompt> read_prompts(RequestFields& fields, std::string_view key, const ServedModel& model,
                                    std::int32_t max_prompts);

}  // namespace fathom
