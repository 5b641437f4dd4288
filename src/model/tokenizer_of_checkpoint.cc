#include "model/tokenizer_of_checkpoint.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "base/mapped_file.h"

namespace fathom {
namespace {

Status check_special_id(const char* what, TokenId found, std::int32_t expected) {
  if (found == expected) return {};
  return failed_precondition("the tokenizer is not this model's: found " + std::string(what) + " " +
                             std::to_string(found) + ", expected " + std::to_string(expected) +
                             " as in config.json; use the tokenizer.json that came with the checkpoint");
}

Result<ModelConfig> read_config_beside(const std::string& directory) {
  const std::string path = (std::filesystem::path(directory) / "config.json").string();
  constexpr std::int64_t kMaxConfigBytes = 16 << 20;
  FATHOM_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxConfigBytes));
  return parse_config(text, path);
}

}  // namespace

std::string model_directory(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return path;
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

Status check_tokenizer_of_model(const Tokenizer& tokenizer, const ModelConfig& config) {
  FATHOM_RETURN_IF_ERROR(tokenizer.check_fits_model(config.vocab_size));
  FATHOM_RETURN_IF_ERROR(check_special_id("BOS id", tokenizer.bos_id(), config.bos_token_id));
  return check_special_id("EOS id", tokenizer.eos_id(), config.eos_token_id);
}

Result<Tokenizer> open_tokenizer_of_model(const std::string& path, const ModelConfig& config) {
  const std::string directory = model_directory(path);
  FATHOM_ASSIGN_OR_RETURN(Tokenizer tokenizer, open_tokenizer(directory));
  if (Status status = check_tokenizer_of_model(tokenizer, config); !status.ok()) {
    return status.with_context(directory + "/tokenizer.json");
  }
  return tokenizer;
}

std::vector<Finding> verify_tokenizer(const std::string& path) {
  const std::string directory = model_directory(path);
  std::error_code ignored;
  const auto status = std::filesystem::symlink_status(std::filesystem::path(directory) / "tokenizer.json", ignored);
  if (!std::filesystem::exists(status)) {
    return {{Severity::kWarning, "tokenizer", "tokenizer.json", "nothing",
             "the model's tokenizer beside config.json: generate, chat and serve need it"}};
  }
  Result<ModelConfig> config = read_config_beside(directory);
  // A config that cannot be read is a finding of its own; the tokenizer may still be broken by itself.
  const Result<Tokenizer> tokenizer = config.ok() ? open_tokenizer_of_model(path, *config) : open_tokenizer(directory);
  if (tokenizer.ok()) return {};
  return {{Severity::kError, "tokenizer", "tokenizer.json", tokenizer.status().message(), ""}};
}

}  // namespace fathom
