// What the launchers of hyper_connection's variants share.
#pragma once

#include <type_traits>

#include "ops/hyper_connection/coefficients.cuh"
#include "ops/hyper_connection/hyper_connection.h"

namespace fathom::cuda {

// launch(post, pre) with the halves that the call has as std::bool_constant.
template <typename Launch>
void launch_halves(const HyperConnectionArgs& args, Launch&& launch) {
  const bool has_post = !args.sublayer_out.empty(), has_pre = !args.next.fn.empty();
  if (has_post && has_pre)
    launch(std::true_type{}, std::true_type{});
  else if (has_post)
    launch(std::true_type{}, std::false_type{});
  else if (has_pre)
    launch(std::false_type{}, std::true_type{});
}

inline HcConstants hc_constants(const HyperConnectionDesc& desc, const HyperConnectionArgs& args) {
  return {args.next.fn.as<float>(), args.next.base.as<float>(), args.next.scale.as<float>(), desc.hc_eps,
          desc.rms_norm_eps,        desc.sinkhorn_iters};
}

}  // namespace fathom::cuda
