// `fathom profile`: where the time of a decode step goes, under a fixed load or on a running server.
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "build_commit.h"
#include "commands.h"
#include "engine/load_model.h"
#include "opened_model.h"
#include "ops/op_kind.h"
#include "profile/attribute.h"
#include "profile/core_clock.h"
#include "profile/device_timeline.h"
#include "profile/exposed.h"
#include "profile/isolated.h"
#include "profile/machine.h"
#include "profile/model_step.h"
#include "profile/report_text.h"
#include "profile/synthetic_load.h"
#include "profile/tables.h"
#include "profile/timeline.h"
#include "server/http/http_client.h"
#include "standard_streams.h"
#include "synthetic_model.h"

namespace fathom::app {
namespace {

constexpr std::int64_t kTracedSteps = 64;  // of the first repeat, in trace.json.gz

Status write_file(const std::filesystem::path& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  if (!file) return io_error("cannot write " + path.string() + ": is there room, and may you write there?");
  return {};
}

// Before anything is measured: whether the report can be written at its end.
Status check_folder(const std::string& out) {
  const auto refused = [&](const std::string& why) {
    return invalid_argument("--out " + out + ": " + why + "; nothing was measured");
  };
  std::error_code error;
  std::filesystem::create_directories(out, error);
  if (error) return refused("cannot make this folder: " + error.message());
  if (!std::filesystem::is_directory(out, error)) return refused("found a file, expected a folder or nothing");
  if (::access(out.c_str(), W_OK | X_OK) != 0)
    return refused("cannot write there: " + std::string(std::strerror(errno)));
  return {};
}

// The folder of a profile.
Status write_folder(const std::string& out, const ProfileReport& report,
                    const std::vector<std::vector<TimelineStep>>& repeats) {
  std::error_code error;
  std::filesystem::create_directories(out, error);
  if (error) return io_error("cannot make the folder " + out + ": " + error.message());
  const std::filesystem::path folder(out);
  std::filesystem::remove(folder / "isolated.json", error);  // of an earlier profile there
  FATHOM_ASSIGN_OR_RETURN(const std::string json, report_to_json(report));
  FATHOM_RETURN_IF_ERROR(write_file(folder / "report.json", json));
  FATHOM_RETURN_IF_ERROR(write_file(folder / "report.txt", report_text(report)));
  FATHOM_RETURN_IF_ERROR(write_file(folder / "report.html", report_html(report, median_step(repeats))));
  std::span<const TimelineStep> traced;
  if (!repeats.empty()) traced = repeats.front();
  traced = traced.first(std::min(traced.size(), static_cast<std::size_t>(kTracedSteps)));
  FATHOM_ASSIGN_OR_RETURN(const std::string trace,
                          compress_gzip(chrome_trace_json(traced, "fathom: " + report.run.model)));
  return write_file(folder / "trace.json.gz", trace);
}

Result<LoadedModel> load(const ProfileOptions& options, const std::string& path) {
  LoadOptions load;
  const std::optional<Numerics> numerics = parse_numerics(options.model.numerics);
  if (!numerics) return invalid_argument("--numerics: expected plain, vendor or serve");
  load.numerics = *numerics;
  load.num_threads = options.model.threads;
  load.device = parse_device(options.model.device).value_or(DeviceChoice::kCpu);
  FATHOM_ASSIGN_OR_RETURN(load.variants, parse_variants(options.model.variants));
  load.max_step_tokens = options.chunk + options.batch * (1 + options.drafts);
  load.max_logit_rows = options.batch * (1 + options.drafts);
  return load_model(path, load);
}

RunDescription describe(const ProfileOptions& options, const LoadedModel& loaded, const std::string& path) {
  RunDescription run;
  run.backend = loaded.backend->device().backend == BackendKind::kCpu ? "cpu" : "cuda";
  run.device = cpu_name();
  run.collector = "scopes";
  run.model = std::filesystem::path(path + "/").parent_path().filename().string();
  run.numerics = options.model.numerics;
  run.date = utc_now();
  run.commit = build_commit();
  if (loaded.backend->device().backend == BackendKind::kCpu) run.core_clock_mhz = measure_core_clock_mhz();
  run.num_threads = loaded.backend->device().num_threads;
  run.batch_sequences = options.batch;
  run.context_tokens = options.context;
  run.num_steps = options.steps;
  run.num_warmup_steps = options.warmup;
  run.num_repeats = options.repeats;
  for (int i = 0; i < kNumOpKinds; ++i) {
    const auto op = static_cast<OpKind>(i);
    if (loaded.variants->has(op)) run.variants[std::string(op_name(op))] = (*loaded.variants)[op].name;
  }
  return run;
}

// Work whose results stand in caches, where an earlier run of the same step left the same bits, or are no addresses.
bool may_leave_out(std::string_view operation) {
  return operation == "kv_write" || operation == "compress_kv" || operation == "rope_rows";
}

std::vector<ExposedTarget> exposed_targets(const ProfileReport& report) {
  std::vector<ExposedTarget> targets;
  for (const TableRow& category : category_table(report)) {
    ExposedTarget target{category.category, "", {}, category.time_us, true};
    std::vector<ExposedTarget> own;
    for (const TableRow& row : operation_table(report)) {
      // Copies and kernels outside operations cannot be repeated.
      if (row.category != category.category || !parse_op_name(row.operation)) continue;
      target.operations.push_back(row.operation);
      own.push_back({row.category, row.operation, {row.operation}, row.time_us, may_leave_out(row.operation)});
      target.may_leave_out = target.may_leave_out && own.back().may_leave_out;
    }
    if (!own.empty()) targets.push_back(std::move(target));
    for (ExposedTarget& operation : own) targets.push_back(std::move(operation));
  }
  return targets;
}

Status add_exposed(ModelStep& step, const ProfileOptions& options, ProfileReport& report) {
  const std::vector<ExposedTarget> targets = exposed_targets(report);
  ExposedOptions exposed;
  exposed.num_rounds = options.rounds;
  exposed.max_seconds = options.limit_s;
  FATHOM_ASSIGN_OR_RETURN(ExposedResult result, measure_exposed(step, targets, exposed));
  report.exposed = std::move(result.entries);
  report.notes.insert(report.notes.end(), result.notes.begin(), result.notes.end());
  return {};
}

void add_notes(const LoadedModel& loaded, ProfileReport& report) {
  const Steadiness steady = judge_steadiness(report);
  if (!steady.steady) {
    char text[256];
    std::snprintf(text, sizeof text,
                  "not a steady state: steps spread %.0f %% (bound %.0f %%) and drift %+.1f %% (bound %.0f %%); other "
                  "load on the machine, or too few warm-up steps",
                  100 * steady.spread, 100 * kSteadySpread, 100 * steady.drift, 100 * kSteadyDrift);
    report.notes.push_back(text);
  }
  const double accounted = report.accounted_us() / report.total_step_us();
  if (accounted < 0.99 || accounted > 1.01) {
    report.notes.push_back("rows sum to " + std::to_string(100 * accounted) +
                           " % of the step: the attribution is wrong; please report this");
  }
  if (loaded.backend->is_host_memory() && loaded.checkpoint->catalog.total_bytes() < 32 * kMiB) {
    report.notes.push_back(
        "this model's weights may stay in the last-level cache: shares of the memory ceiling can exceed 100 %");
  }
}

Status print_what_if(const ProfileOptions& options, const ProfileReport& report) {
  for (const std::string& text : options.what_if) {
    FATHOM_ASSIGN_OR_RETURN(const WhatIf what, predict_what_if(report, text));
    std::printf(
        "what if %s: %.1f tok/s instead of %.1f (95 %% interval %.1f to %.1f), %.1f us less a step%s\n", text.c_str(),
        what.tokens_per_s, what.now_tokens_per_s, what.low, what.high, what.saved_us,
        what.resolved ? "" : "; NOT RESOLVED: the exposed time is within three times its interval's half width");
  }
  return {};
}

ModelStepOptions step_options(const ProfileOptions& options) {
  ModelStepOptions out;
  out.batch = options.batch;
  out.context_tokens = options.context;
  out.chunk_tokens = options.chunk;
  return out;
}

Status finish(const ProfileOptions& options, const ProfileReport& report,
              const std::vector<std::vector<TimelineStep>>& repeats) {
  FATHOM_RETURN_IF_ERROR(write_folder(options.out, report, repeats));
  std::fputs(report_text(report).c_str(), stdout);
  FATHOM_RETURN_IF_ERROR(print_what_if(options, report));
  std::printf("\nwritten: %s/report.txt, report.json, report.html, trace.json.gz (ui.perfetto.dev)\n",
              options.out.c_str());
  return {};
}

Status profile_cpu(const ProfileOptions& options, LoadedModel& loaded, const std::string& path, ProfileReport& report) {
  std::shared_ptr<const Tokenizer> tokenizer;
  if (Result<Tokenizer> opened = open_tokenizer(path); opened.ok()) {
    tokenizer = std::make_shared<const Tokenizer>(std::move(*opened));
  }
  {
    ThreadPool pool(loaded.backend->device().num_threads);
    CpuCeilings ceilings = measure_cpu_ceilings(pool);
    report.ceilings = ceilings.figures;
    if (!ceilings.note.empty()) report.notes.push_back(std::move(ceilings.note));
  }
  SyntheticLoadOptions load;
  load.batch = options.batch;
  load.context_tokens = options.context;
  load.num_steps = options.steps;
  load.num_warmup = options.warmup;
  load.num_repeats = options.repeats;
  load.num_drafts = options.drafts;
  load.chunk_tokens = options.chunk;
  FATHOM_ASSIGN_OR_RETURN(const auto repeats, run_synthetic_load(*loaded.model, tokenizer, load));
  attribute_repeats(repeats, {}, report);
  if (tokenizer == nullptr) report.notes.push_back("no tokenizer beside the model: nothing was detokenised");
  add_notes(loaded, report);
  if (options.exposed) {
    FATHOM_ASSIGN_OR_RETURN(auto step, ModelStep::make(*loaded.model, step_options(options)));
    FATHOM_RETURN_IF_ERROR(add_exposed(*step, options, report));
  }
  return finish(options, report, repeats);
}

void print_isolated(const IsolatedCheck& check) {
  std::printf(
      "\nattributed times held to events: the operation repeated inside the replayed step (both sides see the same "
      "launches), and each call alone behind swept caches\n%s",
      isolated_text(check.rows(), check.launch_us()).c_str());
}

// A device replays one step again and again at its context: records or event times of what it replays.
Status profile_device(const ProfileOptions& options, LoadedModel& loaded, ProfileReport& report) {
  std::unique_ptr<DeviceRecorder> recorder;
  std::unique_ptr<ClockSource> clocks;
  if (options.model.device == "cuda") {
    FATHOM_ASSIGN_OR_RETURN(report.ceilings, measure_cuda_ceilings());
    Result<std::unique_ptr<DeviceRecorder>> opened = open_cupti();
    if (opened.ok()) {
      recorder = std::move(*opened);
    } else {
      report.notes.push_back("no CUPTI: " + opened.status().message());
    }
    Result<std::unique_ptr<ClockSource>> readable = open_card_clocks();
    if (readable.ok()) {
      clocks = std::move(*readable);
    } else {
      report.notes.push_back("the card's clocks are not known: " + readable.status().message());
    }
  } else {
    report.notes.push_back("an emulated device in host memory: times say nothing about a card");
    ThreadPool pool(1);
    report.ceilings = measure_cpu_ceilings(pool).figures;
  }
  report.run.device = loaded.backend->device_name();
  FATHOM_ASSIGN_OR_RETURN(auto step, ModelStep::make(*loaded.model, step_options(options)));
  const DeviceLoadOptions load{options.steps, options.warmup, options.repeats};
  FATHOM_ASSIGN_OR_RETURN(const DeviceSteps steps,
                          collect_device_steps(*loaded.model, *step, recorder.get(), load, clocks.get()));
  report.run.collector = steps.collector;
  report.run.core_clock_mhz = steps.clocks.core_mhz;
  report.run.memory_clock_mhz = steps.clocks.memory_mhz;
  report.notes.insert(report.notes.end(), steps.notes.begin(), steps.notes.end());
  attribute_repeats(steps.repeats, {}, report);
  char text[200];
  std::snprintf(
      text, sizeof text,
      "one step at context %lld, replayed: no scheduler, no text; %.1f us with %s, %.1f us with nothing taken",
      static_cast<long long>(options.context), report.mean_step_us(), steps.collector.c_str(), steps.plain_step_us);
  report.notes.push_back(text);
  add_notes(loaded, report);
  IsolatedCheck check(*loaded.model, *step, report, options.rounds);
  void* const stream = step->executor().context().stream;
  if (options.isolated && recorder != nullptr) {
    FATHOM_ASSIGN_OR_RETURN(const auto empty, open_empty_launches(stream));
    FATHOM_RETURN_IF_ERROR(check.attribute_repeats(*recorder, *empty));
    recorder.reset();  // it slows what events see
    FATHOM_RETURN_IF_ERROR(check.time_repeats(*empty));
  }
  recorder.reset();
  if (options.exposed) FATHOM_RETURN_IF_ERROR(add_exposed(*step, options, report));
  FATHOM_RETURN_IF_ERROR(finish(options, report, steps.repeats));
  if (!options.isolated) return {};
  FATHOM_ASSIGN_OR_RETURN(const auto observer, open_isolating_observer(stream));
  FATHOM_RETURN_IF_ERROR(check.time_alone(*observer));
  print_isolated(check);
  return write_file(std::filesystem::path(options.out) / "isolated.json", isolated_json(check.rows()));
}

Status profile_model(const ProfileOptions& options) {
  SyntheticModel synthetic;
  std::string path;
  if (!options.synthetic.empty()) {
    FATHOM_ASSIGN_OR_RETURN(path, synthetic.make(options.synthetic, options.layers, options.experts));
  } else {
    FATHOM_ASSIGN_OR_RETURN(path, find_model(options.model.model));
  }
  FATHOM_ASSIGN_OR_RETURN(LoadedModel loaded, load(options, path));
  ProfileReport report;
  report.run = describe(options, loaded, path);
  if (loaded.backend->is_host_memory()) return profile_cpu(options, loaded, path, report);
  return profile_device(options, loaded, report);
}

Status print_segment_cost(const ProfileOptions& options, ModelStep& step) {
  FATHOM_ASSIGN_OR_RETURN(const SegmentCost cost, measure_segment_times(step, options.rounds));
  const double percent = 100 / cost.base_us;
  std::printf(
      "always on: event times of the card's segments, one replay in %lld: %+.3f us [%+.3f, %+.3f] of a step of %.1f us "
      "= "
      "%+.3f %% [%+.3f, %+.3f]\n",
      static_cast<long long>(SegmentClock::kEvery), cost.extra.us, cost.extra.low_us, cost.extra.high_us, cost.base_us,
      percent * cost.extra.us, percent * cost.extra.low_us, percent * cost.extra.high_us);
  std::printf("%lld pairs of blocks; outputs bitwise the same in all; once for each shape, capturing: %.0f us\n",
              static_cast<long long>(cost.extra.num_samples), cost.first_us);
  const auto print = [](const std::string& name, const SegmentTimes::Segment& segment) {
    if (segment.num_samples == 0) return;
    std::printf("  %-12s %8.2f us (%lld samples)\n", name.c_str(),
                segment.time_us / static_cast<double>(segment.num_samples),
                static_cast<long long>(segment.num_samples));
  };
  print("embedding", cost.segments.embedding);
  for (std::size_t i = 0; i < cost.segments.layers.size(); ++i) {
    print("layer " + std::to_string(i), cost.segments.layers[i]);
  }
  print("head", cost.segments.head);
  return {};
}

Status profile_one_step(const ProfileOptions& options) {
  FATHOM_ASSIGN_OR_RETURN(const std::string path, find_model(options.model.model));
  FATHOM_ASSIGN_OR_RETURN(LoadedModel loaded, load(options, path));
  FATHOM_ASSIGN_OR_RETURN(auto step, ModelStep::make(*loaded.model, step_options(options)));
  FATHOM_RETURN_IF_ERROR(step->run_taking(Taking::kTrace).status());
  FATHOM_RETURN_IF_ERROR(begin_profiler_range());
  const Status ran = step->run_taking(Taking::kTrace).status();  // launched: a trace is taken of launches only
  FATHOM_RETURN_IF_ERROR(end_profiler_range());
  return ran;
}

Status profile_overhead(const ProfileOptions& options) {
  FATHOM_ASSIGN_OR_RETURN(const std::string path, find_model(options.model.model));
  FATHOM_ASSIGN_OR_RETURN(LoadedModel loaded, load(options, path));
  FATHOM_ASSIGN_OR_RETURN(auto step, ModelStep::make(*loaded.model, step_options(options)));
  if (!loaded.backend->is_host_memory()) return print_segment_cost(options, *step);
  FATHOM_ASSIGN_OR_RETURN(const TakingCost cost, measure_taking(*step, options.rounds));
  std::printf("plain step: %.1f us (median); %lld interleaved samples each; outputs bitwise the same in all\n",
              cost.base_us, static_cast<long long>(cost.times.num_samples));
  const auto print = [&](const char* name, const ExposedTime& extra, double base_us) {
    std::printf("%-46s %+8.2f us [%+.2f, %+.2f] = %+.3f %% of the step [%+.3f, %+.3f]\n", name, extra.us, extra.low_us,
                extra.high_us, 100 * extra.us / base_us, 100 * extra.low_us / base_us, 100 * extra.high_us / base_us);
  };
  print("always on: sums of operation times", cost.times, cost.base_us);
  print("capture: every call with its cost", cost.trace, cost.base_us);
  std::printf("CPU time, which other load does not stretch (with --threads 1 no thread waits for another): %.1f us\n",
              cost.base_cpu_us);
  print("always on, CPU time", cost.times_cpu, cost.base_cpu_us);
  print("capture, CPU time", cost.trace_cpu, cost.base_cpu_us);
  return {};
}

// ---- a running server ----

struct ServerAddress {
  std::string host;
  std::uint16_t port = 0;
};

Result<ServerAddress> parse_address(std::string_view text) {
  const std::string given(text);
  if (text.starts_with("http://")) text.remove_prefix(7);
  while (text.ends_with('/')) text.remove_suffix(1);
  const std::size_t colon = text.rfind(':');
  std::uint16_t port = 0;
  if (colon != std::string_view::npos && colon > 0) {
    std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
  }
  if (port == 0) {
    return invalid_argument("--attach: found \"" + given + "\", expected HOST:PORT or http://HOST:PORT");
  }
  return ServerAddress{std::string(text.substr(0, colon)), port};
}

class AttachedServer {
 public:
  AttachedServer(const ServerAddress& address, const std::string& api_key) : client_(address.host, address.port) {
    if (!api_key.empty()) headers_.emplace_back("authorization", "Bearer " + api_key);
  }

