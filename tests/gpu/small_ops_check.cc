// embed, norms, rope, q, keys, compressors, hyper-connections, head: every CUDA variant against the reference.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "device.h"
#include "ops/attention_rows/attention_rows.h"
#include "ops/compress_kv/compress_kv.h"
#include "ops/embed/embed.h"
#include "ops/hc_head/hc_head.h"
#include "ops/hyper_connection/hyper_connection.h"
#include "ops/index_query/index_query.h"
#include "ops/kv_write/kv_write.h"
#include "ops/q_norm_rope/q_norm_rope.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rope_rows/rope_rows.h"
#include "ops/testing/run.h"
#include "tensor/block_quantise.h"

namespace fathom::gpu {
namespace {

using testing::make_f32;
using testing::make_i32;
using testing::PagedCache;
using testing::poisoned;
using testing::Random;
using testing::random_bf16;
using testing::random_bf16_valued;
using testing::random_f32;
using testing::run_with;
using testing::StepPart;
using testing::Tensor;
using testing::TestStep;

constexpr Numerics kServe = Numerics::serve();
const DeviceInfo kCpu;

std::string label(OpKind op, const std::string& variant, const std::string& shape) {
  return std::string(op_name(op)) + "/" + variant + " " + shape;
}

TEST(Gpu, embed) {
  FATHOM_NEEDS_GPU();
  Random random;
  Arena arena;
  const std::int64_t hidden = 256, vocab = 97, tokens = 129;
  const Tensor table = random_bf16(random, {vocab, hidden});
  std::vector<std::int32_t> ids(tokens);
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random.integer(0, vocab));
  const Tensor id_tensor = make_i32({tokens}, ids);
  const Tensor want = poisoned(DType::kF32, {tokens, 4, hidden});
  run_with(OpKind::kEmbed, "reference", 1, kReferenceScratch, [&](ExecutionContext& c) {
    run_embed(c, plan_embed({hidden, 4}, kCpu), {id_tensor.view(), table.view(), want.view()});
  });
  for (const std::string& variant : cuda_variants(OpKind::kEmbed)) {
    const View got = arena.poisoned(DType::kBF16, {tokens, 4, hidden});
    run_cuda(OpKind::kEmbed, variant, 0, [&](ExecutionContext& c) {
      run_embed(c, plan_embed({hidden, 4}, device_info()),
                {arena.copy(id_tensor.view()), arena.copy(table.view()), got});
    });
    expect_close(read_floats(got), want.floats(), true, 0.0, label(OpKind::kEmbed, variant, "129 x 256"));
  }
}

// AQ 128 of `rows`, in rows of `width`, bit for bit.
void expect_quantised(const View& quantised, const View& rows, std::int64_t width, const std::string& what) {
  std::vector<float> want = read_floats(rows);
  for (std::size_t row = 0; row < want.size(); row += static_cast<std::size_t>(width)) {
    simulate_e4m3(std::span(want).subspan(row, static_cast<std::size_t>(width)), 128);
  }
  expect_close(read_floats(quantised), want, true, 0.0, what);
}

TEST(Gpu, rms_norm) {
  FATHOM_NEEDS_GPU();
  Random random;
  for (const auto& [rows, width] :
       {std::pair<std::int64_t, std::int64_t>{1, 128}, {7, 1024}, {129, 4096}, {33, 7168}}) {
    Arena arena;
    const Tensor x = random_bf16_valued(random, {rows, width}), weight = random_bf16(random, {width}, 0.5f, 1.0f);
    const Tensor want = poisoned(DType::kF32, {rows, width});
    const RmsNormDesc desc{width, 1e-6f, kServe};
    run_with(OpKind::kRmsNorm, "reference", 4, kReferenceScratch, [&](ExecutionContext& c) {
      run_rms_norm(c, plan_rms_norm(desc, kCpu), {x.view(), weight.view(), want.view()});
    });
    for (const std::string& variant : cuda_variants(OpKind::kRmsNorm)) {
      const View got = arena.poisoned(DType::kBF16, {rows, width});
      run_cuda(OpKind::kRmsNorm, variant, 0, [&](ExecutionContext& c) {
        run_rms_norm(c, plan_rms_norm(desc, device_info()),
                     {arena.copy_bf16(x.view()), arena.copy(weight.view()), got});
      });
      expect_close(read_floats(got), want.floats(), true, 1e-3,
                   label(OpKind::kRmsNorm, variant, std::to_string(rows) + " x " + std::to_string(width)));
      const View again = arena.poisoned(DType::kBF16, {rows, width}),
                 quantised = arena.poisoned(DType::kBF16, {rows, width});
      run_cuda(OpKind::kRmsNorm, variant, 0, [&](ExecutionContext& c) {
        run_rms_norm(c, plan_rms_norm(desc, device_info()),
                     {arena.copy_bf16(x.view()), arena.copy(weight.view()), again, quantised});
      });
      EXPECT_EQ(read_floats(again), read_floats(got)) << variant;
      expect_quantised(quantised, got, width,
                       label(OpKind::kRmsNorm, variant, std::to_string(width) + " quantised (exact)"));
    }
  }
}

TEST(Gpu, rope_rows) {
  FATHOM_NEEDS_GPU();
  Arena arena;
  std::vector<std::int32_t> positions = {0, 1, 127, 128, 5000, 65535, 65536, 100000, 999999, 1000000, 1048575};
  const auto rows = static_cast<std::int64_t>(positions.size());
  const std::vector<float> window = make_rope_frequencies(10000, 64, {}),
                           compressed = make_rope_frequencies(160000, 64, {16.0f});
  const Tensor p = make_i32({rows}, positions), w = make_f32({32}, window), f = make_f32({32}, compressed);
  const Tensor want_w = poisoned(DType::kF32, {rows, 32, 2}), want_c = poisoned(DType::kF32, {rows, 32, 2});
  run_with(OpKind::kRopeRows, "reference", 1, kReferenceScratch, [&](ExecutionContext& c) {
    run_rope_rows(c, plan_rope_rows({64}, kCpu), {p.view(), w.view(), f.view(), want_w.view(), want_c.view()});
  });
  for (const std::string& variant : cuda_variants(OpKind::kRopeRows)) {
    const View got_w = arena.poisoned(DType::kF32, {rows, 32, 2}), got_c = arena.poisoned(DType::kF32, {rows, 32, 2});
    run_cuda(OpKind::kRopeRows, variant, 0, [&](ExecutionContext& c) {
      run_rope_rows(c, plan_rope_rows({64}, device_info()),
                    {arena.copy(p.view()), arena.copy(w.view()), arena.copy(f.view()), got_w, got_c});
    });
    expect_close(read_floats(got_w), want_w.floats(), false, 1e-6,
                 label(OpKind::kRopeRows, variant, "window, to 1048575"));
    expect_close(read_floats(got_c), want_c.floats(), false, 1e-6,
                 label(OpKind::kRopeRows, variant, "YaRN, to 1048575"));
  }
}

// cos, sin of random positions.
Tensor random_rope(Random& random, std::int64_t rows) {
  Tensor rope(DType::kF32, {rows, 32, 2});
  for (std::size_t i = 0; i < rope.floats().size(); i += 2) {
    const float angle = 10.0f * random.normal();
    rope.floats()[i] = std::cos(angle);
    rope.floats()[i + 1] = std::sin(angle);
  }
  return rope;
}

TEST(Gpu, q_norm_rope) {
  FATHOM_NEEDS_GPU();
  Random random;
  for (const auto& [rows, heads] : {std::pair{1, 8}, {129, 16}, {5, 64}, {3, 128}}) {
    Arena arena;
    const Tensor q = random_bf16_valued(random, {rows, heads * 512}, 2.0f), rope = random_rope(random, rows);
    const Tensor want = poisoned(DType::kF32, {rows, heads, 512});
    const QNormRopeDesc desc{heads, 512, 64, 1e-6f, kServe};
    run_with(OpKind::kQNormRope, "reference", 4, kReferenceScratch, [&](ExecutionContext& c) {
      run_q_norm_rope(c, plan_q_norm_rope(desc, kCpu), {q.view(), rope.view(), want.view()});
    });
    for (const std::string& variant : cuda_variants(OpKind::kQNormRope)) {
      const View got = arena.poisoned(DType::kBF16, {rows, heads, 512});
      run_cuda(OpKind::kQNormRope, variant, 0, [&](ExecutionContext& c) {
        run_q_norm_rope(c, plan_q_norm_rope(desc, device_info()),
                        {arena.copy_bf16(q.view()), arena.copy(rope.view()), got});
      });
      expect_close(read_floats(got), want.floats(), true, 1e-3,
                   label(OpKind::kQNormRope, variant, std::to_string(rows) + " x " + std::to_string(heads)));
    }
  }
}

TEST(Gpu, index_query) {
  FATHOM_NEEDS_GPU();
  Random random;
  for (const auto& [rows, heads] : {std::pair{1, 8}, {129, 64}}) {
    Arena arena;
    const Tensor q = random_bf16_valued(random, {rows, heads * 128}), rope = random_rope(random, rows);
    const Tensor want = poisoned(DType::kF32, {rows, heads, 128});
    const IndexQueryDesc desc{heads, 128, 64, kServe};
    run_with(OpKind::kIndexQuery, "reference", 4, kReferenceScratch, [&](ExecutionContext& c) {
      run_index_query(c, plan_index_query(desc, kCpu), {q.view(), rope.view(), want.view()});
    });
    for (const std::string& variant : cuda_variants(OpKind::kIndexQuery)) {
      const View got = arena.poisoned(DType::kBF16, {rows, heads, 128});
      run_cuda(OpKind::kIndexQuery, variant, 0, [&](ExecutionContext& c) {
        run_index_query(c, plan_index_query(desc, device_info()),
                        {arena.copy_bf16(q.view()), arena.copy(rope.view()), got});
      });
      expect_close(
          read_floats(got), want.floats(), true, 0.0,
          label(OpKind::kIndexQuery, variant, std::to_string(rows) + " x " + std::to_string(heads) + " (exact)"));
    }
  }
}

// Bytes of all pools after an operation wrote into them, on both sides.
void expect_same_bytes(const PagedCache& cache, const CachePools& pools, const std::string& what) {
  const std::vector<std::byte> want = cache.snapshot();
  std::vector<std::byte> got;
  const auto bytes = cache.pool_bytes();
  const std::byte* data[3] = {pools.context, pools.window, pools.state};
  for (int i = 0; i < 3; ++i) {
    if (bytes[static_cast<std::size_t>(i)] == 0) continue;
    const std::vector<std::byte> part = read_bytes(data[i], bytes[static_cast<std::size_t>(i)]);
    got.insert(got.end(), part.begin(), part.end());
  }
  ASSERT_EQ(got.size(), want.size());
  std::size_t different = 0;
  for (std::size_t i = 0; i < got.size(); ++i) different += got[i] != want[i] ? 1 : 0;
  char text[160];
  std::snprintf(text, sizeof(text), "  %-58s %zu of %zu bytes differ%s", what.c_str(), different, got.size(),
                different > 0 ? "  FAILED" : "");
  report(text);
  EXPECT_EQ(different, 0u) << what;
}

TEST(Gpu, kv_write) {
  FATHOM_NEEDS_GPU();
  Random random;
  for (const std::string& variant : cuda_variants(OpKind::kKvWrite)) {
    Arena arena;
    PagedCache cache(random, 0, true, 3, 2304);
    const StepPart parts[] = {{0, 0, 130}, {2, 2047, 4}, {1, 511, 3}};
    const TestStep step = cache.make_step(parts);
    const std::int64_t rows = step.rows().num_tokens;
    const Tensor kv = random_bf16_valued(random, {rows, 512}), norm = random_bf16(random, {512}, 0.3f, 1.0f),
                 rope = random_rope(random, rows);
    const KvWriteDesc desc{cache.layer(), 1e-6f, kServe};
    const CachePools pools = copy_pools(arena, cache);
    const StepRows device_rows = copy_rows(arena, step.rows());
    run_with(OpKind::kKvWrite, "reference", 4, kReferenceScratch, [&](ExecutionContext& c) {
      run_kv_write(c, plan_kv_write(desc, kCpu), {&step.rows(), cache.pools(), kv.view(), norm.view(), rope.view()});
    });
    run_cuda(OpKind::kKvWrite, variant, 0, [&](ExecutionContext& c) {
      run_kv_write(c, plan_kv_write(desc, device_info()),
                   {&device_rows, pools, arena.copy_bf16(kv.view()), arena.copy(norm.view()), arena.copy(rope.view())});
    });
    expect_same_bytes(cache, pools, label(OpKind::kKvWrite, variant, "137 rows"));
  }
}

TEST(Gpu, compress_kv) {
  FATHOM_NEEDS_GPU();
  Random random;
  const std::vector<float> frequencies = make_rope_frequencies(160000, 64, {16.0f});
  const Tensor f = make_f32({32}, frequencies);
  for (const auto& [ratio, kind] :
       {std::pair{4, CompressorKind::kMain}, {4, CompressorKind::kIndex}, {128, CompressorKind::kMain}}) {
    for (const std::string& variant : cuda_variants(OpKind::kCompressKv)) {
      Arena arena;
      PagedCache cache(random, ratio, true, 3, 640);
      const CompressKvDesc desc{kind, cache.layer(), 1e-6f, kServe};
      const std::int64_t width = desc.row_width();
      const Tensor ape = random_f32(random, {ratio, width}), norm = random_bf16(random, {desc.width()}, 0.3f, 1.0f);
      const CachePools pools = copy_pools(arena, cache);
      // A prefill, then a decode step of several sequences that continues it.
      const std::vector<std::vector<StepPart>> steps = {{{0, 0, 133}, {1, 0, 255}},
                                                        {{0, 133, 3}, {1, 255, 1}, {2, 0, 5}},
                                                        {{0, 136, 120}},
                                                        {{1, 256, 1}, {2, 5, 4}, {0, 256, 8}},
                                                        {{1, 257, 1}, {2, 9, 1}, {0, 264, 1}},  // one launch
                                                        {{0, 265, 9}},
                                                        {{1, 258, 2}},
                                                        {{2, 10, 1}, {1, 260, 1}, {0, 274, 1}},
                                                        {{0, 275, 14}, {2, 11, 1}}};
      for (const std::vector<StepPart>& parts : steps) {
        const TestStep step = cache.make_step(parts);
        const std::int64_t rows = step.rows().num_tokens;
        const Tensor u = random_f32(random, {rows, width}), g = random_f32(random, {rows, width}, 2.0f);
        const StepRows device_rows = copy_rows(arena, step.rows());
        run_with(OpKind::kCompressKv, "reference", 4, kReferenceScratch, [&](ExecutionContext& c) {
          run_compress_kv(c, plan_compress_kv(desc, kCpu),
                          {&step.rows(), cache.pools(), u.view(), g.view(), ape.view(), norm.view(), f.view()});
        });
        run_cuda(OpKind::kCompressKv, variant, 0, [&](ExecutionContext& c) {
          run_compress_kv(c, plan_compress_kv(desc, device_info()),
                          {&device_rows, pools, arena.copy(u.view()), arena.copy(g.view()), arena.copy(ape.view()),
                           arena.copy(norm.view()), arena.copy(f.view())});
        });
      }
      expect_same_bytes(cache, pools,
                        label(OpKind::kCompressKv, variant,
                              "ratio " + std::to_string(ratio) + (kind == CompressorKind::kMain ? " main" : " index")));
    }
  }
}

// Every part against its reference, and `fused` against `separate` bit for bit.
TEST(Gpu, attention_rows) {
  FATHOM_NEEDS_GPU();
  Random random;
  const Tensor f = make_f32({32}, make_rope_frequencies(160000, 64, {16.0f}));
  const std::vector<std::string> variants = cuda_variants(OpKind::kAttentionRows);
  constexpr std::int32_t kHeads = 9, kIndexHeads = 7;  // blocks of four heads end with some missing
  for (const std::int32_t ratio : {0, 4, 128}) {
    Arena arena;
    PagedCache cache(random, ratio, true, 3, 640);
    const LayerCache& layer = cache.layer();
    const auto plan_for = [&](const DeviceInfo& device) {
      AttentionRowsPlan plan;
      plan.queries = plan_q_norm_rope({kHeads, 512, 64, 1e-6f, kServe}, device);
      plan.kv_write = plan_kv_write({layer, 1e-6f, kServe}, device);
      if (ratio != 0) plan.compress_main = plan_compress_kv({CompressorKind::kMain, layer, 1e-6f, kServe}, device);
      if (ratio == 4) plan.compress_index = plan_compress_kv({CompressorKind::kIndex, layer, 1e-6f, kServe}, device);
      plan.index_query = plan_index_query({kIndexHeads, 128, 64, kServe}, device);
      return plan_attention_rows(plan.queries, plan.kv_write, plan.compress_main, plan.compress_index,
                                 plan.index_query);
    };
    const AttentionRowsPlan cpu = plan_for(kCpu), plan = plan_for(device_info());
    std::vector<CachePools> pools;
    for (std::size_t v = 0; v < variants.size(); ++v) pools.push_back(copy_pools(arena, cache));
    const Tensor kv_norm = random_bf16(random, {512}, 0.3f, 1.0f);
    const std::int64_t main_width = ratio == 0 ? 512 : plan.compress_main.desc.row_width();
    const Tensor main_ape = random_f32(random, {std::max(ratio, 1), main_width}),
                 main_norm = random_bf16(random, {512}, 0.3f, 1.0f);
    const Tensor index_ape = random_f32(random, {4, 256}), index_norm = random_bf16(random, {128}, 0.3f, 1.0f);
    const std::vector<std::vector<StepPart>> steps = {{{0, 0, 133}, {1, 0, 255}},
                                                      {{0, 133, 3}, {1, 255, 1}, {2, 0, 5}},
                                                      {{0, 136, 120}},
                                                      {{1, 256, 1}, {2, 5, 1}, {0, 256, 1}},
                                                      {{0, 257, 9}},
                                                      {{1, 257, 2}},
                                                      {{0, 266, 14}, {2, 6, 1}}};
    for (std::size_t s = 0; s < steps.size(); ++s) {
      const TestStep step = cache.make_step(steps[s]);
      const std::int64_t rows = step.rows().num_tokens;
      const Tensor q_raw = random_bf16_valued(random, {rows, kHeads * 512}, 2.0f),
                   index_q_raw = random_bf16_valued(random, {rows, kIndexHeads * 128}),
                   kv = random_bf16_valued(random, {rows, 512}), rope = random_rope(random, rows);
      const Tensor main_u = random_f32(random, {rows, main_width}), main_g = random_f32(random, {rows, main_width}, 2),
                   index_u = random_f32(random, {rows, 256}), index_g = random_f32(random, {rows, 256}, 2);
      const Tensor q = poisoned(DType::kF32, {rows, kHeads, 512}),
                   index_q = poisoned(DType::kF32, {rows, kIndexHeads, 128});
      const auto args_of = [&](const StepRows& step_rows, const CachePools& p, const auto& place, const auto& place_act,
                               const View& out, const View& index_out) {
        AttentionRowsArgs args;
        const View at_rope = place(rope.view());
        args.queries = {place_act(q_raw.view()), at_rope, out};
        args.kv_write = {&step_rows, p, place_act(kv.view()), place(kv_norm.view()), at_rope};
        args.compress_main = {&step_rows,
                              p,
                              place(main_u.view()),
                              place(main_g.view()),
                              place(main_ape.view()),
                              place(main_norm.view()),
                              place(f.view())};
        args.compress_index = {&step_rows,
                               p,
                               place(index_u.view()),
                               place(index_g.view()),
                               place(index_ape.view()),
                               place(index_norm.view()),
                               place(f.view())};
        args.index_query = {place_act(index_q_raw.view()), at_rope, index_out};
        return args;
      };
      const auto same = [](const View& view) { return view; };
      const AttentionRowsArgs host = args_of(step.rows(), cache.pools(), same, same, q.view(), index_q.view());
      const auto reference = [&](OpKind op, const auto& launch) {
        run_with(op, "reference", 4, kReferenceScratch, launch);
      };
      reference(OpKind::kQNormRope, [&](ExecutionContext& c) { run_q_norm_rope(c, cpu.queries, host.queries); });
      reference(OpKind::kKvWrite, [&](ExecutionContext& c) { run_kv_write(c, cpu.kv_write, host.kv_write); });
      if (ratio != 0) {
        reference(OpKind::kCompressKv,
                  [&](ExecutionContext& c) { run_compress_kv(c, cpu.compress_main, host.compress_main); });
      }
      if (ratio == 4) {
        reference(OpKind::kCompressKv,
                  [&](ExecutionContext& c) { run_compress_kv(c, cpu.compress_index, host.compress_index); });
        reference(OpKind::kIndexQuery,
                  [&](ExecutionContext& c) { run_index_query(c, cpu.index_query, host.index_query); });
      }
      StepRows device_rows = copy_rows(arena, step.rows());
      device_rows.short_sequences = std::all_of(steps[s].begin(), steps[s].end(),
                                                [](const StepPart& part) { return part.num_tokens <= kMaxDraft + 1; });
      std::vector<std::vector<float>> queries;
      for (std::size_t v = 0; v < variants.size(); ++v) {
        const View got = arena.poisoned(DType::kBF16, {rows, kHeads, 512}),
                   got_index = arena.poisoned(DType::kBF16, {rows, kIndexHeads, 128});
        const AttentionRowsArgs args = args_of(
            device_rows, pools[v], [&](const View& view) { return arena.copy(view); },
            [&](const View& view) { return arena.copy_bf16(view); }, got, got_index);
        run_cuda(OpKind::kAttentionRows, variants[v], plan.workspace_bytes, [&](ExecutionContext& c) {
          run_attention_rows(c, plan, args);
          // Where the step's class allows it, running it again changes nothing.
          if (rows <= kMaxDraft + 1) run_attention_rows(c, plan, args);
        });
        const std::string what =
            label(OpKind::kAttentionRows, variants[v], "ratio " + std::to_string(ratio) + " step " + std::to_string(s));
        expect_close(read_floats(got), q.floats(), true, 1e-3, what + " q");
        if (ratio == 4) expect_close(read_floats(got_index), index_q.floats(), true, 0.0, what + " index q (exact)");
        queries.push_back(read_floats(got));
        EXPECT_EQ(queries.back(), queries.front()) << what << " against " << variants.front();
      }
    }
    for (std::size_t v = 0; v < variants.size(); ++v) {
      expect_same_bytes(cache, pools[v],
                        label(OpKind::kAttentionRows, variants[v], "ratio " + std::to_string(ratio) + " caches"));
    }
  }
}

TEST(Gpu, hyper_connection) {
  FATHOM_NEEDS_GPU();
  Random random;
  for (const auto& [tokens, hidden] :
       {std::pair<std::int64_t, std::int64_t>{1, 128}, {9, 256}, {3, 4096}, {129, 1024}, {2, 7168}}) {
    for (const bool has_post : {true, false}) {
      if (reduced() && tokens > 9) continue;
      Arena arena;
      const Tensor h = random_bf16_valued(random, {tokens, 4, hidden}),
                   y = random_bf16_valued(random, {tokens, hidden});
      const Tensor post = random_f32(random, {tokens, 4}, 0.3f, 1.0f),
                   comb = random_f32(random, {tokens, 4, 4}, 0.1f, 0.25f);
      const Tensor fn = random_f32(random, {24, 4 * hidden}, 0.02f), base = random_f32(random, {24}, 0.5f),
                   scale = random_f32(random, {3}, 0.2f, 1.0f), norm = random_bf16(random, {hidden}, 0.3f, 1.0f);
      const Tensor next = poisoned(DType::kF32, {tokens, 4, hidden}), next_post = poisoned(DType::kF32, {tokens, 4}),
                   next_comb = poisoned(DType::kF32, {tokens, 4, 4}), normed = poisoned(DType::kF32, {tokens, hidden});
      const HyperConnectionDesc desc{hidden, 4, 20, 1e-6f, 1e-6f, kServe, tokens};
      HyperConnectionArgs args;
      args.streams = h.view();
      if (has_post)
        args.sublayer_out = y.view(), args.post = post.view(), args.comb = comb.view(), args.next_streams = next.view();
      args.next = {fn.view(), base.view(), scale.view()};
      args.norm_weight = norm.view(), args.next_post = next_post.view(), args.next_comb = next_comb.view(),
      args.normed = normed.view();
      run_with(OpKind::kHyperConnection, "reference", 4, kReferenceScratch,
               [&](ExecutionContext& c) { run_hyper_connection(c, plan_hyper_connection(desc, kCpu), args); });
      for (const std::string& variant : cuda_variants(OpKind::kHyperConnection)) {
        HyperConnectionArgs gpu;
        gpu.streams = arena.copy_bf16(h.view());
        if (has_post) {
          gpu.sublayer_out = arena.copy_bf16(y.view()), gpu.post = arena.copy(post.view()),
          gpu.comb = arena.copy(comb.view());
          gpu.next_streams = arena.poisoned(DType::kBF16, {tokens, 4, hidden});
        }
        gpu.next = {arena.copy(fn.view()), arena.copy(base.view()), arena.copy(scale.view())};
        gpu.norm_weight = arena.copy(norm.view());
        gpu.next_post = arena.poisoned(DType::kF32, {tokens, 4}),
        gpu.next_comb = arena.poisoned(DType::kF32, {tokens, 4, 4});
        gpu.normed = arena.poisoned(DType::kBF16, {tokens, hidden});
        gpu.normed_quantised = arena.poisoned(DType::kBF16, {tokens, hidden});
        const HyperConnectionPlan plan = plan_hyper_connection(desc, device_info());
        run_cuda(OpKind::kHyperConnection, variant, plan.workspace_bytes,
                 [&](ExecutionContext& c) { run_hyper_connection(c, plan, gpu); });
        const std::string what =
            label(OpKind::kHyperConnection, variant,
                  std::to_string(tokens) + " x 4 x " + std::to_string(hidden) + (has_post ? "" : " first"));
        if (has_post) expect_close(read_floats(gpu.next_streams), next.floats(), true, 1e-3, what + " h'");
        if (has_post) {
          // A bf16 of h' that rounds to its neighbour moves the sums by more than fp32 does: what follows is held to
          // the reference on this variant's own h'.
          const std::vector<float> streams = read_floats(gpu.next_streams);
          const Tensor own = make_f32({tokens, 4, hidden}, streams);
          HyperConnectionArgs from_own = args;
          from_own.streams = own.view();
          from_own.sublayer_out = {};
          run_with(OpKind::kHyperConnection, "reference", 4, kReferenceScratch,
                   [&](ExecutionContext& c) { run_hyper_connection(c, plan_hyper_connection(desc, kCpu), from_own); });
        }
        expect_close(read_floats(gpu.next_post), next_post.floats(), false, 1e-5, what + " post");
        expect_close(read_floats(gpu.next_comb), next_comb.floats(), false, 1e-5, what + " comb");
        expect_close(read_floats(gpu.normed), normed.floats(), true, 1e-3, what + " normed");
        expect_quantised(gpu.normed_quantised, gpu.normed, hidden, what + " quantised (exact)");
      }
    }
  }
}

TEST(Gpu, hc_head) {
  FATHOM_NEEDS_GPU();
  Random random;
  const std::int64_t tokens = 33, hidden = 4096, rows = 5;
  Arena arena;
  const std::vector<std::int32_t> indices = {32, 0, 7, 7, 19};
  const Tensor h = random_bf16_valued(random, {tokens, 4, hidden}), index = make_i32({rows}, indices);
  const Tensor fn = random_f32(random, {4, 4 * hidden}, 0.02f), base = random_f32(random, {4}, 0.5f),
               scale = random_f32(random, {1}, 0.2f, 1.0f), norm = random_bf16(random, {hidden}, 0.3f, 1.0f);
  const Tensor collapsed = poisoned(DType::kF32, {rows, hidden}), normed = poisoned(DType::kF32, {rows, hidden});
  const HcHeadDesc desc{hidden, 4, 1e-6f, 1e-6f, kServe};
  run_with(OpKind::kHcHead, "reference", 4, kReferenceScratch, [&](ExecutionContext& c) {
    run_hc_head(
        c, plan_hc_head(desc, kCpu),
        {h.view(), index.view(), {fn.view(), base.view(), scale.view()}, norm.view(), collapsed.view(), normed.view()});
  });
  for (const std::string& variant : cuda_variants(OpKind::kHcHead)) {
    const View got_x = arena.poisoned(DType::kBF16, {rows, hidden}), got = arena.poisoned(DType::kBF16, {rows, hidden});
    const HcHeadPlan plan = plan_hc_head(desc, device_info());
    run_cuda(OpKind::kHcHead, variant, plan.workspace_bytes, [&](ExecutionContext& c) {
      run_hc_head(c, plan,
                  {arena.copy_bf16(h.view()),
                   arena.copy(index.view()),
                   {arena.copy(fn.view()), arena.copy(base.view()), arena.copy(scale.view())},
                   arena.copy(norm.view()),
                   got_x,
                   got});
    });
    expect_close(read_floats(got_x), collapsed.floats(), true, 1e-3,
                 label(OpKind::kHcHead, variant, "5 of 33 rows, collapsed"));
    expect_close(read_floats(got), normed.floats(), true, 1e-3,
                 label(OpKind::kHcHead, variant, "5 of 33 rows, normed"));
  }
}

}  // namespace
}  // namespace fathom::gpu
