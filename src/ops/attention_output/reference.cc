#include <vector>

#include "ops/attention_output/attention_output.h"
#include "ops/scalar_math.h"

namespace fathom {

void attention_output_reference(ExecutionContext& context, const AttentionOutputPlan& plan,
                                const AttentionOutputArgs& args) {
  const AttentionOutputDesc& desc = plan.desc;
  const std::int64_t tokens = args.o.shape[0];
  const std::int64_t o_width = desc.num_groups * desc.group_in;
  const std::int64_t z_width = desc.num_groups * desc.o_lora_rank;
  std::vector<float> z(static_cast<std::size_t>(tokens * z_width));
  for (std::int64_t g = 0; g < desc.num_groups; ++g) {
    scalar_matmul(context, args.o.as<float>() + g * desc.group_in, o_width, tokens, *args.wo_a, g * desc.o_lora_rank,
                  (g + 1) * desc.o_lora_rank, z.data() + g * desc.o_lora_rank, z_width);
  }
  for (float& value : z) value = desc.numerics.store(value);
  const std::vector<float> input = linear_input(z.data(), tokens, *args.wo_b, desc.numerics);
  float* out = args.out.as<float>();
  scalar_matmul(context, input.data(), z_width, tokens, *args.wo_b, 0, desc.hidden, out, desc.hidden);
  for (std::int64_t i = 0; i < tokens * desc.hidden; ++i) out[i] = desc.numerics.store(out[i]);
}

}  // namespace fathom