  Result<std::string> ask(std::string_view method, std::string_view path, std::string_view body = {}) {
    FATHOM_ASSIGN_OR_RETURN(HttpClientReply reply, client_.request(method, path, body, headers_));
    if (reply.status == 200) return std::move(reply.body);
    return unavailable("the server answers " + std::string(path) + " with status " + std::to_string(reply.status) +
                       ": " + reply.body.substr(0, 300));
  }

  Result<double> steps_total() {
    FATHOM_ASSIGN_OR_RETURN(const std::string metrics, ask("GET", "/metrics"));
    const std::string_view name = "\nfathom_steps_total ";
    const std::size_t at = metrics.find(name);
    if (at == std::string::npos) return unavailable("/metrics has no fathom_steps_total: is this a fathom server?");
    return std::strtod(metrics.c_str() + at + name.size(), nullptr);
  }

  // The next `num_steps` steps, or those of `limit_s` seconds.
  Result<ParsedCapture> capture(std::int32_t num_steps, double limit_s) {
    FATHOM_ASSIGN_OR_RETURN(const double before, steps_total());
    FATHOM_RETURN_IF_ERROR(ask("POST", "/start_profile", "{\"num_steps\":" + std::to_string(num_steps) + "}").status());
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < std::chrono::duration<double>(limit_s)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      FATHOM_ASSIGN_OR_RETURN(const double now, steps_total());
      if (now - before > num_steps) break;
    }
    FATHOM_ASSIGN_OR_RETURN(const std::string text, ask("POST", "/stop_profile"));
    return parse_capture(text, "/stop_profile");
  }

