// A pool of cache blocks: who holds which, and which hold content worth keeping.
//
// A block is in one of three states: free; held (by 1 or more holders: sequences); cached (held by none, its
// content can be found again; given up when a block is needed, longest unheld first). Whether a held block's
// content can be found is a flag: it decides where the block goes when the last holder drops it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/check.h"

namespace fathom {

template <typename BlockIdType>
class BlockPool {
 public:
  explicit BlockPool(std::int32_t num_blocks) : blocks_(static_cast<std::size_t>(num_blocks) + 1) {
    // The last element is the head of the ring of cached blocks.
    Block& head = blocks_.back();
    head.newer = head.older = num_blocks;
    for (std::int32_t i = num_blocks; i-- > 0;) free_.push_back(i);
  }

  std::int32_t num_blocks() const { return static_cast<std::int32_t>(blocks_.size()) - 1; }
  std::int32_t num_free() const { return static_cast<std::int32_t>(free_.size()); }
  std::int32_t num_cached() const { return num_cached_; }
  std::int32_t num_held() const { return num_blocks() - num_free() - num_cached(); }
  std::int32_t num_holders(BlockIdType id) const { return block(id).num_holders; }
  bool findable(BlockIdType id) const { return block(id).findable; }

  // A free block, now held once; none if none is free (cached ones are not touched).
  std::optional<BlockIdType> take() {
    if (free_.empty()) return std::nullopt;
    const std::int32_t index = free_.back();
    free_.pop_back();
    blocks_[static_cast<std::size_t>(index)].num_holders = 1;
    return BlockIdType(index);
  }

  // One more holder of a held or cached block.
  void hold(BlockIdType id) {
    Block& b = block(id);
    FATHOM_CHECK(b.num_holders > 0 || b.findable, "a free block is taken, not held");
    if (b.num_holders++ == 0) unlink(b);
  }

  // One holder less.
  void drop(BlockIdType id) {
    Block& b = block(id);
    FATHOM_CHECK(b.num_holders > 0, "only a held block is dropped");
    if (--b.num_holders > 0) return;
    if (b.findable) {
      link_newest(id.value);
    } else {
      free_.push_back(id.value);
    }
  }

  // A held block's content can be found from now on.
  void set_findable(BlockIdType id) {
    FATHOM_CHECK(block(id).num_holders > 0, "content is published by its holder");
    block(id).findable = true;
  }
  // ... and no longer. A cached block becomes free.
  void forget(BlockIdType id) {
    Block& b = block(id);
    FATHOM_CHECK(b.findable, "only findable content is forgotten");
    b.findable = false;
    if (b.num_holders > 0) return;
    unlink(b);
    free_.push_back(id.value);
  }

  // The cached block that was dropped longest ago.
  std::optional<BlockIdType> oldest_cached() const {
    if (num_cached_ == 0) return std::nullopt;
    return BlockIdType(blocks_.back().newer);
  }

 private:
  struct Block {
    std::int32_t num_holders = 0;
    bool findable = false;
    std::int32_t newer = -1, older = -1;  // neighbours among the cached blocks
  };

  Block& block(BlockIdType id) {
    FATHOM_CHECK(id.value >= 0 && id.value < num_blocks(), "a block of this pool");
    return blocks_[static_cast<std::size_t>(id.value)];
  }
  const Block& block(BlockIdType id) const { return const_cast<BlockPool*>(this)->block(id); }

  void link_newest(std::int32_t index) {
    const std::int32_t head = num_blocks();
    Block& b = blocks_[static_cast<std::size_t>(index)];
    b.older = blocks_.back().older;
    b.newer = head;
    blocks_[static_cast<std::size_t>(b.older)].newer = index;
    blocks_.back().older = index;
    ++num_cached_;
  }
  void unlink(Block& b) {
    blocks_[static_cast<std::size_t>(b.older)].newer = b.newer;
    blocks_[static_cast<std::size_t>(b.newer)].older = b.older;
    --num_cached_;
  }

  std::vector<Block> blocks_;
  std::vector<std::int32_t> free_;
  std::int32_t num_cached_ = 0;
};

}  // namespace fathom
