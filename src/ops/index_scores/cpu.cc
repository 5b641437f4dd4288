#include <algorithm>

#include "ops/cache_records.h"
#include "ops/index_scores/index_scores.h"
#include "ops/simd/products.h"
#include "ops/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/index_scores/cpu.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "ops/index_scores/code_keys-inl.h"
#include "ops/index_scores/float_keys-inl.h"

#if HWY_ONCE
namespace fathom {
HWY_EXPORT(decode_keys);
HWY_EXPORT(score_keys);
HWY_EXPORT(encode_queries);
HWY_EXPORT(encode_keys);
HWY_EXPORT(score_codes);
namespace {

constexpr std::int64_t kPageKeys = kBlockTokens / 4;
constexpr std::int64_t kIndexKeyBlock = 32;
constexpr std::int64_t kQueryFloats = 16384;  // queries that share a decoded page: they stay in the first-level cache
constexpr std::int64_t kMostRows = 16;

std::int64_t block_rows(const IndexScoresDesc& desc) {
  return std::clamp<std::int64_t>(kQueryFloats / (desc.num_heads * desc.cache.index_key.head_dim), 1, kMostRows);
}

// What one thread works in: a page of keys, as codes or as floats, and the codes of a block of rows.
struct Space {
  explicit Space(const IndexScoresDesc& desc)
      : key_blocks(desc.cache.index_key.head_dim / kIndexKeyBlock),
        row_codes(desc.num_heads * key_blocks),
        tile_bytes(simd::Scratch::aligned_bytes<float>(kPageKeys * desc.cache.index_key.head_dim)),
        bytes(tile_bytes + simd::Scratch::aligned_bytes<QueryCodes>(block_rows(desc) * row_codes)) {}
  float* tile() const { return reinterpret_cast<float*>(base); }
  std::uint32_t* key_codes() const { return reinterpret_cast<std::uint32_t*>(base); }
  float* key_scales() const { return tile() + key_blocks * (kIndexKeyBlock / 4) * kPageKeys; }
  QueryCodes* query_codes(std::int64_t row) const {
    return reinterpret_cast<QueryCodes*>(base + tile_bytes) + row * row_codes;
  }

  std::int64_t key_blocks, row_codes, tile_bytes, bytes;
  std::byte* base = nullptr;
};

// Pages stand apart in the pool: the next is asked for while this one is scored.
void prefetch_page(const IndexKeyLayout& layout, CacheRecord page) {
  constexpr std::int64_t kLine = 64;
  const std::int64_t bytes = layout.page_bytes(kPageKeys);
  for (std::int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(page.data + at);
}

// Rows [begin, end) of the call, all of one sequence; the pages whose index mod `of_parts` is `part`.
void score_block(const IndexScoresDesc& desc, const IndexScoresArgs& args, std::int64_t begin, std::int64_t end,
                 std::int64_t part, std::int64_t of_parts, const Space& space) {
  const StepRows& rows = *args.rows;
  const IndexKeyLayout& layout = desc.cache.index_key;
  const std::int64_t stride = args.scores.shape[1];
  const auto visible_of = [&](std::int64_t row) {
    const std::int64_t position = rows.positions.as<std::int32_t>()[args.first_row + row];
    return (position + 1) / desc.cache.ratio;
  };
  const auto q_of = [&](std::int64_t row) {
    return args.q.as<float>() + (args.first_row + row) * desc.num_heads * layout.head_dim;
  };
  while (begin < end && visible_of(begin) <= desc.topk) ++begin;
  if (begin == end) return;
  const std::int64_t most = visible_of(end - 1);
  FATHOM_CHECK(most <= stride, "a row of scores holds the visible entries");
  const std::int32_t sequence = rows.sequence_of.as<std::int32_t>()[args.first_row + begin];
  const auto page_at = [&](std::int64_t entry) {
    return index_key_record(rows, args.pools, desc.cache, sequence, entry);
  };
  if (part * kPageKeys < most) prefetch_page(layout, page_at(part * kPageKeys));
  // Which products a row takes follows from its own queries.
  bool coded[kMostRows];
  std::int64_t num_coded = 0;
  for (std::int64_t row = begin; row < end; ++row) {
    coded[row - begin] =
        layout.format == CacheFormat::kPacked &&
        HWY_DYNAMIC_DISPATCH(encode_queries)(q_of(row), space.row_codes, space.query_codes(row - begin));
    num_coded += coded[row - begin] ? 1 : 0;
  }
  const std::int64_t step = of_parts * kPageKeys;
  for (std::int64_t first = part * kPageKeys; first < most; first += step) {
    const CacheRecord page = page_at(first);
    if (first + step < most) prefetch_page(layout, page_at(first + step));
    const auto for_rows = [&](bool of_codes, auto&& body) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t count = std::min(kPageKeys, visible_of(row) - first);
        if (count <= 0 || coded[row - begin] != of_codes) continue;
        body(row, args.weights_raw.as<float>() + (args.first_row + row) * desc.num_heads, count,
             args.scores.as<float>() + row * stride + first);
      }
    };
    if (num_coded > 0) {
      HWY_DYNAMIC_DISPATCH(encode_keys)(layout, page, space.key_codes(), space.key_scales());
      for_rows(true, [&](std::int64_t row, const float* weights, std::int64_t count, float* scores) {
        HWY_DYNAMIC_DISPATCH(score_codes)
        (space.query_codes(row - begin), weights, desc.weight_scale, desc.num_heads, space.key_blocks,
         space.key_codes(), space.key_scales(), count, scores);
      });
    }
    if (num_coded < end - begin) {
      HWY_DYNAMIC_DISPATCH(decode_keys)(layout, page, space.tile());
      for_rows(false, [&](std::int64_t row, const float* weights, std::int64_t count, float* scores) {
        HWY_DYNAMIC_DISPATCH(score_keys)
        (q_of(row), weights, desc.weight_scale, desc.num_heads, layout.head_dim, space.tile(), count, scores);
      });
    }
  }
}

}  // namespace

