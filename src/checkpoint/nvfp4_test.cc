#include "checkpoint/nvfp4.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "checkpoint/checkpoint_test_files.h"
#include "tensor/scalar_formats.h"

namespace fathom {
namespace {

using ::testing::HasSubstr;
using testing::ScratchDirectory;

std::uint8_t code_at(std::span<const std::byte> weight, std::int64_t i) {
  const auto pair = std::to_integer<std::uint8_t>(weight[static_cast<std::size_t>(i / 2)]);
  return i % 2 == 0 ? pair & 15 : pair >> 4;
}
// Bits, so that -0 and 0 differ.
std::uint32_t mxfp4_value(std::span<const std::byte> weight, std::span<const std::byte> scale, std::int64_t i) {
  const int exponent = std::to_integer<int>(scale[static_cast<std::size_t>(i / 32)]) - 127;
  return std::bit_cast<std::uint32_t>(std::ldexp(kE2m1Values[code_at(weight, i)], exponent));
}
std::uint32_t nvfp4_value(std::span<const std::byte> weight, std::span<const std::byte> scale, float outer,
                          std::int64_t i) {
  const float inner = e4m3_to_float(std::to_integer<std::uint8_t>(scale[static_cast<std::size_t>(i / 16)]));
  return std::bit_cast<std::uint32_t>(kE2m1Values[code_at(weight, i)] * inner * outer);
}

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

void expect_same_values(std::span<const std::byte> weight, std::span<const std::byte> scale, std::int64_t rows,
                        std::int64_t columns) {
  const auto matrix = mxfp4_to_nvfp4(weight, scale, rows, columns, "m");
  ASSERT_TRUE(matrix.ok()) << matrix.status().message();
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    ASSERT_EQ(nvfp4_value(matrix->weight, matrix->weight_scale, matrix->weight_scale_2, i),
              mxfp4_value(weight, scale, i))
        << "element " << i;
  }
}

TEST(Nvfp4, EveryCodeUnderScalesThatSpanTheWholeRange) {
  std::vector<std::byte> weight(18 * 16);
  std::vector<std::byte> scale(18);
  for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = static_cast<std::byte>((i * 37 + i / 16) & 255);
  for (std::size_t i = 0; i < scale.size(); ++i) scale[i] = static_cast<std::byte>(110 + i);  // 2^17 apart
  expect_same_values(weight, scale, 18, 32);
}

TEST(Nvfp4, CodesMoveWhereTheScaleCannot) {
  // Scales 2^20 apart: the far block holds only 4 (code 6), which is also 1 or 0.5 under a larger scale.
  std::vector<std::byte> weight(32, std::byte{0x66});
  for (std::size_t i = 16; i < 32; ++i) weight[i] = std::byte{0x8e};  // -4, -0
  weight[0] = std::byte{0x31};                                        // 0.5, 1.5: only without a shift
  expect_same_values(weight, bytes_of({127, 107}), 2, 32);
}

TEST(Nvfp4, ImpossibleSpansFail) {
  const std::vector<std::byte> weight(32, std::byte{0x71});  // 0.5 and 6 fix the scale
  const auto matrix = mxfp4_to_nvfp4(weight, bytes_of({127, 109}), 2, 32, "layers.0.w1");
  ASSERT_FALSE(matrix.ok());
  EXPECT_THAT(matrix.status().message(), HasSubstr("layers.0.w1: found block scales from 2^-18 to 2^0"));
  EXPECT_FALSE(mxfp4_to_nvfp4(weight, bytes_of({127, 255}), 2, 32, "m").ok()) << "NaN scale";
}

TEST(Nvfp4, AllZeroBlocksDoNotConstrain) {
  const std::vector<std::byte> zeros(16, std::byte{0x80});
  expect_same_values(zeros, bytes_of({127}), 1, 32);
  std::vector<std::byte> weight(32, std::byte{0x31});
  std::fill(weight.begin() + 16, weight.end(), std::byte{0});
  expect_same_values(weight, bytes_of({127, 0}), 2, 32);
}

// Converts a checkpoint and compares it value by value with its source and, when given, with a twin.
void check_conversion(const std::string& source_path, const std::string& twin_path) {
  const ScratchDirectory scratch;
  const std::string path = scratch.file("nvfp4");
  const auto converted = convert_to_nvfp4(source_path, path, {});
  ASSERT_TRUE(converted.ok()) << converted.status().message();
  EXPECT_GT(converted->num_matrices, 0);
  const auto source = open_checkpoint(source_path);
  const auto result = open_checkpoint(path);
  ASSERT_TRUE(source.ok() && result.ok()) << result.status().message();
  EXPECT_EQ(testing::report_text(result->report), "");
  EXPECT_EQ(result->report.draft, source->report.draft);
  std::int64_t num_matrices = 0;
  for (const TensorInfo& tensor : source->catalog.tensors()) {
    const bool is_trunk_expert =
        tensor.name.starts_with("layers.") && tensor.name.find(".experts.") != std::string::npos;
    const TensorInfo* other = result->catalog.find(tensor.name);
    if (!is_trunk_expert) {
      ASSERT_NE(other, nullptr) << tensor.name;
      ASSERT_TRUE(std::ranges::equal(source->catalog.bytes(tensor), result->catalog.bytes(*other))) << tensor.name;
      continue;
    }
    if (!tensor.name.ends_with(".weight")) continue;
    ++num_matrices;
    const std::string prefix = tensor.name.substr(0, tensor.name.size() - 6);
    ASSERT_NE(other, nullptr);
    EXPECT_EQ(other->dtype, DType::kU8);
    float outer = 0.0f;
    std::memcpy(&outer, result->catalog.bytes(**result->catalog.require(prefix + "weight_scale_2")).data(), 4);
    const auto weight = source->catalog.bytes(tensor);
    const auto scale = source->catalog.bytes(**source->catalog.require(prefix + "scale"));
    const auto new_weight = result->catalog.bytes(*other);
    const auto new_scale = result->catalog.bytes(**result->catalog.require(prefix + "weight_scale"));
    for (std::int64_t i = 0; i < tensor.num_bytes * 2; ++i) {
      ASSERT_EQ(nvfp4_value(new_weight, new_scale, outer, i), mxfp4_value(weight, scale, i)) << tensor.name;
    }
  }
  EXPECT_EQ(num_matrices, converted->num_matrices);
  if (twin_path.empty()) return;
  const auto twin = open_checkpoint(twin_path);
  ASSERT_TRUE(twin.ok());
  ASSERT_EQ(twin->catalog.tensors().size(), result->catalog.tensors().size());
  for (const TensorInfo& tensor : twin->catalog.tensors()) {
    const TensorInfo* other = result->catalog.find(tensor.name);
    ASSERT_NE(other, nullptr) << tensor.name;
    EXPECT_EQ(other->dtype, tensor.dtype) << tensor.name;
    EXPECT_EQ(other->shape, tensor.shape) << tensor.name;
    if (!tensor.name.ends_with(".weight") || tensor.dtype != DType::kU8) continue;
    const std::string prefix = tensor.name.substr(0, tensor.name.size() - 6);
    float outer[2];
    std::memcpy(&outer[0], twin->catalog.bytes(**twin->catalog.require(prefix + "weight_scale_2")).data(), 4);
    std::memcpy(&outer[1], result->catalog.bytes(**result->catalog.require(prefix + "weight_scale_2")).data(), 4);
    const auto scale_a = twin->catalog.bytes(**twin->catalog.require(prefix + "weight_scale"));
    const auto scale_b = result->catalog.bytes(**result->catalog.require(prefix + "weight_scale"));
    for (std::int64_t i = 0; i < tensor.num_bytes * 2; ++i) {
      ASSERT_EQ(nvfp4_value(result->catalog.bytes(*other), scale_b, outer[1], i),
                nvfp4_value(twin->catalog.bytes(tensor), scale_a, outer[0], i))
          << tensor.name;
    }
  }
}

TEST(Nvfp4, TheEmbeddedModelConvertsExactly) { check_conversion(FATHOM_SOURCE_DIR "/models/mini-v4", ""); }

TEST(Nvfp4, TinyRandomEqualsItsPublishedTwin) {
  FATHOM_SKIP_WITHOUT_SHARED(testing::shared_path("models/tiny-random-nvfp4"));
  check_conversion(testing::shared_path("models/tiny-random"), testing::shared_path("models/tiny-random-nvfp4"));
}

TEST(Nvfp4, AFailedConversionLeavesNothing) {
  const ScratchDirectory scratch;
  const std::string source = scratch.file("source");
  SynthesiseOptions options = testing::small_options(source);
  ASSERT_TRUE(synthesise_checkpoint(options).ok());
  {
    // The last expert matrix of the last layer gets scales 2^60 apart.
    const std::string shard = source + "/" + testing::small_shard(4);
    std::string contents = testing::read_file(shard);
    const auto catalog = open_catalog(shard);
    ASSERT_TRUE(catalog.ok());
    const TensorInfo* scale = catalog->find("layers.2.ffn.experts.2.w3.scale");
    ASSERT_NE(scale, nullptr);
    contents[static_cast<std::size_t>(scale->offset_bytes)] = 100;
    contents[static_cast<std::size_t>(scale->offset_bytes) + 1] = static_cast<char>(160);
    testing::write_file(shard, contents);
  }
  const auto converted = convert_to_nvfp4(source, scratch.file("out"), {});
  ASSERT_FALSE(converted.ok());
  EXPECT_THAT(converted.status().message(), HasSubstr("layers.2.ffn.experts.2.w3"));
  EXPECT_FALSE(std::filesystem::exists(scratch.file("out")));
  // A second conversion of the same kind refuses what is not MXFP4.
  EXPECT_FALSE(convert_to_nvfp4(source, source, {}).ok()) << "the output directory holds a checkpoint";
}

}  // namespace
}  // namespace fathom
