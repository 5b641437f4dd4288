// Checkpoint cases: each kind of damage gives one report that names it, and loading refuses for the same reason.
#include "checkpoint/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/checkpoint_test_files.h"
#include "checkpoint/safetensors.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::read_file;
using testing::replace_in_file;
using testing::report_text;
using testing::ScratchDirectory;
using testing::small_shard;
using testing::write_file;

std::int64_t count_kind(const VerifyReport& report, const std::string& kind) {
  std::int64_t count = 0;
  for (const Finding& finding : report.findings) count += finding.kind == kind ? 1 : 0;
  return count;
}

// A complete small checkpoint that each test damages in its own way.
class VerifyCase : public ::testing::Test {
 protected:
  void SetUp() override { testing::write_small_checkpoint(scratch_); }

  VerifyReport verify() const { return verify_path(scratch_.path().string()); }
  std::string load_failure() const {
    const auto checkpoint = open_checkpoint(scratch_.path().string());
    return checkpoint.ok() ? "loaded" : checkpoint.status().message();
  }
  // verify and loading both fail, and both say `text`.
  void expect_refused(const std::string& text) const {
    const VerifyReport report = verify();
    EXPECT_FALSE(report.ok());
    EXPECT_THAT(report_text(report), HasSubstr(text));
    EXPECT_THAT(load_failure(), HasSubstr(text));
  }
  // Loads, with a warning that says `text`.
  void expect_warned(const std::string& text) const {
    const VerifyReport report = verify();
    EXPECT_TRUE(report.ok()) << report_text(report);
    EXPECT_THAT(report_text(report), HasSubstr(text));
    EXPECT_EQ(load_failure(), "loaded");
  }

  // Writes the tensors of a shard again after `change` edited their list.
  void rewrite_shard(const std::string& name, const std::function<void(std::vector<NamedTensor>&)>& change) {
    const std::string path = scratch_.file(name);
    const std::string moved = scratch_.file("moved.safetensors");
    fs::rename(path, moved);
    {
      const auto catalog = open_catalog(moved);
      ASSERT_TRUE(catalog.ok()) << catalog.status().message();
      std::vector<NamedTensor> tensors;
      for (const TensorInfo& tensor : catalog->tensors()) {
        tensors.push_back({tensor.name, tensor.dtype, tensor.shape, catalog->bytes(tensor)});
      }
      change(tensors);
      ASSERT_TRUE(write_safetensors(path, tensors).ok());
    }
    fs::remove(moved);
  }
  static NamedTensor& tensor_named(std::vector<NamedTensor>& tensors, const std::string& name) {
    for (NamedTensor& tensor : tensors) {
      if (tensor.name == name) return tensor;
    }
    ADD_FAILURE() << "no tensor " << name;
    return tensors.front();
  }
  void drop_tensor(const std::string& shard, const std::string& name) {
    rewrite_shard(shard, [&](std::vector<NamedTensor>& tensors) {
      tensor_named(tensors, name);
      std::erase_if(tensors, [&](const NamedTensor& tensor) { return tensor.name == name; });
    });
    replace_in_file(index(), "  \"" + name + "\": \"" + shard + "\",\n", "");
  }

  std::string index() const { return scratch_.file("model.safetensors.index.json"); }
  std::string config() const { return scratch_.file("config.json"); }

  ScratchDirectory scratch_{"fathom checkpoint é"};  // a space and UTF-8 in every path
};

TEST_F(VerifyCase, ACompleteCheckpointIsClean) {
  const auto checkpoint = open_checkpoint(scratch_.path().string());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(report_text(checkpoint->report), "");
  EXPECT_EQ(checkpoint->report.draft, DraftKind::kMtp);
  EXPECT_EQ(checkpoint->report.num_draft_stages, 1);
  EXPECT_EQ(checkpoint->config.hidden_size, 64);
  EXPECT_EQ(checkpoint->catalog.shards().size(), 6u);
  EXPECT_TRUE(checkpoint->catalog.check_unchanged().ok());
}

TEST_F(VerifyCase, ShardCutByOneByteOrMore) {
  const std::string path = scratch_.file(small_shard(3));
  const auto size = fs::file_size(path);
  fs::resize_file(path, size - 1);
  expect_refused("truncated: layers.");
  EXPECT_EQ(verify().findings.size(), 1u) << "a cut file is one finding";
  fs::resize_file(path, size / 2);
  expect_refused(" tensors are cut)");
  EXPECT_EQ(verify().findings.size(), 1u);
  fs::resize_file(path, 100);
  expect_refused("header: " + small_shard(3) + ": found a header length of");
  fs::resize_file(path, 0);
  expect_refused("header: " + small_shard(3) + ": found 0 bytes");
}

