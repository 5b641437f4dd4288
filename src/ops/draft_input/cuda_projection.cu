// draft_input: two norms, two projections and their sum.
#include "ops/cuda/device_rows.cuh"
#include "ops/draft_input/draft_input.h"
#include "ops/linear/kernels.cuh"
#include "ops/linear/plan.h"
#include "ops/rms_norm/rms_norm.h"

namespace fathom::cuda {

void rms_norm_simt(ExecutionContext& context, const RmsNormPlan& plan, const RmsNormArgs& args);

namespace {

// out[t, j] = e[t] + g[t, j], bf16 operands, one rounding.
__global__ void __launch_bounds__(256) add_broadcast(const std::uint32_t* e, const std::uint32_t* g, std::uint32_t* out,
                                                     std::int64_t num_pairs, int row_pairs, int hc) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i >= num_pairs) return;
  const std::uint32_t a = e[i / (static_cast<std::int64_t>(row_pairs) * hc) * row_pairs + i % row_pairs], b = g[i];
  out[i] = pack_bf16(bf16_low(a) + bf16_low(b), bf16_high(a) + bf16_high(b));
}

}  // namespace

void draft_input_mma(ExecutionContext& context, const DraftInputPlan& plan, const DraftInputArgs& args) {
  const DraftInputDesc& d = plan.desc;
  const std::int64_t tokens = args.embedded.shape[0], rows = tokens * d.hc_mult;
  if (tokens == 0) return;
  auto* e = reinterpret_cast<Bf16Bits*>(context.scratch);
  Bf16Bits* g = e + tokens * d.hidden;
  Bf16Bits* e_out = g + rows * d.hidden;
  Bf16Bits* g_out = e_out + tokens * d.hidden;
  Bf16Bits* quantised = g_out + rows * d.hidden;
  const RmsNormPlan norm{{d.hidden, d.eps, d.numerics}, 0};
  rms_norm_simt(context, norm, {args.embedded, args.enorm, make_view(e, DType::kBF16, {tokens, d.hidden})});
  rms_norm_simt(context, norm, {args.streams, args.hnorm, make_view(g, DType::kBF16, {rows, d.hidden})});
  const bool quantise = d.numerics.quantise_linear_input;
  const cudaStream_t stream = stream_of(context);
  const LinearItem e_item{device_weight(*args.e_proj), e_out, false, quantise && args.e_proj->quantises_input(), 0, 0};
  launch_linear_mma({e, d.hidden, static_cast<std::int32_t>(tokens)}, {&e_item, 1}, quantised, stream);
  const LinearItem h_item{device_weight(*args.h_proj), g_out, false, quantise && args.h_proj->quantises_input(), 0, 0};
  launch_linear_mma({g, d.hidden, static_cast<std::int32_t>(rows)}, {&h_item, 1}, quantised, stream);
  const std::int64_t pairs = rows * d.hidden / 2;
  add_broadcast<<<static_cast<unsigned>((pairs + 255) / 256), 256, 0, stream>>>(
      reinterpret_cast<const std::uint32_t*>(e_out), reinterpret_cast<const std::uint32_t*>(g_out),
      args.out.as<std::uint32_t>(), pairs, static_cast<int>(d.hidden / 2), d.hc_mult);
}

}  // namespace fathom::cuda
