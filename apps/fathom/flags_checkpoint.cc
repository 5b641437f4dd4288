#include <memory>

#include "flags.h"

namespace fathom::app {
namespace {

void add_release(CLI::App& command, std::string& release) {
  add_value(command, "--release", release, "Chat encoder (default: from the checkpoint's draft tensors)",
            one_of({"preview", "0731"}));
}

}  // namespace

void add_tokenize(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = app.add_subcommand("tokenize", "Texts to token ids and back: JSON lines on standard input");
  add_value(*command, "--tokenizer", options->tokenizer, "tokenizer.json, or the model directory that holds it", path())
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
  add_value(*command, "--model", options->model, "Model directory, for its encoder (default: none, see --release)",
            path());
  add_value(*command, "--messages", options->messages, "File: {\"messages\": [...], \"tools\": [...]}", path())
      ->required();
  add_thinking_flags(*command, options->thinking, options->effort);
  command->add_flag("--keep-thinking", options->keep_thinking, "Keep the reasoning of earlier answers");
  add_release(*command, options->release);
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
  add_value(*command, "--thinking", options->thinking, "Whether the prompt ended with <think>", on_off())->required();
  command->callback([options, &exit_code] { exit_code = run_parse(*options); });
}

void add_verify(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<VerifyOptions>();
  CLI::App* command =
      app.add_subcommand("verify", "Check that a checkpoint holds what its config implies; reads headers only");
  add_value(*command, "--model", options->model, "Model directory, or one .safetensors file", path())->required();
  command->add_flag("--json", options->json, "Print the report as JSON");
  command->callback([options, &exit_code] { exit_code = run_verify(*options); });
}

void add_inspect(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command = app.add_subcommand("inspect", "What a checkpoint is, and how much memory it needs");
  add_value(*command, "--model", options->model, "Model directory, or one .safetensors file", path())->required();
  add_value(*command, "--max-context", options->max_context, "Tokens of each sequence (default: the model's longest)",
            positive());
  add_value(*command, "--max-sequences", options->max_sequences,
            with_default("Sequences at the same time", options->max_sequences), positive());
  add_value(*command, "--memory", options->memory_bytes, "Memory available (default: this machine's)",
            byte_size(1, true));
  command->add_flag("--json", options->json, "Print as JSON");
  command->callback([options, &exit_code] { exit_code = run_inspect(*options); });
}

void add_synth(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<SynthOptions>();
  CLI::App* command = app.add_subcommand("synth", "Write a checkpoint of seeded random weights in the official layout");
  add_value(*command, "--config", options->config, "flash, flash-0731, pro, mini, or a config.json", path())
      ->required();
  add_value(*command, "--layers", options->layers, "Only the first N layers (default: all)", positive32());
  add_value(*command, "--experts", options->experts, "Only N routed experts a layer (default: all)", positive32());
  add_value(*command, "--seed", options->seed, with_default("Same seed, same weights", options->seed), seed_value());
  add_value(*command, "--out", options->out, "Directory to write; must hold no checkpoint", path())->required();
  command->add_flag("--headers-only", options->headers_only, "Sparse files of the true size, all data zero");
  add_value(*command, "--format", options->experts_format,
            with_default("Routed experts; fp8 is Base's", options->experts_format), one_of({"mxfp4", "nvfp4", "fp8"}));
  add_value(*command, "--draft", options->draft, "Draft tensors (default: as the config says)",
            one_of({"none", "mtp", "dspark"}));
  command->callback([options, &exit_code] { exit_code = run_synth(*options); });
}

void add_convert(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ConvertOptions>();
  CLI::App* command = app.add_subcommand("convert", "Rewrite a checkpoint's experts in another format, value-exact");
  add_value(*command, "--to", options->to, "Their new format", one_of({"nvfp4"}))->required();
  add_value(*command, "--model", options->model, "Checkpoint with MXFP4 experts", path())->required();
  add_value(*command, "--out", options->out, "Directory to write; must hold no checkpoint", path())->required();
  command->callback([options, &exit_code] { exit_code = run_convert(*options); });
}

}  // namespace fathom::app
