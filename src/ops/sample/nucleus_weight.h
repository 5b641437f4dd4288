// The weights that top_p adds up: integers, from operations that round alike everywhere, so that their sums know no
// order and the host and the device cut at the same token.
#pragma once

#include <cstdint>
#include <cstring>

#include "ops/host_device.h"

namespace fathom {

namespace nucleus_detail {
// a * b + c rounded twice: the device's compiler must not fuse it, the host's does not.
FATHOM_HOST_DEVICE inline double multiply_then_add(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
  return __dadd_rn(__dmul_rn(a, b), c);
#else
  const double product = a * b;
  return product + c;
#endif
}
}  // namespace nucleus_detail

// floor(2^44 exp(scaled)) within some units, for scaled = (logit - highest) / T <= 0; 0 below about -30.5. A whole
// vocabulary's sum stays under 2^63.
FATHOM_HOST_DEVICE inline std::uint64_t nucleus_weight(float scaled) {
  using nucleus_detail::multiply_then_add;
  if (!(scaled > -31.0f)) return 0;
  // 2^x: x = n + f with |f| <= 1/2, 2^f by its series.
  const double x = multiply_then_add(static_cast<double>(scaled), 1.4426950408889634, 0.0);
#if defined(__CUDA_ARCH__)
  // The same numbers without conversions, which are slow there: integers appear in the low bits of a sum with 2^52,
  // rounded towards zero as the casts below are.
  const double shifted = __dadd_rz(x - 0.5, -0x1.8p52);
  const double f = x - (shifted + 0x1.8p52);
  const int exponent = 1023 + 44 - __double2loint(shifted);
#else
  const int n = static_cast<int>(x - 0.5);  // towards zero: the nearest for x <= 0
  const double f = x - static_cast<double>(n);
#endif
  double power = 7.054911620801121e-09;
  power = multiply_then_add(power, f, 1.0178086009239699e-07);
  power = multiply_then_add(power, f, 1.3215486790144307e-06);
  power = multiply_then_add(power, f, 1.5252733804059841e-05);
  power = multiply_then_add(power, f, 1.5403530393381608e-04);
  power = multiply_then_add(power, f, 1.3333558146428443e-03);
  power = multiply_then_add(power, f, 9.6181291076284772e-03);
  power = multiply_then_add(power, f, 5.5504108664821580e-02);
  power = multiply_then_add(power, f, 2.4022650695910072e-01);
  power = multiply_then_add(power, f, 6.9314718055994531e-01);
  power = multiply_then_add(power, f, 1.0);
#if defined(__CUDA_ARCH__)
  const double sum = __dadd_rz(__dmul_rn(power, __hiloint2double(exponent << 20, 0)), 0x1p52);
  return static_cast<std::uint64_t>(__double_as_longlong(sum)) & ((std::uint64_t{1} << 52) - 1);
#else
  const std::uint64_t scale_bits = static_cast<std::uint64_t>(1023 + 44 + n) << 52;
  double scale = 0;
  std::memcpy(&scale, &scale_bits, sizeof scale);
  return static_cast<std::uint64_t>(power * scale);
#endif
}

// Whether a run of that weight reaches `share` of all.
FATHOM_HOST_DEVICE inline bool nucleus_reached(std::uint64_t run, std::uint64_t all, float share) {
  return static_cast<double>(run) >=
         nucleus_detail::multiply_then_add(static_cast<double>(share), static_cast<double>(all), 0.0);
}

}  // namespace fathom
