// stream_mean/simt: a thread a pair of columns, streams added in their order.
#include "ops/cuda/device_rows.cuh"
#include "ops/cuda/numerics.cuh"
#include "ops/stream_mean/stream_mean.h"

namespace fathom::cuda {
namespace {

__global__ void __launch_bounds__(256)
    mean_of_streams(const std::uint32_t* streams, std::uint32_t* out, std::int64_t num_pairs, int row_pairs, int hc,
                    int num_slots, int slot) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i >= num_pairs) return;
  const std::int64_t row = i / row_pairs, pair = i % row_pairs;
  float low = 0.0f, high = 0.0f;
  for (int j = 0; j < hc; ++j) {
    const std::uint32_t v = streams[(row * hc + j) * row_pairs + pair];
    low += bf16_low(v);
    high += bf16_high(v);
  }
  const auto count = static_cast<float>(hc);
  out[(row * num_slots + slot) * row_pairs + pair] = pack_bf16(__fdiv_rn(low, count), __fdiv_rn(high, count));
}

}  // namespace

void stream_mean_simt(ExecutionContext& context, const StreamMeanPlan& plan, const StreamMeanArgs& args) {
  const StreamMeanDesc& d = plan.desc;
  FATHOM_CHECK(d.hidden % 2 == 0, "columns come in pairs");
  const std::int64_t pairs = args.streams.shape[0] * d.hidden / 2;
  if (pairs == 0) return;
  mean_of_streams<<<static_cast<unsigned>((pairs + 255) / 256), 256, 0, stream_of(context)>>>(
      args.streams.as<std::uint32_t>(), args.out.as<std::uint32_t>(), pairs, static_cast<int>(d.hidden / 2), d.hc_mult,
      d.num_slots, args.slot);
}

}  // namespace fathom::cuda
