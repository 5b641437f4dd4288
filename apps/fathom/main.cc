#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "commands.h"

namespace fathom::app {
namespace {

// What a flag takes, checked before CLI11 converts: its own checks let -1 into unsigned fields, cap what overflows
// and read 010 as 8.
std::string found_expected(const std::string& text, const std::string& expected) {
  return "found " + (text.empty() ? "an empty text" : text) + ", expected " + expected;
}

constexpr std::int64_t kMost32 = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMost64 = std::numeric_limits<std::int64_t>::max();

// Decimal, from `least` to `most`; `least` >= -1.
CLI::Validator whole_number(std::int64_t least, std::uint64_t most) {
  std::string expected = "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
  const auto check = [=](std::string& text) -> std::string {
    const char* end = text.data() + text.size();
    std::uint64_t value = 0;
    if (least < 0 && text == "-1") return {};
    const auto [rest, error] = std::from_chars(text.data(), end, value);
    const bool is_whole = error == std::errc() && rest == end && (text.size() == 1 || text[0] != '0');
    if (!is_whole || value > most || (least > 0 && value < static_cast<std::uint64_t>(least))) {
      return found_expected(text, expected);
    }
    return {};
  };
  return CLI::Validator(check, "WHOLE");
}

CLI::Validator number(double least, double most, const std::string& expected) {
  const auto check = [=](std::string& text) -> std::string {
    char* rest = nullptr;
    const double value = std::strtod(text.c_str(), &rest);
    const bool is_number = !text.empty() && *rest == '\0' && std::isspace(static_cast<unsigned char>(text[0])) == 0;
    return is_number && value >= least && value <= most ? std::string() : found_expected(text, expected);
  };
  return CLI::Validator(check, "NUMBER");
}

// A count of bytes: 512, 4k, 16MB, 2GiB. With `decimal` k is 1000 and Ki 1024, else both are 1024.
CLI::Validator byte_size(std::int64_t least, bool decimal) {
  const std::string expected = "bytes such as 512, 16MB or 2GiB, at least " + std::to_string(least);
  const auto transform = [=](std::string& text) -> std::string {
    const char* end = text.data() + text.size();
    std::int64_t value = 0;
    const auto [rest, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || value < 0) return found_expected(text, expected);
    std::string suffix(rest, end);
    for (char& c : suffix) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (suffix.ends_with('b')) suffix.pop_back();
    const bool binary = suffix.ends_with('i') || !decimal;
    if (suffix.ends_with('i')) suffix.pop_back();
    const std::size_t power = suffix.empty() ? 0 : std::string_view("kmgtp").find(suffix) + 1;
    if (suffix.size() > 1 || (!suffix.empty() && power == 0)) return found_expected(text, expected);
    for (std::size_t i = 0; i < power; ++i) {
      if (__builtin_mul_overflow(value, std::int64_t{binary ? 1024 : 1000}, &value)) {
        return found_expected(text, "less than 8 EiB");
      }
    }
    if (value < least) return found_expected(text, expected);
    text = std::to_string(value);
    return {};
  };
  return CLI::Validator(transform, "BYTES");
}

const CLI::Validator kPositive = whole_number(1, kMost64);
const CLI::Validator kPositive32 = whole_number(1, kMost32);
const CLI::Validator kCount32 = whole_number(0, kMost32);
const CLI::Validator kSeed = whole_number(0, std::numeric_limits<std::uint64_t>::max());
constexpr double kMostSeconds = 1e9;
const CLI::Validator kSeconds = number(0.001, kMostSeconds, "seconds from 0.001 to 1e9");
const CLI::Validator kSecondsOrNone = number(0, kMostSeconds, "seconds from 0 to 1e9");
const CLI::Validator kShare = number(0, 1, "a number from 0 to 1");
const CLI::Validator kTemperature = number(0, 100, "a number from 0 to 100");
const CLI::Validator kServedTemperature = number(0, 2, "a number from 0 to 2");  // as requests may ask
const CLI::Validator kTopP = number(std::numeric_limits<double>::min(), 1, "a number over 0, to 1");
const CLI::Validator kTopK = whole_number(-1, kMost32);
// An unset shell variable must not mean "the default".
const CLI::Validator kPath(
    [](std::string& text) { return text.empty() ? found_expected(text, "a path") : std::string(); }, "PATH");

// Nor "no key", nor "every address".
const CLI::Validator kNotEmpty(
    [](std::string& text) { return text.empty() ? found_expected(text, "one that is not empty") : std::string(); },
    "TEXT");

const std::map<std::string, bool> kOnOff = {{"on", true}, {"off", false}};

// Each add_* declares one subcommand; its callback runs it and leaves the exit code.
void add_tokenize(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = app.add_subcommand("tokenize", "Texts to token ids and back: JSON lines on standard input");
  command->add_option("--tokenizer", options->tokenizer, "tokenizer.json, or the model directory that holds it")
      ->check(kPath)
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
  command->add_option("--model", options->model, "Model directory; says which release's encoder to use")->check(kPath);
  command->add_option("--messages", options->messages, "File: {\"messages\": [...], \"tools\": [...]}")
      ->check(kPath)
      ->required();
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

void add_verify(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<VerifyOptions>();
  CLI::App* command =
      app.add_subcommand("verify", "Check that a checkpoint holds what its config implies; reads headers only");
  command->add_option("--model", options->model, "Model directory, or one .safetensors file")->check(kPath)->required();
  command->add_flag("--json", options->json, "Print the report as JSON");
  command->callback([options, &exit_code] { exit_code = run_verify(*options); });
}

void add_inspect(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command = app.add_subcommand("inspect", "What a checkpoint is, and how much memory it needs");
  command->add_option("--model", options->model, "Model directory, or one .safetensors file")->check(kPath)->required();
  command->add_option("--max-context", options->max_context, "Tokens of each sequence (default: the model's longest)")
      ->check(kPositive);
  command->add_option("--max-sequences", options->max_sequences, "Sequences at the same time (default 1)")
      ->check(kPositive);
  command->add_option("--memory", options->memory_bytes, "Bytes available, suffixes allowed (default: this machine's)")
      ->transform(byte_size(1, true));
  command->add_flag("--json", options->json, "Print as JSON");
  command->callback([options, &exit_code] { exit_code = run_inspect(*options); });
}

void add_synth(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<SynthOptions>();
  CLI::App* command = app.add_subcommand("synth", "Write a checkpoint of seeded random weights in the official layout");
  command->add_option("--config", options->config, "flash, flash-0731, pro, mini, or a config.json")
      ->check(kPath)
      ->required();
  command->add_option("--layers", options->layers, "Only the first N layers")->check(kPositive32);
  command->add_option("--experts", options->experts, "Only M routed experts a layer")->check(kPositive32);
  command->add_option("--seed", options->seed, "Same seed, same weights (default 1)")->check(kSeed);
  command->add_option("--out", options->out, "Directory to write; must hold no checkpoint")->check(kPath)->required();
  command->add_flag("--headers-only", options->headers_only, "Sparse files of the true size, all data zero");
  command->add_option("--format", options->experts_format, "Routed experts: mxfp4 (default), nvfp4 or fp8 (Base)")
      ->check(CLI::IsMember({"mxfp4", "nvfp4", "fp8"}));
  command->add_option("--draft", options->draft, "none, mtp or dspark (default: as the config says)")
      ->check(CLI::IsMember({"none", "mtp", "dspark"}));
  command->callback([options, &exit_code] { exit_code = run_synth(*options); });
}

void add_convert(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ConvertOptions>();
  CLI::App* command = app.add_subcommand("convert", "Rewrite a checkpoint's experts in another format, value-exact");
  command->add_option("--to", options->to, "nvfp4")->required()->check(CLI::IsMember({"nvfp4"}));
  command->add_option("--model", options->model, "Checkpoint with MXFP4 experts")->check(kPath)->required();
  command->add_option("--out", options->out, "Directory to write; must hold no checkpoint")->check(kPath)->required();
  command->callback([options, &exit_code] { exit_code = run_convert(*options); });
}

void add_model_flags(CLI::App& command, ModelFlags& flags) {
  command.add_option("--model", flags.model, "Model directory (default: models/mini-v4)")->check(kPath);
  command.add_option("--numerics", flags.numerics, "serve (default), vendor or plain")
      ->check(CLI::IsMember({"plain", "vendor", "serve"}));
  command
      .add_option("--device", flags.device,
                  "cpu (default), cuda, or emulated (the device side without a GPU, for tests)")
      ->check(CLI::IsMember({"cpu", "cuda", "emulated"}));
  command.add_option("--threads", flags.threads, "CPU threads (default: all available)")->check(whole_number(1, 1024));
  command.add_option("--variant", flags.variants, "operation=name, or *=name; may be repeated")
      ->allow_extra_args(false);
  command.add_option("--max-context", flags.max_context, "Tokens of context (default: what the model takes)")
      ->check(kPositive);
}

constexpr const char* kDraftHelp =
    "Tokens the checkpoint's own draft head proposes a step: off (default), 1 to 8, or adaptive; the text is the same";

void add_sampling_flags(CLI::App& command, SamplingFlags& flags) {
  command.add_option("--temperature", flags.temperature, "0 is greedy (default: generation_config.json)")
      ->check(kTemperature);
  command.add_option("--top-p", flags.top_p, "Nucleus sampling (default: generation_config.json)")->check(kTopP);
  command.add_option("--top-k", flags.top_k, "0: off")->check(kTopK);
  command.add_option("--min-p", flags.min_p, "0: off")->check(kShare);
  command.add_option("--seed", flags.seed, "Same seed, same text")->check(kSeed);
  command.add_option("--max-tokens", flags.max_tokens, "Longest answer (default: until the context is full)")
      ->check(kPositive);
  command.add_option("--stop", flags.stops, "The answer ends before this text; may be repeated")
      ->allow_extra_args(false);
}

void add_thinking_flags(CLI::App& command, bool& thinking, std::string& effort) {
  command.add_option("--thinking", thinking, "on (default) or off")->transform(CLI::CheckedTransformer(kOnOff));
  command.add_option("--effort", effort, "Reasoning effort (default: no prefix)")
      ->check(CLI::IsMember({"low", "high", "max"}));
}

void add_generate(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = app.add_subcommand("generate", "Answer one prompt or conversation");
  add_model_flags(*command, options->model);
  add_sampling_flags(*command, options->sampling);
  add_thinking_flags(*command, options->thinking, options->effort);
  command->add_option("--prompt", options->prompt, "The user's message; with --raw the text to complete");
  command->add_option("--messages", options->messages, "File: {\"messages\": [...], \"tools\": [...]}")->check(kPath);
  command->add_flag("--raw", options->raw, "Complete the prompt as it stands, without the chat template");
  command->add_option("--draft", options->draft, kDraftHelp);
  command->add_flag("--json", options->json, "One JSON object: message, finish_reason, usage, timings, drafts");
  command->callback([options, &exit_code] { exit_code = run_generate(*options); });
}

void add_chat(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ChatOptions>();
  CLI::App* command = app.add_subcommand("chat", "Talk to a model in the terminal");
  add_model_flags(*command, options->model);
  add_sampling_flags(*command, options->sampling);
  add_thinking_flags(*command, options->thinking, options->effort);
  command->add_option("--system", options->system, "System message");
  command->add_option("--draft", options->draft, kDraftHelp);
  command->callback([options, &exit_code] { exit_code = run_chat(*options); });
}

void add_logits(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<LogitsOptions>();
  CLI::App* command = app.add_subcommand("logits", "Logits of given token ids, as safetensors");
  add_model_flags(*command, options->model);
  command->add_option("--ids", options->ids, "File: JSON list of lists of token ids")->check(kPath)->required();
  command->add_option("--positions", options->positions, "last (default), all, or numbers such as 0,5,7");
  command->add_option("--out", options->out, "logits.I f32 [positions, vocab] and positions.I i32")
      ->check(kPath)
      ->required();
  command->add_option("--dump-taps", options->taps, "I.layerL, I.attnL, I.mlpL, I.topkL, I.hc_head, I.norm, I.logits")
      ->check(kPath);
  command->callback([options, &exit_code] { exit_code = run_logits(*options); });
}

void add_selfcheck(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<SelfcheckOptions>();
  CLI::App* command =
      app.add_subcommand("selfcheck", "Ask the embedded model two questions; 0 if it knows the answers");
  add_model_flags(*command, options->model);
  command->callback([options, &exit_code] { exit_code = run_selfcheck(*options); });
}

void add_bench_draft(CLI::App& bench, int& exit_code) {
  auto options = std::make_shared<BenchDraftOptions>();
  CLI::App* command =
      bench.add_subcommand("draft", "Decoding by batch and draft depth, adaptive against the fixed ones");
  add_model_flags(*command, options->model);
  command->add_option("--batch", options->batches, "Sequences at once (default 1 4 16 64)")
      ->check(whole_number(1, 256));
  command->add_option("--most", options->most, "Deepest (default 5)")->check(whole_number(1, 8));
  command->add_option("--repeats", options->repeats, "Of each depth, by turns (default 5)")->check(kPositive);
  command->add_option("--seconds", options->seconds, "Of one run, about (default 0.6)")->check(kSeconds);
  command->add_flag("!--no-graphs", options->graphs, "On a GPU, launch every step instead of replaying captured ones");
  command->add_flag("--json", options->json, "Also print the figures as JSON");
  command->callback([options, &exit_code] { exit_code = run_bench_draft(*options); });
}

void add_selftest(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<SelftestCommandOptions>();
  CLI::App* command = app.add_subcommand(
      "selftest", "Hold every variant of every operation against its slow twin here; remember the fastest right ones");
  command->add_option("--model", options->model, "Model whose layers are compared (default: the embedded one)");
  command->add_option("--device", options->device, "auto (default: a GPU where there is one), cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda", "emulated"}));
  command->add_option("--threads", options->threads, "CPU threads (default: all available)")
      ->check(CLI::Range(1, 1024));
  command->add_flag("!--no-wide", options->wide, "On a GPU, time the small model's layers instead of Flash's width");
  command->callback([options, &exit_code] { exit_code = run_selftest_command(*options); });
}

void add_bench_serve(CLI::App& bench, int& exit_code) {
  auto options = std::make_shared<BenchServeOptions>();
  CLI::App* command = bench.add_subcommand("serve", "Load over real sockets: first token, between tokens, throughput");
  command->add_option("--address", options->address, "HOST:PORT of a running server (default: starts one)");
  command->add_option("--model", options->model, "Model of the server that is started")->check(kPath);
  command->add_option("--server-flag", options->server_flags, "Flag for it; may be repeated")->allow_extra_args(false);
  command->add_option("--api-key", options->api_key, "Key to send");
  command->add_option("--concurrency", options->concurrency, "Clients at once (default 1 16 64)")
      ->check(whole_number(1, 4096));
  command->add_option("--requests", options->requests_per_client, "Of each client in a repeat (default 4)")
      ->check(kPositive32);
  command->add_option("--repeats", options->repeats, "Of each level (default 3)")->check(kPositive32);
  command->add_option("--input", options->input_tokens, "Prompt tokens (default 256)")->check(kPositive);
  command->add_option("--output", options->output_tokens, "Answer tokens (default 64)")->check(kPositive);
  command->add_option("--shared-prefix", options->shared_prefix, "Share of the prompt that all have in common")
      ->check(kShare);
  command->add_option("--cancel", options->cancelled, "Share of clients that leave early")->check(kShare);
  command->add_option("--seed", options->seed, "Same seed, same requests (default 1)")->check(kSeed);
  command->add_option("--json", options->json, "File for the figures");
  command->add_option("--html", options->html, "File for a page with pictures")->check(kPath);
  command->callback([options, &exit_code] { exit_code = run_bench_serve(*options); });
}

void add_bench(CLI::App& app, int& exit_code) {
  CLI::App* bench = app.add_subcommand("bench", "Measured time beside the floor that memory and arithmetic set");
  bench->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, int (*run)(const BenchOptions&)) {
    auto options = std::make_shared<BenchOptions>();
    CLI::App* command = bench->add_subcommand(name, help);
    add_model_flags(*command, options->model);
    command->add_option("--chunk", options->chunk, "Prefill rows of a step (default 512)")->check(kPositive);
    command->add_option("--positions", options->positions, "Where decoding is timed (default 200 4000)")
        ->check(kPositive);
    command->add_option("--prefill", options->prefill, "Prompt tokens (default 2048)")->check(kPositive);
    command->add_option("--tokens", options->tokens, "Tokens decoded in a round (default 6)")->check(kPositive32);
    command->add_option("--rounds", options->rounds, "The best of this many counts (default 5)")->check(kPositive32);
    command->callback([options, run, &exit_code] { exit_code = run(*options); });
    return std::pair{command, options};
  };
  auto [ops, ops_options] = add("ops", "Each operation's variants on a prefill and a decode step", run_bench_ops);
  ops->add_option("--variants", ops_options->variants, "Default: cpu reference");
  auto [decode, decode_options] = add("decode", "Decode and prefill against their bars", run_bench_decode);
  decode->add_flag("--json", decode_options->json, "Also print the figures as JSON");
  add_bench_draft(*bench, exit_code);
  add_bench_serve(*bench, exit_code);
}

