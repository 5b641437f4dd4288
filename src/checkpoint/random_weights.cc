#include "checkpoint/random_weights.h"

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "tensor/scalar_formats.h"

namespace fathom {
namespace {

constexpr std::size_t kPieceBytes = 1 << 20;

// SplitMix64: one multiply-xorshift chain a word; ample for weights.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_;
};

std::uint64_t seed_for(std::uint64_t seed, std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325u ^ (seed * 0x9e3779b97f4a7c15u);
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// FP8 codes are drawn with this standard deviation, FP4 codes with the other; block scales undo it.
constexpr float kE4m3Deviation = 64.0f;
constexpr float kE2m1Deviation = 2.0f;

// Quantiles of the standard normal distribution: a uniform 16-bit draw indexes a normal value.
struct NormalTables {
  std::array<float, 65536> values;
  std::array<std::uint8_t, 65536> e4m3;
  std::array<std::uint8_t, 256> e2m1;

  NormalTables() {
    // Inverts the cumulative distribution by stepping through it once.
    double x = -5.0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double target = (static_cast<double>(i) + 0.5) / static_cast<double>(values.size());
      for (int round = 0; round < 40; ++round) {  // Newton from the quantile before: converges in a few rounds
        const double error = 0.5 * std::erfc(-x / std::sqrt(2.0)) - target;
        const double density = std::exp(-0.5 * x * x) / std::sqrt(2.0 * 3.14159265358979323846);
        const double step = error / density;
        x -= step;
        if (std::fabs(step) < 1e-9) break;
      }
      values[i] = static_cast<float>(x);
      e4m3[i] = float_to_e4m3(values[i] * kE4m3Deviation);
    }
    for (std::size_t i = 0; i < e2m1.size(); ++i) {
      const float value = values[i * 256 + 128] * kE2m1Deviation;
      e2m1[i] = float_to_e2m1(std::fmin(6.0f, std::fmax(-6.0f, value)));
    }
  }
};
const NormalTables& normal_tables() {
  static const NormalTables tables;
  return tables;
}

// Mean and deviation of the logical values of a tensor that is no quantised weight.
struct Distribution {
  float mean = 0.0f;
  float deviation = 1.0f;
};
Distribution distribution_of(const ExpectedTensor& tensor) {
  const std::string_view name = tensor.name;
  const auto columns = static_cast<float>(tensor.shape.rank() > 1 ? tensor.shape[tensor.shape.rank() - 1] : 1);
  if (name.ends_with("norm.weight")) return {1.0f, 0.1f};
  if (name.ends_with("_scale")) return {0.75f, 0.1f};  // hc_*_scale; NVFP4 scalars are written apart
  if (name.ends_with("_base") || name.ends_with("gate.bias")) return {0.0f, 0.1f};
  if (name.ends_with("ape")) return {0.0f, 0.5f};
  if (name == "embed.weight" || name.ends_with("attn_sink")) return {0.0f, 1.0f};
  if (name.ends_with("markov_w1.weight")) return {0.0f, 1.0f};
  return {0.0f, 1.0f / std::sqrt(columns)};
}

// Exponent e of a scale 2^e such that code * 2^e has deviation near 1/sqrt(columns).
int scale_exponent(std::int64_t columns, float code_deviation) {
  return static_cast<int>(std::lround(std::log2(1.0 / (std::sqrt(static_cast<double>(columns)) * code_deviation))));
}

class TensorWriter {
 public:
  TensorWriter(const ExpectedTensor& tensor, const ModelConfig& config, std::uint64_t seed, const ByteSink& sink)
      : tensor_(tensor), config_(config), sink_(sink), random_(seed_for(seed, tensor.name)) {
    piece_.reserve(kPieceBytes);
  }

  Status write() {
    const std::int64_t count = tensor_.shape.num_elements();
    switch (tensor_.dtype) {
      case DType::kI64: return write_expert_table();
      case DType::kBF16:
      case DType::kF32: return tensor_.is_scale ? write_float_scales(count) : write_floats(count);
      case DType::kF8E8M0: return write_exponents(count);
      case DType::kF8E4M3: return tensor_.is_scale ? write_e4m3_scales(count) : write_codes(count, true);
      case DType::kI8:
      case DType::kU8: return write_codes(count, false);
      default: return internal_error("no random values for " + tensor_.name);
    }
  }

 private:
  template <typename T>
  Status put(T value) {
    const std::size_t at = piece_.size();
    piece_.resize(at + sizeof value);
    std::memcpy(piece_.data() + at, &value, sizeof value);
    return piece_.size() + sizeof value > kPieceBytes ? flush() : Status{};
  }
  Status flush() {
    FATHOM_RETURN_IF_ERROR(sink_(piece_));
    piece_.clear();
    return {};
  }

  float next_normal() { return normal_tables().values[random_.next() >> 48]; }

