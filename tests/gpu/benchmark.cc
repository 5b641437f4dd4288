// Times of the CUDA variants at Flash's shapes: graph replay over rotating buffers larger than the L2, median of
// five replays, microseconds a call, with the bytes of the operation's own cost and their share of copy speed.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device.h"
#include "ops/attention_output/attention_output.h"
#include "ops/attention_rows/attention_rows.h"
#include "ops/hyper_connection/hyper_connection.h"
#include "ops/index_scores/index_scores.h"
#include "ops/linear/linear.h"
#include "ops/lm_head/lm_head.h"
#include "ops/moe_experts/device_experts.h"
#include "ops/moe_experts/moe_experts.h"
#include "ops/moe_route/moe_route.h"
#include "ops/select_topk/select_topk.h"
#include "ops/sparse_attention/sparse_attention.h"

namespace fathom::gpu {
namespace {

constexpr Numerics kServe = Numerics::serve();
// FATHOM_GPU_BATCH, FATHOM_GPU_CONTEXT and FATHOM_GPU_RATIO leave one batch, length or kind of layer, for a profiler.
bool asked_for(const char* name, std::int64_t value) {
  const char* text = std::getenv(name);
  return text == nullptr || std::atoll(text) == value;
}
std::vector<int> batches(int most = 128) {
  std::vector<int> some;
  for (const int batch : {1, 8, 32, 64, 128})
    if (batch <= most && asked_for("FATHOM_GPU_BATCH", batch)) some.push_back(batch);
  return some;
}

// Copies of an input of `bytes` so that a full turn exceeds the L2 several times.
int copies_for(double bytes) { return static_cast<int>(std::clamp(2.0e8 / std::max(bytes, 1.0), 2.0, 64.0)); }

double copy_gb_per_s() {
  static const double speed = [] {
    Arena arena;
    const std::int64_t n = 2LL << 30;
    std::byte* a = arena.allocate(n);
    std::byte* b = arena.allocate(n);
    cudaEvent_t begin, end;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    double best = 0;
    for (int i = 0; i < 5; ++i) {
      cudaEventRecord(begin);
      cudaMemcpyAsync(b, a, static_cast<std::size_t>(n), cudaMemcpyDeviceToDevice);
      cudaEventRecord(end);
      cudaEventSynchronize(end);
      float ms = 0;
      cudaEventElapsedTime(&ms, begin, end);
      best = std::max(best, 2.0 * static_cast<double>(n) / ms / 1e6);
    }
    return best;
  }();
  return speed;
}

std::uint64_t next_random(std::uint64_t& state) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state;
}

// Device bytes: random 4-bit or 8-bit codes whose magnitudes stay moderate.
View random_codes(Arena& arena, DType dtype, Shape shape, std::uint64_t mask) {
  static std::uint64_t state = 0x9e3779b97f4a7c15ull;
  const std::int64_t bytes = shape.num_elements() * dtype_bytes(dtype);
  std::vector<std::uint64_t> host(static_cast<std::size_t>(std::min<std::int64_t>(bytes, 8 << 20) / 8 + 1));
  for (std::uint64_t& word : host) word = next_random(state) & mask;
  std::byte* data = arena.allocate(bytes);
  for (std::int64_t at = 0; at < bytes; at += 8 << 20) {
    cudaMemcpy(data + at, host.data(), static_cast<std::size_t>(std::min<std::int64_t>(8 << 20, bytes - at)),
               cudaMemcpyHostToDevice);
  }
  return make_view(data, dtype, shape);
}
constexpr std::uint64_t kE4m3Mask = 0xbfbfbfbfbfbfbfbfull;  // exponent below 8: magnitudes under 2
constexpr std::uint64_t kAnyMask = ~0ull;
constexpr std::uint64_t kBf16Mask = 0xbf7fbf7fbf7fbf7full;  // |x| under 1: exponent 0x3e and less
View constant_bytes(Arena& arena, DType dtype, Shape shape, int value) {
  const View v = make_view(arena.allocate(shape.num_elements() * dtype_bytes(dtype)), dtype, shape);
  cudaMemset(v.data, value, static_cast<std::size_t>(v.num_bytes()));
  return v;
}
View random_bf16(Arena& arena, Shape shape) { return random_codes(arena, DType::kBF16, shape, kBf16Mask); }

LinearWeight fp8_weight(Arena& arena, std::int64_t n, std::int64_t k) {
  LinearWeight w;
  w.format = WeightFormat::kFp8Block128;
  w.out_features = n, w.in_features = k;
  w.values = random_codes(arena, DType::kF8E4M3, {n, k}, kE4m3Mask);
  w.scale = constant_bytes(arena, DType::kF8E8M0, {(n + 127) / 128, (k + 127) / 128}, 121);
  return w;
}
LinearWeight bf16_weight(Arena& arena, std::int64_t n, std::int64_t k) {
  LinearWeight w;
  w.format = WeightFormat::kBf16;
  w.out_features = n, w.in_features = k;
  w.values = random_bf16(arena, {n, k});
  return w;
}

void line(const char* name, int batch, double us, double bytes) {
  char text[200];
  std::snprintf(text, sizeof(text), "  %-52s b=%-4d %9.2f us %10.2f MB %7.0f GB/s %5.1f %% of copy", name, batch, us,
                bytes / 1e6, bytes / us / 1e3, 100.0 * bytes / us / 1e3 / copy_gb_per_s());
  report(text);
}

TEST(Bench, copy) {
  FATHOM_NEEDS_GPU();
  char text[100];
  std::snprintf(text, sizeof(text), "  device-to-device copy %.0f GB/s (read + written)", copy_gb_per_s());
  report(text);
}

TEST(Bench, linear) {
  FATHOM_NEEDS_GPU();
  struct Group {
    const char* name;
    std::int64_t k;
    std::vector<std::pair<bool, std::int64_t>> outputs;  // fp8?, n
  };
  const Group groups[] = {
      {"inputs ratio 4 (wq_a wkv comp idx, 7)",
       4096,
       {{true, 1024}, {true, 512}, {false, 1024}, {false, 1024}, {false, 256}, {false, 256}, {false, 64}}},
      {"inputs ratio 0 (wq_a wkv)", 4096, {{true, 1024}, {true, 512}}},
      {"queries (wq_b, index wq_b)", 1024, {{true, 32768}, {true, 8192}}},
  };
  for (const Group& group : groups) {
    Arena arena;
    double bytes = 0;
    for (const auto& [fp8, n] : group.outputs) bytes += static_cast<double>(n * group.k) * (fp8 ? 1 : 2);
    const int copies = copies_for(bytes);
    std::vector<std::vector<LinearWeight>> weights(static_cast<std::size_t>(copies));
    for (auto& set : weights) {
      for (const auto& [fp8, n] : group.outputs)
        set.push_back(fp8 ? fp8_weight(arena, n, group.k) : bf16_weight(arena, n, group.k));
    }
    for (const int batch : batches()) {
      const View x = random_bf16(arena, {batch, group.k});
      std::int64_t total = 0;
      for (const auto& output : group.outputs) total += output.second;
      const LinearPlan plan = plan_linear({batch, group.k, total, kServe}, device_info());
      std::vector<View> outs;
      for (const auto& [fp8, n] : group.outputs)
        outs.push_back(arena.poisoned(fp8 ? DType::kBF16 : DType::kF32, {batch, n}));
      for (const std::string variant : {"mma", "wgmma"}) {
        if (variant != "mma" && batch <= 16) continue;  // the same kernel
        const double us = time_cuda(
            OpKind::kLinear, variant, plan.workspace_bytes, copies, 2 * copies, [&](ExecutionContext& c, int copy) {
              std::vector<LinearOutput> outputs;
              for (std::size_t i = 0; i < outs.size(); ++i)
                outputs.push_back({&weights[static_cast<std::size_t>(copy)][i], outs[i], !group.outputs[i].first});
              run_linear(c, plan, {x, outputs});
            });
        line(("linear/" + variant + " " + group.name).c_str(), batch, us,
             bytes + static_cast<double>(batch * group.k * 2));
      }
    }
  }
}

// Chunks of prompts: the two kernels give the same bits, so only time tells them apart.
TEST(Bench, linear_chunks) {
  FATHOM_NEEDS_GPU();
  struct Matrix {
    const char* name;
    bool fp8;
    std::int64_t k, n;
  };
  for (const auto& [name, fp8, k, n] : {Matrix{"wq_a", true, 4096, 1024},
                                        {"wq_b", true, 1024, 32768},
                                        {"wo_b", true, 8192, 4096},
                                        {"compressor", false, 4096, 1024}}) {
    Arena arena;
    const LinearWeight weight = fp8 ? fp8_weight(arena, n, k) : bf16_weight(arena, n, k);
    for (const int rows : {17, 32, 64, 65, 128, 256, 512, 2048}) {
      const View x = random_bf16(arena, {rows, k}), out = arena.poisoned(DType::kBF16, {rows, n});
      const LinearPlan plan = plan_linear({rows, k, n, kServe}, device_info());
      for (const char* variant : {"mma", "mma_tiled", "wgmma"}) {
        const double us =
            time_cuda(OpKind::kLinear, variant, plan.workspace_bytes, 1, 4, [&](ExecutionContext& c, int) {
              const LinearOutput output{&weight, out, false};
              run_linear(c, plan, {x, {&output, 1}});
            });
        char text[160];
        std::snprintf(text, sizeof(text), "  linear/%-10s %-10s %5d rows %10.2f us %7.1f TFLOP/s", variant, name, rows,
                      us, 2.0 * rows * static_cast<double>(k * n) / us / 1e6);
        report(text);
      }
    }
  }
}

TEST(Bench, attention_output) {
  FATHOM_NEEDS_GPU();
  Arena arena;
  const int copies = 4;
  std::vector<LinearWeight> a, b;
  for (int i = 0; i < copies; ++i)
    a.push_back(fp8_weight(arena, 8192, 4096)), b.push_back(fp8_weight(arena, 4096, 8192));
  for (const int batch : batches()) {
    const AttentionOutputPlan plan = plan_attention_output({batch, 8, 4096, 1024, 4096, kServe}, device_info());
    const View o = random_bf16(arena, {batch, 64, 512}), out = arena.poisoned(DType::kBF16, {batch, 4096});
    const double us = time_cuda(
        OpKind::kAttentionOutput, "mma", plan.workspace_bytes, copies, 4 * copies, [&](ExecutionContext& c, int copy) {
          run_attention_output(c, plan,
                               {o, &a[static_cast<std::size_t>(copy)], &b[static_cast<std::size_t>(copy)], out});
        });
    line("attention_output/mma (wo_a, wo_b)", batch, us, 2.0 * 8192 * 4096);
  }
}

TEST(Bench, moe_experts) {
  FATHOM_NEEDS_GPU();
  constexpr std::int64_t kHidden = 4096, kInter = 2048;
  constexpr int kExperts = 256, kTopk = 6;
  for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kNvfp4}) {
    Arena arena;
    const bool mx = format == WeightFormat::kMxfp4;
    DeviceExperts layout;
    ExpertWeights host;
    const auto describe = [&](LinearWeight& w, std::int64_t n, std::int64_t k) {
      w.format = format, w.out_features = n, w.in_features = k;
      w.values = make_view(static_cast<void*>(nullptr), DType::kI8, {n, k / 2});
      w.scale = make_view(static_cast<void*>(nullptr), mx ? DType::kF8E8M0 : DType::kF8E4M3, {n, mx ? k / 32 : k / 16});
    };
    describe(host.w1, kInter, kHidden), describe(host.w3, kInter, kHidden), describe(host.w2, kHidden, kInter);
    const std::vector<ExpertWeights> all(kExperts, host);
    layout = *plan_device_experts(all);
    // One expert's bytes with sane scales, copied to every expert; 3.4 GB is far past the L2.
    std::vector<std::byte> expert(static_cast<std::size_t>(layout.stride_bytes));
    std::uint64_t state = 12345;
    for (std::byte& byte : expert) byte = static_cast<std::byte>(next_random(state));
    for (const DeviceExperts::Matrix* m : {&layout.w1, &layout.w3, &layout.w2}) {
      const std::int64_t scales = static_cast<std::int64_t>(m->n) * m->k / (mx ? 32 : 16);
      for (std::int64_t i = 0; i < scales; ++i)
        expert[static_cast<std::size_t>(m->scale_offset + i)] =
            static_cast<std::byte>(mx ? 118 + (i & 1) : 0x28 + (i & 7));
    }
    const float ones[3] = {0.02f, 0.02f, 0.02f};
    std::memcpy(expert.data() + layout.scale_2_offset, ones, sizeof(ones));
    layout.slab = arena.allocate(layout.num_bytes());
    for (int e = 0; e < kExperts; ++e)
      cudaMemcpy(layout.slab + e * layout.stride_bytes, expert.data(), expert.size(), cudaMemcpyHostToDevice);
    char text[120];
    std::snprintf(text, sizeof(text), "  %s experts: %.2f MB each in device memory", mx ? "MXFP4" : "NVFP4",
                  static_cast<double>(layout.stride_bytes) / 1e6);
    report(text);
    const int shared_copies = 8;
    std::vector<ExpertWeights> shared(shared_copies);
    for (ExpertWeights& s : shared)
      s.w1 = fp8_weight(arena, kInter, kHidden), s.w3 = fp8_weight(arena, kInter, kHidden),
      s.w2 = fp8_weight(arena, kHidden, kInter);
    for (const int batch : {1, 8, 32, 64, 128, 256, 512, 1024, 2048}) {
      const int copies = batch > 128 ? 2 : 8;
      std::vector<View> ids;
      std::vector<bool> hit(kExperts);
      double distinct = 0;
      for (int copy = 0; copy < copies; ++copy) {
        std::fill(hit.begin(), hit.end(), false);
        std::vector<std::int32_t> host_ids;
        for (int t = 0; t < batch; ++t) {
          std::vector<std::int32_t> row;
          while (static_cast<int>(row.size()) < kTopk) {
            const auto e = static_cast<std::int32_t>(next_random(state) % kExperts);
            if (std::find(row.begin(), row.end(), e) == row.end()) row.push_back(e);
          }
          std::sort(row.begin(), row.end());
          for (const std::int32_t e : row) host_ids.push_back(e), hit[static_cast<std::size_t>(e)] = true;
        }
        distinct += static_cast<double>(std::count(hit.begin(), hit.end(), true)) / copies;
        ids.push_back(arena.copy(make_view(host_ids.data(), {batch, kTopk})));
      }
      std::vector<float> w(static_cast<std::size_t>(batch * kTopk), 0.25f);
      const View weights = arena.copy(make_view(w.data(), {batch, kTopk}));
      const View x = random_bf16(arena, {batch, kHidden}), out = arena.poisoned(DType::kBF16, {batch, kHidden});
      const MoeExpertsPlan plan =
          plan_moe_experts({batch, kHidden, kInter, kExperts, kTopk, 10.0f, kServe}, device_info());
      for (const bool with_shared : {false, true}) {
        for (const std::string variant : {"mma", "mma_arrival", "wgmma"}) {
          if (variant == (batch > 128 ? "mma_arrival" : "wgmma")) continue;
          const double us = time_cuda(
              OpKind::kMoeExperts, variant, plan.workspace_bytes, copies, 2 * copies,
              [&](ExecutionContext& c, int copy) {
                run_moe_experts(
                    c, plan,
                    {x, ids[static_cast<std::size_t>(copy)], weights, all,
                     with_shared ? &shared[static_cast<std::size_t>(copy % shared_copies)] : nullptr, &layout, out});
              });
          const double expert_bytes = 3.0 * kHidden * kInter * (0.5 + (mx ? 1.0 / 32 : 1.0 / 16));
          const std::string name =
              "moe_experts/" + variant + " " + (mx ? "MXFP4" : "NVFP4") + (with_shared ? " + shared FP8" : "");
          line(name.c_str(), batch, us, distinct * expert_bytes + (with_shared ? 3.0 * kHidden * kInter : 0.0));
        }
      }
    }
  }
}

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