void add_replay(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ReplayOptions>();
  CLI::App* command = app.add_subcommand(
      "replay", "Play a recorded scheduler's life again: the same plans, and every rule of the accounts kept?");
  command->add_option("file", options->file, "File of `fathom serve --scheduler-log`")->required();
  command->add_flag("--events", options->events, "Also print every event");
  command->callback([options, &exit_code] { exit_code = run_replay(*options); });
}

void add_profile(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ProfileOptions>();
  CLI::App* command = app.add_subcommand("profile", "Where the time of a decode step goes, and what is exposed");
  add_model_flags(*command, options->model);
  command->add_option("--batch", options->batch, "Sequences that decode together (default 8)")
      ->check(CLI::Range(1, 1024));
  command->add_option("--context", options->context, "Tokens of each before the first step (default 512)")
      ->check(kPositive);
  command->add_option("--steps", options->steps, "Measured steps of a repeat (default 40)")->check(CLI::Range(2, 9000));
  command->add_option("--warmup", options->warmup, "Steps before them (default 8)")->check(CLI::Range(0, 900));
  command->add_option("--repeats", options->repeats, "Each with its prompts anew (default 5)")
      ->check(CLI::Range(1, 1000));
  command->add_option("--drafts", options->drafts, "Tokens drafted a step (default 0)")->check(CLI::Range(0, 8));
  command->add_option("--chunk", options->chunk, "Prefill rows of a step (default 512)")->check(kPositive);
  command->add_option("--exposed", options->exposed, "Measure exposed time: on (default) or off")
      ->transform(CLI::CheckedTransformer(kOnOff));
  command->add_option("--rounds", options->rounds, "Samples of each exposed time (default 15)")
      ->check(CLI::Range(6, 100000));
  command->add_option("--synthetic", options->synthetic,
                      "Random weights: flash, flash-0731, pro, mini or a config.json");
  command->add_option("--layers", options->layers, "Of the synthetic model (default 2)")->check(kPositive);
  command->add_option("--experts", options->experts, "Of the synthetic model (default: the config's)")
      ->check(kPositive);
  command->add_option("--exposed-limit", options->limit_s, "Seconds for exposed time at most (default 60)")
      ->check(kSeconds);
  command->add_option("--attach", options->attach, "URL or HOST:PORT of a running server: captures what it serves");
  command->add_option("--api-key", options->api_key, "Key to send there");
  command->add_option("--attach-limit", options->attach_limit_s, "Seconds to wait for a repeat's steps (default 60)")
      ->check(kSeconds);
  command->add_flag("--overhead", options->overhead, "Only measure what measuring costs");
  command->add_option("--what-if", options->what_if, "operation=0.5x: tok/s to expect; may be repeated")
      ->allow_extra_args(false);
  command->add_flag("--isolated", options->isolated,
                    "On a GPU: hold the attributed times to event times of the same calls, one by one");
  command->add_flag("--one-step", options->one_step,
                    "On a GPU: run one step between a profiler's start and stop, for ncu, and nothing else");
  command->add_option("--out", options->out, "Folder to write (default profile)");
  command->callback([options, &exit_code] { exit_code = run_profile(*options); });
}

