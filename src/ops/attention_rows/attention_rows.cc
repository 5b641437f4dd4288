#include "ops/attention_rows/attention_rows.h"

namespace fathom {

AttentionRowsPlan plan_attention_rows(const QNormRopePlan& queries, const KvWritePlan& kv_write,
                                      const CompressKvPlan& compress_main, const CompressKvPlan& compress_index,
                                      const IndexQueryPlan& index_query) {
  const std::int32_t ratio = kv_write.desc.cache.ratio;
  FATHOM_CHECK(ratio == 0 || compress_main.desc.cache.ratio == ratio, "the parts are of one layer");
  FATHOM_CHECK(ratio != 4 || compress_index.desc.kind == CompressorKind::kIndex, "ratio-4 layers have index keys");
  AttentionRowsPlan plan{queries, kv_write, compress_main, compress_index, index_query};
  for (const std::int64_t bytes : {queries.workspace_bytes, kv_write.workspace_bytes, compress_main.workspace_bytes,
                                   compress_index.workspace_bytes, index_query.workspace_bytes}) {
    if (bytes > plan.workspace_bytes) plan.workspace_bytes = bytes;
  }
  return plan;
}

void run_attention_rows(ExecutionContext& context, const AttentionRowsPlan& plan, const AttentionRowsArgs& args) {
  check_q_norm_rope(plan.queries, args.queries);
  check_kv_write(plan.kv_write, args.kv_write);
  FATHOM_CHECK(args.queries.q_raw.shape[0] == args.kv_write.rows->num_tokens, "queries and keys of the same rows");
  if (plan.ratio() != 0) {
    check_compress_kv(plan.compress_main, args.compress_main);
    FATHOM_CHECK(args.compress_main.rows == args.kv_write.rows, "one step's rows");
  }
  if (plan.ratio() == 4) {
    check_compress_kv(plan.compress_index, args.compress_index);
    check_index_query(plan.index_query, args.index_query);
    FATHOM_CHECK(args.compress_index.rows == args.kv_write.rows, "one step's rows");
    FATHOM_CHECK(args.index_query.q_raw.shape[0] == args.kv_write.rows->num_tokens, "one step's rows");
  }
  run_operation(context, OpKind::kAttentionRows, plan, args,
                [&] { return cost_attention_rows(plan, args, context.lengths); });
}

OpCost cost_attention_rows(const AttentionRowsPlan& plan, const AttentionRowsArgs& args, const HostLengths& lengths) {
  OpCost cost = cost_q_norm_rope(plan.queries, args.queries);
  const auto add = [&](const OpCost& part) {
    cost.bytes += part.bytes;
    cost.flops += part.flops;
  };
  add(cost_kv_write(plan.kv_write, args.kv_write));
  if (plan.ratio() != 0) add(cost_compress_kv(plan.compress_main, args.compress_main, lengths));
  if (plan.ratio() == 4) {
    add(cost_compress_kv(plan.compress_index, args.compress_index, lengths));
    add(cost_index_query(plan.index_query, args.index_query));
  }
  return cost;
}

}  // namespace fathom
