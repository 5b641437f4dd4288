#include "text/byte_pair_encoding.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <functional>

namespace fathom {
namespace {

constexpr std::size_t kShortPiece = 48;  // bytes; up to here scanning all pairs is faster than a heap
constexpr std::uint32_t kNone = 0xFFFFFFFF;

std::uint64_t pair_key(TokenId left, TokenId right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
}

}  // namespace

MergeTable::MergeTable(std::size_t num_merges) {
  const std::size_t capacity = std::bit_ceil(num_merges * 2 + 2);
  slots_.resize(capacity);
  shift_ = 64 - std::countr_zero(capacity);
}

std::size_t MergeTable::place_of(std::uint64_t pair) const {
  std::size_t place = (pair * 0x9E3779B97F4A7C15ull) >> shift_;
  while (slots_[place].pair != pair && slots_[place].pair != kEmpty) place = (place + 1) & (slots_.size() - 1);
  return place;
}

void MergeTable::insert(TokenId left, TokenId right, Merge merge) {
  const std::uint64_t pair = pair_key(left, right);
  Slot& slot = slots_[place_of(pair)];
  if (slot.pair == kEmpty) slot = {pair, merge};
}

MergeTable::Merge MergeTable::find(TokenId left, TokenId right) const {
  const Slot& slot = slots_[place_of(pair_key(left, right))];
  return slot.pair == kEmpty ? Merge{} : slot.merge;
}

void PieceMerger::encode(std::string_view piece, std::vector<TokenId>& ids) {
  if (piece.size() <= kShortPiece) {
    encode_short(piece, ids);
  } else {
    encode_long(piece, ids);
  }
}

void PieceMerger::encode_short(std::string_view piece, std::vector<TokenId>& ids) {
  TokenId symbols[kShortPiece];
  MergeTable::Merge pairs[kShortPiece];  // of symbols i and i + 1
  std::size_t count = piece.size();
  for (std::size_t i = 0; i < count; ++i) symbols[i] = byte_ids_[static_cast<unsigned char>(piece[i])];
  for (std::size_t i = 0; i + 1 < count; ++i) pairs[i] = merges_->find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == MergeTable::kNoRank) break;
    symbols[best] = pairs[best].merged;
    std::copy(symbols + best + 2, symbols + count, symbols + best + 1);
    std::copy(pairs + best + 1, pairs + count - 1, pairs + best);
    --count;
    if (best + 1 < count) pairs[best] = merges_->find(symbols[best], symbols[best + 1]);
    if (best > 0) pairs[best - 1] = merges_->find(symbols[best - 1], symbols[best]);
  }
  ids.insert(ids.end(), symbols, symbols + count);
}

void PieceMerger::encode_long(std::string_view piece, std::vector<TokenId>& ids) {
  const auto count = static_cast<std::uint32_t>(piece.size());
  nodes_.resize(count);
  queue_.clear();
  for (std::uint32_t i = 0; i < count; ++i) {
    nodes_[i] = {byte_ids_[static_cast<unsigned char>(piece[i])], i == 0 ? kNone : i - 1, i + 1, {}};
  }
  nodes_[count - 1].next = kNone;

  const auto key = [](std::uint32_t rank, std::uint32_t place) {
    return static_cast<std::uint64_t>(rank) << 32 | place;
  };
  const auto find_pair = [&](std::uint32_t place) {
    Node& node = nodes_[place];
    node.pair = node.next == kNone ? MergeTable::Merge{} : merges_->find(node.id, nodes_[node.next].id);
    return node.pair.rank != MergeTable::kNoRank;
  };
  for (std::uint32_t i = 0; i < count; ++i) {
    if (find_pair(i)) queue_.push_back(key(nodes_[i].pair.rank, i));
  }
  std::make_heap(queue_.begin(), queue_.end(), std::greater<>{});
  const auto push_pair = [&](std::uint32_t place) {
    if (!find_pair(place)) return;
    queue_.push_back(key(nodes_[place].pair.rank, place));
    std::push_heap(queue_.begin(), queue_.end(), std::greater<>{});
  };

  while (!queue_.empty()) {
    std::pop_heap(queue_.begin(), queue_.end(), std::greater<>{});
    const std::uint64_t entry = queue_.back();
    queue_.pop_back();
    const auto place = static_cast<std::uint32_t>(entry);
    Node& node = nodes_[place];
    // Left over from a pair that has changed since, or whose first symbol was merged away.
    if (node.pair.rank != static_cast<std::uint32_t>(entry >> 32)) continue;
    Node& gone = nodes_[node.next];
    node.id = node.pair.merged;
    node.next = gone.next;
    gone.pair = {};
    if (node.next != kNone) nodes_[node.next].previous = place;
    push_pair(place);
    if (node.previous != kNone) push_pair(node.previous);
  }
  for (std::uint32_t i = 0; i != kNone; i = nodes_[i].next) ids.push_back(nodes_[i].id);
}

}  // namespace fathom
