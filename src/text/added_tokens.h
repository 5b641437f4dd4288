// Finds added tokens in raw text: the longest one that starts at a place.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/ids.h"

namespace fathom {

class AddedTokens {
 public:
  struct Match {
    TokenId id = -1;
    std::size_t length = 0;  // bytes; 0 when no added token starts here
  };

  AddedTokens();
  // Content is not empty. Of equal contents the last holds.
  void insert(std::string_view content, TokenId id);
  // The longest added token at the start of `text`.
  Match match(std::string_view text) const;
  bool may_start(char byte) const { return starts_[static_cast<unsigned char>(byte)]; }

 private:
  // A trie by bytes; children ascending.
  struct Node {
    TokenId id = -1;
    std::vector<std::pair<unsigned char, std::uint32_t>> children;
  };
  std::vector<Node> nodes_;
  std::array<bool, 256> starts_{};
};

}  // namespace fathom
