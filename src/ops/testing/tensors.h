// Tensors of operation tests: random inputs, poisoned outputs, misaligned weights.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tensor/buffer.h"
#include "tensor/weights.h"

namespace fathom::testing {

// A fresh seed each run, named in every failure while the object lives. FATHOM_TEST_SEED repeats a run.
class Random {
 public:
  Random();
  float normal() { return normal_(engine_); }
  // In [begin, end).
  std::int64_t integer(std::int64_t begin, std::int64_t end) {
    return std::uniform_int_distribution<std::int64_t>(begin, end - 1)(engine_);
  }
  std::mt19937_64& engine() { return engine_; }

 private:
  explicit Random(std::uint64_t seed);

  std::mt19937_64 engine_;
  std::normal_distribution<float> normal_;
  ::testing::ScopedTrace trace_;
};

// Owned bytes under a view, `misalignment` bytes behind a 64-byte boundary.
class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, Shape shape, std::int64_t misalignment = 0);

  const View& view() const { return view_; }
  std::span<float> floats() const { return {view_.as<float>(), static_cast<std::size_t>(view_.shape.num_elements())}; }
  std::span<std::int32_t> ints() const {
    return {view_.as<std::int32_t>(), static_cast<std::size_t>(view_.shape.num_elements())};
  }
  std::vector<float> to_vector() const { return {floats().begin(), floats().end()}; }

 private:
  Buffer buffer_;
  View view_;
};

Tensor make_f32(Shape shape, std::span<const float> values);
Tensor make_i32(Shape shape, std::span<const std::int32_t> values);
// Values rounded to bf16.
Tensor make_bf16(Shape shape, std::span<const float> values, std::int64_t misalignment = 0);
Tensor random_f32(Random& random, Shape shape, float scale = 1.0f, float mean = 0.0f);
// fp32 storage of bf16 values: what `serve` hands from operation to operation.
Tensor random_bf16_valued(Random& random, Shape shape, float scale = 1.0f);
Tensor random_bf16(Random& random, Shape shape, float scale = 1.0f, float mean = 0.0f, std::int64_t misalignment = 0);
// F32: NaN; I32: 0xcbcbcbcb. A row that is not written shows.
Tensor poisoned(DType dtype, Shape shape);
// The given rows of the first dimension, in that order.
Tensor gather_rows(const Tensor& tensor, std::span<const std::int32_t> rows);

// A weight of random codes; elements are of the order of `scale`.
struct TestWeight {
  LinearWeight weight;
  Tensor values;
  Tensor scales;
};
inline constexpr WeightFormat kAllFormats[] = {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kFp8Block128,
                                               WeightFormat::kMxfp4, WeightFormat::kNvfp4};
TestWeight random_weight(Random& random, WeightFormat format, std::int64_t n, std::int64_t k,
                         std::int64_t misalignment = 0, DType fp8_scale = DType::kF8E8M0);
// W [n, k] as doubles, decoded here and not by the code under test.
std::vector<double> exact_weight(const LinearWeight& weight);

std::string format_name(WeightFormat format);

}  // namespace fathom::testing
