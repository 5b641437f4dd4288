#include "ops/lm_head/lm_head.h"
#include "ops/scalar_math.h"

namespace fathom {

void lm_head_reference(ExecutionContext& context, const LmHeadPlan& plan, const LmHeadArgs& args) {
  scalar_matmul(context, args.x.as<float>(), plan.desc.hidden, args.x.shape[0], *args.head, 0, plan.desc.vocab,
                args.logits.as<float>(), plan.desc.vocab);
}

}  // namespace fathom
