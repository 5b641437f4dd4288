// kv_write: the one K=V vector of each row into its window record (spec 2.4.5).
//
//   kv = rms_norm(kv_raw; kv_norm); RoPE on the last rope_dim channels; AQ 64 on the others (quantise_kv);
//   stored at window position p: kPacked as 448 e4m3 + 64 bf16 + 7 exponents, lossless; kFloat as fp32
#pragma once

#include "ops/cache_view.h"
#include "ops/numerics.h"
#include "ops/registry.h"
#include "ops/step_rows.h"

namespace fathom {

struct KvWriteDesc {
  LayerCache cache;
  float eps = 1e-6f;
  Numerics numerics;
};
struct KvWritePlan {
  KvWriteDesc desc;
  std::int64_t workspace_bytes = 0;
};
struct KvWriteArgs {
  const StepRows* rows = nullptr;
  CachePools pools;
  View kv_raw;   // [tokens, head_dim]
  View kv_norm;  // [head_dim] bf16
  View rope;     // [tokens, rope_dim / 2, 2] f32
};

KvWritePlan plan_kv_write(const KvWriteDesc& desc, const DeviceInfo& device);
// The checks that run_kv_write makes: attention_rows makes them too.
void check_kv_write(const KvWritePlan& plan, const KvWriteArgs& args);
void run_kv_write(ExecutionContext& context, const KvWritePlan& plan, const KvWriteArgs& args);
OpCost cost_kv_write(const KvWritePlan& plan, const KvWriteArgs& args);

// Variants, by their registry names.
void kv_write_reference(ExecutionContext& context, const KvWritePlan& plan, const KvWriteArgs& args);
void kv_write_cpu(ExecutionContext& context, const KvWritePlan& plan, const KvWriteArgs& args);
std::int64_t kv_write_cpu_workspace(const KvWriteDesc& desc, const DeviceInfo& device);
std::span<const Variant> kv_write_variants();

}  // namespace fathom
