#include "ops/sparse_attention/sparse_attention.h"

#include <algorithm>
#include <array>

#include "ops/check_step_rows.h"
#include "ops/cost_terms.h"
#include "ops/sparse_attention/plan.h"

namespace fathom {

SparseAttentionPlan plan_sparse_attention(const SparseAttentionDesc& desc, const DeviceInfo& device) {
  FATHOM_CHECK(desc.cache.ratio == 0 || desc.cache.ratio == 4 || desc.cache.ratio == 128, "ratio 0, 4 or 128");
  FATHOM_CHECK(desc.cache.ratio != 4 || desc.topk > 0, "ratio-4 layers select entries");
  if (device.backend == BackendKind::kCpu) return {desc, sparse_attention_cpu_workspace(desc, device), 0, 0};
  const std::int32_t warpgroups = device.compute_capability == 90 ? device.num_multiprocessors : 0;
  const std::int64_t workspace_bytes = std::max(
      cuda::attention_workspace_bytes(desc.max_tokens, desc.num_heads, desc.cache.ratio, desc.topk),
      cuda::attention_groups_workspace_bytes(desc.max_tokens, desc.num_heads, desc.cache.ratio, desc.topk, warpgroups));
  return {desc, workspace_bytes, device.shared_memory_per_block_bytes, warpgroups,
          cuda::attention_num_arrivals(desc.max_tokens, desc.num_heads, desc.cache.ratio, desc.topk)};
}

void run_sparse_attention(ExecutionContext& context, const SparseAttentionPlan& plan, const SparseAttentionArgs& args) {
  const SparseAttentionDesc& desc = plan.desc;
  check_step_rows(args.rows);
  check_window_tables(*args.rows);
  const std::int64_t tokens = args.rows->num_tokens;
  const std::int64_t width = static_cast<std::int64_t>(desc.num_heads) * desc.cache.kv.head_dim;
  FATHOM_CHECK(tokens <= desc.max_tokens, "the plan covers the rows of the call");
  if (desc.cache.ratio != 0) check_context_tables(*args.rows);
  check_activation(args.q, tokens, width);
  check_vector(args.sink, DType::kF32, desc.num_heads);
  if (desc.cache.ratio == 4) check_view(args.selected, DType::kI32, tokens, desc.topk);
  check_view(args.rope, DType::kF32, tokens, desc.cache.kv.rope_dim);
  check_activation(args.out, tokens, width);
  FATHOM_CHECK(args.out.data != args.q.data || tokens == 0, "no output aliases an input");
  run_operation(context, OpKind::kSparseAttention, plan, args,
                [&] { return cost_sparse_attention(plan, args, context.lengths); });
}

OpCost cost_sparse_attention(const SparseAttentionPlan& plan, const SparseAttentionArgs& args,
                             const HostLengths& lengths) {
  const SparseAttentionDesc& desc = plan.desc;
  const std::int64_t ratio = desc.cache.ratio;
  const auto record_bytes = static_cast<double>(desc.cache.kv.data_bytes() + desc.cache.kv.scale_bytes());
  OpCost cost{view_bytes(args.q) + view_bytes(args.sink) + view_bytes(args.rope) + view_bytes(args.out), 0.0};
  double keys_of_rows = 0.0;
  for_each_position_run(lengths, [&](std::int64_t first, std::int64_t last) {
    double selected = 0.0;  // of all rows of the run, together
    for (std::int64_t p = first; p <= last; ++p) {
      const std::int64_t visible = ratio == 0 ? 0 : (p + 1) / ratio;
      const std::int64_t entries = ratio == 4 ? std::min<std::int64_t>(visible, desc.topk) : visible;
      selected += static_cast<double>(entries);
      keys_of_rows += static_cast<double>(std::min<std::int64_t>(p + 1, 128) + entries);
    }
    // Each record of the run's sequence once, however many rows see it.
    const std::int64_t window = last + 1 - std::max<std::int64_t>(0, first - 127);
    const double entries = ratio == 0 ? 0.0 : static_cast<double>((last + 1) / ratio);
    cost.bytes += (static_cast<double>(window) + std::min(entries, selected)) * record_bytes;
  });
  if (ratio == 4) cost.bytes += view_bytes(args.selected);
  cost.flops = keys_of_rows * 4.0 * static_cast<double>(args.q.shape.row_elements());
  return cost;
}

std::span<const Variant> sparse_attention_variants() {
  static const std::array variants = {
      make_variant(OpKind::kSparseAttention, "reference", BackendKind::kCpu, &sparse_attention_reference),
      make_variant(OpKind::kSparseAttention, "cpu", BackendKind::kCpu, &sparse_attention_cpu),
  };
  return variants;
}

}  // namespace fathom
