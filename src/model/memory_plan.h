// The activation arena: which buffer lies where, decided and printable before anything is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fathom {

// Points in a layer between which a buffer is needed; buffers whose lives do not overlap share memory.
enum class Phase : std::int8_t {
  kAttentionInputs,  // x -> low-rank q, kv, compressor rows, index weights
  kQueries,          // low-rank q -> q, index q
  kCacheWrites,      // kv and compressor rows -> cache; q normed and rotated
  kIndex,            // index scores and selection
  kAttention,        // q, cache -> o
  kOutput,           // o -> y
  kRoute,            // x -> experts
  kExperts,          // x -> y
  kHead,             // streams -> logits
};

class MemoryPlan {
 public:
  struct Entry {
    std::string name;
    std::int64_t num_bytes = 0;
    Phase first = Phase::kAttentionInputs;
    Phase last = Phase::kHead;
    std::int64_t offset_bytes = 0;
  };

  // Returns the entry's index. Live from `first` to `last`, both included.
  int add(std::string name, std::int64_t num_bytes, Phase first, Phase last);
  // Live all the time.
  int add(std::string name, std::int64_t num_bytes) {
    return add(std::move(name), num_bytes, Phase::kAttentionInputs, Phase::kHead);
  }
  // Gives every entry its offset, largest first, each at the lowest place free during its life.
  void place();

  const std::vector<Entry>& entries() const { return entries_; }
  std::int64_t offset_bytes(int entry) const { return entries_[static_cast<std::size_t>(entry)].offset_bytes; }
  std::int64_t total_bytes() const { return total_bytes_; }
  std::string to_string() const;

 private:
  std::vector<Entry> entries_;
  std::int64_t total_bytes_ = 0;
};

}  // namespace fathom
