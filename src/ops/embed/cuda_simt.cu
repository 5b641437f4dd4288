#include "ops/cuda/device_rows.cuh"
#include "ops/embed/embed.h"

namespace fathom::cuda {
namespace {

// One block a token: the row is read once and written hc times.
__global__ void __launch_bounds__(128)
    embed_rows(const std::int32_t* ids, const uint4* table, uint4* streams, int row_vectors, int hc) {
  const uint4* row = table + static_cast<std::int64_t>(ids[blockIdx.x]) * row_vectors;
  uint4* out = streams + static_cast<std::int64_t>(blockIdx.x) * hc * row_vectors;
  for (int i = threadIdx.x; i < row_vectors; i += 128) {
    const uint4 value = row[i];
    for (int stream = 0; stream < hc; ++stream) out[stream * row_vectors + i] = value;
  }
}

}  // namespace

void embed_simt(ExecutionContext& context, const EmbedPlan& plan, const EmbedArgs& args) {
  const auto num_tokens = static_cast<unsigned>(args.token_ids.shape[0]);
  FATHOM_CHECK(plan.desc.hidden % 8 == 0, "rows are copied in 16-byte pieces");
  if (num_tokens == 0) return;
  embed_rows<<<num_tokens, 128, 0, stream_of(context)>>>(args.token_ids.as<std::int32_t>(), args.table.as<uint4>(),
                                                         args.streams.as<uint4>(),
                                                         static_cast<int>(plan.desc.hidden / 8), plan.desc.hc_mult);
}

}  // namespace fathom::cuda