TEST_F(VerifyCase, ShardLongerThanItsTensors) {
  const std::string path = scratch_.file(small_shard(2));
  fs::resize_file(path, fs::file_size(path) + 100);
  expect_warned("gap: " + small_shard(2) + ": found 100 data bytes that belong to no tensor");
}

TEST_F(VerifyCase, LfsPointers) {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:"
      "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";
  const std::string shard = read_file(scratch_.file(small_shard(1)));
  write_file(scratch_.file(small_shard(1)), pointer);
  expect_refused("lfs-pointer: " + small_shard(1) + ": found a Git LFS pointer");
  EXPECT_THAT(report_text(verify()), HasSubstr("git lfs pull"));
  write_file(scratch_.file(small_shard(1)), shard);
  const std::string config_text = read_file(config());
  write_file(config(), pointer);
  expect_refused("config.json: found a Git LFS pointer");
  write_file(config(), config_text);
  write_file(index(), pointer);
  expect_refused("index: model.safetensors.index.json: found a Git LFS pointer");
}

TEST_F(VerifyCase, MissingShard) {
  fs::remove(scratch_.file(small_shard(4)));
  expect_refused("missing-shard: " + small_shard(4) + ": found nothing");
  EXPECT_EQ(verify().findings.size(), 1u) << report_text(verify());
  fs::create_symlink("../blobs/0123abcd", scratch_.file(small_shard(4)));
  expect_refused("a symbolic link to ../blobs/0123abcd, which does not exist");
}

TEST_F(VerifyCase, ShardThatTheIndexDoesNotName) {
  fs::copy_file(scratch_.file(small_shard(2)), scratch_.file("model-00009-of-00009.safetensors"));
  expect_warned("stray-shard: model-00009-of-00009.safetensors");
}

TEST_F(VerifyCase, NoIndex) {
  fs::remove(index());
  expect_warned("index: model.safetensors.index.json: found nothing; all 6 shards of the directory are read");
  fs::remove(scratch_.file(small_shard(2)));
  expect_refused("missing-shard: " + small_shard(2));
}

TEST_F(VerifyCase, BrokenIndex) {
  const std::string good = read_file(index());
  write_file(index(), good.substr(0, good.size() / 2));
  expect_refused("index: model.safetensors.index.json: found no JSON object");
  write_file(index(), "{\"weight_map\": {\"embed.weight\": \"../../etc/passwd\"}}");
  expect_refused("which is no plain file name");
  write_file(index(), "{\"metadata\": {}}");
  expect_refused("no object \"weight_map\"");
}

TEST_F(VerifyCase, IndexThatDisagreesWithTheShards) {
  replace_in_file(index(), "\"layers.0.attn.attn_sink\": \"" + small_shard(2),
                  "\"layers.0.attn.attn_sink\": \"" + small_shard(3));
  expect_refused("index: layers.0.attn.attn_sink: found the tensor in " + small_shard(2));
}

TEST_F(VerifyCase, TotalSizeThatIsWrong) {
  replace_in_file(index(), "\"total_size\": ", "\"total_size\": 1");
  expect_warned("index: metadata.total_size");
}

TEST_F(VerifyCase, SingleFile) {
  const ScratchDirectory single;
  std::vector<NamedTensor> tensors;
  const auto catalog = open_catalog(scratch_.path().string());
  ASSERT_TRUE(catalog.ok());
  for (const TensorInfo& tensor : catalog->tensors()) {
    tensors.push_back({"model." + tensor.name, tensor.dtype, tensor.shape, catalog->bytes(tensor)});
  }
  ASSERT_TRUE(write_safetensors(single.file("model.safetensors"), tensors).ok());
  fs::copy_file(config(), single.file("config.json"));
  for (const std::string& path : {single.path().string(), single.file("model.safetensors")}) {
    const auto checkpoint = open_checkpoint(path);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    EXPECT_EQ(report_text(checkpoint->report), "");
    EXPECT_TRUE(checkpoint->catalog.contains("embed.weight")) << "the leading model. stays";
  }
}

