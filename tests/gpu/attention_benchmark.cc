// Times of the operations that read caches and of the hyper-connections between them, at Flash's shapes
// (bench_inputs.h).

#include <algorithm>

#include "bench_inputs.h"
#include "ops/attention_rows/attention_rows.h"
#include "ops/hyper_connection/hyper_connection.h"
#include "ops/index_scores/index_scores.h"
#include "ops/select_topk/select_topk.h"
#include "ops/sparse_attention/sparse_attention.h"

namespace fathom::gpu {
namespace {

TEST(Bench, hyper_connection) {
  FATHOM_NEEDS_GPU();
  Arena arena;
  constexpr std::int64_t kHidden = 4096;
  const int copies = 64;
  std::vector<View> fn;
  for (int i = 0; i < copies; ++i) fn.push_back(constant_bytes(arena, DType::kF32, {24, 4 * kHidden}, 0x3c));
  const View base = constant_bytes(arena, DType::kF32, {24}, 0x3d),
             scale = constant_bytes(arena, DType::kF32, {3}, 0x3f), norm = random_bf16(arena, {kHidden});
  for (const std::string& variant : cuda_variants(OpKind::kHyperConnection)) {
    for (const int batch : batches()) {
      const HyperConnectionPlan plan =
          plan_hyper_connection({kHidden, 4, 20, 1e-6f, 1e-6f, kServe, batch}, device_info());
      HyperConnectionArgs args;
      args.streams = random_bf16(arena, {batch, 4, kHidden}), args.sublayer_out = random_bf16(arena, {batch, kHidden});
      args.post = constant_bytes(arena, DType::kF32, {batch, 4}, 0x3e),
      args.comb = constant_bytes(arena, DType::kF32, {batch, 4, 4}, 0x3e);
      args.next_streams = arena.poisoned(DType::kBF16, {batch, 4, kHidden});
      args.norm_weight = norm, args.next_post = arena.poisoned(DType::kF32, {batch, 4}),
      args.next_comb = arena.poisoned(DType::kF32, {batch, 4, 4});
      args.normed = arena.poisoned(DType::kBF16, {batch, kHidden});
      const double us = time_cuda(OpKind::kHyperConnection, variant, plan.workspace_bytes, copies, copies,
                                  [&](ExecutionContext& c, int copy) {
                                    args.next = {fn[static_cast<std::size_t>(copy)], base, scale};
                                    run_hyper_connection(c, plan, args);
                                  });
      line(("hyper_connection/" + variant).c_str(), batch, us, 24.0 * 4 * kHidden * 4 + batch * kHidden * 2.0 * 10);
    }
  }
}

// Tables and pools for `batch` sequences of `length` tokens, `copies` times in different blocks. `chunk`: the rows are
// the last `batch` tokens of one sequence.
struct SyntheticCache {
  LayerCache layer;
  CachePools pools;
  std::vector<StepRows> rows;
  std::vector<View> selected;
};

SyntheticCache make_cache(Arena& arena, int ratio, int batch, std::int64_t length, int topk, int copies,
                          bool chunk = false) {
  SyntheticCache c;
  c.layer.ratio = ratio;
  c.layer.window_offset_bytes = 0;
  c.pools.window_block_bytes = c.layer.kv.page_bytes(128);
  std::int64_t context_bytes = 0;
  if (ratio != 0) {
    c.layer.entry_offset_bytes = 0;
    context_bytes = c.layer.kv.page_bytes(128 / ratio);
  }
  if (ratio == 4) {
    c.layer.index_key_offset_bytes = context_bytes;
    context_bytes += c.layer.index_key.page_bytes(32);
  }
  c.pools.context_block_bytes = round_up(context_bytes, 16);
  const int sequences = chunk ? 1 : batch;
  const std::int64_t context_blocks = (length + 127) / 128, window_blocks = chunk ? batch / 128 + 3 : 2;
  const std::int64_t num_context = std::max<std::int64_t>(1, context_blocks * sequences * copies),
                     num_window = window_blocks * sequences * copies;
  c.pools.context =
      random_codes(arena, DType::kU8, {std::max<std::int64_t>(num_context * c.pools.context_block_bytes, 256)},
                   0x0606060606060606ull)
          .data;
  c.pools.window =
      random_codes(arena, DType::kU8, {num_window * c.pools.window_block_bytes}, 0x0606060606060606ull).data;
  std::uint64_t state = 777;
  for (int copy = 0; copy < copies; ++copy) {
    std::vector<std::int32_t> token_ids(batch, 1), positions, sequence_of, begin, wb, we, context_table, window_table,
        window_first, slot(batch, 0), selected;
    std::vector<std::int64_t> context_offset, window_offset;
    for (int s = 0; s < sequences; ++s) {
      const auto p = static_cast<std::int32_t>(chunk ? length - batch : length - 1);  // its first row
      begin.push_back(s);
      context_offset.push_back(static_cast<std::int64_t>(context_table.size()));
      window_offset.push_back(static_cast<std::int64_t>(window_table.size()));
      window_first.push_back(std::max(0, p - 127) / 128);
      for (std::int64_t b = 0; b < context_blocks; ++b)
        context_table.push_back(static_cast<std::int32_t>((copy * sequences + s) * context_blocks + b));
      for (std::int64_t b = 0; b < window_blocks; ++b)
        window_table.push_back(static_cast<std::int32_t>((copy * sequences + s) * window_blocks + b));
    }
    for (int row = 0; row < batch; ++row) {
      const auto p = static_cast<std::int32_t>(chunk ? length - batch + row : length - 1);
      positions.push_back(p), sequence_of.push_back(chunk ? 0 : row), wb.push_back(std::max(0, p - 127)),
          we.push_back(p + 1);
      if (ratio == 4) {
        const std::int64_t visible = (p + 1) / 4;
        // Evenly spread with jitter: ascending and distinct.
        const std::int64_t n = std::min<std::int64_t>(visible, topk);
        for (std::int64_t i = 0; i < topk; ++i) {
          if (i >= n)
            selected.push_back(-1);
          else {
            const std::int64_t low = i * visible / n, high = (i + 1) * visible / n;
            selected.push_back(static_cast<std::int32_t>(
                low + static_cast<std::int64_t>(next_random(state) % static_cast<std::uint64_t>(high - low))));
          }
        }
      }
    }
    begin.push_back(batch);
    StepRows rows;
    rows.num_tokens = batch, rows.num_sequences = sequences;
    const auto ints = [&](std::vector<std::int32_t>& v) {
      return arena.copy(make_view(v.data(), {static_cast<std::int64_t>(v.size())}));
    };
    const auto longs = [&](std::vector<std::int64_t>& v) {
      return arena.copy(make_view(v.data(), DType::kI64, {static_cast<std::int64_t>(v.size())}));
    };
    if (context_table.empty()) context_table.push_back(0);
    rows.token_ids = ints(token_ids), rows.positions = ints(positions), rows.sequence_of = ints(sequence_of),
    rows.sequence_begin = ints(begin);
    rows.window_begin = ints(wb), rows.window_end = ints(we), rows.context_table = ints(context_table),
    rows.window_table = ints(window_table);
    rows.window_first = ints(window_first), rows.state_slot = ints(slot), rows.context_offset = longs(context_offset),
    rows.window_offset = longs(window_offset);
    c.rows.push_back(rows);
    if (ratio == 4) {
      View v = ints(selected);
      v.shape = {batch, topk};
      c.selected.push_back(v);
    } else {
      c.selected.push_back({});
    }
  }
  return c;
}

// Every row closes a group of its compressors, which one in four does.
TEST(Bench, attention_rows) {
  FATHOM_NEEDS_GPU();
  constexpr std::int32_t kHeads = 64;
  for (const int ratio : {4, 128, 0}) {
    for (const int batch : batches()) {
      Arena arena;
      const int copies = 16;
      SyntheticCache cache = make_cache(arena, ratio, batch, 8192, 512, copies);
      LayerCache& layer = cache.layer;
      const std::int64_t main_width = ratio == 4 ? 1024 : 512;
      const std::int64_t slab = ratio == 0 ? 0 : compressor_slots(ratio) * main_width * 4;
      layer.main_u_offset_bytes = 0, layer.main_g_offset_bytes = slab;
      layer.index_u_offset_bytes = 2 * slab, layer.index_g_offset_bytes = 2 * slab + 16 * 256 * 4;
      cache.pools.state_slot_bytes = 2 * slab + 2 * 16 * 256 * 4;
      cache.pools.state = constant_bytes(arena, DType::kU8, {cache.pools.state_slot_bytes}, 0x3c).data;
      AttentionRowsPlan parts;
      parts.queries = plan_q_norm_rope({kHeads, 512, 64, 1e-6f, kServe}, device_info());
      parts.kv_write = plan_kv_write({layer, 1e-6f, kServe}, device_info());
      if (ratio != 0)
        parts.compress_main = plan_compress_kv({CompressorKind::kMain, layer, 1e-6f, kServe}, device_info());
      if (ratio == 4)
        parts.compress_index = plan_compress_kv({CompressorKind::kIndex, layer, 1e-6f, kServe}, device_info());
      parts.index_query = plan_index_query({64, 128, 64, kServe}, device_info());
      const AttentionRowsPlan plan = plan_attention_rows(parts.queries, parts.kv_write, parts.compress_main,
                                                         parts.compress_index, parts.index_query);
      const View rope = constant_bytes(arena, DType::kF32, {batch, 32, 2}, 0x3f), norm = random_bf16(arena, {512}),
                 frequencies = constant_bytes(arena, DType::kF32, {32}, 0x3c);
      AttentionRowsArgs args;
      args.queries = {random_bf16(arena, {batch, kHeads * 512}), rope,
                      arena.poisoned(DType::kBF16, {batch, kHeads, 512})};
      args.kv_write = {nullptr, cache.pools, random_bf16(arena, {batch, 512}), norm, rope};
      const auto rows_of = [&](std::int64_t width) { return constant_bytes(arena, DType::kF32, {batch, width}, 0x3d); };
      if (ratio != 0)
        args.compress_main = {nullptr,
                              cache.pools,
                              rows_of(main_width),
                              rows_of(main_width),
                              constant_bytes(arena, DType::kF32, {ratio, main_width}, 0x3d),
                              norm,
                              frequencies};
      if (ratio == 4) {
        args.compress_index = {nullptr,
                               cache.pools,
                               rows_of(256),
                               rows_of(256),
                               constant_bytes(arena, DType::kF32, {4, 256}, 0x3d),
                               random_bf16(arena, {128}),
                               frequencies};
        args.index_query = {random_bf16(arena, {batch, 64 * 128}), rope,
                            arena.poisoned(DType::kBF16, {batch, 64, 128})};
      }
      const double bytes = cost_q_norm_rope(plan.queries, args.queries).bytes + batch * (1024.0 + 584.0) +
                           (ratio != 0 ? batch * 4.0 * main_width * (ratio == 4 ? 4 : 2 + 128) : 0.0) +
                           (ratio == 4 ? 2.0 * batch * 64 * 128 * 2 : 0.0);
      for (const std::string& variant : cuda_variants(OpKind::kAttentionRows)) {
        const double us = time_cuda(OpKind::kAttentionRows, variant, plan.workspace_bytes, copies, copies,
                                    [&](ExecutionContext& c, int copy) {
                                      AttentionRowsArgs one = args;
                                      one.kv_write.rows = one.compress_main.rows = one.compress_index.rows =
                                          &cache.rows[static_cast<std::size_t>(copy)];
                                      run_attention_rows(c, plan, one);
                                    });
        line(("attention_rows/" + variant + " ratio " + std::to_string(ratio)).c_str(), batch, us, bytes);
      }
    }
  }
}

TEST(Bench, sparse_attention) {
  FATHOM_NEEDS_GPU();
  for (const auto& [ratio, length, topk] : {std::array<std::int64_t, 3>{4, 8192, 512}, {128, 8192, 0}}) {
    if (!asked_for("FATHOM_GPU_RATIO", ratio)) continue;
    // Rows past half of the card's multiprocessors are where by_rows changes kernels; 512 and 2,048 are a prompt's.
    for (const int batch : {1, 8, 32, 64, 69, 96, 100, 128, 512, 2048}) {
      if (!asked_for("FATHOM_GPU_BATCH", batch)) continue;
      Arena arena;
      const bool chunk = batch > 128;
      const double keys = 128.0 + (ratio == 4 ? 512.0 : static_cast<double>(length) / 128.0);
      const double bytes = batch * (keys * 584 + 2.0 * 64 * 512 * 2);
      const int copies = std::clamp(static_cast<int>(1.5e8 / bytes), 2, 128);
      const SyntheticCache cache =
          make_cache(arena, static_cast<int>(ratio), batch, length, static_cast<int>(topk), copies, chunk);
      std::vector<View> q;
      for (int i = 0; i < copies; ++i) q.push_back(random_bf16(arena, {batch, 64, 512}));
      const View sink = constant_bytes(arena, DType::kF32, {64}, 0),
                 rope = constant_bytes(arena, DType::kF32, {batch, 32, 2}, 0x3f);
      const View out = arena.poisoned(DType::kBF16, {batch, 64, 512});
      const SparseAttentionPlan plan =
          plan_sparse_attention({cache.layer, batch, 64, static_cast<std::int32_t>(topk), kServe}, device_info());
      for (const char* variant :
           {"simt", "mma", "mma_splitk", "mma_splitk_arrival", "wgmma", "wgmma_whole", "by_rows"}) {
        if (chunk && variant != std::string("by_rows")) continue;
        const double us = time_cuda(
            OpKind::kSparseAttention, variant, plan.workspace_bytes, copies, copies,
            [&](ExecutionContext& c, int copy) {
              const auto i = static_cast<std::size_t>(copy);
              run_sparse_attention(c, plan, {&cache.rows[i], cache.pools, q[i], sink, cache.selected[i], rope, out});
            });
        line(("sparse_attention/" + std::string(variant) + " ratio " + std::to_string(ratio) + " at 8K").c_str(), batch,
             us, variant == std::string("simt") ? batch * 64.0 * keys * 584 : bytes);
      }
    }
  }
}

TEST(Bench, index_and_topk) {
  FATHOM_NEEDS_GPU();
  for (const auto& [length, max_batch] :
       {std::pair<std::int64_t, int>{2048, 128}, {8192, 128}, {131072, 64}, {1048576, 8}}) {
    if (!asked_for("FATHOM_GPU_CONTEXT", length)) continue;
    for (const int batch : batches(max_batch)) {
      Arena arena;
      const std::int64_t keys = length / 4;
      const double bytes = static_cast<double>(batch * keys) * 68;
      const int copies = std::clamp(static_cast<int>(1.0e8 / bytes), 1, 32);
      const int topk = length == 2048 ? 128 : 512;  // at 2,048 everything would be selected
      const SyntheticCache cache = make_cache(arena, 4, batch, length, topk, copies);
      const View q = random_bf16(arena, {batch, 64, 128}), w = random_bf16(arena, {batch, 64});
      const View scores = arena.poisoned(DType::kF32, {batch, keys}),
                 selected = arena.poisoned(DType::kI32, {batch, topk});
      const IndexScoresPlan plan = plan_index_scores({cache.layer, 64, topk, 0.011f}, device_info());
      const std::string at = " " + std::to_string(keys) + " keys";
      for (const char* variant : {"paged", "wgmma"}) {
        const double us = time_cuda(
            OpKind::kIndexScores, variant, 0, copies, std::max(8, copies), [&](ExecutionContext& c, int copy) {
              run_index_scores(c, plan, {&cache.rows[static_cast<std::size_t>(copy)], cache.pools, 0, q, w, scores});
            });
        line(("index_scores/" + std::string(variant) + at).c_str(), batch, us, bytes);
      }
      const SelectTopkPlan topk_plan = plan_select_topk({topk, 4}, device_info());
      for (const char* variant : {"radix", "cluster"}) {
        const double us = time_cuda(OpKind::kSelectTopk, variant, 0, 1, 8, [&](ExecutionContext& c, int) {
          run_select_topk(c, topk_plan, {&cache.rows[0], 0, scores, selected});
        });
        line(("select_topk/" + std::string(variant) + at).c_str(), batch, us, static_cast<double>(batch * keys) * 4);
      }
    }
  }
  // The campaign's S4: scores of a configured maximum of 1M (262,144 entries) at an actual 2K.
  for (const int batch : {1, 8, 32}) {
    Arena arena;
    const SyntheticCache cache = make_cache(arena, 4, batch, 2048, 128, 2);
    const View q = random_bf16(arena, {batch, 64, 128}), w = random_bf16(arena, {batch, 64});
    const IndexScoresPlan plan = plan_index_scores({cache.layer, 64, 128, 0.011f}, device_info());
    for (const auto& [variant, maximum] :
         {std::pair<const char*, std::int64_t>{"full", 262144}, {"paged", 262144}, {"paged", 2048}}) {
      const View scores = arena.poisoned(DType::kF32, {batch, maximum});
      const double us = time_cuda(OpKind::kIndexScores, variant, 0, 2, 8, [&](ExecutionContext& c, int copy) {
        run_index_scores(c, plan, {&cache.rows[static_cast<std::size_t>(copy)], cache.pools, 0, q, w, scores});
      });
      line(("index_scores/" + std::string(variant) + " actual 2K, maximum " + std::to_string(maximum * 4)).c_str(),
           batch, us, batch * 512.0 * 68);
    }
  }
}

}  // namespace
}  // namespace fathom::gpu
