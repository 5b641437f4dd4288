#include "checkpoint/synthesise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>

#include "base/units.h"
#include "checkpoint/checkpoint_test_files.h"
#include "tensor/scalar_formats.h"

namespace fathom {
namespace {

using ::testing::HasSubstr;
using testing::report_text;
using testing::ScratchDirectory;
using testing::small_options;

TEST(Synthesise, EveryFormatVerifiesClean) {
  for (const ExpertFormat format : {ExpertFormat::kMxfp4, ExpertFormat::kNvfp4, ExpertFormat::kFp8}) {
    const ScratchDirectory scratch;
    SynthesiseOptions options = small_options(scratch.file("out"));
    options.tensors.expert_format = format;
    if (format == ExpertFormat::kFp8) {
      options.config.expert_dtype = ExpertDType::kFp8;
      options.tensors.draft_expert_format = format;
      options.tensors.block_scale_dtype = DType::kF32;
    }
    std::int64_t last = 0;
    options.progress = [&](std::int64_t done, std::int64_t total) { last = total - done; };
    const auto written = synthesise_checkpoint(options);
    ASSERT_TRUE(written.ok()) << written.status().message();
    EXPECT_EQ(last, 0);
    const auto checkpoint = open_checkpoint(scratch.file("out"));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    EXPECT_EQ(report_text(checkpoint->report), "");
    EXPECT_EQ(checkpoint->report.num_tensors, written->num_tensors);
    EXPECT_EQ(checkpoint->report.total_bytes, written->tensor_bytes);
  }
}

TEST(Synthesise, SameSeedSameBytes) {
  const ScratchDirectory scratch;
  std::uint64_t number = 0;
  for (const std::uint64_t seed : {5, 5, 6}) {
    SynthesiseOptions options = small_options(scratch.file(std::to_string(number++)));
    options.seed = seed;
    ASSERT_TRUE(synthesise_checkpoint(options).ok());
  }
  for (int shard = 1; shard <= 6; ++shard) {
    const std::string name = "/" + testing::small_shard(shard);
    EXPECT_EQ(testing::read_file(scratch.file("0") + name), testing::read_file(scratch.file("1") + name));
    EXPECT_NE(testing::read_file(scratch.file("0") + name), testing::read_file(scratch.file("2") + name));
  }
}

// Dequantised FP8 and FP4 weights have a deviation near 1/sqrt(columns), no NaN, and tables hold valid ids.
TEST(Synthesise, ValuesAreSane) {
  const ScratchDirectory scratch;
  SynthesiseOptions options = small_options(scratch.file("out"));
  ASSERT_TRUE(synthesise_checkpoint(options).ok());
  const auto checkpoint = open_checkpoint(scratch.file("out"));
  ASSERT_TRUE(checkpoint.ok());
  const TensorCatalog& catalog = checkpoint->catalog;
  int checked = 0;
  for (const TensorInfo& tensor : catalog.tensors()) {
    const auto bytes = catalog.bytes(tensor);
    if (tensor.dtype == DType::kI64) {
      for (std::int64_t i = 0; i < tensor.shape.num_elements(); ++i) {
        std::int64_t id = -1;
        std::memcpy(&id, bytes.data() + i * 8, 8);
        ASSERT_TRUE(id >= 0 && id < options.config.n_routed_experts);
      }
      ++checked;
    }
    if (!tensor.name.ends_with(".weight") || (tensor.dtype != DType::kF8E4M3 && tensor.dtype != DType::kI8)) continue;
    const bool packed = tensor.dtype == DType::kI8;
    const std::int64_t columns = tensor.shape[1] * (packed ? 2 : 1);
    const TensorInfo& scale = **catalog.require(tensor.name.substr(0, tensor.name.size() - 6) + "scale");
    double squares = 0.0;
    for (std::int64_t row = 0; row < tensor.shape[0]; ++row) {
      for (std::int64_t column = 0; column < columns; ++column) {
        const std::int64_t at = row * columns + column;
        const auto byte = std::to_integer<std::uint8_t>(bytes[static_cast<std::size_t>(packed ? at / 2 : at)]);
        const std::int64_t scale_at =
            packed ? row * scale.shape[1] + column / 32 : row / 128 * scale.shape[1] + column / 128;
        const float factor =
            e8m0_to_float(std::to_integer<std::uint8_t>(catalog.bytes(scale)[static_cast<std::size_t>(scale_at)]));
        const float value = factor * (packed ? kE2m1Values[at % 2 == 0 ? byte & 15 : byte >> 4] : e4m3_to_float(byte));
        ASSERT_TRUE(std::isfinite(value)) << tensor.name;
        squares += static_cast<double>(value) * static_cast<double>(value);
      }
    }
    const double deviation = std::sqrt(squares / static_cast<double>(tensor.shape[0] * columns));
    // FP8 scales are chosen for whole blocks of 128 columns.
    const double expected = 1.0 / std::sqrt(static_cast<double>(packed ? columns : round_up(columns, 128)));
    EXPECT_GT(deviation, 0.3 * expected) << tensor.name;
    EXPECT_LT(deviation, 1.6 * expected) << tensor.name;
    ++checked;
  }
  EXPECT_GT(checked, 50);
}

TEST(Synthesise, ShrunkConfigs) {
  const auto four = shrink_config(flash_dspark_config(), 4, 8);
  ASSERT_TRUE(four.ok());
  EXPECT_EQ(four->compress_ratios, (std::vector<std::int32_t>{0, 0, 4, 128, 0, 0, 0}));
  EXPECT_EQ(four->n_routed_experts, 8);
  EXPECT_EQ(four->num_experts_per_tok, 6);
  EXPECT_EQ(four->dspark_target_layer_ids, (std::vector<std::int32_t>{1, 2, 3}));
  EXPECT_TRUE(parse_config(config_to_json(*four), "shrunk").ok());
  const auto two = shrink_config(flash_config(), 2, 2);
  ASSERT_TRUE(two.ok());
  EXPECT_EQ(two->num_experts_per_tok, 2);
  EXPECT_EQ(two->num_hash_layers, 2);
  EXPECT_TRUE(parse_config(config_to_json(*two), "shrunk").ok());
  EXPECT_FALSE(shrink_config(flash_config(), 44, 0).ok());
  EXPECT_FALSE(shrink_config(flash_config(), 0, 257).ok());
}

TEST(Synthesise, RefusesADirectoryWithACheckpoint) {
  const ScratchDirectory scratch;
  ASSERT_TRUE(synthesise_checkpoint(small_options(scratch.file("out"))).ok());
  const auto again = synthesise_checkpoint(small_options(scratch.file("out")));
  ASSERT_FALSE(again.ok());
  EXPECT_THAT(again.status().message(), HasSubstr("expected a directory without a checkpoint"));
  EXPECT_TRUE(open_checkpoint(scratch.file("out")).ok()) << "the first one was damaged";
}

TEST(Synthesise, AFullDiskLeavesNothing) {
  const ScratchDirectory scratch;
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 60'000;  // the first shard fits, the second does not
  setrlimit(RLIMIT_FSIZE, &small);
  const auto written = synthesise_checkpoint(small_options(scratch.file("out")));
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_handler);
  ASSERT_FALSE(written.ok());
  EXPECT_THAT(written.status().message(), HasSubstr(testing::small_shard(2)));
  EXPECT_FALSE(std::filesystem::exists(scratch.file("out")));
}

TEST(Synthesise, MoreBytesThanTheDiskHasIsRefusedAtOnce) {
  const ScratchDirectory scratch;
  SynthesiseOptions options;
  options.config = pro_config();  // 865 GB of shards
  options.directory = scratch.file("out");
  const auto space = std::filesystem::space(scratch.path());
  if (space.available > 900'000'000'000u) GTEST_SKIP() << "this disk has room for it";
  const auto written = synthesise_checkpoint(options);
  ASSERT_FALSE(written.ok());
  EXPECT_THAT(written.status().message(), HasSubstr("of free disk, expected"));
  EXPECT_FALSE(std::filesystem::exists(scratch.file("out")));
}

}  // namespace
}  // namespace fathom
