// The processor time of the calling thread: for measurements that other programs on the machine must not stretch.
#pragma once

#include <time.h>

namespace fathom {

inline double thread_time_us() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

}  // namespace fathom
