#include <memory>

#include "flags.h"

namespace fathom::app {

void add_generate(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = app.add_subcommand("generate", "Answer one prompt or conversation");
  add_model_flags(*command, options->model);
  add_sampling_flags(*command, options->sampling);
  add_thinking_flags(*command, options->thinking, options->effort);
  add_value(*command, "--prompt", options->prompt,
            "The user's message; with --raw the text to complete (default: none, see --messages)", any_text());
  add_value(*command, "--messages", options->messages,
            "File: {\"messages\": [...], \"tools\": [...]} (default: none, see --prompt)", path());
  command->add_flag("--raw", options->raw, "Complete the prompt as it stands, without the chat template");
  add_draft_flag(*command, "--draft", options->draft);
  command->add_flag("--json", options->json, "One JSON object: message, finish_reason, usage, timings, drafts");
  command->callback([options, &exit_code] { exit_code = run_generate(*options); });
}

void add_chat(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ChatOptions>();
  CLI::App* command = app.add_subcommand("chat", "Talk to a model in the terminal");
  add_model_flags(*command, options->model);
  add_sampling_flags(*command, options->sampling);
  add_thinking_flags(*command, options->thinking, options->effort);
  add_value(*command, "--system", options->system, "System message (default: none)", any_text());
  add_draft_flag(*command, "--draft", options->draft);
  command->callback([options, &exit_code] { exit_code = run_chat(*options); });
}

void add_logits(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<LogitsOptions>();
  CLI::App* command = app.add_subcommand("logits", "Logits of given token ids, as safetensors");
  add_model_flags(*command, options->model);
  add_value(*command, "--ids", options->ids, "File: JSON list of token ids, or of such lists", path())->required();
  add_value(*command, "--positions", options->positions,
            with_default("last, all, or numbers such as 0,5,7", options->positions), any_text());
  add_value(*command, "--out", options->out, "logits.I f32 [positions, vocab] and positions.I i32", path())->required();
  add_value(*command, "--dump-taps", options->taps,
            "File for I.layerL, I.attnL, I.mlpL, I.topkL, I.hc_head, I.norm, I.logits (default: none)", path());
  command->callback([options, &exit_code] { exit_code = run_logits(*options); });
}

void add_selfcheck(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<SelfcheckOptions>();
  CLI::App* command =
      app.add_subcommand("selfcheck", "Ask the embedded model two questions; 0 if it knows the answers");
  add_model_flags(*command, options->model);
  command->callback([options, &exit_code] { exit_code = run_selfcheck(*options); });
}

void add_selftest(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<SelftestCommandOptions>();
  CLI::App* command = app.add_subcommand(
      "selftest", "Hold every variant of every operation against its slow twin here; remember the fastest right ones");
  add_value(*command, "--model", options->model, "Model whose layers are compared (default: the embedded one)",
            any_text());
  add_value(*command, "--device", options->device, with_default("auto takes a GPU where there is one", options->device),
            one_of({"auto", "cpu", "cuda", "emulated"}));
  add_value(*command, "--threads", options->threads, "CPU threads (default: all available)", whole_number(1, 1024));
  command->add_flag("!--no-wide", options->wide, "On a GPU, time the small model's layers instead of Flash's width");
  command->callback([options, &exit_code] { exit_code = run_selftest_command(*options); });
}

}  // namespace fathom::app