void add_serve_limits(CLI::App& command, const std::shared_ptr<ServeOptions>& options) {
  command.add_option("--max-running", options->max_running, "Sequences that hold cache state at once (default 32)")
      ->check(whole_number(1, 1024));
  command.add_option("--max-queued", options->max_queued_requests, "Requests that may wait (default 256)")
      ->check(kPositive32);
  command.add_option("--max-queued-tokens", options->max_queued_tokens, "Their prompt tokens, together")
      ->check(kPositive);
  command
      .add_option("--max-logprobs", options->max_logprobs, "Alternatives a token that may be asked for (default 20)")
      ->check(kCount32);
  command.add_option("--cache-memory", options->cache_memory_bytes, "Bytes for all cache state, suffixes allowed")
      ->transform(byte_size(1, true));
  command.add_option("--prefill-chunk", options->prefill_chunk, "Prompt rows of a step while others decode")
      ->check(whole_number(1, 8192));
  command.add_option("--prefill-chunk-alone", options->prefill_chunk_alone, "And while none does")
      ->check(whole_number(1, 8192));
  command.add_option("--drafts", options->drafts, kDraftHelp);
  command.add_option("--max-body", options->max_body_bytes, "Largest request body (default 32 MiB)")
      ->transform(byte_size(1, false));
  command.add_option("--max-connections", options->max_connections, "Open connections (default 4096)")
      ->check(kPositive32);
  command.add_option("--step-timeout", options->step_timeout_s, "Seconds after which a step fails /health; 0: never")
      ->check(kSecondsOrNone);
  command.add_option("--request-timeout", options->request_timeout_s, "Seconds a request may take; 0: any")
      ->check(kSecondsOrNone);
  command.add_option("--header-timeout", options->header_timeout_s, "Seconds for a request's header (default 10)")
      ->check(kSeconds);
  command
      .add_option("--body-timeout", options->body_timeout_s,
                  "Seconds from a request's header to the end of its body (default 120)")
      ->check(kSeconds);
  command.add_option("--stall-timeout", options->stall_timeout_s, "Seconds a reader may take nothing (default 30)")
      ->check(kSeconds);
  command.add_option("--keep-alive", options->keep_alive_s, "Seconds between comments on a silent stream (default 10)")
      ->check(kSeconds);
  command.add_option("--drain", options->drain_s, "Seconds that live requests get after SIGTERM (default 30)")
      ->check(kSecondsOrNone);
  command.add_option("--fault-linger", options->fault_linger_s, "Seconds between a device fault and the exit")
      ->check(kSecondsOrNone);
}

