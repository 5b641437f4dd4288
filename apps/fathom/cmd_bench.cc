// `fathom bench ops` and `fathom bench decode`: measured time beside the floor that the cost models give.
//
// The floor of one call is max(bytes / memory bandwidth, FLOPs / peak), ceilings measured in this process; a step's
// floor is the sum over its calls. Times are the best of several rounds for each position or step, which every round
// repeats: other load on the machine only adds.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "base/units.h"
#include "commands.h"
#include "engine/load_model.h"
#include "engine/session.h"
#include "opened_model.h"
#include "ops/simd/ceilings.h"
#include "ops/simd/instruction_set.h"

namespace fathom::app {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kDecodeRounds = 8;  // a round of decoding is short beside a round of prefill
constexpr std::int64_t kLastLevelCacheGuess = 32 * kMiB;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

int fail(const Status& status) {
  std::fprintf(stderr, "fathom bench: %s\n", status.message().c_str());
  return 1;
}

double floor_s(const OpCost& cost, const simd::Ceilings& ceilings) {
  return std::max(cost.bytes / ceilings.memory_bytes_per_s, cost.flops / ceilings.flops_per_s);
}

std::vector<TokenId> random_tokens(const ModelConfig& config, std::int64_t count) {
  std::mt19937 random(1);
  std::vector<TokenId> tokens(static_cast<std::size_t>(count));
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % static_cast<unsigned>(config.vocab_size));
  return tokens;
}

SampleSpec greedy() {
  SampleSpec spec;
  spec.temperature = 0.0f;
  return spec;
}

// A loaded model with one conversation.
struct Bench {
  LoadedModel loaded;
  std::unique_ptr<Session> session;
  std::vector<TokenId> tokens;
};

// `variant`: of every operation; empty: what --variant says.
Result<Bench> make_bench(const BenchOptions& options, std::int64_t num_tokens, const std::string& variant) {
  LoadOptions load;
  load.numerics = parse_numerics(options.model.numerics).value_or(Numerics::serve());
  load.num_threads = options.model.threads;
  if (variant.empty()) {
    FATHOM_ASSIGN_OR_RETURN(load.variants, parse_variants(options.model.variants));
  } else {
    load.variants = {{"*", variant}};
  }
  load.max_step_tokens = options.chunk;
  load.max_logit_rows = 1;
  load.max_context_tokens = options.model.max_context;
  FATHOM_ASSIGN_OR_RETURN(const std::string path, find_model(options.model.model));
  Bench bench;
  FATHOM_ASSIGN_OR_RETURN(bench.loaded, load_model(path, load));
  SessionOptions session;
  session.max_context_tokens = options.model.max_context;
  session.chunk_tokens = options.chunk;
  FATHOM_ASSIGN_OR_RETURN(bench.session, Session::make(*bench.loaded.model, session));
  bench.tokens = random_tokens(bench.loaded.model->config(), num_tokens);
  return bench;
}

std::span<const TokenId> first_tokens(const Bench& bench, std::int64_t count) {
  return std::span(bench.tokens).first(static_cast<std::size_t>(count));
}

void print_ceilings(const simd::Ceilings& ceilings, int threads) {
  std::printf(
      "ceilings, %d thread%s, best of 5: memory read %.1f GB/s, cache-resident read %.1f GB/s, fp32 FMA %.1f GFLOP/s\n",
      threads, threads == 1 ? "" : "s", ceilings.memory_bytes_per_s / 1e9, ceilings.cache_bytes_per_s / 1e9,
      ceilings.flops_per_s / 1e9);
}

simd::Ceilings measure_and_print_ceilings(int threads) {
  simd::Ceilings ceilings;
  for (int count : {1, threads}) {
    ThreadPool pool(count);
    ceilings = simd::measure_ceilings(pool);
    print_ceilings(ceilings, count);
    if (threads == 1) break;
  }
  return ceilings;
}

