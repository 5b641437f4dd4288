#include <CLI/CLI.hpp>
#include <map>
#include <memory>

#include "commands.h"

namespace fathom::app {
namespace {

const std::map<std::string, bool> kOnOff = {{"on", true}, {"off", false}};

// Each add_* declares one subcommand; its callback runs it and leaves the exit code.
void add_tokenize(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = app.add_subcommand("tokenize", "Texts to token ids and back: JSON lines on standard input");
  command->add_option("--tokenizer", options->tokenizer, "tokenizer.json, or the model directory that holds it")
      ->required();
  command->add_flag("--decode", options->decode, "{\"ids\": [...]} in, {\"text\": ...} out");
  command->add_flag_callback(
      "--no-special", [options] { options->special = false; },
      "Take control strings in texts as plain text; with --decode leave special tokens out");
  command->callback([options, &exit_code] { exit_code = run_tokenize(*options); });
}

void add_render(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<RenderOptions>();
  CLI::App* command = app.add_subcommand("render", "Print the exact prompt of a conversation");
  command->add_option("--model", options->model, "Model directory; says which release's encoder to use");
  command->add_option("--messages", options->messages, "File: {\"messages\": [...], \"tools\": [...]}")->required();
  command->add_option("--thinking", options->thinking, "on (default) or off")
      ->transform(CLI::CheckedTransformer(kOnOff));
  command->add_flag("--keep-thinking", options->keep_thinking, "Keep the reasoning of earlier answers");
  command->add_option("--effort", options->effort, "Reasoning effort (default: no prefix)")
      ->check(CLI::IsMember({"low", "high", "max"}));
  command->add_option("--release", options->release, "Encoder (default: from the checkpoint's draft tensors)")
      ->check(CLI::IsMember({"preview", "0731"}));
  command->callback([options, &exit_code] {
    if (options->model.empty() && options->release.empty()) {
      throw CLI::RequiredError("--model or --release");
    }
    exit_code = run_render(*options);
  });
}

void add_parse(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ParseOptions>();
  CLI::App* command = app.add_subcommand("parse", "A completion on standard input to its message as JSON");
  command->add_option("--thinking", options->thinking, "Whether the prompt ended with <think>: on or off")
      ->transform(CLI::CheckedTransformer(kOnOff))
      ->required();
  command->callback([options, &exit_code] { exit_code = run_parse(*options); });
}

}  // namespace
}  // namespace fathom::app

int main(int argc, char** argv) {
  CLI::App app{"fathom: an inference engine for DeepSeek-V4"};
  app.set_version_flag("--version", FATHOM_VERSION);
  app.require_subcommand(1);
  int exit_code = 0;
  fathom::app::add_tokenize(app, exit_code);
  fathom::app::add_render(app, exit_code);
  fathom::app::add_parse(app, exit_code);
  CLI11_PARSE(app, argc, argv);
  return exit_code;
}
