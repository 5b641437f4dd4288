// What a report says of the machine it was made on.
#pragma once

#include <string>

#include "base/thread_pool.h"
#include "profile/report.h"

namespace fathom {

struct CpuCeilings {
  Ceilings figures;
  std::string note;  // of other load on the machine; empty where the threads had the processors to themselves
};

// Memory, arithmetic and the cost of an empty operation, on this CPU with these threads, measured now: the best of many
// short slices, and of more of them where other load takes the processors away.
CpuCeilings measure_cpu_ceilings(ThreadPool& threads);
std::string cpu_name();  // "AMD EPYC 7B13"; "unknown CPU" where the system does not say
std::string utc_now();   // "2026-11-29T21:40:00Z"

}  // namespace fathom