TEST_F(VerifyCase, HuggingFaceCacheLayout) {
  const ScratchDirectory cache;
  fs::create_directories(cache.path() / "blobs");
  fs::create_directories(cache.path() / "snapshots" / "abc");
  int number = 0;
  for (const auto& entry : fs::directory_iterator(scratch_.path())) {
    const std::string blob = "blob" + std::to_string(number++);
    fs::copy_file(entry.path(), cache.path() / "blobs" / blob);
    fs::create_symlink("../../blobs/" + blob, cache.path() / "snapshots" / "abc" / entry.path().filename());
  }
  const auto checkpoint = open_checkpoint((cache.path() / "snapshots" / "abc").string());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(report_text(checkpoint->report), "");
}

TEST_F(VerifyCase, SameTensorInTwoShards) {
  const std::string sink = "layers.0.attn.attn_sink";
  const auto copy_sink = [&](std::vector<std::byte>& storage, bool change) {
    const auto source = open_catalog(scratch_.file(small_shard(2)));
    ASSERT_TRUE(source.ok());
    const TensorInfo* tensor = source->find(sink);
    ASSERT_NE(tensor, nullptr);
    storage.assign(source->bytes(*tensor).begin(), source->bytes(*tensor).end());
    if (change) storage[0] ^= std::byte{1};
  };
  std::vector<std::byte> equal;
  copy_sink(equal, false);
  rewrite_shard(small_shard(5),
                [&](std::vector<NamedTensor>& tensors) { tensors.push_back({sink, DType::kF32, {2}, equal}); });
  expect_warned("duplicate: " + sink + ": found equal copies in " + small_shard(2) + " and " + small_shard(5));
  std::vector<std::byte> different;
  copy_sink(different, true);
  rewrite_shard(small_shard(5),
                [&](std::vector<NamedTensor>& tensors) { tensor_named(tensors, sink).bytes = different; });
  expect_refused("duplicate: " + sink + ": found different contents in");
}

TEST_F(VerifyCase, UnknownDtype) {
  replace_in_file(scratch_.file(small_shard(2)), "\"dtype\":\"F8_E4M3\"", "\"dtype\":\"F8_XXXX\"");
  expect_refused("found dtype \"F8_XXXX\"");
  EXPECT_EQ(verify().findings.size(), 1u) << report_text(verify());
}

TEST_F(VerifyCase, WrongDtypeOrShape) {
  rewrite_shard(small_shard(2), [&](std::vector<NamedTensor>& tensors) {
    tensor_named(tensors, "layers.0.attn.wkv.weight").dtype = DType::kI8;
    tensor_named(tensors, "layers.0.attn.wq_a.weight").shape = {64, 32};
  });
  expect_refused("dtype: layers.0.attn.wkv.weight: found I8 [512, 64], expected F8_E4M3 [512, 64]");
  expect_refused("shape: layers.0.attn.wq_a.weight: found F8_E4M3 [64, 32], expected F8_E4M3 [32, 64]");
  EXPECT_EQ(verify().findings.size(), 2u);
}

TEST_F(VerifyCase, MissingScaleAndMissingTensor) {
  drop_tensor(small_shard(2), "layers.0.ffn.experts.1.w2.scale");
  expect_refused(
      "missing-scale: layers.0.ffn.experts.1.w2.scale: found nothing, expected F8_E8M0 [64, 1], the scale of its");
  drop_tensor(small_shard(3), "layers.1.attn.indexer.weights_proj.weight");
  expect_refused("missing: layers.1.attn.indexer.weights_proj.weight: found nothing, expected BF16 [2, 64]");
  EXPECT_EQ(verify().findings.size(), 3u) << "two tensors and total_size:\n" << report_text(verify());
}

TEST_F(VerifyCase, TensorThatOnlyTheIndexKnows) {
  rewrite_shard(small_shard(2), [&](std::vector<NamedTensor>& tensors) {
    std::erase_if(tensors, [](const NamedTensor& tensor) { return tensor.name == "layers.0.attn.attn_sink"; });
  });
  expect_refused("missing: layers.0.attn.attn_sink: found nothing in " + small_shard(2));
  EXPECT_EQ(verify().findings.size(), 1u) << report_text(verify());
}

TEST_F(VerifyCase, UnknownTensor) {
  const std::vector<std::byte> data(4);
  rewrite_shard(small_shard(2), [&](std::vector<NamedTensor>& tensors) {
    tensors.push_back({"layers.0.attn.wq_a.bias", DType::kF32, {1}, data});
  });
  expect_refused("unknown: layers.0.attn.wq_a.bias: found F32 [1]");
}

