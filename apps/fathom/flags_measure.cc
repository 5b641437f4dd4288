#include <memory>
#include <utility>

#include "flags.h"

namespace fathom::app {
namespace {

CLI::Option* add_file(CLI::App& command, const std::string& name, std::string& target, const std::string& help) {
  return add_value(command, name, target, help + " (default: none)", path());
}

void add_bench_draft(CLI::App& bench, int& exit_code) {
  auto options = std::make_shared<BenchDraftOptions>();
  CLI::App* command =
      bench.add_subcommand("draft", "Decoding by batch and draft depth, adaptive against the fixed ones");
  add_model_flags(*command, options->model);
  add_value(*command, "--batch", options->batches, with_default("Sequences at once", options->batches),
            whole_number(1, 256));
  add_value(*command, "--most", options->most, with_default("Deepest", options->most), whole_number(1, 8));
  add_value(*command, "--repeats", options->repeats, with_default("Of each depth, by turns", options->repeats),
            positive32());
  add_value(*command, "--warm-ups", options->warm_ups,
            with_default("Runs of each depth before, at most", options->warm_ups), positive32());
  add_value(*command, "--seconds", options->seconds, with_default("Of one run, about", options->seconds), seconds());
  command->add_flag("--parts", options->parts, "Also print what the steps' parts took");
  command->add_flag("!--no-graphs", options->graphs, "On a GPU, launch every step instead of replaying captured ones");
  command->add_flag("--json", options->json, "Also print the figures as JSON");
  command->callback([options, &exit_code] { exit_code = run_bench_draft(*options); });
}

void add_bench_serve(CLI::App& bench, int& exit_code) {
  auto options = std::make_shared<BenchServeOptions>();
  CLI::App* command = bench.add_subcommand("serve", "Load over real sockets: first token, between tokens, throughput");
  add_value(*command, "--address", options->address, "HOST:PORT of a running server (default: starts one)", any_text());
  add_value(*command, "--model", options->model, "Model of the server that is started (default models/mini-v4)",
            path());
  add_repeated(*command, "--server-flag", options->server_flags, "Flag for it (default: none)", any_text());
  add_value(*command, "--api-key", options->api_key, "Key to send (default: none)", any_text());
  add_value(*command, "--concurrency", options->concurrency, with_default("Clients at once", options->concurrency),
            whole_number(1, 4096));
  add_value(*command, "--requests", options->requests_per_client,
            with_default("Of each client in a repeat", options->requests_per_client), positive32());
  add_value(*command, "--repeats", options->repeats, with_default("Of each level", options->repeats), positive32());
  add_value(*command, "--input", options->input_tokens, with_default("Prompt tokens", options->input_tokens),
            positive());
  add_value(*command, "--output", options->output_tokens, with_default("Answer tokens", options->output_tokens),
            positive());
  add_value(*command, "--shared-prefix", options->shared_prefix,
            with_default("Share of the prompt that all have in common", options->shared_prefix), share());
  add_value(*command, "--cancel", options->cancelled,
            with_default("Share of clients that leave early", options->cancelled), share());
  add_value(*command, "--seed", options->seed, with_default("Same seed, same requests", options->seed), seed_value());
  add_value(*command, "--json", options->json, "File for the figures (default: none)", any_text());
  add_file(*command, "--html", options->html, "File for a page with pictures");
  command->callback([options, &exit_code] { exit_code = run_bench_serve(*options); });
}

std::pair<CLI::App*, std::shared_ptr<BenchOptions>> add_bench_of_steps(CLI::App& bench, const char* name,
                                                                       const char* help,
                                                                       int (*run)(const BenchOptions&),
                                                                       int& exit_code) {
  auto options = std::make_shared<BenchOptions>();
  options->model.device = "cpu";  // its floors are this machine's processor's
  CLI::App* command = bench.add_subcommand(name, help);
  add_model_flags(*command, options->model);
  add_value(*command, "--chunk", options->chunk, with_default("Prefill rows of a step", options->chunk), positive());
  add_value(*command, "--positions", options->positions, with_default("Where decoding is timed", options->positions),
            positive());
  add_value(*command, "--prefill", options->prefill, with_default("Prompt tokens", options->prefill), positive());
  add_value(*command, "--tokens", options->tokens, with_default("Tokens decoded in a round", options->tokens),
            positive32());
  add_value(*command, "--rounds", options->rounds, with_default("The best of this many counts", options->rounds),
            positive32());
  command->callback([options, run, &exit_code] { exit_code = run(*options); });
  return {command, options};
}

void add_profile_pair(CLI::App& command, std::string& before, std::string& after, std::vector<std::string>& intended) {
  add_value(command, "before", before, "Folder of `fathom profile`, or a report.json", any_text())->required();
  add_value(command, "after", after, "Likewise", any_text())->required();
  command
      .add_option("--intended", intended,
                  "Differences that are the change under test: variants, numerics, batch, ... (default: none)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("NAMES");
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  CLI::App* bench = app.add_subcommand("bench", "Measured time beside the floor that memory and arithmetic set");
  bench->require_subcommand(1);
  const auto [ops, of_ops] = add_bench_of_steps(
      *bench, "ops", "Each operation's variants on a prefill and a decode step", run_bench_ops, exit_code);
  add_value(*ops, "--variants", of_ops->variants, with_default("Which", of_ops->variants), any_text());
  const auto [decode, of_decode] =
      add_bench_of_steps(*bench, "decode", "Decode and prefill against their bars", run_bench_decode, exit_code);
  decode->add_flag("--json", of_decode->json, "Also print the figures as JSON");
  add_value(
      *decode, "--synthetic", of_decode->synthetic,
      "Steps of random weights instead, replayed on a GPU: flash, flash-0731, pro, mini or a config.json (default: "
      "none)",
      any_text());
  add_value(*decode, "--layers", of_decode->layers, with_default("Of the synthetic model", of_decode->layers),
            positive32());
  add_value(*decode, "--batches", of_decode->batches, with_default("Rows of its steps", of_decode->batches),
            whole_number(1, 4096));
  add_value(*decode, "--chunks", of_decode->chunks,
            with_default("Rows of a prompt's chunk, in steps of their own; 0: none", of_decode->chunks),
            whole_number(0, 8192));
  add_value(*decode, "--contexts", of_decode->contexts,
            with_default("Context of each row, whole blocks of 128", of_decode->contexts), positive());
  add_bench_draft(*bench, exit_code);
  add_bench_serve(*bench, exit_code);
}

void add_profile(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ProfileOptions>();
  ProfileOptions& o = *options;
  CLI::App* command = app.add_subcommand("profile", "Where the time of a decode step goes, and what is exposed");
  add_model_flags(*command, o.model);
  add_value(*command, "--batch", o.batch, with_default("Sequences that decode together", o.batch),
            whole_number(1, 1024));
  add_value(*command, "--context", o.context, with_default("Tokens of each before the first step", o.context),
            positive());
  add_value(*command, "--steps", o.steps, with_default("Measured steps of a repeat", o.steps), whole_number(2, 9000));
  add_value(*command, "--warmup", o.warmup, with_default("Steps before them", o.warmup), whole_number(0, 900));
  add_value(*command, "--repeats", o.repeats, with_default("Each with its prompts anew", o.repeats),
            whole_number(1, 1000));
  add_value(*command, "--drafts", o.drafts, with_default("Tokens drafted a step", o.drafts), whole_number(0, 8));
  add_value(*command, "--chunk", o.chunk, with_default("Prefill rows of a step", o.chunk), positive());
  add_value(*command, "--exposed", o.exposed, with_default("Measure exposed time", o.exposed), on_off());
  add_value(*command, "--rounds", o.rounds, with_default("Samples of each exposed time", o.rounds),
            whole_number(6, 100'000));
  add_value(*command, "--synthetic", o.synthetic,
            "Random weights: flash, flash-0731, pro, mini or a config.json (default: the model's)", any_text());
  add_value(*command, "--layers", o.layers, with_default("Of the synthetic model", o.layers), positive32());
  add_value(*command, "--experts", o.experts, "Of the synthetic model (default: the config's)", positive32());
  add_value(*command, "--exposed-limit", o.limit_s, with_default("For exposed time at most", o.limit_s), seconds());
  add_value(*command, "--attach", o.attach,
            "URL or HOST:PORT of a running server: captures what it serves (default: none)", any_text());
  add_value(*command, "--api-key", o.api_key, "Key to send there (default: none)", any_text());
  add_value(*command, "--attach-limit", o.attach_limit_s,
            with_default("To wait for a repeat's steps", o.attach_limit_s), seconds());
  command->add_flag("--overhead", o.overhead, "Only measure what measuring costs");
  add_repeated(*command, "--what-if", o.what_if, "operation=0.5x: tok/s to expect (default: none)", any_text());
  command->add_flag("--isolated", o.isolated,
                    "On a GPU: hold the attributed times to event times of the same calls, one by one");
  command->add_flag("--one-step", o.one_step,
                    "On a GPU: run one step between a profiler's start and stop, for ncu, and nothing else");
  add_value(*command, "--out", o.out, with_default("Folder to write", o.out), any_text());
  command->callback([options, &exit_code] { exit_code = run_profile(*options); });
}

void add_compare(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<CompareCliOptions>();
  CLI::App* command =
      app.add_subcommand("compare", "Two profiles: what rose, what fell, and whether it is significant");
  add_profile_pair(*command, options->before, options->after, options->intended);
  add_value(*command, "--fail-if-slower", options->fail_if_slower,
            "Exit 1 when slower by this share (3%) or more, significantly; 2 when the runs prove nothing (default: no "
            "such gate)",
            any_text());
  add_value(*command, "--json", options->json,
            "File for the figures; -: standard output, in place of the text (default: none)", any_text());
  add_value(*command, "--html", options->html, "File for a page with pictures (default: none)", any_text());
  add_value(*command, "--rows", options->max_rows, with_default("Of each table", options->max_rows), positive32());
  command->callback([options, &exit_code] { exit_code = run_compare(*options); });
}

void add_findings(CLI::App& app, int& exit_code) {
  CLI::App* findings = app.add_subcommand("findings", "The log of what was tried and what it did");
  findings->require_subcommand(1);
  auto options = std::make_shared<FindingsAddOptions>();
  CLI::App* command = findings->add_subcommand("add", "Append an entry written from two profiles");
  add_profile_pair(*command, options->before, options->after, options->intended);
  add_value(*command, "--hypothesis", options->hypothesis, "What was believed, and why", any_text())->required();
  add_value(*command, "--predict", options->predict, "Change of the step's time: -10% is a tenth less", any_text())
      ->required();
  add_value(*command, "--change", options->change, "What was done", any_text())->required();
  add_value(*command, "--title", options->title, "Heading (default: the change)", any_text());
  add_value(*command, "--left", options->left, "What is left (default: the largest parts of the step)", any_text());
  add_value(*command, "--file", options->file, with_default("The log", options->file), any_text());
  command->callback([options, &exit_code] { exit_code = run_findings_add(*options); });
}

}  // namespace fathom::app
