// The real releases' header sets: as many shards, tensors and bytes, in sparse files.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>

#include "base/thread_time.h"
#include "checkpoint/checkpoint_test_files.h"

namespace fathom {
namespace {

std::int64_t disk_bytes(const std::filesystem::path& directory) {
  std::int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    struct stat info{};
    if (stat(entry.path().c_str(), &info) == 0) bytes += info.st_blocks * 512;
  }
  return bytes;
}

struct RealSize {
  const char* name;
  ModelConfig config;
  ExpectedOptions tensors;
  std::int64_t num_shards;
  std::int64_t num_tensors;
  std::int64_t bytes;
};

void check(const RealSize& release) {
  const testing::ScratchDirectory scratch;
  SynthesiseOptions options;
  options.config = release.config;
  options.tensors = release.tensors;
  options.headers_only = true;
  options.directory = scratch.file("out");
  const double begin_us = thread_time_us();
  const auto written = synthesise_checkpoint(options);
  ASSERT_TRUE(written.ok()) << written.status().message();
  const double written_us = thread_time_us();
  EXPECT_EQ(written->num_shards, release.num_shards);
  EXPECT_EQ(written->num_tensors, release.num_tensors);
  EXPECT_EQ(written->tensor_bytes, release.bytes);

  // Both use this thread alone: on an idle machine it is also the wall's time.
  const double verify_begin_us = thread_time_us();
  const VerifyReport report = verify_path(scratch.file("out"));
  const double verify_seconds = 1e-6 * (thread_time_us() - verify_begin_us);
  EXPECT_EQ(testing::report_text(report), "");
  EXPECT_EQ(report.num_tensors, release.num_tensors);
  EXPECT_EQ(report.total_bytes, release.bytes);
  EXPECT_EQ(report.draft, release.tensors.draft);
  std::printf("%s: %ld shards, %ld tensors, %ld bytes (%.1f MB on disk); written in %.2f s, verified in %.2f s\n",
              release.name, static_cast<long>(written->num_shards), static_cast<long>(written->num_tensors),
              static_cast<long>(written->tensor_bytes), static_cast<double>(disk_bytes(scratch.file("out"))) / 1e6,
              1e-6 * (written_us - begin_us), verify_seconds);
  EXPECT_LT(verify_seconds, 5.0);
}

ExpectedOptions with_draft(DraftKind draft, std::int32_t num_stages) {
  ExpectedOptions options;
  options.draft = draft;
  options.num_draft_stages = num_stages;
  return options;
}

TEST(RealSize, Preview) {
  check({"Flash preview", flash_config(), with_draft(DraftKind::kMtp, 1), 46, 69'187, 159'609'485'896});
}
TEST(RealSize, Flash0731) {
  check({"Flash 0731", flash_dspark_config(), with_draft(DraftKind::kDspark, 3), 48, 72'317, 166'878'536'440});
}
TEST(RealSize, Pro) { check({"Pro", pro_config(), with_draft(DraftKind::kMtp, 1), 64, 145'116, 864'704'792'696}); }
TEST(RealSize, Nvfp4) {
  ExpectedOptions options = with_draft(DraftKind::kMtp, 1);
  options.expert_format = ExpertFormat::kNvfp4;
  check({"Flash NVFP4", flash_config(), options, 46, 135'235, 168'266'793'544});
}

}  // namespace
}  // namespace fathom
