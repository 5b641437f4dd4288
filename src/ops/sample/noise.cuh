// The coupled noise and the order of logits on the device: sample.cc has the host's forms.
#pragma once

#include <cfloat>
#include <cstdint>

#include "ops/sample/sample_rows.h"

namespace fathom::cuda {

// Words of Philox4x32-10: ops/sample/philox.h has the host's form.
__device__ __forceinline__ std::uint32_t noise_word(const SampleRow& row, std::uint32_t token) {
  std::uint32_t c0 = token, c1 = static_cast<std::uint32_t>(row.position),
                c2 = static_cast<std::uint32_t>(static_cast<std::uint64_t>(row.position) >> 32), c3 = row.choice;
  std::uint32_t k0 = static_cast<std::uint32_t>(row.seed), k1 = static_cast<std::uint32_t>(row.seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * c0, product1 = std::uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<std::uint32_t>(product1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(product1);
    c2 = static_cast<std::uint32_t>(product0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(product0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c0;
}

__device__ __forceinline__ double gumbel_f64(std::uint32_t word) {
  const double u = (static_cast<double>(word) + 0.5) * 0x1p-32;
  return -log(-log(u));
}
// A guess in fp32 is within this of the fp64 score; only those this near the best guess are scored exactly.
constexpr float kGuessMargin = 1e-3f;

__device__ __forceinline__ float readable(float logit) { return isnan(logit) ? -INFINITY : fminf(logit, FLT_MAX); }

// Higher floats have higher keys; the two zeros are one.
__device__ __forceinline__ std::uint32_t key_of(float value) {
  const std::uint32_t bits = __float_as_uint(value + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float value_of(std::uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

// What a cut leaves: higher keys, and of its own key the ids up to last_id.
struct Cut {
  std::uint32_t key = 0;
  int last_id = 0x7fffffff;
  __device__ bool keeps(float scaled, int id) const {
    if (scaled == -INFINITY) return false;
    const std::uint32_t k = key_of(scaled);
    return k > key || (k == key && id <= last_id);
  }
};

// What min_p says of a scaled logit.
__device__ __forceinline__ bool below_min_p(float scaled, float min_p, float log_min_p) {
  return min_p > 0.0f && scaled < log_min_p + 1e-3f &&
         (scaled < log_min_p - 1e-3f || exp(static_cast<double>(scaled)) < static_cast<double>(min_p));
}

}  // namespace fathom::cuda
