#include "ops/compress_kv/compress_kv.h"
#include "ops/cuda/compressor_rows.cuh"

namespace fathom::cuda {
namespace {

// One block a row.
__global__ void __launch_bounds__(kRecordThreads)
    emit_main(DeviceRows rows, CachePools pools, LayerCache cache, CompressorRows r, const uint2* norm,
              const float* frequencies, float eps, bool keeps) {
  emit_main_entry(rows, pools, cache, r, norm, frequencies, eps, keeps, static_cast<int>(blockIdx.x));
}

__global__ void __launch_bounds__(kIndexDim)
    emit_index(DeviceRows rows, CachePools pools, LayerCache cache, CompressorRows r, const Bf16Bits* norm,
               const float* frequencies, float eps, bool keeps) {
  emit_index_key(rows, pools, cache, r, norm, frequencies, eps, keeps, static_cast<int>(blockIdx.x));
}

__global__ void __launch_bounds__(256)
    write_state(DeviceRows rows, CachePools pools, CompressorRows r, std::int64_t u_offset, std::int64_t g_offset) {
  keep_row<256>(rows, pools, r, u_offset, g_offset, static_cast<int>(blockIdx.x));
}

}  // namespace

void compress_kv_simt(ExecutionContext& context, const CompressKvPlan& plan, const CompressKvArgs& args) {
  const LayerCache& cache = plan.desc.cache;
  const bool main = plan.desc.kind == CompressorKind::kMain;
  FATHOM_CHECK(plan.desc.width() == (main ? kHeadDim : kIndexDim) && cache.kv.format == CacheFormat::kPacked,
               "packed records of 512 or 128 channels");
  if (args.rows->num_tokens == 0) return;
  const DeviceRows rows = device_rows(*args.rows);
  const CompressorRows r{args.u_raw.as<float>(), args.g_raw.as<float>(),        args.ape.as<float>(), nullptr, nullptr,
                         plan.desc.row_width(),  compressor_slots(cache.ratio), cache.ratio};
  const auto blocks = static_cast<unsigned>(rows.num_tokens);
  const cudaStream_t stream = stream_of(context);
  const bool together = emits_and_keeps(*args.rows);
  if (main) {
    emit_main<<<blocks, kRecordThreads, 0, stream>>>(rows, args.pools, cache, r, args.norm.as<uint2>(),
                                                     args.frequencies.as<float>(), plan.desc.eps, together);
    if (!together)
      write_state<<<blocks, 256, 0, stream>>>(rows, args.pools, r, cache.main_u_offset_bytes,
                                              cache.main_g_offset_bytes);
  } else {
    emit_index<<<blocks, kIndexDim, 0, stream>>>(rows, args.pools, cache, r, args.norm.as<Bf16Bits>(),
                                                 args.frequencies.as<float>(), plan.desc.eps, together);
    if (!together)
      write_state<<<blocks, 256, 0, stream>>>(rows, args.pools, r, cache.index_u_offset_bytes,
                                              cache.index_g_offset_bytes);
  }
}

}  // namespace fathom::cuda
