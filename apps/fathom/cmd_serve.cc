#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "base/mapped_file.h"
#include "base/units.h"
#include "build_commit.h"
#include "checkpoint/config.h"
#include "commands.h"
#include "draft_choice.h"
#include "engine/load_model.h"
#include "engine/model_executor.h"
#include "engine/scheduler_log.h"
#include "engine/scripted_executor.h"
#include "model/release_of_checkpoint.h"
#include "model/tokenizer_of_checkpoint.h"
#include "opened_model.h"
#include "profile/machine.h"
#include "profile/record_tracer.h"
#include "server/grammar_constraint.h"
#include "server/key_table.h"
#include "server/scripted_replies.h"
#include "server/server.h"
#include "standard_streams.h"

namespace fathom::app {
namespace {

constexpr int kDeviceFaultExitCode = 70;

// What has been done of loading when its parts are over.
constexpr double kTokenizerShare = 0.02;
constexpr double kVerifiedShare = 0.05;
constexpr double kPlacedShare = 0.97;

// The executor with the model that it runs.
class LoadedExecutor final : public Executor {
 public:
  LoadedExecutor(LoadedModel loaded, std::unique_ptr<ModelExecutor> inner)
      : loaded_(std::move(loaded)), inner_(std::move(inner)) {}

  const ExecutorLimits& limits() const override { return inner_->limits(); }
  Status launch(const StepPlan& plan) override { return inner_->launch(plan); }
  Result<StepResult> wait() override { return inner_->wait(); }
  void commit(SequenceId id, std::int64_t length) override { inner_->commit(id, length); }
  void set_trace(StepTrace* trace) override { inner_->set_trace(trace); }
  void add_device_samples(TracedStep& step) override { inner_->add_device_samples(step); }
  const OpTimes* op_times() const override { return inner_->op_times(); }
  const SegmentTimes* segment_times() const override { return inner_->segment_times(); }

