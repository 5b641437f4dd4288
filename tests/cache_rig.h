// Sequences over one executor, fed in chunks of any size, and a picture of what they left in the caches.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "golden_support.h"

namespace fathom::testing {

class CacheRig {
 public:
  // Room for `num_sequences` of up to `max_tokens` each; no window block is ever dropped.
  CacheRig(Model& model, std::int64_t max_tokens, std::int32_t num_sequences)
      : model_(model), blocks_(static_cast<std::int32_t>(num_context_blocks(max_tokens))) {
    ModelExecutorOptions options;
    options.max_length_tokens = max_tokens;
    options.max_sequences = num_sequences;
    options.num_context_blocks = options.num_window_blocks = blocks_ * num_sequences;
    options.num_state_slots = num_sequences;
    executor_ = ModelExecutor::make(model, options).value();
  }

  // Feeds ids[i] of sequence i in steps of chunks[i] rows, all sequences side by side, and returns the logits of
  // each one's last row. `shift` turns the order of blocks and slots round.
  std::vector<std::vector<float>> run(const std::vector<std::vector<TokenId>>& ids,
                                      const std::vector<std::int64_t>& chunks, std::int32_t shift = 0) {
    poison();
    const auto count = static_cast<std::int32_t>(ids.size());
    StepPlan plan;
    for (const SequenceId id : alive_) {
      BlockTableDelta release;
      release.id = id;
      release.released = true;
      plan.deltas.push_back(release);
    }
    alive_.clear();
    first_block_.clear();
    for (std::int32_t i = 0; i < count; ++i) {
      const std::int32_t place = (i + shift) % count;
      BlockTableDelta delta;
      delta.id = SequenceId{next_id_++};
      delta.created = true;
      delta.state_slot = StateSlot{place};
      for (std::int32_t b = 0; b < blocks_; ++b) {
        delta.appended_context.push_back(BlockId{place * blocks_ + b});
        delta.appended_window.push_back(WindowBlockId{place * blocks_ + b});
      }
      alive_.push_back(delta.id);
      first_block_.push_back(place * blocks_);
      plan.deltas.push_back(std::move(delta));
    }
    std::vector<std::vector<float>> logits(ids.size());
    std::vector<std::int64_t> done(ids.size(), 0);
    for (bool more = true; more;) {
      more = false;
      plan.sequences.clear();
      plan.tokens.clear();
      plan.samples.clear();
      std::vector<std::size_t> with_logits;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const auto total = static_cast<std::int64_t>(ids[i].size());
        const std::int64_t rows = std::min(chunks[i], total - done[i]);
        if (rows == 0) continue;
        SequenceStep step;
        step.id = alive_[i];
        step.start = done[i];
        step.num_tokens = static_cast<std::int32_t>(rows);
        done[i] += rows;
        if (done[i] == total) {
          step.num_logits = 1;
          plan.samples.emplace_back();
          with_logits.push_back(i);
        }
        plan.sequences.push_back(step);
        for (std::int64_t t = step.start; t < done[i]; ++t) {
          plan.tokens.push_back(TokenRef::of_id(ids[i][static_cast<std::size_t>(t)]));
        }
        more = more || done[i] < total;
      }
      ++plan.step;
      EXPECT_TRUE(executor_->launch(plan).ok());
      EXPECT_TRUE(executor_->wait().ok());
      for (const SequenceStep& step : plan.sequences) executor_->commit(step.id, step.start + step.num_tokens);
      for (std::size_t r = 0; r < with_logits.size(); ++r) {
        const std::span<const float> row = executor_->logits(static_cast<std::int32_t>(r));
        logits[with_logits[r]].assign(row.begin(), row.end());
      }
      plan.deltas.clear();
    }
    lengths_ = done;
    return logits;
  }

  // Every byte of sequence i's state that a later step can read, in logical order.
  std::vector<std::byte> cache_bytes(std::size_t i) const {
    const CacheLayout& layout = model_.cache_layout();
    const CachePools& pools = executor_->pools();
    const std::int64_t length = lengths_[i];
    std::vector<std::byte> bytes;
    const auto append = [&](const std::byte* from, std::int64_t count) {
      bytes.insert(bytes.end(), from, from + count);
    };
    for (std::int64_t b = 0; b < num_context_blocks(length); ++b) {
      append(pools.context + (first_block_[i] + b) * pools.context_block_bytes, pools.context_block_bytes);
      append(pools.window + (first_block_[i] + b) * pools.window_block_bytes, pools.window_block_bytes);
    }
    const std::byte* state = pools.state + first_block_[i] / blocks_ * pools.state_slot_bytes;
    for (const LayerCache& layer : layout.layers) {
      if (layer.ratio == 0) continue;
      // The open group, and for ratio 4 the group before it.
      const std::int64_t first =
          std::max<std::int64_t>(0, length / layer.ratio * layer.ratio - (layer.ratio == 4 ? 4 : 0));
      const std::int64_t main_row = (layer.ratio == 4 ? 2 : 1) * layer.kv.head_dim * 4;
      for (std::int64_t p = first; p < length; ++p) {
        const std::int64_t slot = p % compressor_slots(layer.ratio);
        append(state + layer.main_u_offset_bytes + slot * main_row, main_row);
        append(state + layer.main_g_offset_bytes + slot * main_row, main_row);
        if (layer.ratio != 4) continue;
        const std::int64_t index_row = 2 * layer.index_key.head_dim * 4;
        append(state + layer.index_u_offset_bytes + slot * index_row, index_row);
        append(state + layer.index_g_offset_bytes + slot * index_row, index_row);
      }
    }
    return bytes;
  }

 private:
  // Whatever was there before: bits that would show if they were read (NaN in every format).
  void poison() {
    const CachePools& pools = executor_->pools();
    const ExecutorLimits& limits = executor_->limits();
    std::memset(pools.context, 0xff, static_cast<std::size_t>(limits.num_context_blocks * pools.context_block_bytes));
    std::memset(pools.window, 0xff, static_cast<std::size_t>(limits.num_window_blocks * pools.window_block_bytes));
    std::memset(pools.state, 0xff, static_cast<std::size_t>(limits.num_state_slots * pools.state_slot_bytes));
  }

  Model& model_;
  std::int32_t blocks_;
  std::unique_ptr<ModelExecutor> executor_;
  std::int64_t next_id_ = 1;
  std::vector<SequenceId> alive_;
  std::vector<std::int32_t> first_block_;
  std::vector<std::int64_t> lengths_;
};

// Ids that look like nothing in particular, the same on every machine.
inline std::vector<TokenId> make_ids(std::int64_t count, std::int64_t vocab_size, std::uint64_t seed) {
  std::vector<TokenId> ids;
  for (std::int64_t i = 0; i < count; ++i) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    ids.push_back(static_cast<TokenId>((seed >> 33) % static_cast<std::uint64_t>(vocab_size)));
  }
  return ids;
}

}  // namespace fathom::testing