 private:
  HttpClient client_;
  HttpHeaders headers_;
};

Status profile_server(const ProfileOptions& options) {
  FATHOM_ASSIGN_OR_RETURN(const ServerAddress address, parse_address(options.attach));
  AttachedServer server(address, options.api_key);
  ProfileReport report;
  std::vector<std::vector<TimelineStep>> repeats;
  std::vector<double> http_us;
  double sequences = 0, num_steps = 0;
  for (std::int32_t r = 0; r < options.repeats; ++r) {
    FATHOM_ASSIGN_OR_RETURN(ParsedCapture capture, server.capture(options.steps, options.attach_limit_s));
    report.run = capture.run;
    for (std::string& note : capture.notes) report.notes.push_back(std::move(note));
    http_us.push_back(capture.http_us);
    for (const TimelineStep& step : capture.steps) sequences += step.num_sequences;
    num_steps += static_cast<double>(capture.steps.size());
    repeats.push_back(std::move(capture.steps));
  }
  report.run.date = utc_now();
  report.run.num_steps = options.steps;
  report.run.num_repeats = options.repeats;
  report.run.batch_sequences = std::llround(sequences / num_steps);
  attribute_repeats(repeats, http_us, report);
  report.notes.push_back("captured on " + address.host + ":" + std::to_string(address.port) +
                         ": the load is its users', steps may differ in rows; no ceilings, no exposed time");
  const Steadiness steady = judge_steadiness(report);
  if (!steady.steady) report.notes.push_back("not a steady state: the steps differ, as a server's do");
  FATHOM_RETURN_IF_ERROR(write_folder(options.out, report, repeats));
  std::fputs(report_text(report).c_str(), stdout);
  std::printf("\nwritten: %s/report.txt, report.json, report.html, trace.json.gz\n", options.out.c_str());
  return {};
}

// What would only fail after the whole measurement.
Status check_options(const ProfileOptions& options) {
  if (!options.what_if.empty() && (!options.exposed || !options.attach.empty() || options.overhead)) {
    return invalid_argument(
        "--what-if predicts from exposed time, which --exposed off, --attach and --overhead do not measure: drop one "
        "of the two");
  }
  for (const std::string& text : options.what_if) FATHOM_RETURN_IF_ERROR(check_what_if(text));
  return options.one_step || options.overhead ? Status() : check_folder(options.out);
}

}  // namespace

int run_profile(const ProfileOptions& options) {
  if (const Status status = check_options(options); !status.ok()) return report_failure("profile", status);
  const Status status = options.one_step         ? profile_one_step(options)
                        : options.overhead       ? profile_overhead(options)
                        : options.attach.empty() ? profile_model(options)
                                                 : profile_server(options);
  return status.ok() ? 0 : report_failure("profile", status);
}

}  // namespace fathom::app
