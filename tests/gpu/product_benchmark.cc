// Times of the operations that multiply by weights, at Flash's shapes (bench_inputs.h).
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "bench_inputs.h"
#include "ops/attention_output/attention_output.h"
#include "ops/linear/linear.h"
#include "ops/lm_head/lm_head.h"
#include "ops/moe_experts/device_experts.h"
#include "ops/moe_experts/moe_experts.h"
#include "ops/moe_route/moe_route.h"

namespace fathom::gpu {
namespace {

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
      int most = 0;
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
        std::vector<int> rows(kExperts);
        for (const std::int32_t e : host_ids) most = std::max(most, ++rows[static_cast<std::size_t>(e)]);
        ids.push_back(arena.copy(make_view(host_ids.data(), {batch, kTopk})));
      }
      std::vector<float> w(static_cast<std::size_t>(batch * kTopk), 0.25f);
      const View weights = arena.copy(make_view(w.data(), {batch, kTopk}));
      const View x = random_bf16(arena, {batch, kHidden}), out = arena.poisoned(DType::kBF16, {batch, kHidden});
      const MoeExpertsPlan plan =
          plan_moe_experts({batch, kHidden, kInter, kExperts, kTopk, 10.0f, kServe}, device_info());
      std::snprintf(text, sizeof(text), "  %d rows: %.1f experts hit, %.1f rows each, at most %d", batch, distinct,
                    batch * kTopk / distinct, most);
      report(text);
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