// ---- bench ops ----

// Calls of one step in order, each with its best time over the rounds.
void keep_best(std::vector<OpSample>& best, const std::vector<OpSample>& samples) {
  if (best.size() != samples.size()) {
    best = samples;
    return;
  }
  for (std::size_t i = 0; i < best.size(); ++i) best[i].time_us = std::min(best[i].time_us, samples[i].time_us);
}

struct OpTotal {
  int calls = 0;
  double time_us = 0, bytes = 0, flops = 0, floor_us = 0;
};

void print_table(const std::string& title, const std::vector<OpSample>& samples, const simd::Ceilings& ceilings) {
  std::map<std::pair<std::string, std::string>, OpTotal> totals;
  OpTotal all;
  for (const OpSample& sample : samples) {
    for (OpTotal* total : {&totals[{std::string(sample.scope.operation), std::string(sample.scope.variant)}], &all}) {
      ++total->calls;
      total->time_us += sample.time_us;
      total->bytes += sample.cost.bytes;
      total->flops += sample.cost.flops;
      total->floor_us += 1e6 * floor_s(sample.cost, ceilings);
    }
  }
  std::printf("\n%s\n%-18s %-10s %6s %11s %11s %10s %8s %9s %11s %9s\n", title.c_str(), "operation", "variant", "calls",
              "time us", "bytes", "MFLOP", "GB/s", "GFLOP/s", "floor us", "of floor");
  const auto print = [](const std::string& op, const std::string& variant, const OpTotal& t) {
    std::printf("%-18s %-10s %6d %11.1f %11.0f %10.2f %8.2f %9.2f %11.1f %8.0f%%\n", op.c_str(), variant.c_str(),
                t.calls, t.time_us, t.bytes, t.flops / 1e6, t.bytes / t.time_us / 1e3, t.flops / t.time_us / 1e3,
                t.floor_us, 100.0 * t.floor_us / t.time_us);
  };
  for (const auto& [key, total] : totals) print(key.first, key.second, total);
  print("all", "", all);
}

Status bench_variant(const BenchOptions& options, const std::string& variant, const simd::Ceilings& ceilings) {
  const bool slow = variant == "reference";
  const std::int64_t rows =
      slow ? std::min<std::int64_t>(options.prefill, 32) : std::min(options.prefill, options.chunk);
  const std::int64_t position =
      slow ? std::min<std::int64_t>(options.positions.front(), 200) : options.positions.front();
  FATHOM_ASSIGN_OR_RETURN(Bench bench, make_bench(options, std::max(rows, position), variant));
  Session& session = *bench.session;
  StepTrace trace;
  std::vector<OpSample> best;
  const int rounds = slow ? 2 : options.rounds;

  for (int round = 0; round < rounds; ++round) {
    session.reset();
    trace.samples.clear();
    session.executor().context().trace = &trace;
    FATHOM_RETURN_IF_ERROR(session.prefill(first_tokens(bench, rows), greedy()).status());
    keep_best(best, trace.samples);
  }
  print_table("prefill of " + std::to_string(rows) + " rows, variant " + variant, best, ceilings);

  session.executor().context().trace = nullptr;
  session.reset();
  FATHOM_RETURN_IF_ERROR(session.prefill(first_tokens(bench, position), greedy()).status());
  best.clear();
  session.executor().context().trace = &trace;
  for (int round = 0; round < 8 * rounds; ++round) {
    trace.samples.clear();
    FATHOM_RETURN_IF_ERROR(
        session.decode(bench.tokens[static_cast<std::size_t>(round) % bench.tokens.size()], greedy()).status());
    keep_best(best, trace.samples);
  }
  print_table("decode of 1 row at position " + std::to_string(position) + ", variant " + variant, best, ceilings);
  return {};
}

// ---- bench decode ----

struct StepFigures {
  double measured_ms = 0;
  double floor_ms = 0;
};

