// One struct of options and one function per subcommand. main.cc owns the command line (the only file
// that sees the CLI library); each cmd_*.cc owns one subcommand. Functions return the exit code.
#pragma once

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

}  // namespace fathom::app