TEST_F(VerifyCase, FloatBlockScalesOfTheBaseReleaseAreFine) {
  std::vector<std::byte> scales(4 * sizeof(float));
  rewrite_shard(small_shard(2), [&](std::vector<NamedTensor>& tensors) {
    NamedTensor& scale = tensor_named(tensors, "layers.0.attn.wkv.scale");
    scale = {scale.name, DType::kF32, scale.shape, scales};
  });
  EXPECT_EQ(count_kind(verify(), "dtype"), 0) << report_text(verify());
  EXPECT_TRUE(verify().ok());
}

TEST_F(VerifyCase, ConfigThatDisagreesWithTheTensors) {
  const std::string good = read_file(config());
  const std::string ratios = "\"compress_ratios\": [\n    0,\n    4,\n    128,\n    0\n  ]";
  replace_in_file(config(), "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 2");
  replace_in_file(config(), ratios, "\"compress_ratios\": [0, 4]");
  expect_refused("layer-count: num_hidden_layers: found 2 in config.json but");
  EXPECT_THAT(report_text(verify()), HasSubstr("layers up to layers.2"));

  write_file(config(), good);
  replace_in_file(config(), "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 5");
  replace_in_file(config(), ratios, "\"compress_ratios\": [0, 4, 128, 4, 128]");
  expect_refused("missing-layer: layers.3: found no tensors, expected ");
  EXPECT_EQ(count_kind(verify(), "missing-layer"), 2);
  EXPECT_EQ(count_kind(verify(), "missing"), 0) << "a missing layer is one finding";

  write_file(config(), good);
  replace_in_file(config(), "\"n_routed_experts\": 3", "\"n_routed_experts\": 2");
  expect_refused("shape: layers.0.ffn.gate.weight: found BF16 [3, 64], expected BF16 [2, 64]");
  EXPECT_THAT(report_text(verify()), HasSubstr("expert-count: n_routed_experts: found 2 in config.json but"));

  write_file(config(), good);
  replace_in_file(config(), "\"n_routed_experts\": 3", "\"n_routed_experts\": 4");
  expect_refused("found BF16 [3, 64], expected BF16 [4, 64]");

  write_file(config(), good);
  replace_in_file(config(), "\"compress_ratios\"", "\"ratios\"");
  expect_refused("key \"compress_ratios\": found nothing");

  write_file(config(), good);
  replace_in_file(config(), "\"vocab_size\": 96", "\"vocab_size\": 128");
  expect_refused("shape: embed.weight: found BF16 [96, 64], expected BF16 [128, 64]");

  fs::remove(config());
  expect_refused("found no config.json");
}

TEST_F(VerifyCase, TransformersConversionIsNamed) {
  rewrite_shard(small_shard(1), [&](std::vector<NamedTensor>& tensors) {
    tensor_named(tensors, "embed.weight").name = "embed_tokens.weight";
  });
  fs::remove(index());
  expect_refused("names: ");
  expect_refused("Hugging Face transformers");
}

TEST_F(VerifyCase, DraftTensorsMissing) {
  fs::remove(scratch_.file(small_shard(6)));
  std::string text = read_file(index());
  std::string kept;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at) + 1;
    const std::string line = text.substr(at, end - at);
    if (line.find("\"mtp.") == std::string::npos) kept += line;
    at = end;
  }
  write_file(index(), kept);
  expect_warned("draft: mtp.*: found no draft tensors; speculation is off");
  EXPECT_EQ(verify().draft, DraftKind::kNone);
}

TEST_F(VerifyCase, DraftBlockThatIsIncomplete) {
  drop_tensor(small_shard(6), "mtp.0.h_proj.scale");
  const VerifyReport report = verify();
  EXPECT_TRUE(report.ok()) << "the trunk is fine: " << report_text(report);
  EXPECT_EQ(report.draft, DraftKind::kNone);
  EXPECT_THAT(report.draft_problem, HasSubstr("mtp.0.h_proj.scale: found nothing"));
  expect_warned("speculation is off");
}

TEST_F(VerifyCase, DraftOfAnotherRelease) {
  // A 0731 config over the preview's classic block.
  write_file(config(), config_to_json(testing::small_dspark_config()));
  expect_warned("draft and config are of different releases; speculation is off");
  EXPECT_EQ(verify().draft, DraftKind::kNone);
}

