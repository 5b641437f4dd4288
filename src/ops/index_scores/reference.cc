#include <algorithm>
#include <vector>

#include "ops/cache_records.h"
#include "ops/index_scores/index_scores.h"
#include "ops/parallel.h"
#include "ops/scalar_math.h"

namespace fathom {

void index_scores_reference(ExecutionContext& context, const IndexScoresPlan& plan, const IndexScoresArgs& args) {
  const IndexScoresDesc& desc = plan.desc;
  const StepRows& rows = *args.rows;
  const IndexKeyLayout& layout = desc.cache.index_key;
  const std::int64_t stride = args.scores.shape[1];
  parallel_ranges(context, args.scores.shape[0], 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> key(static_cast<std::size_t>(layout.head_dim));
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t t = args.first_row + row;
      const std::int64_t visible = (rows.positions.as<std::int32_t>()[t] + 1) / desc.cache.ratio;
      if (visible <= desc.topk) continue;
      FATHOM_CHECK(visible <= stride, "a row of scores holds the visible entries");
      const float* q = args.q.as<float>() + t * desc.num_heads * layout.head_dim;
      const float* weights = args.weights_raw.as<float>() + t * desc.num_heads;
      for (std::int64_t j = 0; j < visible; ++j) {
        const std::int32_t sequence = rows.sequence_of.as<std::int32_t>()[t];
        read_index_key(layout, index_key_record(rows, args.pools, desc.cache, sequence, j), key);
        double score = 0.0;
        for (std::int64_t h = 0; h < desc.num_heads; ++h) {
          const float weight = weights[h] * desc.weight_scale;
          score +=
              std::max(0.0, dot(q + h * layout.head_dim, key.data(), layout.head_dim)) * static_cast<double>(weight);
        }
        args.scores.as<float>()[row * stride + j] = static_cast<float>(score);
      }
    }
  });
}

}  // namespace fathom
