// One struct of options and one function per subcommand. main.cc owns the command line (the only file
// that sees the CLI library); each cmd_*.cc owns one subcommand. Functions return the exit code.
#pragma once

#include <cstdint>
#include <string>

namespace fathom::app {

struct TokenizeOptions {
  std::string tokenizer;  // tokenizer.json or a model directory
  bool decode = false;    // {"ids"} -> {"text"} instead of {"text"} -> {"ids"}
  bool special = true;    // encoding recognises added tokens; decoding writes special ones
};
int run_tokenize(const TokenizeOptions& options);

struct RenderOptions {
  std::string model;     // read only when `release` is empty
  std::string messages;  // file
  bool thinking = true;
  bool keep_thinking = false;  // earlier reasoning stays in the prompt
  std::string effort;          // low, high, max; empty: none asked for
  std::string release;         // preview, 0731; empty: from the draft tensors
};
int run_render(const RenderOptions& options);

struct ParseOptions {
  bool thinking = true;
};
int run_parse(const ParseOptions& options);

struct VerifyOptions {
  std::string model;  // directory or one .safetensors file
  bool json = false;
};
int run_verify(const VerifyOptions& options);  // 0 right, 1 wrong

struct InspectOptions {
  std::string model;
  std::int64_t max_context = 0;  // tokens; 0: the model's longest
  std::int64_t max_sequences = 1;
  std::int64_t memory_bytes = 0;  // 0: this machine's
  bool json = false;
};
int run_inspect(const InspectOptions& options);

struct SynthOptions {
  std::string config;       // flash, flash-0731, pro, mini, or a config.json
  std::int32_t layers = 0;  // 0: all
  std::int32_t experts = 0;
  std::uint64_t seed = 1;
  std::string out;
  bool headers_only = false;
  std::string experts_format = "mxfp4";  // nvfp4, fp8
  std::string draft;                     // none, mtp, dspark; empty: what the config says
};
int run_synth(const SynthOptions& options);

struct ConvertOptions {
  std::string to;  // nvfp4
  std::string model;
  std::string out;
};
int run_convert(const ConvertOptions& options);

}  // namespace fathom::app