double floor_ms_of(const StepTrace& trace, const simd::Ceilings& ceilings) {
  double sum = 0.0;
  for (const OpSample& sample : trace.samples) sum += floor_s(sample.cost, ceilings);
  return 1e3 * sum;
}

// One conversation at one position, and what its decode steps took.
struct DecodePlace {
  std::int64_t position = 0;
  std::unique_ptr<Session> session;
  std::vector<double> best_ms;    // of each position decoded in a round
  std::vector<OpSample> samples;  // each call's best, of the first of them
  double floor_ms = 0;

  double measured_ms() const { return std::accumulate(best_ms.begin(), best_ms.end(), 0.0) / best_ms.size(); }
};

// A few tokens are rolled back; more would be computed again from the start.
Status decode_round(Bench& bench, DecodePlace& place) {
  Session& session = *place.session;
  FATHOM_RETURN_IF_ERROR(session.prefill(first_tokens(bench, place.position), greedy()).status());
  TokenId token = bench.tokens.front();
  for (double& time : place.best_ms) {
    const auto begin = Clock::now();
    FATHOM_ASSIGN_OR_RETURN(const SampledToken sampled, session.decode(token, greedy()));
    time = std::min(time, 1e3 * seconds_since(begin));
    token = sampled.token;
  }
  return {};
}

Status traced_step(Bench& bench, DecodePlace& place) {
  Session& session = *place.session;
  FATHOM_RETURN_IF_ERROR(session.prefill(first_tokens(bench, place.position), greedy()).status());
  StepTrace trace;
  session.executor().context().trace = &trace;
  FATHOM_RETURN_IF_ERROR(session.decode(bench.tokens.front(), greedy()).status());
  session.executor().context().trace = nullptr;
  keep_best(place.samples, trace.samples);
  return {};
}

// Rounds of the positions alternate, so that what else the machine does meets all of them: their difference is small.
Result<std::vector<DecodePlace>> decode_at_positions(Bench& bench, const BenchOptions& options,
                                                     const simd::Ceilings& ceilings) {
  std::vector<DecodePlace> places(options.positions.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    SessionOptions session;
    session.max_context_tokens = options.model.max_context;
    session.chunk_tokens = options.chunk;
    places[i].position = options.positions[i];
    places[i].best_ms.assign(static_cast<std::size_t>(options.tokens), 1e9);
    FATHOM_ASSIGN_OR_RETURN(places[i].session, Session::make(*bench.loaded.model, session));
  }
  for (int round = 0; round < kDecodeRounds * options.rounds; ++round) {
    for (DecodePlace& place : places) {
      FATHOM_RETURN_IF_ERROR(decode_round(bench, place));
      FATHOM_RETURN_IF_ERROR(traced_step(bench, place));
    }
  }
  for (DecodePlace& place : places) {
    for (const OpSample& sample : place.samples) place.floor_ms += 1e3 * floor_s(sample.cost, ceilings);
  }
  return places;
}

// What the calls of one operation at `far` take more than those at `near`.
void print_position_costs(const DecodePlace& near, const DecodePlace& far, const simd::Ceilings& ceilings) {
  struct Difference {
    double near_us = 0, far_us = 0, floor_us = 0;
  };
  std::map<std::string_view, Difference> differences;
  Difference all;
  for (const DecodePlace* place : {&near, &far}) {
    for (const OpSample& sample : place->samples) {
      for (Difference* difference : {&differences[sample.scope.operation], &all}) {
        (place == &near ? difference->near_us : difference->far_us) += sample.time_us;
        difference->floor_us += (place == &near ? -1e6 : 1e6) * floor_s(sample.cost, ceilings);
      }
    }
  }
  std::printf("\n%-18s %14s %14s %12s %14s\n", "us, each call best", ("at " + std::to_string(near.position)).c_str(),
              ("at " + std::to_string(far.position)).c_str(), "difference", "cost model's");
  const auto print = [](std::string_view name, const Difference& d) {
    std::printf("%-18s %14.1f %14.1f %12.1f %14.1f\n", std::string(name).c_str(), d.near_us, d.far_us,
                d.far_us - d.near_us, d.floor_us);
  };
  for (const auto& [name, difference] : differences) print(name, difference);
  print("all", all);
}

