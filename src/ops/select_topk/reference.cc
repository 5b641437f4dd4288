#include <algorithm>
#include <numeric>
#include <vector>

#include "ops/select_topk/select_topk.h"

namespace fathom {

void select_topk_reference(ExecutionContext&, const SelectTopkPlan& plan, const SelectTopkArgs& args) {
  const std::int64_t topk = plan.desc.topk;
  const std::int64_t stride = args.scores.shape[1];
  for (std::int64_t row = 0; row < args.scores.shape[0]; ++row) {
    const std::int64_t t = args.first_row + row;
    const std::int64_t visible = (args.rows->positions.as<std::int32_t>()[t] + 1) / plan.desc.ratio;
    std::vector<std::int32_t> order(static_cast<std::size_t>(visible));
    std::iota(order.begin(), order.end(), 0);
    if (visible > topk) {
      FATHOM_CHECK(visible <= stride, "a row of scores holds the visible entries");
      const float* scores = args.scores.as<float>() + row * stride;
      // Stable: equal scores keep the lower entry first.
      std::stable_sort(order.begin(), order.end(),
                       [&](std::int32_t a, std::int32_t b) { return scores[a] > scores[b]; });
      order.resize(static_cast<std::size_t>(topk));
      std::sort(order.begin(), order.end());
    }
    std::int32_t* selected = args.selected.as<std::int32_t>() + t * topk;
    std::fill(std::copy(order.begin(), order.end(), selected), selected + topk, -1);
  }
}

}  // namespace fathom
