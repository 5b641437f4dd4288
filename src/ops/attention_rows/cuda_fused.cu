// attention_rows/fused: the five parts as one launch, a range of blocks each; every block runs the device code of the
// part's own kernel. /separate: those kernels one after another.
#include "ops/attention_rows/attention_rows.h"
#include "ops/cuda/compressor_rows.cuh"
#include "ops/cuda/index_head.cuh"
#include "ops/cuda/query_head.cuh"
#include "ops/cuda/window_record.cuh"

namespace fathom::cuda {

void q_norm_rope_simt(ExecutionContext& context, const QNormRopePlan& plan, const QNormRopeArgs& args);
void kv_write_simt(ExecutionContext& context, const KvWritePlan& plan, const KvWriteArgs& args);
void compress_kv_simt(ExecutionContext& context, const CompressKvPlan& plan, const CompressKvArgs& args);
void index_query_simt(ExecutionContext& context, const IndexQueryPlan& plan, const IndexQueryArgs& args);

namespace {

struct Compressor {
  CompressorRows rows;
  const void* norm;
  const float* frequencies;
  float eps;
};

struct RowsCall {
  DeviceRows rows;
  CachePools pools;
  LayerCache cache;
  Compressor main, index;
  bool keeps;
  const uint2 *kv_raw, *kv_norm;
  const void* kv_rope;
  float kv_eps;
  const uint4* q_raw;
  const void* q_rope;
  uint4* q;
  std::int32_t num_heads;
  float q_eps;
  const uint2* index_q_raw;
  const void* index_rope;
  uint2* index_q;
  std::int32_t num_index_heads;
  std::int32_t ends[5];
};

__global__ void __launch_bounds__(kRecordThreads, 6) make_rows(const __grid_constant__ RowsCall call) {
  static_assert(kRecordThreads == kIndexDim && kRecordThreads == kAttentionRowsWarps * 32);
  const int block = static_cast<int>(blockIdx.x), warp = static_cast<int>(threadIdx.x >> 5);
  if (block < call.ends[0]) {
    return emit_main_entry(call.rows, call.pools, call.cache, call.main.rows, static_cast<const uint2*>(call.main.norm),
                           call.main.frequencies, call.main.eps, call.keeps, block);
  }
  if (block < call.ends[1]) {
    return emit_index_key(call.rows, call.pools, call.cache, call.index.rows,
                          static_cast<const Bf16Bits*>(call.index.norm), call.index.frequencies, call.index.eps,
                          call.keeps, block - call.ends[0]);
  }
  if (block < call.ends[2]) {
    return write_window_record(call.rows, call.pools, call.cache, call.kv_raw, call.kv_norm,
                               static_cast<const float2*>(call.kv_rope), call.kv_eps, block - call.ends[1]);
  }
  if (block < call.ends[3]) {
    const int row = (block - call.ends[2]) * kAttentionRowsWarps + warp;
    if (row < call.rows.num_tokens * call.num_heads) {
      make_query_head(call.q_raw, static_cast<const float4*>(call.q_rope), call.q, row, call.num_heads, call.q_eps);
    }
    return;
  }
  const int row = (block - call.ends[3]) * kAttentionRowsWarps + warp;
  if (row < call.rows.num_tokens * call.num_index_heads) {
    make_index_head(call.index_q_raw, static_cast<const float2*>(call.index_rope), call.index_q, row,
                    call.num_index_heads);
  }
}

// Where one launch may not do both: the step's last rows into the slabs, main then indexer, after all emissions.
__global__ void __launch_bounds__(256) keep_rows(const __grid_constant__ RowsCall call) {
  const int row = static_cast<int>(blockIdx.x);
  if (blockIdx.y == 0) {
    keep_row<256>(call.rows, call.pools, call.main.rows, call.cache.main_u_offset_bytes, call.cache.main_g_offset_bytes,
                  row);
  } else {
    keep_row<256>(call.rows, call.pools, call.index.rows, call.cache.index_u_offset_bytes,
                  call.cache.index_g_offset_bytes, row);
  }
}

Compressor compressor(const CompressKvPlan& plan, const CompressKvArgs& args) {
  return {{args.u_raw.as<float>(), args.g_raw.as<float>(), args.ape.as<float>(), nullptr, nullptr,
           plan.desc.row_width(), compressor_slots(plan.desc.cache.ratio), plan.desc.cache.ratio},
          args.norm.data,
          args.frequencies.as<float>(),
          plan.desc.eps};
}

}  // namespace

void attention_rows_separate(ExecutionContext& context, const AttentionRowsPlan& plan, const AttentionRowsArgs& args) {
  q_norm_rope_simt(context, plan.queries, args.queries);
  kv_write_simt(context, plan.kv_write, args.kv_write);
  if (plan.ratio() != 0) compress_kv_simt(context, plan.compress_main, args.compress_main);
  if (plan.ratio() == 4) {
    compress_kv_simt(context, plan.compress_index, args.compress_index);
    index_query_simt(context, plan.index_query, args.index_query);
  }
}

void attention_rows_fused(ExecutionContext& context, const AttentionRowsPlan& plan, const AttentionRowsArgs& args) {
  const LayerCache& cache = plan.kv_write.desc.cache;
  const bool index = cache.ratio == 4;
  FATHOM_CHECK(cache.kv.head_dim == kHeadDim && cache.kv.rope_dim == kRopeDim &&
                   cache.kv.format == CacheFormat::kPacked && plan.queries.desc.head_dim == kHeadDim &&
                   plan.queries.desc.rope_dim == kRopeDim,
               "packed records and heads of 512 channels, 64 rotated");
  FATHOM_CHECK(cache.ratio == 0 || plan.compress_main.desc.width() == kHeadDim, "entries of 512 channels");
  FATHOM_CHECK(!index || (plan.compress_index.desc.width() == kIndexDim &&
                          plan.index_query.desc.head_dim == kIndexDim && plan.index_query.desc.rope_dim == kRopeDim),
               "indexer heads and keys of 128 channels");
  if (args.kv_write.rows->num_tokens == 0) return;
  RowsCall call{};
  call.rows = device_rows(*args.kv_write.rows);
  call.pools = args.kv_write.pools;
  call.cache = cache;
  if (cache.ratio != 0) call.main = compressor(plan.compress_main, args.compress_main);
  if (index) call.index = compressor(plan.compress_index, args.compress_index);
  call.keeps = emits_and_keeps(*args.kv_write.rows);
  call.kv_raw = args.kv_write.kv_raw.as<uint2>();
  call.kv_norm = args.kv_write.kv_norm.as<uint2>();
  call.kv_rope = args.kv_write.rope.data;
  call.kv_eps = plan.kv_write.desc.eps;
  call.q_raw = args.queries.q_raw.as<uint4>();
  call.q_rope = args.queries.rope.data;
  call.q = args.queries.q.as<uint4>();
  call.num_heads = plan.queries.desc.num_heads;
  call.q_eps = plan.queries.desc.eps;
  if (index) {
    call.index_q_raw = args.index_query.q_raw.as<uint2>();
    call.index_rope = args.index_query.rope.data;
    call.index_q = args.index_query.q.as<uint2>();
    call.num_index_heads = plan.index_query.desc.num_heads;
  }
  const AttentionRowsBlocks blocks =
      attention_rows_blocks(call.rows.num_tokens, cache.ratio, call.num_heads, call.num_index_heads);
  for (int i = 0; i < 5; ++i) call.ends[i] = static_cast<std::int32_t>(blocks.ends[static_cast<std::size_t>(i)]);
  const cudaStream_t stream = stream_of(context);
  make_rows<<<static_cast<unsigned>(blocks.ends[4]), kRecordThreads, 0, stream>>>(call);
  if (cache.ratio != 0 && !call.keeps) {
    keep_rows<<<dim3(static_cast<unsigned>(call.rows.num_tokens), index ? 2 : 1), 256, 0, stream>>>(call);
  }
}

}  // namespace fathom::cuda
