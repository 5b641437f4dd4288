// What a report says of the machine it was made on.
#pragma once

#include <string>

#include "base/thread_pool.h"
#include "profile/report.h"

namespace fathom {

// Memory, arithmetic and the cost of an empty operation, on this CPU with these threads, measured now.
Ceilings measure_cpu_ceilings(ThreadPool& threads);
std::string cpu_name();  // "AMD EPYC 7B13"; "unknown CPU" where the system does not say
std::string utc_now();   // "2026-11-29T21:40:00Z"

}  // namespace fathom
