// The tokenizer.json that belongs to a checkpoint: where it lies, and whether it is this model's.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/config.h"
#include "checkpoint/finding.h"
#include "text/tokenizer.h"

namespace fathom {

// Where config.json and tokenizer.json lie: `path` itself, or the directory of a single .safetensors file.
std::string model_directory(const std::string& path);

// Failure unless the tokenizer has the ids of a model with this config: as many, and the same BOS and EOS.
Status check_tokenizer_of_model(const Tokenizer& tokenizer, const ModelConfig& config);

// tokenizer.json of the model at `path`, checked against its config.
Result<Tokenizer> open_tokenizer_of_model(const std::string& path, const ModelConfig& config);

// What is wrong with it, for `fathom verify`: a warning where there is none (the model computes, but reads no text), an
// error where it is broken or another model's.
std::vector<Finding> verify_tokenizer(const std::string& path);

}  // namespace fathom