std::int64_t index_scores_cpu_workspace(const IndexScoresDesc& desc, const DeviceInfo& device) {
  return std::max(device.num_threads, 1) * Space(desc).bytes;
}

void index_scores_cpu(ExecutionContext& context, const IndexScoresPlan& plan, const IndexScoresArgs& args) {
  const IndexScoresDesc& desc = plan.desc;
  const std::int64_t num_rows = args.scores.shape[0];
  const std::int32_t* positions = args.rows->positions.as<std::int32_t>() + args.first_row;
  if (std::all_of(positions, positions + num_rows,
                  [&](std::int64_t position) { return (position + 1) / desc.cache.ratio <= desc.topk; })) {
    return;
  }
  FATHOM_CHECK(desc.cache.index_key.head_dim % kIndexKeyBlock == 0 && desc.cache.entries_per_block() == kPageKeys,
               "index keys have a multiple of 32 channels and stand in pages of 32");
  const std::int32_t* sequence_of = args.rows->sequence_of.as<std::int32_t>() + args.first_row;
  const std::int64_t space_bytes = Space(desc).bytes;
  simd::Scratch scratch(context);
  const std::int64_t parts = std::min<std::int64_t>(simd::num_threads(context), scratch.left_bytes() / space_bytes);
  auto* base = scratch.take<std::byte>(parts * space_bytes);

  // Blocks of rows of one sequence; with fewer blocks than threads, threads share a block's keys.
  const std::int64_t height = block_rows(desc);
  const auto for_each_block = [&](auto&& body) {
    std::int64_t index = 0;
    for (std::int64_t begin = 0; begin < num_rows; ++index) {
      std::int64_t end = begin + 1;
      while (end < num_rows && end - begin < height && sequence_of[end] == sequence_of[begin]) ++end;
      body(index, begin, end);
      begin = end;
    }
    return index;
  };
  const std::int64_t num_blocks = for_each_block([](std::int64_t, std::int64_t, std::int64_t) {});
  simd::run_parts(context, parts, [&](std::int64_t part) {
    Space space(desc);
    space.base = base + part * space_bytes;
    for_each_block([&](std::int64_t index, std::int64_t begin, std::int64_t end) {
      if (num_blocks < parts) {
        score_block(desc, args, begin, end, part, parts, space);
      } else if (index % parts == part) {
        score_block(desc, args, begin, end, 0, 1, space);
      }
    });
  });
}

}  // namespace fathom
#endif  // HWY_ONCE
