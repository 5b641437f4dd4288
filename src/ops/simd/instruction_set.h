// Which of the compiled instruction sets run-time dispatch uses.
#pragma once

#include <string_view>

namespace fathom::simd {

// "AVX3" (AVX-512), "AVX2", "SSE4".
const char* instruction_set();

// Uses the named set from now on, by every thread; false if this machine or build lacks it. For tests: call it while
// no operation runs.
bool choose_instruction_set(std::string_view name);

}  // namespace fathom::simd
