// compress_kv: the compressor of ratio-4 and ratio-128 layers, main or indexer (spec 2.5, streaming rules of 3).
//
// Every row p: u = u_raw[p], g = g_raw[p] + ape[p mod ratio]. A row with (p + 1) mod ratio == 0 closes group
// j = p div ratio and emits entry j:
//   ratio 128: y[ch] = sum_t softmax_t(g[t][ch]) u[t][ch] over the group's 128 rows
//   ratio 4:   over 8 slots: rows of group j-1 with channels [0, d) of u and g, rows of group j with channels
//              [d, 2d); for j = 0 the first four are absent (take the maximum over slots that exist)
//   y = rms_norm(store(y); norm); RoPE on the last rope_dim channels at position j * ratio (frequencies);
//   main: AQ 64 on the first head_dim - rope_dim (quantise_kv) -> entry record of the context block
//   indexer: Hadamard128, then FQ 32 on all channels (quantise_index; the rotation runs in every numerics)
//            -> index-key record
//
// Rows of this step come from u_raw and g_raw, earlier ones from the state slab (slot p mod
// compressor_slots(ratio)), pooled in position order whatever their source. Emission reads the slab before
// the step's last rows are written to it: with steps of at most kMaxDraft + 1 rows a sequence (class `step`)
// no slot that is read is overwritten, so running twice gives the same bits.
#pragma once

#include "ops/cache_view.h"
#include "ops/numerics.h"
#include "ops/registry.h"
#include "ops/step_rows.h"

namespace fathom {

enum class CompressorKind : std::uint8_t { kMain, kIndex };

struct CompressKvDesc {
  CompressorKind kind = CompressorKind::kMain;
  LayerCache cache;
  float eps = 1e-6f;
  Numerics numerics;

  // d of the spec: head_dim of the entry, or of the index key.
  std::int32_t width() const { return kind == CompressorKind::kMain ? cache.kv.head_dim : cache.index_key.head_dim; }
  // Channels of u and g: c * d, c = 2 for ratio 4.
  std::int32_t row_width() const { return (cache.ratio == 4 ? 2 : 1) * width(); }
};
struct CompressKvPlan {
  CompressKvDesc desc;
  std::int64_t workspace_bytes = 0;
};
struct CompressKvArgs {
  const StepRows* rows = nullptr;
  CachePools pools;
  View u_raw;        // [tokens, c * d] f32
  View g_raw;        // [tokens, c * d] f32
  View ape;          // [ratio, c * d] f32
  View norm;         // [d] bf16
  View frequencies;  // [rope_dim / 2] f32, the layer's (compressed) table
};

CompressKvPlan plan_compress_kv(const CompressKvDesc& desc, const DeviceInfo& device);
// The checks that run_compress_kv makes: attention_rows makes them too.
void check_compress_kv(const CompressKvPlan& plan, const CompressKvArgs& args);
void run_compress_kv(ExecutionContext& context, const CompressKvPlan& plan, const CompressKvArgs& args);
OpCost cost_compress_kv(const CompressKvPlan& plan, const CompressKvArgs& args, const HostLengths& lengths);

// Variants, by their registry names.
void compress_kv_reference(ExecutionContext& context, const CompressKvPlan& plan, const CompressKvArgs& args);
void compress_kv_cpu(ExecutionContext& context, const CompressKvPlan& plan, const CompressKvArgs& args);
std::span<const Variant> compress_kv_variants();

}  // namespace fathom
