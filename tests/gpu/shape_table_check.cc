// Index scores, selection and attention over a table of lengths up to 1,048,576, rows and heads: every CUDA variant
// against `naive`, which attention_check.cc proves against the reference. Caches are random bytes made here: a pool
// of blocks which the sequences' tables name in random order, many times where the context is long.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "device.h"
#include "ops/index_scores/index_scores.h"
#include "ops/select_topk/select_topk.h"
#include "ops/sparse_attention/sparse_attention.h"

namespace fathom::gpu {
namespace {

using testing::Random;
using testing::random_bf16_valued;
using testing::random_f32;
using testing::Tensor;

struct Shape {
  std::int32_t ratio, heads, rows;
  std::int64_t length;  // the longest row's
};

std::string describe(const Shape& s) {
  return "ratio " + std::to_string(s.ratio) + ", " + std::to_string(s.rows) + " rows, " + std::to_string(s.heads) +
         " heads, to " + std::to_string(s.length);
}

// Row r is the last position of its own sequence, r % 7 tokens short of the length.
struct LongCache {
  LayerCache layer;
  CachePools pools;
  StepRows rows;
  std::vector<std::int32_t> positions;
};

// Pages of records whose codes, rope channels and scales are all moderate.
void fill_records(Random& random, std::byte* page, int num_records) {
  auto* bytes = reinterpret_cast<std::uint8_t*>(page);
  for (int r = 0; r < num_records; ++r) {
    std::uint8_t* data = bytes + r * 576;
    for (int i = 0; i < 448; ++i) data[i] = static_cast<std::uint8_t>(random.integer(0, 256) & 0xbf);
    for (int i = 0; i < 64; ++i) {
      const auto value = static_cast<std::uint16_t>((random.integer(0, 65536) & 0x80ff) | 0x3e00);
      std::copy_n(reinterpret_cast<const std::uint8_t*>(&value), 2, data + 448 + 2 * i);
    }
    for (int i = 0; i < 8; ++i)
      bytes[num_records * 576 + r * 8 + i] = static_cast<std::uint8_t>(i < 7 ? 124 + random.integer(0, 4) : 0);
  }
}

LongCache make_long_cache(Arena& arena, Random& random, const Shape& s) {
  LongCache c;
  c.layer.ratio = s.ratio;
  c.layer.window_offset_bytes = 0;
  c.pools.window_block_bytes = c.layer.kv.page_bytes(128);
  const int entries = s.ratio == 0 ? 0 : 128 / s.ratio;
  std::int64_t context_bytes = 16;
  if (s.ratio != 0) c.layer.entry_offset_bytes = 0, context_bytes = c.layer.kv.page_bytes(entries);
  if (s.ratio == 4) {
    c.layer.index_key_offset_bytes = context_bytes;
    context_bytes += c.layer.index_key.page_bytes(entries);
  }
  c.pools.context_block_bytes = round_up(context_bytes, 16);
  const std::int64_t blocks = (s.length + 127) / 128;
  const auto pool_blocks = static_cast<std::int32_t>(std::min<std::int64_t>(blocks * s.rows, 256));
  std::vector<std::byte> context(static_cast<std::size_t>(pool_blocks * c.pools.context_block_bytes)),
      window(static_cast<std::size_t>(8 * c.pools.window_block_bytes));
  for (std::int32_t b = 0; b < pool_blocks && s.ratio != 0; ++b) {
    std::byte* block = context.data() + b * c.pools.context_block_bytes;
    fill_records(random, block, entries);
    if (s.ratio != 4) continue;
    std::byte* keys = block + c.layer.index_key_offset_bytes;
    for (int i = 0; i < 32 * 64; ++i) keys[i] = static_cast<std::byte>(random.integer(0, 256));
    for (int i = 0; i < 32 * 4; ++i) keys[32 * 64 + i] = static_cast<std::byte>(124 + random.integer(0, 4));
  }
  for (int b = 0; b < 8; ++b) fill_records(random, window.data() + b * c.pools.window_block_bytes, 128);
  const auto place = [&](std::vector<std::byte>& bytes) {
    return arena.copy(make_view(bytes.data(), DType::kU8, {static_cast<std::int64_t>(bytes.size())})).data;
  };
  c.pools.context = place(context), c.pools.window = place(window);
  std::vector<std::int32_t> ids, sequence_of, begin, wb, we, context_table, window_table, window_first, slots;
  std::vector<std::int64_t> context_offset, window_offset;
  for (std::int32_t r = 0; r < s.rows; ++r) {
    const auto p = static_cast<std::int32_t>(std::max<std::int64_t>(0, s.length - 1 - r % 7));
    c.positions.push_back(p), ids.push_back(1), sequence_of.push_back(r), begin.push_back(r), slots.push_back(0);
    wb.push_back(std::max(0, p - 127)), we.push_back(p + 1), window_first.push_back(std::max(0, p - 127) / 128);
    context_offset.push_back(static_cast<std::int64_t>(context_table.size()));
    window_offset.push_back(static_cast<std::int64_t>(window_table.size()));
    for (std::int64_t b = 0; b < blocks; ++b)
      context_table.push_back(static_cast<std::int32_t>(random.integer(0, pool_blocks)));
    for (int b = 0; b < 2; ++b) window_table.push_back(static_cast<std::int32_t>(random.integer(0, 8)));
  }
  begin.push_back(s.rows);
  const auto ints = [&](std::vector<std::int32_t>& v) {
    return arena.copy(make_view(v.data(), {static_cast<std::int64_t>(v.size())}));
  };
  const auto longs = [&](std::vector<std::int64_t>& v) {
    return arena.copy(make_view(v.data(), DType::kI64, {static_cast<std::int64_t>(v.size())}));
  };
  c.rows.num_tokens = c.rows.num_sequences = s.rows;
  c.rows.token_ids = ints(ids), c.rows.positions = ints(c.positions), c.rows.sequence_of = ints(sequence_of);
  c.rows.sequence_begin = ints(begin), c.rows.window_begin = ints(wb), c.rows.window_end = ints(we);
  c.rows.context_table = ints(context_table), c.rows.window_table = ints(window_table);
  c.rows.window_first = ints(window_first), c.rows.state_slot = ints(slots);
  c.rows.context_offset = longs(context_offset), c.rows.window_offset = longs(window_offset);
  return c;
}

// topk entries a row, one from each of topk equal stretches, ascending; all of them where fewer are visible.
std::vector<std::int32_t> spread_selection(Random& random, const LongCache& cache, std::int32_t topk) {
  std::vector<std::int32_t> selected;
  for (const std::int32_t p : cache.positions) {
    const std::int64_t visible = (p + 1) / 4, n = std::min<std::int64_t>(visible, topk);
    for (std::int64_t i = 0; i < topk; ++i) {
      const std::int64_t low = n == 0 ? 0 : i * visible / n, high = n == 0 ? 0 : (i + 1) * visible / n;
      selected.push_back(i >= n ? -1
                                : static_cast<std::int32_t>(low + random.integer(0, static_cast<int>(high - low))));
    }
  }
  return selected;
}

void check_attention(Random& random, const Shape& s) {
  Arena arena;
  constexpr std::int32_t kTopk = 512;
  const LongCache cache = make_long_cache(arena, random, s);
  const View q = arena.copy_bf16(random_bf16_valued(random, {s.rows, s.heads, 512}).view());
  const View sink = arena.copy(random_f32(random, {s.heads}).view());
  const View rope = arena.copy(random_f32(random, {s.rows, 32, 2}).view());
  std::vector<std::int32_t> selected = spread_selection(random, cache, kTopk);
  const SparseAttentionPlan plan =
      plan_sparse_attention({cache.layer, s.rows, s.heads, kTopk, Numerics::serve()}, device_info());
  SparseAttentionArgs args{&cache.rows, cache.pools, q, sink, {}, rope, {}};
  if (s.ratio == 4) args.selected = arena.copy(make_view(selected.data(), {s.rows, kTopk}));
  std::vector<float> naive, mma;
  for (const std::string& variant : cuda_variants(OpKind::kSparseAttention)) {
    args.out = arena.poisoned(DType::kBF16, {s.rows, s.heads, 512});
    run_cuda(OpKind::kSparseAttention, variant, plan.workspace_bytes,
             [&](ExecutionContext& c) { run_sparse_attention(c, plan, args); });
    const std::vector<float> got = read_floats(args.out);
    if (variant == "naive") naive = got;
    ASSERT_FALSE(naive.empty()) << "naive is registered first";
    if (variant != "naive") expect_close(got, naive, true, 4e-3, "sparse_attention/" + variant + " " + describe(s));
    if (variant == "mma") mma = got;
    if (!mma.empty()) {
      EXPECT_TRUE(got == mma) << variant << " has the bits of mma: " << describe(s);
    }
  }
}

TEST(Gpu, attention_shapes) {
  FATHOM_NEEDS_GPU();
  Random random;
  const std::int64_t lengths[] = {1, 127, 128, 129, 130, 511, 512, 513, 2047, 2048, 2049, 2051, 4100};
  const std::int32_t heads[] = {64, 8, 128, 16}, rows[] = {1, 3, 17, 5, 129, 9, 33};
  std::size_t n = 0;
  for (const std::int32_t ratio : {0, 4, 128}) {
    for (const std::int64_t length : lengths) {
      Shape s{ratio, heads[n % 4], rows[n % 7], length};
      if (s.heads * s.rows > 2200) s.heads = 16;
      ++n;
      if (!reduced() || (length == 130 && ratio != 0)) check_attention(random, s);
    }
  }
  if (reduced()) return;
  for (const std::int64_t length : {131072, 1048576}) {
    for (const std::int32_t ratio : {4, 128}) {
      check_attention(random, {ratio, 64, 3, length});
      check_attention(random, {ratio, 128, 1, length});
    }
  }
}

void check_scores(Random& random, const Shape& s) {
  Arena arena;
  const std::int32_t topk = s.length < 4096 ? 16 : 512;
  const LongCache cache = make_long_cache(arena, random, s);
  const std::int64_t stride = s.length / 4 + 5;
  const View q = arena.copy_bf16(random_bf16_valued(random, {s.rows, s.heads, 128}).view());
  const View w = arena.copy_bf16(random_bf16_valued(random, {s.rows, s.heads}).view());
  const IndexScoresPlan plan = plan_index_scores({cache.layer, s.heads, topk, 0.011f}, device_info());
  std::vector<float> naive;
  View scores;
  for (const std::string& variant : cuda_variants(OpKind::kIndexScores)) {
    if (variant == "full") continue;
    scores = arena.poisoned(DType::kF32, {s.rows, stride});
    run_cuda(OpKind::kIndexScores, variant, plan.workspace_bytes,
             [&](ExecutionContext& c) { run_index_scores(c, plan, {&cache.rows, cache.pools, 0, q, w, scores}); });
    std::vector<float> got = read_floats(scores);
    for (std::int32_t r = 0; r < s.rows; ++r) {
      const std::int32_t visible = (cache.positions[static_cast<std::size_t>(r)] + 1) / 4;
      for (std::int64_t j = 0; j < stride; ++j) {
        float& score = got[static_cast<std::size_t>(r * stride + j)];
        if (j < visible && visible > topk) continue;
        EXPECT_TRUE(std::isnan(score)) << variant << " wrote row " << r << " entry " << j;
        score = 0.0f;
      }
    }
    if (variant == "naive") naive = got;
    if (variant != "naive") expect_close(got, naive, false, 1e-5, "index_scores/" + variant + " " + describe(s));
  }
  // Blocks repeat in a long context, so equal scores abound.
  const std::vector<float> values = read_floats(scores);
  std::vector<std::int32_t> want;
  for (std::int32_t r = 0; r < s.rows; ++r) {
    const std::int32_t visible = (cache.positions[static_cast<std::size_t>(r)] + 1) / 4;
    std::vector<std::int32_t> order(static_cast<std::size_t>(visible));
    std::iota(order.begin(), order.end(), 0);
    const float* row = values.data() + r * stride;
    if (visible > topk) {
      std::partial_sort(order.begin(), order.begin() + topk, order.end(), [row](std::int32_t a, std::int32_t b) {
        return row[a] > row[b] || (row[a] == row[b] && a < b);
      });
      order.resize(static_cast<std::size_t>(topk));
      std::sort(order.begin(), order.end());
    }
    order.resize(static_cast<std::size_t>(topk), -1);
    want.insert(want.end(), order.begin(), order.end());
  }
  for (const std::string& variant : cuda_variants(OpKind::kSelectTopk)) {
    if (variant == "naive" && s.length > 200000) continue;  // quadratic
    const View got = arena.poisoned(DType::kI32, {s.rows, topk});
    run_cuda(OpKind::kSelectTopk, variant, 0, [&](ExecutionContext& c) {
      run_select_topk(c, plan_select_topk({topk, 4}, device_info()), {&cache.rows, 0, scores, got});
    });
    const bool same = read_ints(got) == want;
    report("  select_topk/" + variant + " " + describe(s) + (same ? " exact" : " FAILED"));
    EXPECT_TRUE(same) << variant << ' ' << describe(s);
  }
}

TEST(Gpu, score_and_selection_shapes) {
  FATHOM_NEEDS_GPU();
  Random random;
  const std::int32_t heads[] = {64, 8, 128, 16}, rows[] = {1, 3, 17, 5, 129, 9, 33};
  std::size_t n = 0;
  for (const std::int64_t length : {1, 127, 128, 129, 130, 511, 512, 513, 2047, 2048, 2049, 2051, 4100, 131072}) {
    check_scores(random, {4, heads[n % 4], rows[n % 7], length});
    ++n;
    if (reduced() && length == 513) return;
  }
  check_scores(random, {4, 64, 2, 1048576});
  check_scores(random, {4, 64, 33, 32768});
}

}  // namespace
}  // namespace fathom::gpu
