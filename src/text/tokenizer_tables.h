// What a tokenizer.json becomes: shared by the loader and the tokenizer, nobody else's business.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/added_tokens.h"
#include "text/byte_pair_encoding.h"
#include "text/tokenizer.h"

namespace fathom {

struct Tokenizer::Tables {
  struct Token {
    std::string bytes;
    bool is_named = false;
    bool is_added = false;
    bool is_special = false;
  };
  std::vector<Token> tokens;                            // by id
  std::unordered_map<std::string_view, TokenId> ids;    // ordinary tokens by bytes; keys live in `tokens`
  std::unordered_map<std::string_view, TokenId> added;  // added tokens by content; likewise
  std::array<TokenId, 256> byte_ids{};
  MergeTable merges;
  AddedTokens added_matcher;
  TokenId bos_id = 0;
  TokenId eos_id = 0;
};

}  // namespace fathom
