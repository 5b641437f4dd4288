// What this machine can do at most, measured: the denominators of every "percent of the floor".
#pragma once

#include "base/thread_pool.h"

namespace fathom::simd {

struct Ceilings {
  double memory_bytes_per_s = 0;  // reading 256 MB, in slices of 16 MB
  double cache_bytes_per_s = 0;   // reading 8 MB over and over: last-level cache
  double flops_per_s = 0;         // fp32 fused multiply-adds on independent registers, two operations each
};

// The best slice of `rounds`, all threads of the pool working.
Ceilings measure_ceilings(ThreadPool& threads, int rounds = 5);

}  // namespace fathom::simd
