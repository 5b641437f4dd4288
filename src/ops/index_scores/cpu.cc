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

#include "ops/simd/micro_tile-inl.h"
#include "ops/simd/records-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom {
namespace HWY_NAMESPACE {

// Keys [first, first + count) of a sequence, fp32, in the column order of the format.
void decode_index_keys(const StepRows& rows, const CachePools& pools, const LayerCache& cache, std::int32_t sequence,
                       std::int64_t first, std::int64_t count, float* tile) {
  const std::int64_t width = cache.index_key.head_dim;
  for (std::int64_t i = 0; i < count; ++i) {
    decode_index_key(cache.index_key, index_key_record(rows, pools, cache, sequence, first + i), tile + i * width);
  }
}

// scores[i] = sum_h relu(q_h . k_i) * weights[h] for the tile's first `count` keys; heads add in ascending order.
// `dots` [heads, dots_stride].
void score_tile(const float* q, const float* weights, float weight_scale, std::int64_t num_heads, std::int64_t width,
                const float* tile, std::int64_t count, float* dots, std::int64_t dots_stride, float* scores) {
  const FloatTag d;
  for (std::int64_t n = 0; n < count; n += kTileColumns) {
    const int columns = count - n < kTileColumns ? static_cast<int>(count - n) : kTileColumns;
    micro_rows({q, width, nullptr}, 0, num_heads, tile + n * width, width, width, {dots, dots_stride, nullptr}, n,
               columns, {});
  }
  for (std::int64_t i = 0; i < count; i += kLanes) {
    FloatVec sum = hn::Zero(d);
    for (std::int64_t h = 0; h < num_heads; ++h) {
      const FloatVec dot = hn::Max(load(dots + h * dots_stride + i), hn::Zero(d));
      sum = hn::MulAdd(dot, hn::Set(d, weights[h] * weight_scale), sum);
    }
    store_some(sum, scores + i, static_cast<std::size_t>(count - i));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fathom
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom {
HWY_EXPORT(decode_index_keys);
HWY_EXPORT(score_tile);
namespace {

constexpr std::int64_t kTileKeys = 128;
constexpr std::int64_t kQueryFloats = 16384;  // prepared queries that share a decoded tile

std::int64_t block_rows(const IndexScoresDesc& desc) {
  return std::clamp<std::int64_t>(kQueryFloats / (desc.num_heads * desc.cache.index_key.head_dim), 1, 16);
}

// One thread's scratch.
struct PartScratch {
  float* tile;     // [kTileKeys, width]
  float* queries;  // [block rows, heads, width]
  float* dots;     // [heads, kTileKeys]

  static std::int64_t floats(const IndexScoresDesc& desc) {
    const std::int64_t width = desc.cache.index_key.head_dim;
    return kTileKeys * width + block_rows(desc) * desc.num_heads * width + desc.num_heads * kTileKeys;
  }
  PartScratch(const IndexScoresDesc& desc, float* base)
      : tile(base),
        queries(base + kTileKeys * desc.cache.index_key.head_dim),
        dots(queries + block_rows(desc) * desc.num_heads * desc.cache.index_key.head_dim) {}
};

// Rows [begin, end) of the call, all of one sequence; the tiles of keys whose index mod `of_parts` is `part`.
void score_block(const IndexScoresDesc& desc, const IndexScoresArgs& args, std::int64_t begin, std::int64_t end,
                 std::int64_t part, std::int64_t of_parts, const PartScratch& scratch) {
  const StepRows& rows = *args.rows;
  const std::int64_t width = desc.cache.index_key.head_dim;
  const std::int64_t stride = args.scores.shape[1];
  const simd::ColumnOrder order =
      desc.cache.index_key.format == CacheFormat::kPacked ? simd::ColumnOrder::kPairs : simd::ColumnOrder::kNatural;
  const auto visible_of = [&](std::int64_t row) {
    const std::int64_t position = rows.positions.as<std::int32_t>()[args.first_row + row];
    return (position + 1) / desc.cache.ratio;
  };
  while (begin < end && visible_of(begin) <= desc.topk) ++begin;
  if (begin == end) return;
  const std::int64_t most = visible_of(end - 1);
  FATHOM_CHECK(most <= stride, "a row of scores holds the visible entries");
  for (std::int64_t row = begin; row < end; ++row) {
    for (std::int64_t h = 0; h < desc.num_heads; ++h) {
      simd::prepare_row(args.q.as<float>() + ((args.first_row + row) * desc.num_heads + h) * width, width, false, order,
                        scratch.queries + ((row - begin) * desc.num_heads + h) * width);
    }
  }
  const std::int32_t sequence = rows.sequence_of.as<std::int32_t>()[args.first_row + begin];
  for (std::int64_t first = part * kTileKeys; first < most; first += of_parts * kTileKeys) {
    HWY_DYNAMIC_DISPATCH(decode_index_keys)
    (rows, args.pools, desc.cache, sequence, first, std::min(kTileKeys, most - first), scratch.tile);
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t count = std::min(kTileKeys, visible_of(row) - first);
      if (count <= 0) continue;
      HWY_DYNAMIC_DISPATCH(score_tile)
      (scratch.queries + (row - begin) * desc.num_heads * width,
       args.weights_raw.as<float>() + (args.first_row + row) * desc.num_heads, desc.weight_scale, desc.num_heads, width,
       scratch.tile, count, scratch.dots, kTileKeys, args.scores.as<float>() + row * stride + first);
    }
  }
}

}  // namespace

std::int64_t index_scores_cpu_workspace(const IndexScoresDesc& desc, const DeviceInfo& device) {
  return std::max(device.num_threads, 1) * simd::Scratch::aligned_bytes<float>(PartScratch::floats(desc));
}

void index_scores_cpu(ExecutionContext& context, const IndexScoresPlan& plan, const IndexScoresArgs& args) {
  const IndexScoresDesc& desc = plan.desc;
  const std::int64_t num_rows = args.scores.shape[0];
  const std::int32_t* positions = args.rows->positions.as<std::int32_t>() + args.first_row;
  if (std::all_of(positions, positions + num_rows,
                  [&](std::int64_t position) { return (position + 1) / desc.cache.ratio <= desc.topk; })) {
    return;
  }
  FATHOM_CHECK(simd::prepared_columns(desc.cache.index_key.head_dim) == desc.cache.index_key.head_dim,
               "index keys have a multiple of 32 channels");
  const std::int32_t* sequence_of = args.rows->sequence_of.as<std::int32_t>() + args.first_row;
  const std::int64_t floats = simd::Scratch::aligned_bytes<float>(PartScratch::floats(desc)) / 4;
  simd::Scratch scratch(context);
  const std::int64_t parts = std::min<std::int64_t>(simd::num_threads(context), scratch.left_bytes() / (4 * floats));
  float* base = scratch.take<float>(parts * floats);

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
    const PartScratch part_scratch(desc, base + part * floats);
    for_each_block([&](std::int64_t index, std::int64_t begin, std::int64_t end) {
      if (num_blocks < parts) {
        score_block(desc, args, begin, end, part, parts, part_scratch);
      } else if (index % parts == part) {
        score_block(desc, args, begin, end, 0, 1, part_scratch);
      }
    });
  });
}

}  // namespace fathom
#endif  // HWY_ONCE
