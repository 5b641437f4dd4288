// Byte-pair encoding of one piece: merge the adjacent pair of lowest rank (the leftmost of equals) until none is left.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/ids.h"

namespace fathom {

// (left id, right id) -> (rank, merged id); open addressing.
class MergeTable {
 public:
  static constexpr std::uint32_t kNoRank = 0xFFFFFFFF;
  struct Merge {
    std::uint32_t rank = kNoRank;
    TokenId merged = -1;
  };

  MergeTable() = default;
  explicit MergeTable(std::size_t num_merges);

  // The first insertion of a pair holds. Ranks are below kNoRank.
  void insert(TokenId left, TokenId right, Merge merge);
  Merge find(TokenId left, TokenId right) const;

 private:
  struct Slot {
    std::uint64_t pair = kEmpty;
    Merge merge;
  };
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  std::size_t place_of(std::uint64_t pair) const;

  std::vector<Slot> slots_;
  int shift_ = 63;
};

// Merges pieces; reuses its buffers from piece to piece.
class PieceMerger {
 public:
  // byte_ids: [256], the id of each single byte.
  PieceMerger(const MergeTable& merges, std::span<const TokenId, 256> byte_ids)
      : merges_(&merges), byte_ids_(byte_ids) {}

  // Appends the piece's ids. O(n log n) for long pieces.
  void encode(std::string_view piece, std::vector<TokenId>& ids);

 private:
  void encode_short(std::string_view piece, std::vector<TokenId>& ids);
  void encode_long(std::string_view piece, std::vector<TokenId>& ids);

  // A symbol at the byte where it starts, with the pair that it opens.
  struct Node {
    TokenId id = 0;
    std::uint32_t previous = 0;
    std::uint32_t next = 0;
    MergeTable::Merge pair;  // with the next symbol; rank kNoRank when there is none
  };

  const MergeTable* merges_;
  std::span<const TokenId, 256> byte_ids_;
  std::vector<Node> nodes_;
  std::vector<std::uint64_t> queue_;  // rank << 32 | place: a min-heap
};

}  // namespace fathom
