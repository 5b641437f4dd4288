// Finds cache content by the tokens it belongs to (architecture: Pinned 3).
//
// An entry is one full context block: kBlockTokens ids after a parent entry (or after nothing, under a salt).
// It is found by a chain hash and taken only if its ids and its parent are really the same. A resume point hangs
// on an entry: the window block and the saved state rows from which a sequence can go on behind it. A prefix hit is
// the deepest entry with a resume point.
//
// A fork is an entry that content was published behind, where other content follows now: prompts with one beginning
// part there, so a resume point is worth its place although no prompt ended there.
//
// Entries live as long as their context block is held or cached in its pool; resume points have their own order
// of age and need their window block and a resume slot.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "engine/block_pool.h"

namespace fathom {

class PrefixCache {
 public:
  // Names an entry for ever: a later entry in the same place has another serial.
  struct EntryRef {
    std::int32_t index = -1;
    std::int64_t serial = 0;
  };

  struct Hit {
    std::int64_t length = 0;  // tokens, a multiple of kBlockTokens; 0: nothing was found
    // Where the ids are known beyond `length` and end at a fork: its tokens, a multiple of kBlockTokens. The rows up
    // to there have to be computed again; a resume point made there serves the next one. 0: no such place.
    std::int64_t fork = 0;
    std::vector<BlockId> context;
    std::vector<EntryRef> entries;
    WindowBlockId window;
    ResumeSlot resume_slot;
  };

  // The pools must outlive this. `fingerprint` stands for weights, numerics and step class.
  PrefixCache(BlockPool<BlockId>& context, BlockPool<WindowBlockId>& window, std::int32_t num_resume_slots,
              std::uint64_t fingerprint);

  // The longest prefix of `tokens`, at most max_length of them, that ends at a resume point. The caller becomes a
  // holder of the blocks of the hit.
  Hit find(std::span<const TokenId> tokens, std::int64_t max_length, const std::string& salt);

  // Publishes the full blocks of a sequence, `context` in order; `entries` is what an earlier call left and is
  // brought up to date. Where the same content is there already, that entry stays: in its block if someone holds
  // that, and the caller's block is private; else in the caller's, and the old block is free.
  void publish(std::span<const TokenId> tokens, std::span<const BlockId> context, const std::string& salt,
               std::vector<EntryRef>& entries);

  // The caller holds `context` no more; `entries` are those of its first blocks. Deepest first: so the ends of a prefix
  // are given up before what they stand on. Content that lies in another's block, unheld, is as young as the rest.
  void release(std::span<const BlockId> context, std::span<const EntryRef> entries);

  // Makes a resume point behind an entry. The slot to save the state rows into; none if there already is a
  // resume point, the entry is gone, or there are no slots. The window block is one the caller holds.
  std::optional<ResumeSlot> add_resume_point(EntryRef entry, WindowBlockId window);

  // Gives up the oldest cached content until a block is free. False: nothing is left to give up.
  bool evict_context_block();
  bool evict_window_block();
  // Everything that no sequence holds.
  void clear();

  std::int32_t num_resume_points() const { return static_cast<std::int32_t>(resume_order_.size()); }
  std::int64_t evicted_blocks() const { return evicted_blocks_; }
  std::int64_t evicted_resume_points() const { return evicted_resume_points_; }

 private:
  struct ResumePoint {
    WindowBlockId window;
    ResumeSlot slot;
    std::list<std::int32_t>::iterator order;
  };
  struct Entry {
    std::int64_t serial = 0;  // 0: unused
    std::int64_t parent = 0;  // serial of an entry, or of a root
    std::uint64_t hash = 0;
    std::int64_t root = 0;
    std::vector<TokenId> ids;  // [kBlockTokens]
    bool has_more = false;     // content was published behind it, there still or not
    std::optional<ResumePoint> resume;
  };
  struct Root {
    std::int64_t serial = 0;
    std::int64_t num_entries = 0;
    std::string salt;
  };

  bool alive(EntryRef ref) const {
    return ref.index >= 0 && entries_[static_cast<std::size_t>(ref.index)].serial == ref.serial;
  }
  EntryRef lookup(std::uint64_t hash, std::int64_t parent, std::span<const TokenId> ids) const;
  EntryRef insert(std::uint64_t hash, std::int64_t parent, std::int64_t root, std::span<const TokenId> ids,
                  BlockId block);
  void move_entry(std::int32_t index, BlockId block);
  void remove_entry(std::int32_t index);
  void remove_resume_point(std::int32_t index);

  BlockPool<BlockId>& context_;
  BlockPool<WindowBlockId>& window_;
  std::uint64_t fingerprint_;
  std::int64_t next_serial_ = 1;
  std::vector<Entry> entries_;                                    // by context block id
  std::unordered_multimap<std::uint64_t, std::int32_t> by_hash_;  // chain hash -> entry
  std::unordered_map<std::string, Root> roots_;                   // by salt
  std::unordered_map<std::int64_t, std::string> salt_of_root_;    // by the root's serial
  std::vector<std::int32_t> entry_of_window_;                     // by window block id; -1
  std::list<std::int32_t> resume_order_;                          // entries with resume points, oldest first
  std::vector<ResumeSlot> free_slots_;
  std::int64_t evicted_blocks_ = 0, evicted_resume_points_ = 0;
};

}  // namespace fathom
