#include "ops/testing/tensors.h"

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "tensor/scalar_formats.h"

namespace fathom::testing {
namespace {

std::uint64_t choose_seed() {
  const char* fixed = std::getenv("FATHOM_TEST_SEED");
  return fixed != nullptr ? std::strtoull(fixed, nullptr, 10) : std::random_device{}();
}

std::byte* at(const View& view, std::int64_t index) { return view.data + index * dtype_bytes(view.dtype); }

std::uint8_t byte_at(const View& view, std::int64_t index) { return static_cast<std::uint8_t>(*at(view, index)); }

// The number formats of spec section 6, written as arithmetic.
double e4m3_value(std::uint8_t code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

double e2m1_value(int code) {
  const int exponent = code >> 1 & 3;
  const int mantissa = code & 1;
  const double magnitude = exponent == 0 ? 0.5 * mantissa : std::ldexp(1.0 + 0.5 * mantissa, exponent - 1);
  return (code & 8) != 0 ? -magnitude : magnitude;
}

double float_at(const View& view, std::int64_t index) {
  std::uint32_t bits = 0;
  if (view.dtype == DType::kF32) {
    std::memcpy(&bits, at(view, index), 4);
  } else {
    std::uint16_t half;
    std::memcpy(&half, at(view, index), 2);
    bits = static_cast<std::uint32_t>(half) << 16;
  }
  float value;
  std::memcpy(&value, &bits, 4);
  return static_cast<double>(value);
}

}  // namespace

Random::Random() : Random(choose_seed()) {}

Random::Random(std::uint64_t seed)
    : engine_(seed), trace_(__FILE__, __LINE__, "seed: FATHOM_TEST_SEED=" + std::to_string(seed)) {}

Tensor::Tensor(DType dtype, Shape shape, std::int64_t misalignment)
    : buffer_(shape.num_elements() * dtype_bytes(dtype) + misalignment + 1),
      view_(make_view(buffer_.data() + misalignment, dtype, shape)) {}

Tensor make_f32(Shape shape, std::span<const float> values) {
  Tensor tensor(DType::kF32, shape);
  std::memcpy(tensor.view().data, values.data(), values.size_bytes());
  return tensor;
}

Tensor make_i32(Shape shape, std::span<const std::int32_t> values) {
  Tensor tensor(DType::kI32, shape);
  std::memcpy(tensor.view().data, values.data(), values.size_bytes());
  return tensor;
}

Tensor make_bf16(Shape shape, std::span<const float> values, std::int64_t misalignment) {
  Tensor tensor(DType::kBF16, shape, misalignment);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Bf16 bits = float_to_bf16(values[i]);
    std::memcpy(at(tensor.view(), static_cast<std::int64_t>(i)), &bits, sizeof(bits));
  }
  return tensor;
}

Tensor random_f32(Random& random, Shape shape, float scale, float mean) {
  Tensor tensor(DType::kF32, shape);
  for (float& value : tensor.floats()) value = mean + scale * random.normal();
  return tensor;
}

Tensor random_bf16_valued(Random& random, Shape shape, float scale) {
  Tensor tensor = random_f32(random, shape, scale);
  for (float& value : tensor.floats()) value = round_to_bf16(value);
  return tensor;
}

Tensor random_bf16(Random& random, Shape shape, float scale, float mean, std::int64_t misalignment) {
  return make_bf16(shape, random_f32(random, shape, scale, mean).floats(), misalignment);
}

Tensor poisoned(DType dtype, Shape shape) {
  Tensor tensor(dtype, shape);
  if (dtype == DType::kF32) {
    for (float& value : tensor.floats()) value = NAN;
  } else {
    std::memset(tensor.view().data, 0xcb, static_cast<std::size_t>(tensor.view().num_bytes()));
  }
  return tensor;
}

Tensor gather_rows(const Tensor& tensor, std::span<const std::int32_t> rows) {
  const View& from = tensor.view();
  Shape shape{static_cast<std::int64_t>(rows.size())};
  for (int i = 1; i < from.shape.rank(); ++i) shape.append(from.shape[i]);
  Tensor gathered(from.dtype, shape);
  const std::int64_t row_bytes = from.shape.row_elements() * dtype_bytes(from.dtype);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(gathered.view().data + static_cast<std::int64_t>(i) * row_bytes, from.data + rows[i] * row_bytes,
                static_cast<std::size_t>(row_bytes));
  }
  return gathered;
}

