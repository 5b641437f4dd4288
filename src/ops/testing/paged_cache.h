// A cache of several sequences in shuffled blocks, poisoned, and the rows of steps on it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/cache_view.h"
#include "ops/numerics.h"
#include "ops/step_rows.h"
#include "ops/testing/tensors.h"

namespace fathom::testing {

// Rows [start, start + num_tokens) of one sequence in a step.
struct StepPart {
  std::int32_t sequence = 0;  // of the PagedCache
  std::int32_t start = 0;
  std::int32_t num_tokens = 0;
};

// Owns the arrays of a StepRows.
class TestStep {
 public:
  TestStep() = default;
  TestStep(TestStep&&) = default;  // the views stay: a moved vector keeps its storage
  TestStep& operator=(TestStep&&) = default;

  const StepRows& rows() const { return rows_; }
  std::span<const std::int32_t> positions() const { return positions_; }
  // A draft block: every row sees [begin, end) of its sequence (spec 2.10).
  void set_window(std::int32_t row, std::int32_t begin, std::int32_t end);

 private:
  friend class PagedCache;
  std::vector<std::int32_t> token_ids_, positions_, sequence_of_, sequence_begin_;
  std::vector<std::int32_t> window_begin_, window_end_;
  std::vector<std::int32_t> context_table_, window_table_, window_first_, state_slot_;
  std::vector<std::int64_t> context_offset_, window_offset_;
  StepRows rows_;
};

class PagedCache {
 public:
  // `ratio` 0, 4 or 128; room for `num_sequences` of `max_tokens` each. Sizes of the records follow `packed`.
  PagedCache(Random& random, std::int32_t ratio, bool packed, std::int32_t num_sequences, std::int32_t max_tokens,
             std::int32_t head_dim = 512, std::int32_t rope_dim = 64, std::int32_t index_head_dim = 128);
  PagedCache(const PagedCache&) = delete;
  PagedCache& operator=(const PagedCache&) = delete;

  const LayerCache& layer() const { return layer_; }
  CachePools pools() const { return pools_; }
  // All bytes back to 0xcb.
  void poison();
  // The rows of `parts`, in that order. Token ids are random.
  TestStep make_step(std::span<const StepPart> parts) const;

  // Writes random records (through write_kv_record / write_index_key) at every window position and entry of
  // all sequences below `length`. NaN everywhere else when the records are fp32.
  void fill_records(Random& random, std::int32_t length);

  // A sequence's records of positions [begin, end), entries below `num_entries`, index keys: read back as fp32.
  std::vector<float> read_window(std::int32_t sequence, std::int32_t begin, std::int32_t end) const;
  std::vector<float> read_entries(std::int32_t sequence, std::int32_t num_entries) const;
  std::vector<float> read_index_keys(std::int32_t sequence, std::int32_t num_entries) const;
  // A sequence's u and g rows of positions [begin, end).
  std::vector<float> read_state(std::int32_t sequence, std::int64_t offset_bytes, std::int32_t width,
                                std::int32_t begin, std::int32_t end) const;
  // Sizes of the context, window and state pools.
  std::array<std::int64_t, 3> pool_bytes() const {
    return {context_.num_bytes(), window_.num_bytes(), state_.num_bytes()};
  }
  // The bytes of the three pools, one after the other.
  std::vector<std::byte> snapshot() const;

 private:
  TestStep whole_step(std::int32_t sequence) const;

  LayerCache layer_;
  CachePools pools_;
  Buffer context_, window_, state_;
  std::int32_t num_sequences_;
  std::int32_t max_tokens_;
  std::int32_t blocks_per_sequence_;
  std::vector<std::int32_t> context_ids_, window_ids_, state_ids_;  // [sequence][block]
};

}  // namespace fathom::testing
