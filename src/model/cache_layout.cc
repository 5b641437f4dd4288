#include "model/cache_layout.h"

#include <utility>

#include "base/check.h"

namespace fathom {
namespace {

std::int64_t take(std::int64_t& total, std::int64_t bytes) {
  const std::int64_t offset = total;
  total += bytes;
  return offset;
}

// Context pages: ratio-4 layers first, so that their pages stay 16-byte aligned whatever follows.
void place_context(CacheLayout& layout, std::int32_t ratio) {
  for (LayerCache& layer : layout.layers) {
    if (layer.ratio != ratio) continue;
    const std::int64_t entries = layer.entries_per_block();
    layer.entry_offset_bytes = take(layout.context_block_bytes, layer.kv.page_bytes(entries));
    if (ratio == 4) {
      layer.index_key_offset_bytes = take(layout.context_block_bytes, layer.index_key.page_bytes(entries));
    }
  }
}

void place_state(CacheLayout& layout, LayerCache& layer) {
  if (layer.ratio == 0) return;
  const std::int64_t slots = compressor_slots(layer.ratio);
  const std::int64_t halves = layer.ratio == 4 ? 2 : 1;
  const std::int64_t main_bytes = slots * halves * layer.kv.head_dim * 4;
  layer.main_u_offset_bytes = take(layout.state_slot_bytes, main_bytes);
  layer.main_g_offset_bytes = take(layout.state_slot_bytes, main_bytes);
  if (layer.ratio != 4) return;
  const std::int64_t index_bytes = slots * 2 * layer.index_key.head_dim * 4;
  layer.index_u_offset_bytes = take(layout.state_slot_bytes, index_bytes);
  layer.index_g_offset_bytes = take(layout.state_slot_bytes, index_bytes);
  layout.resume_rows_bytes += 4 * 2 * (layer.kv.head_dim + layer.index_key.head_dim) * 4;
}

}  // namespace

CacheLayout plan_cache_layout(const ModelConfig& config, const Numerics& numerics, std::int32_t num_draft_layers) {
  FATHOM_CHECK(config.sliding_window == kBlockTokens, "the window is one block");
  const CacheFormat format = numerics.packs_cache() ? CacheFormat::kPacked : CacheFormat::kFloat;
  CacheLayout layout;
  layout.num_trunk_layers = config.num_hidden_layers;
  for (std::int32_t i = 0; i < config.num_hidden_layers + num_draft_layers; ++i) {
    LayerCache layer;
    layer.ratio = i < config.num_hidden_layers ? config.compress_ratio(i) : 0;
    layer.kv = {format, config.head_dim, config.qk_rope_head_dim};
    layer.index_key = {format, config.index_head_dim};
    layer.window_offset_bytes = take(layout.window_block_bytes, layer.kv.page_bytes(kBlockTokens));
    place_state(layout, layer);
    layout.layers.push_back(layer);
    if (i + 1 == config.num_hidden_layers) layout.trunk_window_bytes = layout.window_block_bytes;
  }
  place_context(layout, 4);
  place_context(layout, 128);
  return layout;
}

std::int64_t CacheLayout::sequence_bytes(std::int64_t context_tokens, std::int64_t max_step_tokens) const {
  return num_context_blocks(context_tokens) * context_block_bytes +
         num_window_blocks(max_step_tokens) * window_block_bytes + state_slot_bytes;
}

std::vector<ResumePiece> CacheLayout::resume_pieces(std::int64_t boundary_tokens) const {
  FATHOM_CHECK(boundary_tokens > 0 && boundary_tokens % kBlockTokens == 0, "resume points stand at block boundaries");
  std::vector<ResumePiece> pieces;
  std::int64_t total = 0;
  for (const LayerCache& layer : layers) {
    if (layer.ratio != 4) continue;
    const std::int64_t main_half = layer.kv.head_dim * 4;
    const std::int64_t index_half = layer.index_key.head_dim * 4;
    const std::pair<std::int64_t, std::int64_t> arrays[] = {{layer.main_u_offset_bytes, main_half},
                                                            {layer.main_g_offset_bytes, main_half},
                                                            {layer.index_u_offset_bytes, index_half},
                                                            {layer.index_g_offset_bytes, index_half}};
    for (const auto& [offset, half] : arrays) {
      for (std::int64_t position = boundary_tokens - 4; position < boundary_tokens; ++position) {
        const std::int64_t slot = position % compressor_slots(4);
        pieces.push_back({offset + slot * 2 * half, take(total, half), half});
      }
    }
  }
  FATHOM_CHECK(total == resume_rows_bytes, "the pieces are the resume point");
  return pieces;
}

std::string CacheLayout::to_string() const {
  std::string text;
  text += "context block (128 tokens)   " + std::to_string(context_block_bytes) + " B\n";
  text += "window block (128 rows)      " + std::to_string(window_block_bytes) + " B, trunk " +
          std::to_string(trunk_window_bytes) + " B\n";
  text += "compressor state / sequence  " + std::to_string(state_slot_bytes) + " B\n";
  text += "resume point                 " + std::to_string(trunk_window_bytes) + " B window + " +
          std::to_string(resume_rows_bytes) + " B rows\n";
  return text;
}

}  // namespace fathom
