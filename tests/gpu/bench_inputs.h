// What the benchmarks share: random weights and rows on the device, the speed of a copy, and one line of a table.
//
// Times are of graph replays over rotating buffers larger than the L2, the median of some replays, microseconds a call,
// with the bytes of the operation's own cost and their share of copy speed.
#pragma once

#include <cstdint>
#include <vector>

#include "device.h"
#include "ops/numerics.h"
#include "tensor/weights.h"

namespace fathom::gpu {

inline constexpr Numerics kServe = Numerics::serve();

// FATHOM_GPU_BATCH, FATHOM_GPU_CONTEXT and FATHOM_GPU_RATIO leave one batch, length or kind of layer, for a profiler.
bool asked_for(const char* name, std::int64_t value);
// 1, 8, 32, 64 and 128, to `most`, those asked for.
std::vector<int> batches(int most = 128);
// Copies of an input of `bytes` so that a full turn exceeds the L2 several times.
int copies_for(double bytes);
double copy_gb_per_s();

std::uint64_t next_random(std::uint64_t& state);
// Device bytes: random 4-bit or 8-bit codes whose magnitudes stay moderate.
View random_codes(Arena& arena, DType dtype, Shape shape, std::uint64_t mask);
inline constexpr std::uint64_t kE4m3Mask = 0xbfbfbfbfbfbfbfbfull;  // exponent below 8: magnitudes under 2
inline constexpr std::uint64_t kAnyMask = ~0ull;
inline constexpr std::uint64_t kBf16Mask = 0xbf7fbf7fbf7fbf7full;  // |x| under 1: exponent 0x3e and less
View constant_bytes(Arena& arena, DType dtype, Shape shape, int value);
View random_bf16(Arena& arena, Shape shape);
LinearWeight fp8_weight(Arena& arena, std::int64_t n, std::int64_t k);
LinearWeight bf16_weight(Arena& arena, std::int64_t n, std::int64_t k);

void line(const char* name, int batch, double us, double bytes);

}  // namespace fathom::gpu