 private:
  LoadedModel loaded_;
  std::unique_ptr<ModelExecutor> inner_;
};

std::int64_t physical_memory_bytes() {
  return std::int64_t{sysconf(_SC_PHYS_PAGES)} * std::int64_t{sysconf(_SC_PAGE_SIZE)};
}

// How the cache memory is shared out between the pools.
Result<ModelExecutorOptions> plan_pools(const ServeOptions& options, const Model& model, std::int64_t chunk_tokens) {
  const CacheLayout& layout = model.cache_layout();
  const std::int64_t longest_tokens = model.config().max_position_embeddings;
  ModelExecutorOptions pools;
  const std::int64_t sequences = options.max_running;
  if (options.model.max_context > longest_tokens) {
    return invalid_argument("--max-context: found " + std::to_string(options.model.max_context) +
                            ", the model takes at most " + std::to_string(longest_tokens) + " tokens");
  }
  pools.max_length_tokens = options.model.max_context > 0 ? options.model.max_context : longest_tokens;
  if (pools.max_length_tokens < 2) {
    return invalid_argument("--max-context: found " + std::to_string(pools.max_length_tokens) +
                            ", expected at least 2: a token of a prompt and one of its answer");
  }
  pools.max_sequences = static_cast<std::int32_t>(sequences);
  pools.num_state_slots = static_cast<std::int32_t>(sequences);
  pools.num_resume_slots = static_cast<std::int32_t>(4 * sequences);
  // Each sequence's own window, a step's rows however they are shared out, and the windows of resume points.
  pools.num_window_blocks =
      static_cast<std::int32_t>(sequences * num_window_blocks(1 + kMaxDraft) + num_window_blocks(chunk_tokens) +
                                sequences + pools.num_resume_slots);
  const std::int64_t fixed = pools.num_window_blocks * layout.window_block_bytes +
                             pools.num_state_slots * layout.state_slot_bytes +
                             pools.num_resume_slots * layout.resume_rows_bytes;
  std::int64_t memory = options.cache_memory_bytes;
  if (memory <= 0 && model.backend().is_host_memory()) memory = physical_memory_bytes() / 2;
  if (memory <= 0) {
    // The weights lie there already; graphs and the run-time itself need some of the rest.
    FATHOM_ASSIGN_OR_RETURN(const std::int64_t free_bytes, model.backend().free_memory_bytes());
    memory = free_bytes / 100 * 85;
  }
  const std::int64_t one = num_context_blocks(pools.max_length_tokens);
  const std::int64_t block_bytes = std::max<std::int64_t>(1, layout.context_block_bytes);
  const std::int64_t affordable = (memory - fixed) / block_bytes;
  if (affordable < one) {
    return failed_precondition("cache memory: " + std::to_string(sequences) + " sequences with a context of " +
                               std::to_string(pools.max_length_tokens) + " tokens need at least " +
                               format_bytes(fixed + one * block_bytes) + ", and there are " + format_bytes(memory) +
                               "; lower --max-running or --max-context, or raise --cache-memory");
  }
  pools.num_context_blocks = static_cast<std::int32_t>(std::min(affordable, one * sequences * 2));
  return pools;
}

RunFacts facts_of(const ServeOptions& options, const LoadedModel& loaded) {
  RunFacts run;
  const DeviceInfo& device = loaded.backend->device();
  run.backend = device.backend == BackendKind::kCpu ? "cpu" : "cuda";
  run.device = run.backend == "cpu" ? cpu_name() : loaded.backend->device_name();
  run.numerics = options.model.numerics;
  run.commit = build_commit();
  run.num_threads = device.num_threads;
  for (int i = 0; i < kNumOpKinds; ++i) {
    const auto op = static_cast<OpKind>(i);
    if (loaded.variants->has(op)) run.variants[std::string(op_name(op))] = (*loaded.variants)[op].name;
  }
  return run;
}

Result<std::unique_ptr<Executor>> make_model_executor(const ServeOptions& options, const DraftChoice& drafts,
                                                      const std::string& path, Server& server, std::string* what,
                                                      RunFacts* run) {
  LoadOptions load;
  load.device = parse_device(options.model.device).value_or(DeviceChoice::kCpu);
  load.device_timeout_us = static_cast<std::int64_t>(options.step_timeout_s * 1e6);
  load.num_threads = options.model.threads;
  load.remembered_variants = true;
  load.numerics = parse_numerics(options.model.numerics).value_or(Numerics::serve());
  FATHOM_ASSIGN_OR_RETURN(load.variants, parse_variants(options.model.variants));
  load.max_step_tokens = options.prefill_chunk_alone + options.max_running;
  load.max_logit_rows = std::max<std::int64_t>(options.max_running * (1 + kMaxDraft), options.prefill_chunk_alone);
  load.max_context_tokens = options.model.max_context;
  load.progress = server.loading_progress(kVerifiedShare, kPlacedShare);
  FATHOM_ASSIGN_OR_RETURN(LoadedModel loaded, load_model(path, load));
  FATHOM_ASSIGN_OR_RETURN(ModelExecutorOptions pools, plan_pools(options, *loaded.model, load.max_step_tokens));
  pools.weights_fingerprint = loaded.weights_fingerprint;
  FATHOM_RETURN_IF_ERROR(check_drafts("--drafts", drafts, *loaded.model));
  pools.max_proposals = drafts.num_drafts;
  const std::string name = run->model;
  *run = facts_of(options, loaded);
  run->model = name;
  FATHOM_ASSIGN_OR_RETURN(auto inner, ModelExecutor::make(*loaded.model, pools));
  if (load.device == DeviceChoice::kCuda) inner->set_device_tracer(make_record_tracer(open_cupti_with_launches));
  *what = "on " + loaded.backend->device_name() + ", context " + std::to_string(pools.max_length_tokens) +
          " tokens, up to " + std::to_string(pools.max_sequences) + " running, cache for " +
          std::to_string(std::int64_t{pools.num_context_blocks} * kBlockTokens) + " tokens";
  return std::unique_ptr<Executor>(std::make_unique<LoadedExecutor>(std::move(loaded), std::move(inner)));
}

std::unique_ptr<Executor> make_scripted_executor(const ServeOptions& options,
                                                 const std::shared_ptr<const Tokenizer>& tokenizer) {
  ScriptedOptions scripted;
  scripted.limits.vocab_size = static_cast<std::int32_t>(tokenizer->vocab_size());
  scripted.limits.max_length_tokens = options.model.max_context > 0 ? options.model.max_context : 16'384;
  scripted.limits.num_state_slots = options.max_running;
  scripted.limits.max_sequences = options.max_running;
  scripted.limits.max_rows = options.prefill_chunk_alone + options.max_running;
  scripted.limits.max_logits_rows = scripted.limits.max_rows;
  scripted.limits.num_context_blocks = options.scripted_blocks;
  scripted.limits.num_window_blocks = 8 * options.max_running + 256;
  scripted.limits.num_resume_slots = 256;
  scripted.eos_id = tokenizer->eos_id();
  scripted.eos_share = 0.02;
  scripted.next_token = make_scripted_replies(tokenizer);
  scripted.misdrafts = make_scripted_misdrafts(tokenizer);
  scripted.step_us = options.scripted_step_us;
  scripted.row_us = options.scripted_step_us / 50;
  scripted.wait_for_real = options.scripted_step_us > 0;
  return std::make_unique<ScriptedExecutor>(std::move(scripted));
}

// What the checkpoint recommends; a value out of its range ends the start.
Result<SamplingDefaults> read_generation_config(const std::string& directory) {
  const std::string path = (std::filesystem::path(directory) / "generation_config.json").string();
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return SamplingDefaults{};
  FATHOM_ASSIGN_OR_RETURN(const std::string text, read_text_file(path));
  FATHOM_ASSIGN_OR_RETURN(const GenerationDefaults read, parse_generation_config(text, path));
  SamplingDefaults out;
  out.temperature = read.do_sample ? read.temperature : 0.0f;
  out.top_p = read.top_p;
  out.min_p = read.min_p;
  out.repetition_penalty = read.repetition_penalty;
  out.top_k = read.top_k;
  return out;
}

void add_grammar(ServedModel& served, std::int32_t vocab_size) {
  auto compiler = make_grammar_compiler(grammar_vocabulary(*served.tokenizer, vocab_size));
  if (compiler.ok()) {
    served.grammar = std::move(*compiler);
  } else {
    log_warning("requests for constrained output will be refused: " + compiler.status().message());
  }
}

// The engine's thread writes; the file is closed with the engine.
Result<SchedulerLogSink> open_scheduler_log(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return invalid_argument("--scheduler-log " + path + ": " + std::strerror(errno));
  std::setvbuf(file, nullptr, _IOLBF, std::size_t{1} << 16);  // whole lines, also of a server that is killed
  const std::shared_ptr<std::FILE> owner(file, [](std::FILE* f) { std::fclose(f); });
  log_warning(path + " will hold the token ids of all prompts and answers");
  // After a failed write nothing follows: a log with a hole would be taken for a scheduler gone wrong.
  return SchedulerLogSink([owner, path, lost = false](std::string_view line) mutable {
    if (lost) return;
    lost = std::fwrite(line.data(), 1, line.size(), owner.get()) != line.size() || std::ferror(owner.get()) != 0;
    if (!lost) return;
    log_error("--scheduler-log " + path + ": writing failed: " + std::strerror(errno) +
              "; the log ends here, serving goes on");
  });
}

Result<std::shared_ptr<ServedModel>> load(const ServeOptions& options, const std::string& path, Server& server) {
  server.set_loading(0.0, "reading the tokenizer");
  // Headers only; what is no model at all says so before its tokenizer is looked for.
  Release of_tensors = Release::kPreview;
  if (!options.scripted || options.release.empty()) {
    FATHOM_ASSIGN_OR_RETURN(of_tensors, release_of_checkpoint(path));
  }
  const std::string directory = model_directory(path);
  FATHOM_ASSIGN_OR_RETURN(Tokenizer tokenizer, open_tokenizer(directory));
  auto served = std::make_shared<ServedModel>();
  served->tokenizer = std::make_shared<const Tokenizer>(std::move(tokenizer));
  served->root = path;
  served->run.model = std::filesystem::path(path + "/").parent_path().filename().string();
  FATHOM_ASSIGN_OR_RETURN(served->generation_config, read_generation_config(directory));
  served->release = options.release.empty() ? of_tensors : release_from_name(options.release).value_or(Release::k0731);
  server.set_loading(kTokenizerShare, "verifying and mapping the checkpoint");
  FATHOM_ASSIGN_OR_RETURN(const DraftChoice drafts, parse_drafts("--drafts", options.drafts));
  std::unique_ptr<Executor> executor;
  std::string what = "scripted executor";
  if (options.scripted) {
    executor = make_scripted_executor(options, served->tokenizer);
  } else {
    FATHOM_ASSIGN_OR_RETURN(executor, make_model_executor(options, drafts, path, server, &what, &served->run));
    FATHOM_RETURN_IF_ERROR(served->tokenizer->check_fits_model(executor->limits().vocab_size));
  }
  server.set_loading(kPlacedShare, "starting the engine");
  EngineOptions engine;
  engine.prefill_chunk_tokens = options.prefill_chunk;
  engine.prefill_chunk_alone_tokens = options.prefill_chunk_alone;
  engine.max_running = options.max_running;
  engine.max_queued_requests = options.max_queued_requests;
  engine.max_queued_tokens = options.max_queued_tokens;
  engine.max_logprobs = options.max_logprobs;
  engine.prefix_cache = options.prefix_cache;
  engine.check_prefix_cache = options.check_prefix_cache;
  engine.num_drafts = std::min(drafts.num_drafts, executor->limits().max_proposals);
  engine.adaptive_drafts = drafts.adaptive;
  engine.step_timeout_us = static_cast<std::int64_t>(options.step_timeout_s * 1e6);
  if (!options.scheduler_log.empty()) {
    FATHOM_ASSIGN_OR_RETURN(engine.scheduler_log, open_scheduler_log(options.scheduler_log));
  }
  add_grammar(*served, executor->limits().vocab_size);
  FATHOM_ASSIGN_OR_RETURN(served->engine, Engine::make(engine, std::move(executor), served->tokenizer));
  log_info("serving " + path + ": " + what);
  return served;
}

Result<ServerOptions> server_options(const ServeOptions& options, const std::string& path) {
  ServerOptions out;
  out.http.host = options.host;
  out.http.port = options.port;
  out.http.parse.max_body_bytes = static_cast<std::size_t>(options.max_body_bytes);
  out.http.max_connections = static_cast<std::size_t>(options.max_connections);
  out.http.write_stall_timeout_ms = static_cast<std::int64_t>(options.stall_timeout_s * 1000);
  out.http.header_timeout_ms = static_cast<std::int64_t>(options.header_timeout_s * 1000);
  out.http.body_timeout_ms = static_cast<std::int64_t>(options.body_timeout_s * 1000);
  out.model_names = options.served_model_names;
  if (out.model_names.empty()) {
    out.model_names.push_back(std::filesystem::path(path + "/").parent_path().filename().string());
  }
  out.version = FATHOM_VERSION;
  int number = 0;
  for (const auto& secret : options.api_keys) {
    ++number;
    out.keys.push_back(
        {"key" + std::to_string(number), secret, options.key_max_concurrent, options.key_max_per_minute});
  }
  if (!options.api_key_file.empty()) {
    FATHOM_ASSIGN_OR_RETURN(const std::string text, read_text_file(options.api_key_file));
    FATHOM_ASSIGN_OR_RETURN(const std::vector<ApiKey> keys, parse_key_file(text));
    out.keys.insert(out.keys.end(), keys.begin(), keys.end());
    if (keys.empty()) return invalid_argument(options.api_key_file + ": holds no key");
  }
  FATHOM_RETURN_IF_ERROR(check_keys(out.keys));
  out.cors_origin = options.cors_origin;
  out.share_prefix_cache = options.share_prefix_cache;
  out.thinking = options.thinking;
  out.effort = effort_from_name(options.effort).value_or(ReasoningEffort::kDefault);
  out.sampling = {options.temperature, options.top_p, options.min_p, std::nullopt, options.top_k};
  out.num_workers = options.workers;
  out.request_timeout_us = static_cast<std::int64_t>(options.request_timeout_s * 1e6);
  out.keep_alive_ms = static_cast<std::int64_t>(options.keep_alive_s * 1000);
  return out;
}

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

enum class LoadFailure : std::uint8_t {
  kNone,
  kModel,   // the checkpoint or the flags: nothing to wait for
  kDevice,  // as a fault later on: health keeps the reason for --fault-linger
};

// Waits for a signal, a failed load or a dead device; returns the exit code.
int watch(const ServeOptions& options, const sigset_t& signals, Server& server, const std::atomic<LoadFailure>& failure,
          const std::function<std::shared_ptr<ServedModel>()>& model) {
  while (true) {
    const timespec moment{0, 100'000'000};
    const int signal = sigtimedwait(&signals, nullptr, &moment);
    if (signal == SIGTERM || signal == SIGINT) break;
    if (failure == LoadFailure::kModel) return 1;
    const auto linger = [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(static_cast<int>(options.fault_linger_s * 1000)));
      return kDeviceFaultExitCode;
    };
    if (failure == LoadFailure::kDevice) return linger();
    const auto served = model();
    const EngineHealth health = served != nullptr ? served->engine->health() : EngineHealth{};
    if (!health.ok && health.step_running_us == 0) {  // not a slow step: the engine has ended
      log_error("the device failed: " + health.reason);
      return linger();
    }
  }
  log_info("draining");
  std::atomic<bool> done{false};
  // A second signal ends the wait.
  std::thread impatient([&] {
    while (!done) {
      const timespec moment{0, 50'000'000};
      if (sigtimedwait(&signals, nullptr, &moment) > 0) _exit(130);
    }
  });
  const bool all = server.drain(std::chrono::milliseconds(static_cast<int>(options.drain_s * 1000)));
  done = true;
  impatient.join();
  log_info(all ? "drained" : "the drain time is over; what still runs is cut off");
  return 0;
}

}  // namespace