void add_serve(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* command = app.add_subcommand("serve", "Serve a model over HTTP: OpenAI's and Anthropic's APIs, a web page");
  add_model_flags(*command, options->model);
  command->add_option("--host", options->host, "Address to listen on (default 127.0.0.1)")->check(kNotEmpty);
  command->add_option("--port", options->port, "Port (default 8000; 0: any free one)")->check(whole_number(0, 65535));
  command->add_option("--served-model-name", options->served_model_names,
                      "Names that requests may use, first reported");
  command->add_option("--api-key", options->api_keys, "Key that requests must carry; may be given several times")
      ->check(kNotEmpty);
  command
      ->add_option("--api-key-file", options->api_key_file,
                   "Lines 'label secret [max_concurrent=N] [max_per_minute=N]'")
      ->check(kPath);
  command->add_option("--key-max-concurrent", options->key_max_concurrent, "Requests at once of each --api-key")
      ->check(kCount32);
  command->add_option("--key-max-per-minute", options->key_max_per_minute, "Requests a minute of each --api-key")
      ->check(kCount32);
  command->add_option("--cors", options->cors_origin, "Origin whose pages may ask: '*' or one origin (default: none)");
  command->add_flag("--share-prefix-cache", options->share_prefix_cache, "Keys may hit each other's cached prefixes");
  command->add_option("--thinking", options->thinking, "Where a chat says nothing: on (default) or off")
      ->transform(CLI::CheckedTransformer(kOnOff));
  command->add_option("--effort", options->effort, "Reasoning effort where a chat says nothing")
      ->check(CLI::IsMember({"low", "high", "max"}));
  command->add_option("--release", options->release, "Chat encoder (default: from the checkpoint's draft tensors)")
      ->check(CLI::IsMember({"preview", "0731"}));
  command->add_option("--temperature", options->temperature, "Default where a request says nothing")
      ->check(kServedTemperature);
  command->add_option("--top-p", options->top_p, "Likewise")->check(kTopP);
  command->add_option("--min-p", options->min_p, "Likewise")->check(kShare);
  command->add_option("--top-k", options->top_k, "Likewise")->check(kTopK);
  command->add_option("--prefix-cache", options->prefix_cache, "on (default) or off")
      ->transform(CLI::CheckedTransformer(kOnOff));
  command->add_flag("--check-prefix-cache", options->check_prefix_cache, "Compute each hit cold too, and compare");
  command->add_option("--workers", options->workers, "Threads that parse and render (default 2)")
      ->check(whole_number(1, 64));
  command->add_option("--log", options->log_level, "debug, info (default), warning, error, off")
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}));
  command->add_flag("--scripted", options->scripted, "No model: the answer stands in the prompt (for testing clients)");
  command->add_option("--scripted-step-us", options->scripted_step_us, "Time of a scripted step")
      ->check(whole_number(0, 1000000000));
  command->add_option("--scripted-blocks", options->scripted_blocks, "Its context blocks of 128 tokens (default 2048)")
      ->check(whole_number(8, 1 << 20));
  command->add_option("--scheduler-log", options->scheduler_log,
                      "File for the scheduler's calls, token ids included (fathom replay plays them again)");
  add_serve_limits(*command, options);
  command->callback([options, &exit_code] { exit_code = run_serve(*options); });
}

