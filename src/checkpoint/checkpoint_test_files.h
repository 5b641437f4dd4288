// For tests: a directory that removes itself, a small complete checkpoint, and ways to damage it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "checkpoint/synthesise.h"
#include "checkpoint/verify.h"

namespace fathom::testing {

class ScratchDirectory {
 public:
  explicit ScratchDirectory(const std::string& name = "fathom") {
    std::string pattern = (std::filesystem::temp_directory_path() / (name + ".XXXXXX")).string();
    path_ = mkdtemp(pattern.data());
  }
  ~ScratchDirectory() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  std::string file(const std::string& name) const { return (path_ / name).string(); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}
inline void write_file(const std::string& path, const std::string& contents) {
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << contents;
}
inline void replace_in_file(const std::string& path, const std::string& from, const std::string& to) {
  std::string text = read_file(path);
  const std::size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from << " in " << path;
  write_file(path, text.replace(at, from.size(), to));
}

// One layer of each kind, five experts, hidden 64: about a megabyte.
inline ModelConfig small_config() {
  ModelConfig config = mini_config();
  config.vocab_size = 96;
  config.hidden_size = 64;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 2;
  config.q_lora_rank = 32;
  config.o_lora_rank = 32;
  config.compress_ratios = {0, 4, 128, 0};
  config.index_n_heads = 2;
  config.index_topk = 4;
  config.n_routed_experts = 3;
  config.moe_intermediate_size = 32;
  config.num_hash_layers = 1;
  return config;
}
inline ModelConfig small_dspark_config() {
  ModelConfig config = small_config();
  config.compress_ratios = {0, 4, 128, 0, 0, 0};
  config.dspark_block_size = 5;
  config.dspark_markov_rank = 8;
  config.dspark_noise_token_id = 95;
  config.dspark_target_layer_ids = {1, 2};
  return config;
}

inline SynthesiseOptions small_options(const std::string& directory) {
  SynthesiseOptions options;
  options.config = small_config();
  options.tensors.draft = DraftKind::kMtp;
  options.tensors.num_draft_stages = 1;
  options.directory = directory;
  return options;
}

// Files of the small checkpoint: 1 embed, 2..4 layers, 5 norm and head, 6 mtp.0.
inline std::string small_shard(int number) { return "model-0000" + std::to_string(number) + "-of-00006.safetensors"; }
inline void write_small_checkpoint(const ScratchDirectory& scratch) {
  const auto result = synthesise_checkpoint(small_options(scratch.path().string()));
  ASSERT_TRUE(result.ok()) << result.status().message();
}

// Lines of a report, for messages and substring checks.
inline std::string report_text(const VerifyReport& report) {
  std::string text;
  for (const Finding& finding : report.findings) text += finding.to_string() + "\n";
  return text;
}

inline std::string shared_path(const std::string& relative) {
  const char* from_environment = std::getenv("FATHOM_SHARED");
  const std::string root = from_environment != nullptr ? from_environment : FATHOM_SOURCE_DIR "/../shared";
  return root + "/" + relative;
}

}  // namespace fathom::testing

#define FATHOM_SKIP_WITHOUT_SHARED(path)                               \
  if (!std::filesystem::exists(path)) {                                \
    GTEST_SKIP() << "../shared is absent: " << (path) << " is needed"; \
  }
