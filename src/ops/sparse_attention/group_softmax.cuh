// The arithmetic of a group of 128 keys and of the fold of groups, as every tensor-core variant does it: `mma`,
// `mma_splitk`, `mma_splitk_arrival`, `wgmma` and `wgmma_whole` give a row the same bits, so a launcher may choose by
// the number of rows. What they share, besides the functions below:
//   S: one accumulator chain over the 32 steps of 16 channels, ascending; from zero.
//   Tiles of 64 keys in order: m' = max(m, scale * the tile's peak), P = exp2(scale * s - m') as two bf16 terms,
//   l' = l e + sum P and o' = o e + P V with e = exp2(m - m'); the first tile starts from m = -inf, l = o = 0.
//   P V: one chain over steps of 16 keys, ascending; in each the high term, then the low one.
//   sum P: a quad's lane t adds columns 8 n + 2 t and + 1 for n = 0 to 7; then lanes t ^ 1, then t ^ 2.
// A tensor core gives the same bits from mma.sync and from wgmma for the same chain (docs/gpu_h200.md).
#pragma once

#include "ops/cuda/numerics.cuh"
#include "ops/sparse_attention/row_keys.cuh"

namespace fathom::cuda {

// 2^x for x <= 0; what would be denormal is 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// P of one logit: the argument is rounded once.
__device__ __forceinline__ float probability(float s, float m) { return exp2_fast(__fmaf_rn(s, kLogitScale, -m)); }

// Two neighbouring P as two bf16 terms each: one alone would cost 2e-3 of the result.
struct ProbPair {
  std::uint32_t high, low;
};
__device__ __forceinline__ ProbPair split_pair(float p0, float p1) {
  const std::uint32_t high = pack_bf16(p0, p1);
  return {high, pack_bf16(__fsub_rn(p0, bf16_low(high)), __fsub_rn(p1, bf16_high(high)))};
}
// What P V multiplies is what l sums.
__device__ __forceinline__ float pair_sum(std::uint32_t high, std::uint32_t low) {
  return __fadd_rn(__fadd_rn(bf16_low(high), bf16_low(low)), __fadd_rn(bf16_high(high), bf16_high(low)));
}
__device__ __forceinline__ float quad_sum(float sum) {
  sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 1));
  return __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 2));
}
__device__ __forceinline__ float quad_max(float peak) {
  peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 1));
  return fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 2));
}
// l of the tiles so far and the next one's sum; `shrink` = exp2(m - m').
__device__ __forceinline__ float add_tile_sum(float l, float shrink, float sum) { return __fmaf_rn(l, shrink, sum); }

// The fold of a group (m, l) into the groups before it: the factors of the two o, by which l folds, too. The first
// group folds into m = -inf, l = o = 0, which leaves it as it is.
struct FoldFactors {
  float before, next;
};
__device__ __forceinline__ FoldFactors fold_maximum(float& m, float next_m) {
  const float peak = fmaxf(m, next_m);
  const FoldFactors factors{exp2_fast(m - peak), exp2_fast(next_m - peak)};
  m = peak;
  return factors;
}
__device__ __forceinline__ float fold_value(float before, float next, const FoldFactors& factors) {
  return __fadd_rn(__fmul_rn(before, factors.before), __fmul_rn(next, factors.next));
}

}  // namespace fathom::cuda
