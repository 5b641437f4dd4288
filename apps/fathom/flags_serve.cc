#include <memory>

#include "flags.h"

namespace fathom::app {
namespace {

void add_network(CLI::App& command, ServeOptions& o) {
  add_value(command, "--host", o.host, with_default("Address to listen on", o.host), text_value());
  add_value(command, "--port", o.port, with_default("Port; 0: any free one", o.port), whole_number(0, 65535));
  add_value(command, "--served-model-name", o.served_model_names,
            "Names that requests may use, first reported (default: the model directory's)", text_value());
  add_repeated(command, "--api-key", o.api_keys, "Key that requests must carry (default: none, all may ask)",
               text_value());
  add_value(command, "--api-key-file", o.api_key_file,
            "Lines 'label secret [max_concurrent=N] [max_per_minute=N]' (default: none)", path());
  add_value(command, "--key-max-concurrent", o.key_max_concurrent,
            with_default("Requests at once of each --api-key; 0: any", o.key_max_concurrent), count32());
  add_value(command, "--key-max-per-minute", o.key_max_per_minute,
            with_default("Requests a minute of each --api-key; 0: any", o.key_max_per_minute), count32());
  add_value(command, "--cors", o.cors_origin, "Origin whose pages may ask: '*' or one origin (default: none)",
            any_text());
  add_value(command, "--max-body", o.max_body_bytes,
            with_default("Largest request body", std::to_string(o.max_body_bytes >> 20) + "MiB"), byte_size(1, false));
  add_value(command, "--max-connections", o.max_connections, with_default("Open connections", o.max_connections),
            positive32());
  add_value(command, "--workers", o.workers, with_default("Threads that parse and render", o.workers),
            whole_number(1, 64));
}

void add_answers(CLI::App& command, ServeOptions& o) {
  add_value(command, "--thinking", o.thinking, with_default("Reasoning where a chat says nothing", o.thinking),
            on_off());
  add_value(command, "--effort", o.effort, "Reasoning effort where a chat says nothing (default: no prefix)",
            one_of({"low", "high", "max"}));
  add_value(command, "--release", o.release, "Chat encoder (default: from the checkpoint's draft tensors)",
            one_of({"preview", "0731"}));
  const std::string where = " where a request says nothing (default: generation_config.json)";
  add_value(command, "--temperature", o.temperature, "Temperature" + where, number(0, 2, "a number from 0 to 2"));
  add_value(command, "--top-p", o.top_p, "Nucleus sampling" + where, top_p_value());
  add_value(command, "--min-p", o.min_p, "Share of the likeliest token's probability" + where, share());
  add_value(command, "--top-k", o.top_k, "Most likely tokens that are drawn from" + where, whole_number(-1, kMost32));
  add_value(command, "--max-logprobs", o.max_logprobs,
            with_default("Alternatives a token that may be asked for", o.max_logprobs), count32());
  add_draft_flag(command, "--drafts", o.drafts);
}

void add_engine(CLI::App& command, ServeOptions& o) {
  add_value(command, "--max-running", o.max_running,
            with_default("Sequences that hold cache state at once", o.max_running), whole_number(1, 1024));
  add_value(command, "--max-queued", o.max_queued_requests,
            with_default("Requests that may wait", o.max_queued_requests), positive32());
  add_value(command, "--max-queued-tokens", o.max_queued_tokens,
            with_default("Their prompt tokens, together", o.max_queued_tokens), positive());
  add_value(command, "--cache-memory", o.cache_memory_bytes,
            "Memory for all cache state (default: half of this machine's, or what is of use)", byte_size(1, true));
  add_value(command, "--prefill-chunk", o.prefill_chunk,
            with_default("Prompt rows of a step while others decode", o.prefill_chunk), whole_number(1, 8192));
  add_value(command, "--prefill-chunk-alone", o.prefill_chunk_alone,
            with_default("And while none does", o.prefill_chunk_alone), whole_number(1, 8192));
  add_value(command, "--prefix-cache", o.prefix_cache, with_default("Find computed prompts again", o.prefix_cache),
            on_off());
  command.add_flag("--share-prefix-cache", o.share_prefix_cache, "Keys may hit each other's cached prefixes");
  command.add_flag("--check-prefix-cache", o.check_prefix_cache, "Compute each hit cold too, and compare");
}

void add_times(CLI::App& command, ServeOptions& o) {
  add_value(command, "--step-timeout", o.step_timeout_s,
            with_default("After which a step fails /health; 0: never", o.step_timeout_s), seconds_or_none());
  add_value(command, "--request-timeout", o.request_timeout_s,
            with_default("That a request may take; 0: any", o.request_timeout_s), seconds_or_none());
  add_value(command, "--header-timeout", o.header_timeout_s, with_default("For a request's header", o.header_timeout_s),
            seconds());
  add_value(command, "--body-timeout", o.body_timeout_s,
            with_default("From a request's header to the end of its body", o.body_timeout_s), seconds());
  add_value(command, "--stall-timeout", o.stall_timeout_s,
            with_default("That a reader may take nothing", o.stall_timeout_s), seconds());
  add_value(command, "--keep-alive", o.keep_alive_s,
            with_default("Between comments on a silent stream", o.keep_alive_s), seconds());
  add_value(command, "--drain", o.drain_s, with_default("That live requests get after SIGTERM", o.drain_s),
            seconds_or_none());
  add_value(command, "--fault-linger", o.fault_linger_s,
            with_default("Between a device fault and the exit", o.fault_linger_s), seconds_or_none());
}

void add_tests_of_clients(CLI::App& command, ServeOptions& o) {
  command.add_flag("--scripted", o.scripted, "No model: the answer stands in the prompt (for testing clients)");
  add_value(command, "--scripted-step-us", o.scripted_step_us,
            with_default("Microseconds of a scripted step", o.scripted_step_us), whole_number(0, 1'000'000'000));
  add_value(command, "--scripted-blocks", o.scripted_blocks,
            with_default("Its context blocks of 128 tokens", o.scripted_blocks), whole_number(8, 1 << 20));
  add_value(command, "--scheduler-log", o.scheduler_log,
            "File for the scheduler's calls, token ids included, which fathom replay plays again (default: none)",
            any_text());
  add_value(command, "--log", o.log_level, with_default("Least that is logged", o.log_level),
            one_of({"debug", "info", "warning", "error", "off"}));
}

}  // namespace

void add_serve(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* command = app.add_subcommand("serve", "Serve a model over HTTP: OpenAI's and Anthropic's APIs, a web page");
  add_model_flags(*command, options->model);
  add_network(*command, *options);
  add_answers(*command, *options);
  add_engine(*command, *options);
  add_times(*command, *options);
  add_tests_of_clients(*command, *options);
  command->callback([options, &exit_code] { exit_code = run_serve(*options); });
}

void add_replay(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ReplayOptions>();
  CLI::App* command = app.add_subcommand(
      "replay", "Play a recorded scheduler's life again: the same plans, and every rule of the accounts kept?");
  add_value(*command, "file", options->file, "File of `fathom serve --scheduler-log`", any_text())->required();
  command->add_flag("--events", options->events, "Also print every event");
  command->callback([options, &exit_code] { exit_code = run_replay(*options); });
}

}  // namespace fathom::app
