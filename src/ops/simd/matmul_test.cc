#include "ops/simd/matmul.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "ops/simd/instruction_set.h"
#include "tensor/block_quantise.h"
#include "tensor/scalar_formats.h"

namespace fathom::simd {
namespace {

// Every instruction set of this machine, one after the other.
template <typename Body>
void for_each_target(Body body) {
  const std::string best = instruction_set();
  for (const char* name : {"SSE4", "AVX2", "AVX3"}) {
    if (!choose_instruction_set(name)) continue;
    SCOPED_TRACE(name);
    body();
  }
  choose_instruction_set(best);
}

struct RandomWeight {
  LinearWeight weight;
  std::vector<std::byte> values, scale;
  std::vector<float> exact;  // [n, k]
};

constexpr WeightFormat kFormats[] = {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kFp8Block128,
                                     WeightFormat::kMxfp4, WeightFormat::kNvfp4};

// Values start `offset` bytes behind an aligned address, as in a mapped file.
RandomWeight make_weight(WeightFormat format, std::int64_t n, std::int64_t k, std::size_t offset, int scale_code,
                         unsigned seed) {
  RandomWeight made;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  made.exact.resize(static_cast<std::size_t>(n * k));
  LinearWeight& w = made.weight;
  w.format = format;
  w.out_features = n;
  w.in_features = k;
  made.values.resize(static_cast<std::size_t>(4 * n * k) + offset);
  std::byte* data = made.values.data() + offset;
  const auto each = [&](auto&& element) {
    for (std::int64_t i = 0; i < n * k; ++i) made.exact[static_cast<std::size_t>(i)] = element(i / k, i % k);
  };
  auto set_scale = [&](Shape shape, DType dtype) {
    made.scale.resize(static_cast<std::size_t>(shape.num_elements()));
    for (std::byte& s : made.scale) s = static_cast<std::byte>(scale_code + static_cast<int>(random() % 8));
    w.scale = make_view(made.scale.data(), dtype, shape);
  };
  const auto scale_at = [&](std::int64_t i) {
    return static_cast<std::uint8_t>(made.scale[static_cast<std::size_t>(i)]);
  };
  switch (format) {
    case WeightFormat::kF32:
      w.values = make_view(data, DType::kF32, {n, k});
      each([&](std::int64_t row, std::int64_t col) {
        const float v = normal(random);
        std::memcpy(data + 4 * (row * k + col), &v, 4);
        return v;
      });
      break;
    case WeightFormat::kBf16:
      w.values = make_view(data, DType::kBF16, {n, k});
      each([&](std::int64_t row, std::int64_t col) {
        const Bf16 v = float_to_bf16(normal(random));
        std::memcpy(data + 2 * (row * k + col), &v, 2);
        return bf16_to_float(v);
      });
      break;
    case WeightFormat::kFp8Block128: {
      w.values = make_view(data, DType::kF8E4M3, {n, k});
      const std::int64_t blocks = (k + 127) / 128;
      set_scale({(n + 127) / 128, blocks}, DType::kF8E8M0);
      each([&](std::int64_t row, std::int64_t col) {
        auto code = static_cast<std::uint8_t>(random());
        if ((code & 0x7f) == 0x7f) code = 0;
        data[row * k + col] = static_cast<std::byte>(code);
        return e4m3_to_float(code) * e8m0_to_float(scale_at(row / 128 * blocks + col / 128));
      });
      break;
    }
    case WeightFormat::kMxfp4:
    case WeightFormat::kNvfp4: {
      const bool nv = format == WeightFormat::kNvfp4;
      w.values = make_view(data, DType::kI8, {n, k / 2});
      const std::int64_t block = nv ? 16 : 32;
      if (nv) w.scale_2 = 0.0123f;
      set_scale({n, k / block}, nv ? DType::kF8E4M3 : DType::kF8E8M0);
      each([&](std::int64_t row, std::int64_t col) {
        const auto code = static_cast<std::uint8_t>(random() & 15);
        std::byte& byte = data[(row * k + col) / 2];
        byte = col % 2 == 0 ? static_cast<std::byte>(code) : byte | static_cast<std::byte>(code << 4);
        const std::uint8_t s = scale_at(row * (k / block) + col / block);
        return kE2m1Values[code] * (nv ? e4m3_to_float(s) * w.scale_2 : e8m0_to_float(s));
      });
      break;
    }
  }
  return made;
}

std::vector<float> random_rows(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<std::size_t>(count));
  for (float& v : rows) v = normal(random);
  return rows;
}

struct Prepared {
  std::vector<float> data;
  std::int64_t stride;
};
Prepared prepare(const std::vector<float>& x, std::int64_t rows, std::int64_t k, bool quantise, ColumnOrder order) {
  Prepared p{std::vector<float>(static_cast<std::size_t>(rows * prepared_columns(k)), NAN), prepared_columns(k)};
  for (std::int64_t i = 0; i < rows; ++i) {
    prepare_row(x.data() + i * k, k, quantise, order, p.data.data() + i * p.stride);
  }
  return p;
}

// Weight views are never aligned in a mapped file, tiles are.
struct alignas(64) Tile {
  float values[64 * 4096];
};

std::vector<float> multiply(const RandomWeight& w, const Prepared& x, std::int64_t rows, std::int64_t n_begin,
                            std::int64_t n_end, MatmulStore how = {}) {
  static Tile tile;
  const std::int64_t n = w.weight.out_features;
  std::vector<float> out(static_cast<std::size_t>(rows * n), 7.0f);
  matmul(w.weight, n_begin, n_end, {x.data.data(), x.stride, nullptr}, {out.data(), n, nullptr}, rows, how,
         tile.values);
  return out;
}

struct Size {
  std::int64_t n, k;
};

TEST(SimdMatmul, MatchesExactProductsInEveryFormatAndShape) {
  for_each_target([] {
    for (WeightFormat format : kFormats) {
      for (const Size size :
           {Size{1, 32}, Size{3, 48}, Size{5, 160}, Size{130, 128}, Size{7, 4096 + 96}, Size{4, 33}, Size{9, 17}}) {
        const bool fp4 = format == WeightFormat::kMxfp4 || format == WeightFormat::kNvfp4;
        if (fp4 && size.k % (format == WeightFormat::kMxfp4 ? 32 : 16) != 0) continue;
        const RandomWeight w = make_weight(format, size.n, size.k, 1, 118, 1);
        for (std::int64_t rows : {1, 2, 5, 7, 13}) {
          const std::vector<float> x = random_rows(rows * size.k, 2);
          const std::vector<float> out =
              multiply(w, prepare(x, rows, size.k, false, column_order(format)), rows, 0, size.n);
          for (std::int64_t m = 0; m < rows; ++m) {
            for (std::int64_t n = 0; n < size.n; ++n) {
              double sum = 0, norm = 0;
              for (std::int64_t c = 0; c < size.k; ++c) {
                const double term = static_cast<double>(x[static_cast<std::size_t>(m * size.k + c)]) *
                                    w.exact[static_cast<std::size_t>(n * size.k + c)];
                sum += term;
                norm += std::fabs(term);
              }
              ASSERT_NEAR(out[static_cast<std::size_t>(m * size.n + n)], sum, 4e-7 * norm)
                  << static_cast<int>(format) << " n " << n << " of " << size.n << " k " << size.k << " row " << m;
            }
          }
        }
      }
    }
  });
}

TEST(SimdMatmul, RowsDoNotDependOnTheCall) {
  for_each_target([] {
    for (WeightFormat format : kFormats) {
      const std::int64_t n = 75, k = 352, rows = 29;
      const RandomWeight w = make_weight(format, n, k, 3, 118, 5);
      const std::vector<float> x = random_rows(rows * k, 6);
      const Prepared p = prepare(x, rows, k, true, column_order(format));
      const std::vector<float> all = multiply(w, p, rows, 0, n);
      for (std::int64_t m = 0; m < rows; ++m) {
        Prepared one{{p.data.begin() + m * p.stride, p.data.begin() + (m + 1) * p.stride}, p.stride};
        const std::vector<float> alone = multiply(w, one, 1, 0, n);
        for (std::int64_t c = 0; c < n; ++c) {
          ASSERT_EQ(alone[static_cast<std::size_t>(c)], all[static_cast<std::size_t>(m * n + c)])
              << static_cast<int>(format) << " row " << m << " column " << c;
        }
      }
      const std::vector<float> part = multiply(w, p, rows, 5, 42);
      for (std::int64_t m = 0; m < rows; ++m) {
        for (std::int64_t c = 0; c < n; ++c) {
          const auto i = static_cast<std::size_t>(m * n + c);
          ASSERT_EQ(part[i], c >= 5 && c < 42 ? all[i] : 7.0f);
        }
      }
    }
  });
}

TEST(SimdMatmul, RoundsAndAccumulates) {
  for_each_target([] {
    const RandomWeight w = make_weight(WeightFormat::kMxfp4, 6, 64, 0, 118, 9);
    for (std::int64_t rows : {1, 4}) {
      const Prepared x = prepare(random_rows(rows * 64, 3), rows, 64, true, ColumnOrder::kPairs);
      const std::vector<float> plain = multiply(w, x, rows, 0, 6);
      const std::vector<float> rounded = multiply(w, x, rows, 0, 6, {.round = true});
      const std::vector<float> added = multiply(w, x, rows, 0, 6, {.round = true, .accumulate = true});
      for (std::size_t i = 0; i < plain.size(); ++i) {
        EXPECT_EQ(rounded[i], round_to_bf16(plain[i]));
        EXPECT_EQ(added[i], 7.0f + rounded[i]);
      }
    }
  });
}

TEST(SimdMatmul, ReadsIndexedRows) {
  for_each_target([] {
    const RandomWeight w = make_weight(WeightFormat::kFp8Block128, 4, 128, 0, 118, 9);
    const Prepared x = prepare(random_rows(8 * 128, 3), 8, 128, true, ColumnOrder::kNatural);
    const std::vector<float> all = multiply(w, x, 8, 0, 4);
    const std::vector<std::int32_t> from = {6, 1, 3};
    const std::vector<std::int32_t> to = {2, 0, 1};
    static Tile tile;
    std::vector<float> out(3 * 4);
    matmul(w.weight, 0, 4, {x.data.data(), x.stride, from.data()}, {out.data(), 4, to.data()}, 3, {}, tile.values);
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::size_t c = 0; c < 4; ++c) {
        EXPECT_EQ(out[static_cast<std::size_t>(to[i]) * 4 + c], all[static_cast<std::size_t>(from[i]) * 4 + c]);
      }
    }
  });
}

