#include <algorithm>
#include <cmath>

#include "ops/cache_records.h"
#include "ops/simd/products.h"
#include "ops/simd/records.h"
#include "ops/simd/targets.h"
#include "ops/sparse_attention/sparse_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/sparse_attention/cpu.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "ops/sparse_attention/attend-inl.h"

#if HWY_ONCE
namespace fathom {
HWY_EXPORT(attend_group);
HWY_EXPORT(fold_group);
HWY_EXPORT(finish_heads);
namespace {

constexpr std::int64_t kGroupKeys = 128;    // keys of a compressed group
constexpr std::int64_t kWindowKeys = 192;   // decoded window rows kept: a window, and 64 rows to move on
constexpr std::int64_t kMostTiles = 4;      // decoded compressed groups kept
constexpr std::int64_t kLogitStride = 192;  // of one head: the largest group, in whole vectors

struct Sizes {
  explicit Sizes(const SparseAttentionDesc& desc)
      : width(desc.cache.kv.head_dim),
        heads(desc.num_heads),
        tiles(desc.cache.ratio == 0   ? 0
              : desc.cache.ratio == 4 ? std::min((desc.topk + kGroupKeys - 1) / kGroupKeys, kMostTiles)
                                      : 1) {}
  std::int64_t width, heads, tiles;
  std::int64_t key_floats() const { return (kWindowKeys + tiles * kGroupKeys + 4) * width; }
  std::int64_t head_floats() const { return kLogitStride + 64 + 2 * width; }
  std::int64_t part_floats() const { return (key_floats() + heads * head_floats() + 15) / 16 * 16; }
};

// The keys of one row: its window, then its compressed entries in groups of 128.
class RowKeys {
 public:
  RowKeys(const SparseAttentionDesc& desc, const SparseAttentionArgs& args, std::int64_t t)
      : cache(desc.cache), rows(*args.rows), pools(args.pools) {
    sequence = rows.sequence_of.as<std::int32_t>()[t];
    window_begin = rows.window_begin.as<std::int32_t>()[t];
    window_end = rows.window_end.as<std::int32_t>()[t];
    FATHOM_CHECK(0 < window_end - window_begin && window_end - window_begin <= kWindowKeys,
                 "a window holds between one key and a window and a draft block");
    if (cache.ratio == 0) return;
    num_entries = (rows.positions.as<std::int32_t>()[t] + 1) / cache.ratio;
    if (cache.ratio != 4) return;
    selected = args.selected.as<std::int32_t>() + t * desc.topk;
    const std::int64_t most = std::min<std::int64_t>(num_entries, desc.topk);
    num_entries = std::find(selected, selected + most, -1) - selected;
  }
  std::int64_t num_groups() const { return (num_entries + kGroupKeys - 1) / kGroupKeys; }
  std::int64_t group_size(std::int64_t g) const { return std::min(kGroupKeys, num_entries - g * kGroupKeys); }
  std::int32_t entry(std::int64_t i) const { return selected != nullptr ? selected[i] : static_cast<std::int32_t>(i); }

  CacheRecord window_at(std::int64_t position) const {
    return window_record(rows, pools, cache, sequence, static_cast<std::int32_t>(position));
  }
  CacheRecord entry_at(std::int64_t index) const { return entry_record(rows, pools, cache, sequence, index); }

  const LayerCache& cache;
  const StepRows& rows;
  const CachePools& pools;
  std::int32_t sequence = 0;
  std::int32_t window_begin = 0, window_end = 0;
  std::int64_t num_entries = 0;
  const std::int32_t* selected = nullptr;  // ratio 4
};

// Decodes records that are given one by one, and asks for them in batches.
class RecordBatch {
 public:
  explicit RecordBatch(const KvRecordLayout& layout) : layout_(layout) {}
  RecordBatch(const RecordBatch&) = delete;
  RecordBatch& operator=(const RecordBatch&) = delete;
  ~RecordBatch() { decode(); }
  void add(CacheRecord record, float* out) {
    simd::prefetch_kv_record(layout_, record);
    records_[count_] = record;
    outs_[count_] = out;
    if (++count_ == kMost) decode();
  }

 private:
  void decode() {
    for (int i = 0; i < count_; ++i) simd::read_kv_record(layout_, records_[i], outs_[i]);
    count_ = 0;
  }

  static constexpr int kMost = 16;
  const KvRecordLayout& layout_;
  int count_ = 0;
  CacheRecord records_[kMost];
  float* outs_[kMost];
};

// (m, l, o) of some heads, and where a group's part of it goes before the fold.
struct HeadState {
  HeadState(float* base, std::int64_t heads, std::int64_t width)
      : s(base),
        m(s + heads * kLogitStride),
        l(m + heads),
        m_group(l + heads),
        l_group(m_group + heads),
        o(base + heads * (kLogitStride + 64)),
        o_group(o + heads * width) {}
  float *s, *m, *l, *m_group, *l_group, *o, *o_group;
};

// Heads [begin, end) of row t over groups already decoded.
class RowHeads {
 public:
  RowHeads(const SparseAttentionDesc& desc, const SparseAttentionArgs& args, std::int64_t t, std::int64_t begin,
           std::int64_t end, HeadState state)
      : desc_(desc),
        args_(args),
        t_(t),
        begin_(begin),
        count_(end - begin),
        width_(desc.cache.kv.head_dim),
        scale_(static_cast<float>(1.0 / std::sqrt(static_cast<double>(width_)))),
        state_(state) {}