// Tables and pools for `batch` sequences of `length` tokens, `copies` times in different blocks.
struct SyntheticCache {
  LayerCache layer;
  CachePools pools;
  std::vector<StepRows> rows;
  std::vector<View> selected;
};

SyntheticCache make_cache(Arena& arena, int ratio, int batch, std::int64_t length, int topk, int copies) {
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
  const std::int64_t context_blocks = (length + 127) / 128, window_blocks = 2;
  const std::int64_t num_context = std::max<std::int64_t>(1, context_blocks * batch * copies),
                     num_window = window_blocks * batch * copies;
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
    for (int s = 0; s < batch; ++s) {
      const auto p = static_cast<std::int32_t>(length - 1);
      positions.push_back(p), sequence_of.push_back(s), begin.push_back(s), wb.push_back(std::max(0, p - 127)),
          we.push_back(p + 1);
      context_offset.push_back(static_cast<std::int64_t>(context_table.size()));
      window_offset.push_back(static_cast<std::int64_t>(window_table.size()));
      window_first.push_back(std::max(0, p - 127) / 128);
      for (std::int64_t b = 0; b < context_blocks; ++b)
        context_table.push_back(static_cast<std::int32_t>((copy * batch + s) * context_blocks + b));
      for (std::int64_t b = 0; b < window_blocks; ++b)
        window_table.push_back(static_cast<std::int32_t>((copy * batch + s) * window_blocks + b));
      if (ratio == 4) {
        const std::int64_t visible = length / 4;
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
    rows.num_tokens = rows.num_sequences = batch;
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
    // Rows past half of the card's multiprocessors are where by_rows changes kernels.
    for (const int batch : {1, 8, 32, 64, 69, 96, 100, 128}) {
      if (!asked_for("FATHOM_GPU_BATCH", batch)) continue;
      Arena arena;
      const double keys = 128.0 + (ratio == 4 ? 512.0 : static_cast<double>(length) / 128.0);
      const double bytes = batch * (keys * 584 + 2.0 * 64 * 512 * 2);
      const int copies = std::clamp(static_cast<int>(1.5e8 / bytes), 2, 128);
      const SyntheticCache cache =
          make_cache(arena, static_cast<int>(ratio), batch, length, static_cast<int>(topk), copies);
      std::vector<View> q;
      for (int i = 0; i < copies; ++i) q.push_back(random_bf16(arena, {batch, 64, 512}));
      const View sink = constant_bytes(arena, DType::kF32, {64}, 0),
                 rope = constant_bytes(arena, DType::kF32, {batch, 32, 2}, 0x3f);
      const View out = arena.poisoned(DType::kBF16, {batch, 64, 512});
      const SparseAttentionPlan plan =
          plan_sparse_attention({cache.layer, batch, 64, static_cast<std::int32_t>(topk), kServe}, device_info());
      for (const char* variant :
           {"simt", "mma", "mma_splitk", "mma_splitk_arrival", "wgmma", "wgmma_whole", "by_rows"}) {
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

TEST(Bench, lm_head) {
  FATHOM_NEEDS_GPU();
  Arena arena;
  const LinearWeight head = bf16_weight(arena, 129280, 4096);
  for (const int batch : batches()) {
    const View x = random_bf16(arena, {batch, 4096}), logits = arena.poisoned(DType::kF32, {batch, 129280});
    const LmHeadPlan plan = plan_lm_head({batch, 4096, 129280}, device_info());
    const double us = time_cuda(OpKind::kLmHead, "mma", plan.workspace_bytes, 1, 4,
                                [&](ExecutionContext& c, int) { run_lm_head(c, plan, {x, &head, logits}); });
    line("lm_head/mma", batch, us, 129280.0 * 4096 * 2);
  }
}

TEST(Bench, moe_route) {
  FATHOM_NEEDS_GPU();
  Arena arena;
  constexpr std::int64_t kHidden = 4096, kExperts = 256, kTopk = 6;
  std::vector<LinearWeight> gates;
  for (int i = 0; i < 64; ++i) gates.push_back(bf16_weight(arena, kExperts, kHidden));
  const View bias = constant_bytes(arena, DType::kF32, {kExperts}, 0);
  for (const int batch : batches()) {
    const View x = random_bf16(arena, {batch, kHidden}), ids = arena.poisoned(DType::kI32, {batch, kTopk}),
               weights = arena.poisoned(DType::kF32, {batch, kTopk});
    const MoeRoutePlan plan = plan_moe_route({batch, kHidden, kExperts, kTopk, 1.5f, true}, device_info());
    const double us =
        time_cuda(OpKind::kMoeRoute, "mma", plan.workspace_bytes, static_cast<int>(gates.size()), 128,
                  [&](ExecutionContext& c, int copy) {
                    run_moe_route(c, plan, {x, &gates[static_cast<std::size_t>(copy)], bias, {}, {}, ids, weights});
                  });
    line("moe_route/mma", batch, us, static_cast<double>(kExperts * kHidden * 2));
  }
}

}  // namespace
}  // namespace fathom::gpu