TestWeight random_weight(Random& random, WeightFormat format, std::int64_t n, std::int64_t k, std::int64_t misalignment,
                         DType fp8_scale) {
  TestWeight made;
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(k)));
  // Block scales 2^e around 1/sqrt(k), spread over several powers of two.
  const int exponent = static_cast<int>(std::lround(std::log2(scale)));
  const auto scale_code = [&] { return static_cast<std::byte>(127 + exponent + random.integer(-2, 2)); };
  const auto fill = [](const Tensor& tensor, auto&& next) {
    for (std::int64_t i = 0; i < tensor.view().num_bytes(); ++i) tensor.view().data[i] = next();
  };
  switch (format) {
    case WeightFormat::kF32: {
      made.values = Tensor(DType::kF32, {n, k}, misalignment);
      for (std::int64_t i = 0; i < n * k; ++i) {
        const float value = scale * random.normal();
        std::memcpy(at(made.values.view(), i), &value, sizeof(value));
      }
      break;
    }
    case WeightFormat::kBf16: made.values = random_bf16(random, {n, k}, scale, 0.0f, misalignment); break;
    case WeightFormat::kFp8Block128: {
      made.values = Tensor(DType::kF8E4M3, {n, k}, misalignment);
      for (std::int64_t i = 0; i < n * k; ++i) {
        made.values.view().data[i] = static_cast<std::byte>(float_to_e4m3(random.normal()));
      }
      made.scales = Tensor(fp8_scale, {(n + 127) / 128, (k + 127) / 128}, misalignment);
      if (fp8_scale == DType::kF32) {
        for (std::int64_t i = 0; i < made.scales.view().shape.num_elements(); ++i) {
          const float value = scale * static_cast<float>(random.integer(100, 300)) / 200.0f;
          std::memcpy(at(made.scales.view(), i), &value, sizeof(value));
        }
      } else {
        fill(made.scales, scale_code);
      }
      break;
    }
    case WeightFormat::kMxfp4:
      made.values = Tensor(DType::kI8, {n, k / 2}, misalignment);
      fill(made.values, [&] { return static_cast<std::byte>(random.integer(0, 256)); });
      made.scales = Tensor(DType::kF8E8M0, {n, k / 32}, misalignment);
      fill(made.scales, scale_code);
      break;
    case WeightFormat::kNvfp4:
      made.values = Tensor(DType::kU8, {n, k / 2}, misalignment);
      fill(made.values, [&] { return static_cast<std::byte>(random.integer(0, 256)); });
      made.scales = Tensor(DType::kF8E4M3, {n, k / 16}, misalignment);
      fill(made.scales, [&] { return static_cast<std::byte>(random.integer(0x20, 0x50)); });
      made.weight.scale_2 = 0.37f * scale;
      break;
  }
  made.weight.format = format;
  made.weight.out_features = n;
  made.weight.in_features = k;
  made.weight.values = made.values.view();
  if (made.scales.view().data != nullptr) made.weight.scale = made.scales.view();
  return made;
}

std::vector<double> exact_weight(const LinearWeight& weight) {
  const std::int64_t n = weight.out_features;
  const std::int64_t k = weight.in_features;
  std::vector<double> exact(static_cast<std::size_t>(n * k));
  for (std::int64_t row = 0; row < n; ++row) {
    for (std::int64_t col = 0; col < k; ++col) {
      double& value = exact[static_cast<std::size_t>(row * k + col)];
      const auto fp4 = [&] {
        const int pair = byte_at(weight.values, row * (k / 2) + col / 2);
        return e2m1_value(col % 2 == 0 ? pair % 16 : pair / 16);
      };
      switch (weight.format) {
        case WeightFormat::kF32:
        case WeightFormat::kBf16: value = float_at(weight.values, row * k + col); break;
        case WeightFormat::kFp8Block128: {
          const std::int64_t block = row / 128 * ((k + 127) / 128) + col / 128;
          const double scale = weight.scale.dtype == DType::kF32 ? float_at(weight.scale, block)
                                                                 : std::exp2(byte_at(weight.scale, block) - 127);
          value = e4m3_value(byte_at(weight.values, row * k + col)) * scale;
          break;
        }
        case WeightFormat::kMxfp4:
          value = fp4() * std::exp2(byte_at(weight.scale, row * (k / 32) + col / 32) - 127);
          break;
        case WeightFormat::kNvfp4:
          value = fp4() * e4m3_value(byte_at(weight.scale, row * (k / 16) + col / 16)) *
                  static_cast<double>(weight.scale_2);
          break;
      }
    }
  }
  return exact;
}

std::string format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32: return "F32";
    case WeightFormat::kBf16: return "BF16";
    case WeightFormat::kFp8Block128: return "FP8";
    case WeightFormat::kMxfp4: return "MXFP4";
    case WeightFormat::kNvfp4: return "NVFP4";
  }
  return "?";
}

}  // namespace fathom::testing