TEST_F(VerifyCase, DsparkDraft) {
  const ScratchDirectory other;
  SynthesiseOptions options = testing::small_options(other.path().string());
  options.config = testing::small_dspark_config();
  options.tensors.draft = DraftKind::kDspark;
  options.tensors.num_draft_stages = 3;
  const auto written = synthesise_checkpoint(options);
  ASSERT_TRUE(written.ok()) << written.status().message();
  VerifyReport report = verify_path(other.path().string());
  EXPECT_EQ(report_text(report), "");
  EXPECT_EQ(report.draft, DraftKind::kDspark);
  EXPECT_EQ(report.num_draft_stages, 3);
  // The preview's config over DSpark tensors.
  write_file(other.file("config.json"), config_to_json(testing::small_config()));
  report = verify_path(other.path().string());
  EXPECT_TRUE(report.ok()) << report_text(report);
  EXPECT_EQ(report.draft, DraftKind::kNone);
  EXPECT_THAT(report.draft_problem, HasSubstr("no dspark_block_size"));
}

TEST_F(VerifyCase, PathsThatCannotBeRead) {
  EXPECT_THAT(report_text(verify_path("/nonexistent/model")), HasSubstr("cannot open model /nonexistent/model"));
  EXPECT_FALSE(open_checkpoint("/nonexistent/model").ok());
  const ScratchDirectory empty;
  EXPECT_THAT(report_text(verify_path(empty.path().string())), HasSubstr("found no .safetensors file"));
  write_file(empty.file("model.gguf"), "GGUF");
  EXPECT_THAT(report_text(verify_path(empty.path().string())), HasSubstr("only other formats"));
  fs::remove(scratch_.file(small_shard(2)));
  fs::create_directory(scratch_.file(small_shard(2)));
  expect_refused("unreadable: " + small_shard(2));
}

TEST_F(VerifyCase, ShardWithoutPermission) {
  const std::string path = scratch_.file(small_shard(2));
  chmod(path.c_str(), 0);
  fs::permissions(scratch_.path(), fs::perms::all);
  constexpr uid_t kNobody = 65534;
  const bool is_root = geteuid() == 0;  // root reads every file: look as somebody else
  if (is_root) {
    ASSERT_EQ(seteuid(kNobody), 0);
  }
  const std::string report = report_text(verify());
  const std::string failure = load_failure();
  if (is_root) {
    ASSERT_EQ(seteuid(0), 0);
  }
  EXPECT_THAT(report, HasSubstr("unreadable: " + small_shard(2)));
  EXPECT_THAT(report, HasSubstr("Permission denied"));
  EXPECT_THAT(failure, HasSubstr("Permission denied"));
}

TEST_F(VerifyCase, FilesThatChangeAfterOpening) {
  const auto checkpoint = open_checkpoint(scratch_.path().string());
  ASSERT_TRUE(checkpoint.ok());
  const std::string path = scratch_.file(small_shard(2));
  const std::string contents = read_file(path);
  write_file(path, contents);  // removed and written anew: another inode
  const Status replaced = checkpoint->catalog.check_unchanged();
  ASSERT_FALSE(replaced.ok());
  EXPECT_THAT(replaced.message(), HasSubstr(small_shard(2)));
  EXPECT_THAT(replaced.message(), HasSubstr("replaced"));
}

// A child process reads a tensor whose file was cut after it was mapped.
void read_after_truncation(const std::string& directory, const std::string& shard) {
  const auto checkpoint = open_checkpoint(directory);
  if (!checkpoint.ok()) _exit(1);
  fs::resize_file(fs::path(directory) / shard, 4096);
  volatile unsigned sum = 0;
  for (const TensorInfo& tensor : checkpoint->catalog.tensors()) {
    for (const std::byte b : checkpoint->catalog.bytes(tensor)) sum = sum + std::to_integer<unsigned>(b);
  }
  _exit(0);
}

TEST_F(VerifyCase, ShardTruncatedWhileMappedIsNamed) {
  GTEST_FLAG_SET(death_test_style, "fast");  // a plain fork: the child cuts this test's files
  EXPECT_EXIT(read_after_truncation(scratch_.path().string(), small_shard(2)),
              ::testing::ExitedWithCode(kMappedFileLostExitCode),
              "model-00002-of-00006.safetensors: the file was truncated or replaced while it was mapped");
}

