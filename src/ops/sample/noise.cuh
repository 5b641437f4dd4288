// The coupled noise and the order of logits on the device: sample.cc has the host's forms.
#pragma once

#include <cfloat>
#include <cstdint>

#include "ops/sample/sample_rows.h"

namespace fathom::cuda {

// Philox4x32-10 (ops/sample/philox.h has the host's form) of a row: what no id changes is done once. Of the first two
// rounds little is left, and the last one makes one word.
class RowNoise {
 public:
  __device__ explicit RowNoise(const SampleRow& row) {
    const auto place = static_cast<std::uint64_t>(row.position);
    std::uint32_t k0 = static_cast<std::uint32_t>(row.seed), k1 = static_cast<std::uint32_t>(row.seed >> 32);
    const Product first = multiply(kMultiplier1, static_cast<std::uint32_t>(place >> 32));
    const Product second = multiply(kMultiplier0, first.high ^ static_cast<std::uint32_t>(place) ^ k0);
    choice_ = row.choice ^ k1;
    k0 += kWeyl0, k1 += kWeyl1;
    round1_[0] = first.low ^ k0, round1_[1] = second.high ^ k1;
    k0 += kWeyl0, k1 += kWeyl1;
    round2_ = second.low ^ k1;
#pragma unroll
    for (int round = 2; round < 10; ++round) {
      key0_[round - 2] = k0, key1_[round - 2] = k1;
      k0 += kWeyl0, k1 += kWeyl1;
      // Kept, not made again for every id.
      asm volatile("" : "+r"(key0_[round - 2]), "+r"(key1_[round - 2]));
    }
  }
  __device__ __forceinline__ std::uint32_t word(std::uint32_t token) const {
    Product p = multiply(kMultiplier0, token);
    std::uint32_t c3 = p.low;
    Product r = multiply(kMultiplier1, p.high ^ choice_);
    std::uint32_t c0 = r.high ^ round1_[0], c1 = r.low, c2 = c3 ^ round1_[1];
    p = multiply(kMultiplier0, c0), r = multiply(kMultiplier1, c2);
    c0 = r.high ^ c1 ^ key0_[0], c1 = r.low, c2 = p.high ^ round2_, c3 = p.low;
#pragma unroll
    for (int i = 1; i < 7; ++i) {
      p = multiply(kMultiplier0, c0), r = multiply(kMultiplier1, c2);
      c0 = r.high ^ c1 ^ key0_[i], c1 = r.low, c2 = p.high ^ c3 ^ key1_[i], c3 = p.low;
    }
    return multiply(kMultiplier1, c2).high ^ c1 ^ key0_[7];
  }

 private:
  static constexpr std::uint32_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
  static constexpr std::uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  struct Product {
    std::uint32_t low, high;
  };
  // One instruction; written in C++ it becomes products of 64 bits.
  static __device__ __forceinline__ Product multiply(std::uint32_t a, std::uint32_t b) {
    Product p;
    asm("{\n.reg .u64 t;\nmul.wide.u32 t, %2, %3;\nmov.b64 {%0, %1}, t;\n}"
        : "=r"(p.low), "=r"(p.high)
        : "r"(a), "r"(b));
    return p;
  }

  std::uint32_t choice_, round1_[2], round2_, key0_[8], key1_[8];
};

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