  void add(const float* keys, std::int64_t num_keys, bool first) const {
    HWY_DYNAMIC_DISPATCH(attend_group)
    (row(args_.q), keys, num_keys, width_, count_, scale_, state_.s, kLogitStride, first ? state_.m : state_.m_group,
     first ? state_.l : state_.l_group, first ? state_.o : state_.o_group);
    if (first) return;
    HWY_DYNAMIC_DISPATCH(fold_group)
    (state_.m_group, state_.l_group, state_.o_group, width_, count_, state_.m, state_.l, state_.o);
  }
  void finish() const {
    HWY_DYNAMIC_DISPATCH(finish_heads)
    (state_.m, state_.l, state_.o, args_.sink.data + 4 * begin_, args_.rope.as<float>() + t_ * desc_.cache.kv.rope_dim,
     width_, desc_.cache.kv.rope_dim, count_, desc_.numerics.rounds_to_bf16(), row(args_.out));
  }

 private:
  float* row(const View& view) const { return view.as<float>() + (t_ * desc_.num_heads + begin_) * width_; }

  const SparseAttentionDesc& desc_;
  const SparseAttentionArgs& args_;
  std::int64_t t_, begin_, count_, width_;
  float scale_;
  HeadState state_;
};

// Decoded keys that consecutive rows of one thread share.
class KeyTiles {
 public:
  KeyTiles(float* base, const Sizes& sizes) : sizes_(sizes), window_(base), tiles_(base + kWindowKeys * sizes.width) {
    std::fill_n(filled_, kMostTiles, 0);
  }

  // The row's window keys, contiguous; decodes those not there yet.
  const float* window(const RowKeys& keys) {
    if (keys.sequence != sequence_) {
      sequence_ = keys.sequence;
      begin_ = end_ = 0;
      std::fill_n(filled_, kMostTiles, 0);
    }
    if (keys.window_begin < begin_ || keys.window_begin > end_ || keys.window_end > begin_ + kWindowKeys) {
      begin_ = end_ = keys.window_begin;
    }
    RecordBatch batch(keys.cache.kv);
    for (; end_ < keys.window_end; ++end_) batch.add(keys.window_at(end_), window_ + (end_ - begin_) * sizes_.width);
    return window_ + (keys.window_begin - begin_) * sizes_.width;
  }
  // The row's compressed group g; what a tile already holds in the same place stays.
  const float* group(const RowKeys& keys, std::int64_t g) {
    const std::int64_t slot = g % sizes_.tiles;
    float* tile = tiles_ + slot * kGroupKeys * sizes_.width;
    std::int32_t* ids = ids_[slot];
    const std::int64_t count = keys.group_size(g);
    RecordBatch batch(keys.cache.kv);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t entry = keys.entry(g * kGroupKeys + i);
      if (i < filled_[slot] && ids[i] == entry) continue;
      batch.add(keys.entry_at(entry), tile + i * sizes_.width);
      ids[i] = entry;
    }
    filled_[slot] = std::max(filled_[slot], count);
    return tile;
  }

 private:
  const Sizes& sizes_;
  float* window_;
  float* tiles_;
  std::int32_t sequence_ = -1;
  std::int64_t begin_ = 0, end_ = 0;  // positions in window_
  std::int64_t filled_[kMostTiles];
  std::int32_t ids_[kMostTiles][kGroupKeys];
};

// Heads [head_begin, head_end) of rows [begin, end), with decoded keys of their own.
void attend(const SparseAttentionDesc& desc, const SparseAttentionArgs& args, std::int64_t begin, std::int64_t end,
            std::int64_t head_begin, std::int64_t head_end, const Sizes& sizes, float* base) {
  KeyTiles tiles(base, sizes);
  const HeadState state(base + sizes.key_floats(), head_end - head_begin, sizes.width);
  for (std::int64_t t = begin; t < end; ++t) {
    const RowKeys keys(desc, args, t);
    const RowHeads heads(desc, args, t, head_begin, head_end, state);
    heads.add(tiles.window(keys), keys.window_end - keys.window_begin, true);
    for (std::int64_t g = 0; g < keys.num_groups(); ++g) heads.add(tiles.group(keys, g), keys.group_size(g), false);
    heads.finish();
  }
}

}  // namespace

std::int64_t sparse_attention_cpu_workspace(const SparseAttentionDesc& desc, const DeviceInfo& device) {
  return std::max(device.num_threads, 1) * Sizes(desc).part_floats() * static_cast<std::int64_t>(sizeof(float));
}

void sparse_attention_cpu(ExecutionContext& context, const SparseAttentionPlan& plan, const SparseAttentionArgs& args) {
  const SparseAttentionDesc& desc = plan.desc;
  const Sizes sizes(desc);
  FATHOM_CHECK(sizes.width % 16 == 0, "heads are whole vectors");
  const std::int64_t tokens = args.rows->num_tokens;
  if (tokens == 0) return;
  simd::Scratch scratch(context);
  const std::int64_t parts =
      std::min<std::int64_t>(simd::num_threads(context), scratch.left_bytes() / (4 * sizes.part_floats()));
  float* base = scratch.take<float>(std::max<std::int64_t>(parts, 1) * sizes.part_floats());
  if (tokens < parts) {
    // Threads share the rows and split the heads. Each decodes all keys: a decoded key from another thread's cache
    // would cost more than decoding its record again.
    const std::int64_t head_parts = std::min(parts, sizes.heads);
    simd::run_parts(context, head_parts, [&](std::int64_t part) {
      attend(desc, args, 0, tokens, sizes.heads * part / head_parts, sizes.heads * (part + 1) / head_parts, sizes,
             base + part * sizes.part_floats());
    });
    return;
  }
  simd::run_parts(context, parts, [&](std::int64_t part) {
    attend(desc, args, tokens * part / parts, tokens * (part + 1) / parts, 0, sizes.heads, sizes,
           base + part * sizes.part_floats());
  });
}

}  // namespace fathom
#endif  // HWY_ONCE