// A scale of 2^8 or more leaves no room for the decoder's 2^120 in one factor.
TEST(SimdMatmul, WideFp8ScalesAreExact) {
  for_each_target([] {
    for (int code : {0, 1, 126, 134, 140, 200}) {
      const RandomWeight w = make_weight(WeightFormat::kFp8Block128, 130, 256, 0, code, 4);
      std::vector<float> row(256);
      for (std::int64_t n : {0, 129}) {
        decode_weight_row(w.weight, n, row.data());
        for (std::size_t c = 0; c < 256; ++c) {
          ASSERT_EQ(row[c], w.exact[static_cast<std::size_t>(n) * 256 + c]) << code << " column " << c;
        }
      }
      if (code == 200) continue;  // sums would leave fp32
      const Prepared x = prepare(std::vector<float>(512, 1.0f), 2, 256, false, ColumnOrder::kNatural);
      const std::vector<float> two = multiply(w, x, 2, 0, 130);
      const std::vector<float> one = multiply(w, x, 1, 0, 130);
      for (std::size_t c = 0; c < 130; ++c) {
        ASSERT_EQ(one[c], two[c]);
        ASSERT_TRUE(std::isfinite(one[c]));
      }
    }
  });
}

TEST(SimdMatmul, QuantisesRowsAsTheScalarQuantiserDoes) {
  for_each_target([] {
    for (std::int64_t k : {1, 31, 64, 128, 200, 257}) {
      std::vector<float> x = random_rows(k, 8);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] *= std::exp2(static_cast<float>(i % 40) - 30.0f);
      if (k == 64) std::fill(x.begin(), x.end(), 0.0f);
      std::vector<float> expected = x;
      simulate_e4m3(expected, 128);
      std::vector<float> out(static_cast<std::size_t>(prepared_columns(k)), NAN);
      prepare_row(x.data(), k, true, ColumnOrder::kNatural, out.data());
      for (std::size_t i = 0; i < out.size(); ++i) {
        const float want = i < expected.size() ? expected[i] : 0.0f;
        ASSERT_EQ(std::bit_cast<std::uint32_t>(out[i]), std::bit_cast<std::uint32_t>(want)) << k << " " << i;
      }
    }
  });
}

}  // namespace
}  // namespace fathom::simd
