// Which instruction sets the vector code is compiled for: AVX-512 (F, BW, DQ, VL), AVX2 with FMA, and SSE4 as the
// least that an x86 machine must have. Include this before any Highway header.
//
// Fewer targets, shorter builds: a .cc file that uses foreach_target is compiled once for each.
#pragma once

#if defined(__x86_64__)
#define HWY_BASELINE_TARGETS HWY_SSE4
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#endif