Result<StepFigures> prefill_of(Bench& bench, const BenchOptions& options, std::int64_t count,
                               const simd::Ceilings& ceilings) {
  Session& session = *bench.session;
  StepFigures figures;
  StepTrace trace;
  std::vector<double> best;  // of each step, ms
  for (int round = 0; round <= options.rounds; ++round) {
    session.reset();
    session.executor().context().trace = round == 0 ? &trace : nullptr;
    std::size_t step = 0;
    auto begin = Clock::now();
    const auto progress = [&](std::int64_t, std::int64_t) {
      const double time = 1e3 * seconds_since(begin);
      if (step == best.size()) best.push_back(time);
      best[step] = std::min(best[step], time);
      ++step;
      begin = Clock::now();
      return true;
    };
    FATHOM_RETURN_IF_ERROR(session.prefill(first_tokens(bench, count), greedy(), progress).status());
    if (round == 0) figures.floor_ms = floor_ms_of(trace, ceilings);
  }
  figures.measured_ms = std::accumulate(best.begin(), best.end(), 0.0);
  return figures;
}

// One line a bar; JSON at the end if asked for.
class Report {
 public:
  void add(const std::string& name, double value, double bound, bool at_most, const char* unit) {
    const bool pass = at_most ? value <= bound : value >= bound;
    all_pass_ = all_pass_ && pass;
    std::printf("%-4s %-52s %10.3f %s (%s %.3f)\n", pass ? "PASS" : "FAIL", name.c_str(), value, unit,
                at_most ? "at most" : "at least", bound);
    json_["bars"].push_back({{"name", name}, {"value", value}, {"bound", bound}, {"at_most", at_most}, {"pass", pass}});
  }
  void set(const std::string& name, double value) { json_[name] = value; }
  bool all_pass() const { return all_pass_; }
  std::string json() const { return json_.dump(2); }

 private:
  bool all_pass_ = true;
  nlohmann::ordered_json json_;
};

