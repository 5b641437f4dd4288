#include "ops/testing/paged_cache.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "ops/cache_records.h"

namespace fathom::testing {
namespace {

std::vector<std::int32_t> shuffled_ids(Random& random, std::int32_t count) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), random.engine());
  return ids;
}

View ints(std::vector<std::int32_t>& values) {
  return make_view(values.data(), {static_cast<std::int64_t>(values.size())});
}

View longs(std::vector<std::int64_t>& values) {
  return make_view(values.data(), DType::kI64, {static_cast<std::int64_t>(values.size())});
}

}  // namespace

void TestStep::set_window(std::int32_t row, std::int32_t begin, std::int32_t end) {
  window_begin_[static_cast<std::size_t>(row)] = begin;
  window_end_[static_cast<std::size_t>(row)] = end;
}

PagedCache::PagedCache(Random& random, std::int32_t ratio, bool packed, std::int32_t num_sequences,
                       std::int32_t max_tokens, std::int32_t head_dim, std::int32_t rope_dim,
                       std::int32_t index_head_dim)
    : num_sequences_(num_sequences),
      max_tokens_(max_tokens),
      blocks_per_sequence_(static_cast<std::int32_t>(ceil_div(max_tokens, kBlockTokens))) {
  layer_.ratio = ratio;
  layer_.kv = {packed ? CacheFormat::kPacked : CacheFormat::kFloat, head_dim, rope_dim};
  layer_.index_key = {layer_.kv.format, index_head_dim};
  // Another layer's bytes stand before and after this one's.
  layer_.window_offset_bytes = 64;
  pools_.window_block_bytes = 64 + layer_.kv.page_bytes(kBlockTokens) + 32;
  std::int64_t context_bytes = 32;
  std::int64_t state_bytes = 16;
  if (ratio != 0) {
    const std::int64_t main_bytes = 4 * std::int64_t{compressor_slots(ratio)} * head_dim * (ratio == 4 ? 2 : 1);
    layer_.entry_offset_bytes = context_bytes;
    context_bytes += layer_.kv.page_bytes(layer_.entries_per_block());
    layer_.main_u_offset_bytes = state_bytes;
    layer_.main_g_offset_bytes = state_bytes + main_bytes;
    state_bytes += 2 * main_bytes;
  }
  if (ratio == 4) {
    const std::int64_t index_bytes = 4 * std::int64_t{compressor_slots(ratio)} * index_head_dim * 2;
    layer_.index_key_offset_bytes = context_bytes;
    context_bytes += layer_.index_key.page_bytes(layer_.entries_per_block());
    layer_.index_u_offset_bytes = state_bytes;
    layer_.index_g_offset_bytes = state_bytes + index_bytes;
    state_bytes += 2 * index_bytes;
  }
  pools_.context_block_bytes = context_bytes + 64;
  pools_.state_slot_bytes = state_bytes + 64;

  const std::int32_t num_blocks = num_sequences * blocks_per_sequence_ + 3;
  context_ids_ = shuffled_ids(random, num_blocks);
  window_ids_ = shuffled_ids(random, num_blocks);
  state_ids_ = shuffled_ids(random, num_sequences + 2);
  context_ = Buffer(num_blocks * pools_.context_block_bytes);
  window_ = Buffer(num_blocks * pools_.window_block_bytes);
  state_ = Buffer((num_sequences + 2) * pools_.state_slot_bytes);
  pools_.context = context_.data();
  pools_.window = window_.data();
  pools_.state = state_.data();
  poison();
}

void PagedCache::poison() {
  for (const Buffer* pool : {&context_, &window_, &state_}) {
    std::memset(pool->data(), 0xcb, static_cast<std::size_t>(pool->num_bytes()));
  }
}

std::vector<std::byte> PagedCache::snapshot() const {
  std::vector<std::byte> bytes;
  for (const Buffer* pool : {&context_, &window_, &state_}) {
    bytes.insert(bytes.end(), pool->data(), pool->data() + pool->num_bytes());
  }
  return bytes;
}