int run_serve(const ServeOptions& options) {
  set_log_level(options.log_level);
  // Every thread inherits the mask: signals are taken by watch() alone.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);

  const auto path = find_model(options.model.model);
  if (!path.ok()) return report_failure("serve", path.status());
  if (const auto drafts = parse_drafts("--drafts", options.drafts); !drafts.ok()) {
    return report_failure("serve", drafts.status());
  }
  auto configured = server_options(options, *path);
  if (!configured.ok()) return report_failure("serve", configured.status());
  if (configured->keys.empty() && !is_loopback(options.host)) {
    log_warning("open to everyone who reaches " + options.host + ": no API key is set (--api-key, --api-key-file)");
  }
  auto opened = Server::open(std::move(*configured));
  if (!opened.ok()) return report_failure("serve", opened.status());
  Server& server = **opened;
  std::printf("fathom listens on http://%s:%d\n", options.host.c_str(), static_cast<int>(server.port()));
  std::fflush(stdout);

  std::atomic<LoadFailure> failure{LoadFailure::kNone};
  std::mutex mutex;
  std::shared_ptr<ServedModel> model;
  std::thread loader([&] {
    auto loaded = load(options, *path, server);
    if (!loaded.ok()) {
      report_failure("serve", loaded.status());
      server.set_load_failure(loaded.status().message());
      const StatusCode code = loaded.status().code();
      const bool device = code == StatusCode::kUnavailable || code == StatusCode::kResourceExhausted;
      failure = device ? LoadFailure::kDevice : LoadFailure::kModel;
      return;
    }
    server.set_model(*loaded);
    {
      const std::lock_guard lock(mutex);
      model = *loaded;
    }
    std::printf("ready\n");
    std::fflush(stdout);
  });
  const int exit_code = watch(options, signals, server, failure, [&] {
    const std::lock_guard lock(mutex);
    return model;
  });
  if (exit_code == kDeviceFaultExitCode) {
    // Nothing more is asked of a dead device: freeing its memory could wait for ever.
    log_error("exiting with code " + std::to_string(exit_code));
    std::fflush(nullptr);
    _exit(exit_code);
  }
  loader.join();
  server.stop();
  return exit_code;
}

}  // namespace fathom::app
