#include "ops/simd/instruction_set.h"

#include "ops/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/simd/instruction_set.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace fathom {
namespace HWY_NAMESPACE {

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace fathom
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom {
HWY_EXPORT(target_name);
namespace simd {

const char* instruction_set() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

bool choose_instruction_set(std::string_view name) {
  hwy::SetSupportedTargetsForTest(0);
  for (std::int64_t targets = hwy::SupportedTargets() & HWY_TARGETS; targets != 0; targets &= targets - 1) {
    const std::int64_t target = targets & -targets;
    if (name != hwy::TargetName(target)) continue;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    return true;
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return false;
}

}  // namespace simd
}  // namespace fathom
#endif  // HWY_ONCE