TestStep PagedCache::make_step(std::span<const StepPart> parts) const {
  TestStep step;
  const auto blocks = static_cast<std::size_t>(blocks_per_sequence_);
  step.sequence_begin_.push_back(0);
  for (const StepPart& part : parts) {
    FATHOM_CHECK(part.sequence < num_sequences_ && part.start + part.num_tokens <= max_tokens_, "inside the cache");
    const auto index = static_cast<std::int32_t>(step.state_slot_.size());
    for (std::int32_t p = part.start; p < part.start + part.num_tokens; ++p) {
      step.token_ids_.push_back((p * 7919 + part.sequence) % 97);
      step.positions_.push_back(p);
      step.sequence_of_.push_back(index);
      step.window_begin_.push_back(std::max(0, p - 127));
      step.window_end_.push_back(p + 1);
    }
    step.sequence_begin_.push_back(static_cast<std::int32_t>(step.positions_.size()));
    // A gap stands between the tables of two sequences.
    step.context_table_.push_back(-1);
    step.window_table_.push_back(-1);
    const std::int32_t first = std::max(0, part.start - 127) / kBlockTokens;
    step.context_offset_.push_back(static_cast<std::int64_t>(step.context_table_.size()));
    step.window_offset_.push_back(static_cast<std::int64_t>(step.window_table_.size()));
    step.window_first_.push_back(first);
    const std::size_t base = static_cast<std::size_t>(part.sequence) * blocks;
    for (std::size_t b = 0; b < blocks; ++b) {
      step.context_table_.push_back(context_ids_[base + b]);
      if (b >= static_cast<std::size_t>(first)) step.window_table_.push_back(window_ids_[base + b]);
    }
    step.state_slot_.push_back(state_ids_[static_cast<std::size_t>(part.sequence)]);
  }
  StepRows& rows = step.rows_;
  rows.num_tokens = static_cast<std::int32_t>(step.positions_.size());
  rows.num_sequences = static_cast<std::int32_t>(parts.size());
  rows.token_ids = ints(step.token_ids_);
  rows.positions = ints(step.positions_);
  rows.sequence_of = ints(step.sequence_of_);
  rows.sequence_begin = ints(step.sequence_begin_);
  rows.window_begin = ints(step.window_begin_);
  rows.window_end = ints(step.window_end_);
  rows.context_table = ints(step.context_table_);
  rows.context_offset = longs(step.context_offset_);
  rows.window_table = ints(step.window_table_);
  rows.window_offset = longs(step.window_offset_);
  rows.window_first = ints(step.window_first_);
  rows.state_slot = ints(step.state_slot_);
  return step;
}

TestStep PagedCache::whole_step(std::int32_t sequence) const {
  const StepPart parts[] = {{sequence, 0, max_tokens_}};
  return make_step(parts);
}

void PagedCache::fill_records(Random& random, std::int32_t length) {
  std::vector<float> kv(static_cast<std::size_t>(layer_.kv.head_dim));
  std::vector<float> key(static_cast<std::size_t>(layer_.index_key.head_dim));
  const auto fill = [&](std::vector<float>& values) {
    for (float& value : values) value = random.normal();
  };
  for (std::int32_t s = 0; s < num_sequences_; ++s) {
    const TestStep step = whole_step(s);
    for (std::int32_t p = 0; p < length; ++p) {
      fill(kv);
      write_kv_record(layer_.kv, window_record(step.rows(), pools_, layer_, 0, p), kv);
    }
    if (layer_.ratio == 0) continue;
    for (std::int32_t j = 0; j < length / layer_.ratio; ++j) {
      fill(kv);
      write_kv_record(layer_.kv, entry_record(step.rows(), pools_, layer_, 0, j), kv);
      if (layer_.ratio != 4) continue;
      fill(key);
      write_index_key(layer_.index_key, index_key_record(step.rows(), pools_, layer_, 0, j), key);
    }
  }
}

std::vector<float> PagedCache::read_window(std::int32_t sequence, std::int32_t begin, std::int32_t end) const {
  const TestStep step = whole_step(sequence);
  const auto width = static_cast<std::size_t>(layer_.kv.head_dim);
  std::vector<float> values(static_cast<std::size_t>(end - begin) * width);
  for (std::int32_t p = begin; p < end; ++p) {
    read_kv_record(layer_.kv, window_record(step.rows(), pools_, layer_, 0, p),
                   std::span<float>(values).subspan(static_cast<std::size_t>(p - begin) * width, width));
  }
  return values;
}

std::vector<float> PagedCache::read_entries(std::int32_t sequence, std::int32_t num_entries) const {
  const TestStep step = whole_step(sequence);
  const auto width = static_cast<std::size_t>(layer_.kv.head_dim);
  std::vector<float> values(static_cast<std::size_t>(num_entries) * width);
  for (std::int32_t j = 0; j < num_entries; ++j) {
    read_kv_record(layer_.kv, entry_record(step.rows(), pools_, layer_, 0, j),
                   std::span<float>(values).subspan(static_cast<std::size_t>(j) * width, width));
  }
  return values;
}

std::vector<float> PagedCache::read_index_keys(std::int32_t sequence, std::int32_t num_entries) const {
  const TestStep step = whole_step(sequence);
  const auto width = static_cast<std::size_t>(layer_.index_key.head_dim);
  std::vector<float> values(static_cast<std::size_t>(num_entries) * width);
  for (std::int32_t j = 0; j < num_entries; ++j) {
    read_index_key(layer_.index_key, index_key_record(step.rows(), pools_, layer_, 0, j),
                   std::span<float>(values).subspan(static_cast<std::size_t>(j) * width, width));
  }
  return values;
}

std::vector<float> PagedCache::read_state(std::int32_t sequence, std::int64_t offset_bytes, std::int32_t width,
                                          std::int32_t begin, std::int32_t end) const {
  const TestStep step = whole_step(sequence);
  std::vector<float> values;
  for (std::int32_t p = begin; p < end; ++p) {
    values.resize(values.size() + static_cast<std::size_t>(width));
    std::memcpy(&*(values.end() - width), state_row(step.rows(), pools_, 0, offset_bytes, layer_.ratio, width, p),
                sizeof(float) * static_cast<std::size_t>(width));
  }
  return values;
}

}  // namespace fathom::testing
