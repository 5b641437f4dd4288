#include <span>
#include <vector>

#include "ops/dequantise.h"
#include "ops/hyper_connection/hyper_connection.h"
#include "ops/hyper_connection/stream_mix.h"
#include "ops/scalar_math.h"

namespace fathom {
namespace {

// h'[k] = store( post[k] * y + sum_j comb[j][k] * h[j] ): the sum runs over the row index.
void post_mix(const HyperConnectionDesc& desc, const float* h, const float* y, const float* post, const float* comb,
              float* next) {
  const std::int64_t hc = desc.hc_mult;
  for (std::int64_t k = 0; k < hc; ++k) {
    for (std::int64_t i = 0; i < desc.hidden; ++i) {
      double sum = static_cast<double>(post[k]) * static_cast<double>(y[i]);
      for (std::int64_t j = 0; j < hc; ++j) {
        sum += static_cast<double>(comb[j * hc + k]) * static_cast<double>(h[j * desc.hidden + i]);
      }
      next[k * desc.hidden + i] = desc.numerics.store(static_cast<float>(sum));
    }
  }
}

void pre_mix(const HyperConnectionDesc& desc, std::span<const float> streams, const HyperConnectionArgs& args,
             std::span<const float> norm_weight, std::int64_t token) {
  const auto hc = static_cast<std::size_t>(desc.hc_mult);
  const auto t = static_cast<std::size_t>(token);
  const std::vector<double> m =
      mix_statistics(streams, args.next.fn, static_cast<std::int64_t>((2 + hc) * hc), desc.rms_norm_eps);
  const std::vector<float> base = widen(args.next.base);
  const std::vector<float> scale = widen(args.next.scale);
  // m[i] of part 0 (pre), 1 (post) or 2 (comb), affine.
  const auto mixed = [&](std::size_t i, std::size_t part) {
    return m[i] * static_cast<double>(scale[part]) + static_cast<double>(base[i]);
  };
  std::vector<double> pre(hc);
  std::vector<double> comb(hc * hc);
  for (std::size_t j = 0; j < hc; ++j) {
    pre[j] = sigmoid(mixed(j, 0)) + static_cast<double>(desc.hc_eps);
    args.next_post.as<float>()[t * hc + j] = static_cast<float>(2.0 * sigmoid(mixed(hc + j, 1)));
  }
  for (std::size_t i = 0; i < hc * hc; ++i) comb[i] = mixed(2 * hc + i, 2);
  sinkhorn(comb, desc.hc_mult, desc.sinkhorn_iters, static_cast<double>(desc.hc_eps));
  for (std::size_t i = 0; i < hc * hc; ++i) args.next_comb.as<float>()[t * hc * hc + i] = static_cast<float>(comb[i]);

  const auto hidden = static_cast<std::size_t>(desc.hidden);
  std::vector<float> x(hidden);
  collapse_streams(streams, pre, desc.numerics, x);
  rms_norm_row(x, norm_weight, desc.rms_norm_eps, desc.numerics, {args.normed.as<float>() + t * hidden, hidden});
}

}  // namespace

void hyper_connection_reference(ExecutionContext&, const HyperConnectionPlan& plan, const HyperConnectionArgs& args) {
  const HyperConnectionDesc& desc = plan.desc;
  const std::int64_t hc = desc.hc_mult;
  const std::int64_t width = hc * desc.hidden;
  const bool has_post = !args.sublayer_out.empty();
  const bool has_pre = !args.next.fn.empty();
  const std::vector<float> norm_weight = has_pre ? widen(args.norm_weight) : std::vector<float>();
  for (std::int64_t t = 0; t < args.streams.shape[0]; ++t) {
    const float* streams = args.streams.as<float>() + t * width;
    if (has_post) {
      float* next = args.next_streams.as<float>() + t * width;
      post_mix(desc, streams, args.sublayer_out.as<float>() + t * desc.hidden, args.post.as<float>() + t * hc,
               args.comb.as<float>() + t * hc * hc, next);
      streams = next;
    }
    if (has_pre) pre_mix(desc, {streams, static_cast<std::size_t>(width)}, args, norm_weight, t);
  }
}

}  // namespace fathom