void add_profile_pair(CLI::App& command, std::string& before, std::string& after, std::vector<std::string>& intended) {
  command.add_option("before", before, "Folder of `fathom profile`, or a report.json")->required();
  command.add_option("after", after, "Likewise")->required();
  command
      .add_option("--intended", intended, "Differences that are the change under test: variants, numerics, batch, ...")
      ->delimiter(',')
      ->allow_extra_args(false);
}

void add_compare(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<CompareCliOptions>();
  CLI::App* command =
      app.add_subcommand("compare", "Two profiles: what rose, what fell, and whether it is significant");
  add_profile_pair(*command, options->before, options->after, options->intended);
  command->add_option("--fail-if-slower", options->fail_if_slower,
                      "Exit 1 when slower by this share (3%) or more, significantly; 2 when the runs prove nothing");
  command->add_option("--json", options->json, "File for the figures; -: standard output, in place of the text");
  command->add_option("--html", options->html, "File for a page with pictures");
  command->add_option("--rows", options->max_rows, "Of each table (default 20)")->check(kPositive);
  command->callback([options, &exit_code] { exit_code = run_compare(*options); });
}

void add_findings(CLI::App& app, int& exit_code) {
  CLI::App* findings = app.add_subcommand("findings", "The log of what was tried and what it did");
  findings->require_subcommand(1);
  auto options = std::make_shared<FindingsAddOptions>();
  CLI::App* command = findings->add_subcommand("add", "Append an entry written from two profiles");
  add_profile_pair(*command, options->before, options->after, options->intended);
  command->add_option("--hypothesis", options->hypothesis, "What was believed, and why")->required();
  command->add_option("--predict", options->predict, "Change of the step's time: -10% is a tenth less")->required();
  command->add_option("--change", options->change, "What was done")->required();
  command->add_option("--title", options->title, "Heading (default: the change)");
  command->add_option("--left", options->left, "What is left (default: the largest parts of the step)");
  command->add_option("--file", options->file, "Default PROFILE_FINDINGS.md");
  command->callback([options, &exit_code] { exit_code = run_findings_add(*options); });
}