// Both halves of the NVFP4 rule: the weight's dtype decides, and then all three scales must be there.
TEST_F(VerifyCase, Nvfp4MatrixWithoutItsScales) {
  const ScratchDirectory other;
  SynthesiseOptions options = testing::small_options(other.path().string());
  options.tensors.expert_format = ExpertFormat::kNvfp4;
  ASSERT_TRUE(synthesise_checkpoint(options).ok());
  const std::string shard = other.file(small_shard(2));
  for (const char* part : {"weight_scale_2", "input_scale", "weight_scale\""}) {
    const std::string good = read_file(shard);
    const std::string name = "experts.0.w1." + std::string(part);
    std::string other_name = name;
    other_name[0] = 'E';  // same length: the header keeps its size
    replace_in_file(shard, name, other_name);
    const VerifyReport report = verify_path(other.path().string());
    EXPECT_FALSE(report.ok());
    EXPECT_THAT(report_text(report), HasSubstr("layers.0.ffn.experts.0.w1.")) << part;
    write_file(shard, good);
  }
  // An MXFP4 weight among NVFP4 ones is judged by its own dtype.
  replace_in_file(shard, R"("layers.0.ffn.experts.0.w1.weight":{"dtype":"U8")",
                  R"("layers.0.ffn.experts.0.w1.weight":{"dtype":"I8")");
  EXPECT_THAT(report_text(verify_path(other.path().string())),
              HasSubstr("missing-scale: layers.0.ffn.experts.0.w1.scale: found nothing"));
}

TEST_F(VerifyCase, AFifoInPlaceOfAShardDoesNotHang) {
  fs::remove(scratch_.file(small_shard(2)));
  ASSERT_EQ(mkfifo(scratch_.file(small_shard(2)).c_str(), 0600), 0);
  expect_refused("unreadable: " + small_shard(2));
  expect_refused("is not a regular file");
}

TEST_F(VerifyCase, EveryCutOfAShardIsSeen) {
  const std::string path = scratch_.file(small_shard(5));
  for (auto size = static_cast<std::int64_t>(fs::file_size(path)) - 1; size >= 0; size -= 211) {
    fs::resize_file(path, static_cast<std::uintmax_t>(size));
    ASSERT_FALSE(verify().ok()) << "cut to " << size;
  }
}

// Any single byte of a header, changed in any of three ways: an answer, never a crash or a wrong extent.
TEST_F(VerifyCase, DamagedHeaderBytesNeverCrash) {
  const std::string path = scratch_.file(small_shard(5));
  const std::string good = read_file(path);
  const auto catalog = open_catalog(path);
  ASSERT_TRUE(catalog.ok());
  const auto header_bytes = static_cast<std::size_t>(catalog->shards()[0].data_offset_bytes);
  int num_refused = 0;
  for (std::size_t at = 0; at < header_bytes; at += 3) {
    for (const int flip : {1, 4, 128}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ flip);
      const auto bytes = std::as_bytes(std::span(bad));
      const auto header = parse_safetensors_header(bytes, static_cast<std::int64_t>(bytes.size()), "damaged");
      if (!header.ok()) {
        ++num_refused;
        continue;
      }
      for (const HeaderTensor& tensor : header->tensors) {
        ASSERT_LE(header->data_offset_bytes + tensor.end, static_cast<std::int64_t>(bytes.size()));
      }
    }
  }
  EXPECT_GT(num_refused, 0);
}

TEST(EmbeddedModel, VerifiesClean) {
  const auto checkpoint = open_checkpoint(FATHOM_SOURCE_DIR "/models/mini-v4");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(report_text(checkpoint->report), "");
  EXPECT_EQ(checkpoint->report.draft, DraftKind::kMtp);
  EXPECT_EQ(checkpoint->report.total_bytes, 25'936'788);
}

TEST(SharedModels, VerifyClean) {
  FATHOM_SKIP_WITHOUT_SHARED(testing::shared_path("models"));
  for (const char* name : {"tiny-random", "tiny-random-hf", "tiny-random-nvfp4", "tiny-dspark"}) {
    const VerifyReport report = verify_path(testing::shared_path(std::string("models/") + name));
    EXPECT_EQ(report_text(report), "") << name;
    EXPECT_EQ(report.draft, std::string(name) == "tiny-dspark" ? DraftKind::kDspark : DraftKind::kMtp) << name;
  }
}

}  // namespace
}  // namespace fathom
