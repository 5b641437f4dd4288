#include "model/tokenizer_of_checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/mapped_file.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

const std::string kMini = std::string(FATHOM_SOURCE_DIR) + "/models/mini-v4";

class TokenizerOfCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::path(::testing::TempDir()) / "tokenizer_of_checkpoint";
    fs::remove_all(directory_);
    fs::create_directories(directory_);
    write("config.json", config_to_json(mini_config()));
  }
  void TearDown() override { fs::remove_all(directory_); }
  void write(const char* name, const std::string& text) { std::ofstream(directory_ / name) << text; }
  std::string findings() const {
    std::string text;
    for (const Finding& finding : verify_tokenizer(directory_.string())) text += finding.to_string() + "\n";
    return text;
  }
  fs::path directory_;
};

TEST_F(TokenizerOfCheckpoint, RightOneIsSilent) {
  EXPECT_TRUE(verify_tokenizer(kMini).empty());
  // A model given as one file: the tokenizer lies beside it.
  EXPECT_TRUE(verify_tokenizer(kMini + "/model-00001-of-00002.safetensors").empty());
}

TEST_F(TokenizerOfCheckpoint, AbsentIsAWarning) {
  EXPECT_EQ(findings(),
            "warning: tokenizer: tokenizer.json: found nothing, expected the model's tokenizer beside config.json: "
            "generate, chat and serve need it\n");
}

TEST_F(TokenizerOfCheckpoint, BrokenOrForeignIsAnError) {
  const std::string mini = read_text_file(kMini + "/tokenizer.json").value();
  write("tokenizer.json", mini.substr(0, 1000));
  EXPECT_NE(findings().find("error: tokenizer: "), std::string::npos) << findings();
  EXPECT_NE(findings().find("tokenizer.json"), std::string::npos) << findings();

  write("tokenizer.json", mini);
  EXPECT_EQ(findings(), "");
  ModelConfig config = mini_config();
  config.vocab_size = 384;
  write("config.json", config_to_json(config));
  EXPECT_NE(findings().find("found 4096 ids, expected 384"), std::string::npos) << findings();
  config = mini_config();
  config.eos_token_id = 2;
  write("config.json", config_to_json(config));
  EXPECT_NE(findings().find("found EOS id 1, expected 2 as in config.json"), std::string::npos) << findings();
  config = mini_config();
  config.bos_token_id = 7;
  write("config.json", config_to_json(config));
  EXPECT_NE(findings().find("found BOS id 0, expected 7 as in config.json"), std::string::npos) << findings();

  // Without a config the tokenizer is still read by itself.
  fs::remove(directory_ / "config.json");
  EXPECT_EQ(findings(), "");
  write("tokenizer.json", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
  EXPECT_NE(findings().find("Git LFS pointer"), std::string::npos) << findings();
}

}  // namespace
}  // namespace fathom