// One line: what is wrong, and where the flags are listed. Exit code 2, as for shells.
int report_usage(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  const auto chosen = app.get_subcommands();
  std::string program = "fathom";
  std::string message = error.what();
  if (!chosen.empty()) {
    program += " " + chosen.front()->get_name();
  } else if (argc > 1 && argv[1][0] != '-') {
    message = "found subcommand \"" + std::string(argv[1]) + "\", expected one of";
    for (const CLI::App* subcommand : app.get_subcommands(nullptr)) message += " " + subcommand->get_name();
  }
  if (error.get_name() == "ConversionError") message += "; expected a number";
  std::replace(message.begin(), message.end(), '\n', ' ');
  std::fprintf(stderr, "%s: %s (%s --help lists what is taken)\n", program.c_str(), message.c_str(), program.c_str());
  return 2;
}

}  // namespace
}  // namespace fathom::app

int main(int argc, char** argv) {
  CLI::App app{"fathom: an inference engine for DeepSeek-V4"};
  app.set_version_flag("--version", FATHOM_VERSION);
  app.require_subcommand(1);
  int exit_code = 0;
  fathom::app::add_chat(app, exit_code);
  fathom::app::add_generate(app, exit_code);
  fathom::app::add_selfcheck(app, exit_code);
  fathom::app::add_selftest(app, exit_code);
  fathom::app::add_logits(app, exit_code);
  fathom::app::add_tokenize(app, exit_code);
  fathom::app::add_render(app, exit_code);
  fathom::app::add_parse(app, exit_code);
  fathom::app::add_inspect(app, exit_code);
  fathom::app::add_verify(app, exit_code);
  fathom::app::add_replay(app, exit_code);
  fathom::app::add_synth(app, exit_code);
  fathom::app::add_convert(app, exit_code);
  fathom::app::add_bench(app, exit_code);
  fathom::app::add_profile(app, exit_code);
  fathom::app::add_serve(app, exit_code);
  fathom::app::add_compare(app, exit_code);
  fathom::app::add_findings(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Help asked of a subcommand that is none.
    const bool unknown = argc > 1 && argv[1][0] != '-' && app.get_subcommands().empty();
    if (error.get_exit_code() != 0 || unknown) return fathom::app::report_usage(app, error, argc, argv);
    app.exit(error);  // --help, --version
  }
  // What the subcommands printed may still stand in the buffer: a full disk shows here.
  const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  if (lost && exit_code == 0) {
    std::fprintf(stderr, "fathom: writing standard output failed: %s\n", std::strerror(errno));
    return 1;
  }
  return exit_code;
}