Status bench_decode(const BenchOptions& options, Report& report) {
  const int threads = options.model.threads > 0 ? options.model.threads : ThreadPool::available_cpus();
  std::printf(
      "fathom bench decode: %s, %s, %d threads, chunks of %lld rows, %d tokens, each the best of %d rounds (prefill "
      "%d)\n",
      options.model.model.empty() ? "models/mini-v4" : options.model.model.c_str(), simd::instruction_set(), threads,
      static_cast<long long>(options.chunk), options.tokens, kDecodeRounds * options.rounds, options.rounds);
  const simd::Ceilings ceilings = measure_and_print_ceilings(threads);
  report.set("memory_bytes_per_s", ceilings.memory_bytes_per_s);
  report.set("cache_bytes_per_s", ceilings.cache_bytes_per_s);
  report.set("flops_per_s", ceilings.flops_per_s);

  const std::int64_t furthest = *std::max_element(options.positions.begin(), options.positions.end());
  FATHOM_ASSIGN_OR_RETURN(Bench bench, make_bench(options, std::max(furthest, options.prefill), ""));
  std::printf("loaded in %.1f ms\n", bench.loaded.load_ms);
  report.set("load_ms", bench.loaded.load_ms);

  std::printf("%-34s %12s %12s %8s %14s\n", "", "measured ms", "floor ms", "ratio", "tokens/s");
  const auto print = [](const std::string& name, const StepFigures& f, double tokens) {
    std::printf("%-34s %12.3f %12.3f %7.2fx %14.1f\n", name.c_str(), f.measured_ms, f.floor_ms,
                f.measured_ms / f.floor_ms, 1e3 * tokens / f.measured_ms);
  };
  FATHOM_ASSIGN_OR_RETURN(const std::vector<DecodePlace> places, decode_at_positions(bench, options, ceilings));
  std::vector<StepFigures> decode;
  for (const DecodePlace& place : places) {
    const StepFigures figures{place.measured_ms(), place.floor_ms};
    print("decode at position " + std::to_string(place.position), figures, 1);
    report.set("decode_ms_at_" + std::to_string(place.position), figures.measured_ms);
    report.set("decode_floor_ms_at_" + std::to_string(place.position), figures.floor_ms);
    decode.push_back(figures);
  }
  const std::int64_t short_prompt = std::min<std::int64_t>(512, options.prefill);
  FATHOM_ASSIGN_OR_RETURN(const StepFigures brief, prefill_of(bench, options, short_prompt, ceilings));
  print("prefill of " + std::to_string(short_prompt), brief, static_cast<double>(short_prompt));
  FATHOM_ASSIGN_OR_RETURN(const StepFigures prefill, prefill_of(bench, options, options.prefill, ceilings));
  print("prefill of " + std::to_string(options.prefill), prefill, static_cast<double>(options.prefill));
  report.set("prefill_ms", prefill.measured_ms);
  report.set("prefill_floor_ms", prefill.floor_ms);
  report.set("prefill_short_ms", brief.measured_ms);

  if (places.size() > 1) print_position_costs(places.front(), places.back(), ceilings);
  std::printf("\n");
  report.add("decode at position " + std::to_string(options.positions.front()) + " / floor",
             decode.front().measured_ms / decode.front().floor_ms, 3.0, true, "x");
  report.add("prefill of " + std::to_string(options.prefill) + " / floor", prefill.measured_ms / prefill.floor_ms, 3.0,
             true, "x");
  report.add("prefill of " + std::to_string(short_prompt) + " tok/s / decode tok/s",
             static_cast<double>(short_prompt) / brief.measured_ms * decode.front().measured_ms, 2.0, false, "x");
  if (decode.size() > 1) {
    const double measured = decode.back().measured_ms - decode.front().measured_ms;
    const double model = decode.back().floor_ms - decode.front().floor_ms;
    std::printf("     position %lld - position %lld: measured %.3f ms, cost model %.3f ms\n",
                static_cast<long long>(options.positions.back()), static_cast<long long>(options.positions.front()),
                measured, model);
    report.add("position cost / cost model's", measured / model, 1.5, true, "x");
  }
  if (bench.loaded.checkpoint->catalog.total_bytes() < kLastLevelCacheGuess) {
    std::printf("note: weights of %s may stay in the last-level cache; the floor assumes memory\n",
                format_bytes(bench.loaded.checkpoint->catalog.total_bytes()).c_str());
  }
  return {};
}

}  // namespace

int run_bench_ops(const BenchOptions& options) {
  const int threads = options.model.threads > 0 ? options.model.threads : ThreadPool::available_cpus();
  std::printf("fathom bench ops: %s, %s, %d threads\n",
              options.model.model.empty() ? "models/mini-v4" : options.model.model.c_str(), simd::instruction_set(),
              threads);
  const simd::Ceilings ceilings = measure_and_print_ceilings(threads);
  for (const std::string& variant : options.variants) {
    if (Status status = bench_variant(options, variant, ceilings); !status.ok()) return fail(status);
  }
  return 0;
}

int run_bench_decode(const BenchOptions& options) {
  if (!options.synthetic.empty()) return run_bench_synthetic(options);
  Report report;
  if (Status status = bench_decode(options, report); !status.ok()) return fail(status);
  if (options.json) std::printf("%s\n", report.json().c_str());
  return report.all_pass() ? 0 : 1;
}

}  // namespace fathom::app
