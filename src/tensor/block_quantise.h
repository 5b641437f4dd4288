// The activation quantisers of spec 2.1: AQ (FP8) and FQ (FP4), one block at a time.
#pragma once

#include <cstdint>
#include <span>

namespace fathom {

// ceil(log2(t)) of a positive, finite, normal fp32: the exponent AQ and FQ take for their scale 2^e.
int ceil_log2(float t);

// AQ: amax floored at 1e-4, scale 2^ceil(log2(amax/448)), e4m3 round to nearest even.
// Writes codes [n] and returns the scale's exponent e (scale = 2^e).
int quantise_e4m3_block(std::span<const float> values, std::span<std::uint8_t> codes);

// FQ: amax floored at 6*2^-126, scale 2^ceil(log2(amax/6)), e2m1 round to nearest even.
int quantise_e2m1_block(std::span<const float> values, std::span<std::uint8_t> codes);

// "Simulated": values are replaced by code * scale, exact in bf16. The last block may be shorter.
void simulate_e4m3(std::span<float> values, std::int64_t block);
void simulate_e2m1(std::span<float> values, std::int64_t block);

}  // namespace fathom