  Status write_floats(std::int64_t count) {
    const Distribution values = distribution_of(tensor_);
    const bool is_bf16 = tensor_.dtype == DType::kBF16;
    for (std::int64_t i = 0; i < count; ++i) {
      const float value = values.mean + values.deviation * next_normal();
      FATHOM_RETURN_IF_ERROR(is_bf16 ? put(float_to_bf16(value)) : put(value));
    }
    return flush();
  }

  // Distinct experts in each row of the token-to-expert table.
  Status write_expert_table() {
    const std::int64_t chosen = tensor_.shape[1];
    const std::int64_t experts = config_.n_routed_experts;
    std::vector<std::int64_t> row(static_cast<std::size_t>(chosen));
    for (std::int64_t token = 0; token < tensor_.shape[0]; ++token) {
      for (std::int64_t i = 0; i < chosen; ++i) {
        std::int64_t expert = static_cast<std::int64_t>(random_.next() % static_cast<std::uint64_t>(experts));
        for (std::int64_t j = 0; j < i; ++j) {
          if (row[static_cast<std::size_t>(j)] == expert) {
            expert = (expert + 1) % experts;
            j = -1;
          }
        }
        row[static_cast<std::size_t>(i)] = expert;
        FATHOM_RETURN_IF_ERROR(put(expert));
      }
    }
    return flush();
  }

  // 2^e of the block, or half of it: neighbouring blocks differ.
  int next_exponent(int exponent) { return exponent - static_cast<int>(random_.next() >> 63); }

  // Logical columns of the weight under this scale tensor: `per_scale` for each.
  std::int64_t weight_columns(std::int64_t per_scale) const { return tensor_.shape[1] * per_scale; }

  Status write_exponents(std::int64_t count) {
    const int exponent = tensor_.is_block_scale ? scale_exponent(weight_columns(128), kE4m3Deviation)
                                                : scale_exponent(weight_columns(32), kE2m1Deviation);
    for (std::int64_t i = 0; i < count; ++i) {
      FATHOM_RETURN_IF_ERROR(put(static_cast<std::uint8_t>(127 + next_exponent(exponent))));
    }
    return flush();
  }

  // Block scales of the Base release (any float), or the two scalars of NVFP4.
  Status write_float_scales(std::int64_t count) {
    if (tensor_.shape.rank() == 0) {
      // weight_scale_2 with write_e4m3_scales: together 1/16 * 2^-6 .. 2^-2, as in a real release.
      FATHOM_RETURN_IF_ERROR(put(tensor_.name.ends_with("input_scale") ? 0.0078125f : 0.00390625f));
      return flush();
    }
    const int exponent = scale_exponent(weight_columns(128), kE4m3Deviation);
    for (std::int64_t i = 0; i < count; ++i) {
      const float fraction = 1.0f + static_cast<float>(random_.next() >> 40) * 0x1p-24f;
      FATHOM_RETURN_IF_ERROR(put(std::ldexp(fraction, next_exponent(exponent))));
    }
    return flush();
  }

  Status write_e4m3_scales(std::int64_t count) {
    const float target = 1.0f / (std::sqrt(static_cast<float>(weight_columns(16))) * kE2m1Deviation * 0.00390625f);
    for (std::int64_t i = 0; i < count; ++i) {
      const float factor = 0.75f + 0.5f * static_cast<float>(random_.next() >> 40) * 0x1p-24f;
      FATHOM_RETURN_IF_ERROR(put(float_to_e4m3(std::fmin(448.0f, target * factor))));
    }
    return flush();
  }

  Status write_codes(std::int64_t count, bool is_e4m3) {
    const NormalTables& tables = normal_tables();
    std::array<std::uint8_t, 4> codes;
    for (std::int64_t i = 0; i < count; i += 4) {
      const std::uint64_t bits = random_.next();
      for (std::size_t lane = 0; lane < codes.size(); ++lane) {
        const auto draw = static_cast<std::uint16_t>(bits >> (16 * lane));
        codes[lane] = is_e4m3 ? tables.e4m3[draw]
                              : static_cast<std::uint8_t>(tables.e2m1[draw & 255] | tables.e2m1[draw >> 8] << 4);
      }
      const std::size_t at = piece_.size();
      const auto n = static_cast<std::size_t>(std::min<std::int64_t>(4, count - i));
      piece_.resize(at + n);
      std::memcpy(piece_.data() + at, codes.data(), n);
      if (piece_.size() + codes.size() > kPieceBytes) FATHOM_RETURN_IF_ERROR(flush());
    }
    return flush();
  }

  const ExpectedTensor& tensor_;
  const ModelConfig& config_;
  const ByteSink& sink_;
  Random random_;
  std::vector<std::byte> piece_;
};

}  // namespace

Status write_random_tensor(const ExpectedTensor& tensor, const ModelConfig& config, std::uint64_t seed,
                           const ByteSink& sink) {
  return TensorWriter(tensor, config, seed, sink).write();
}

}  // namespace fathom
