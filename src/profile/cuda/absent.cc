#include "profile/device_timeline.h"
#include "profile/isolated.h"

namespace fathom {

Result<std::unique_ptr<DeviceRecorder>> open_cupti() {
  return failed_precondition("this program was built without CUDA, so there are no CUPTI records");
}

Result<std::unique_ptr<DeviceRecorder>> open_cupti_with_launches() { return open_cupti(); }

Result<Ceilings> measure_cuda_ceilings() {
  return failed_precondition("this program was built without CUDA: no ceilings of a card");
}

Result<std::unique_ptr<ClockSource>> open_card_clocks() {
  return failed_precondition("this program was built without CUDA: no clocks of a card");
}

Result<std::unique_ptr<IsolatingObserver>> open_isolating_observer(void*) {
  return failed_precondition("this program was built without CUDA: no calls of a card to time");
}
Result<std::unique_ptr<EmptyLaunches>> open_empty_launches(void*) {
  return failed_precondition("this program was built without CUDA: no empty launches");
}
Status begin_profiler_range() { return failed_precondition("this program was built without CUDA"); }
Status end_profiler_range() { return failed_precondition("this program was built without CUDA"); }

}  // namespace fathom
