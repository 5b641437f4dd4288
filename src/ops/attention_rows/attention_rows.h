// attention_rows: what a row makes of its projections before attention, in one operation where launches cost time
// (CUDA; on the CPU the parts run one by one):
//
//   q_norm_rope, kv_write, then in compressed layers compress_kv (main) and in ratio-4 layers compress_kv (indexer) and
//   index_query
//
// No part reads what another writes. Contracts, rounding and bits are those of the parts; `separate` runs the parts'
// own kernels, `fused` all of them as one launch.
#pragma once

#include <array>

#include "ops/compress_kv/compress_kv.h"
#include "ops/index_query/index_query.h"
#include "ops/kv_write/kv_write.h"
#include "ops/q_norm_rope/q_norm_rope.h"

namespace fathom {

// kv_write's layer decides which parts there are.
struct AttentionRowsPlan {
  QNormRopePlan queries;
  KvWritePlan kv_write;
  CompressKvPlan compress_main;   // ratio 4 and 128
  CompressKvPlan compress_index;  // ratio 4
  IndexQueryPlan index_query;     // ratio 4
  std::int64_t workspace_bytes = 0;

  std::int32_t ratio() const { return kv_write.desc.cache.ratio; }
};
struct AttentionRowsArgs {
  QNormRopeArgs queries;
  KvWriteArgs kv_write;
  CompressKvArgs compress_main;
  CompressKvArgs compress_index;
  IndexQueryArgs index_query;
};

AttentionRowsPlan plan_attention_rows(const QNormRopePlan& queries, const KvWritePlan& kv_write,
                                      const CompressKvPlan& compress_main, const CompressKvPlan& compress_index,
                                      const IndexQueryPlan& index_query);
void run_attention_rows(ExecutionContext& context, const AttentionRowsPlan& plan, const AttentionRowsArgs& args);
OpCost cost_attention_rows(const AttentionRowsPlan& plan, const AttentionRowsArgs& args, const HostLengths& lengths);

namespace cuda {

// Blocks of `fused`, part after part, the longest first. From the number of rows and heads alone.
inline constexpr int kAttentionRowsWarps = 4;  // of a block; a head takes one
struct AttentionRowsBlocks {
  std::array<std::int64_t, 5> ends{};  // compress_main, compress_index, kv_write, queries, index queries
};
constexpr AttentionRowsBlocks attention_rows_blocks(std::int64_t num_tokens, std::int32_t ratio, std::int32_t num_heads,
                                                    std::int32_t num_index_heads) {
  const auto heads = [&](std::int64_t n) { return ceil_div(num_tokens * n, std::int64_t{kAttentionRowsWarps}); };
  AttentionRowsBlocks blocks;
  blocks.ends[0] = ratio != 0 ? num_tokens : 0;
  blocks.ends[1] = blocks.ends[0] + (ratio == 4 ? num_tokens : 0);
  blocks.ends[2] = blocks.ends[1] + num_tokens;
  blocks.ends[3] = blocks.ends[2] + heads(num_heads);
  blocks.ends[4] = blocks.ends[3] + (ratio == 4 ? heads(num_index_heads) : 0);
  return blocks;
}

}  // namespace cuda
}  // namespace fathom
