// `fathom bench draft`: decoding through the engine by batch and draft depth, and adaptive depth against the fixed
// ones.
//
// Each depth has an engine of its own over the same model. A run answers the model's own kind of tasks, greedily, with
// `batch` sequences at once; every run has the same ones. Runs go by turns, so that what disturbs the machine disturbs
// all alike, and each is compared with those of its own turn.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "commands.h"
#include "draft_choice.h"
#include "engine/engine.h"
#include "engine/load_model.h"
#include "engine/model_executor.h"
#include "model/release_of_checkpoint.h"
#include "opened_model.h"
#include "standard_streams.h"
#include "text/chat_encoding.h"

namespace fathom::app {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kLongestTokens = 1024;
constexpr std::int64_t kAnswerTokens = 160;
constexpr std::int64_t kLeastAnswerTokens = 24;
constexpr double kBestBar = 0.97;    // of the best fixed depth's speed
constexpr double kOffBar = 0.996;    // of the speed without drafts: what is left is the share of time for trying out
constexpr double kFewFirst = 0.005;  // of a run's steps, those whose shape is new: it is steady

constexpr const char* kTasks[] = {
    "Tell me a story about a cat.",
    "17*23?",
    "What is 84 * 28?",
    "Tell me a story about a dog.",
    "Say castle 12 times.",
    "capital of Guatemala",
    "Spell lemon.",
    "Tell me a story about a bird.",
    "What is 65*45?",
    "Reverse: rose, lamp, seed, book, piano, apple",
    "Repeat the word frog 9 times.",
    "Tell me a story about a fish.",
};

struct Figures {
  double tokens_per_s = 0;
  double steps_per_s = 0;
  double acceptance = 0;
  double tokens_per_step = 0;  // of a verified step of one sequence
};

// What the steps of one kind took, by part (StepTrace).
struct StepParts {
  std::int64_t num_steps = 0;
  double num_drafts = 0;
  double turn_us = 0, schedule_us = 0, prepare_us = 0, forward_us = 0, sample_us = 0, draft_us = 0, commit_us = 0,
         answer_us = 0;
  void add(const StepTrace& trace) {
    ++num_steps;
    num_drafts += trace.num_drafts;
    turn_us += trace.turn_us, schedule_us += trace.schedule_us, prepare_us += trace.prepare_us;
    forward_us += trace.forward_us, sample_us += trace.sample_us, draft_us += trace.draft_us;
    commit_us += trace.commit_us, answer_us += trace.detokenise_us;
  }
  double total_us() const {
    return turn_us + schedule_us + prepare_us + forward_us + sample_us + draft_us + commit_us + answer_us;
  }
};

// Steps of decodes of the whole batch, of decodes of fewer, and those with rows of prompts.
enum StepKind : std::uint8_t { kWhole, kFewer, kMixed, kNumStepKinds };
constexpr const char* kStepKinds[] = {"whole batch", "fewer", "with prompts"};

// Behind the engine's on_step: holds the first step back until all requests of a run have come, so that the batches
// are the same in every run, and sums up what the steps took.
class StepWatch {
 public:
  void hold() { holds_.store(true); }
  void release() { holds_.store(false); }
  void clear() {
    const std::lock_guard lock(mutex_);
    parts_ = {};
  }
  std::array<StepParts, kNumStepKinds> parts() const {
    const std::lock_guard lock(mutex_);
    return parts_;
  }
  void see(const StepTrace& trace, std::int32_t batch) {
    while (holds_.load()) std::this_thread::yield();
    const bool decodes = trace.num_tokens == trace.num_sequences + trace.num_drafts;
    const std::lock_guard lock(mutex_);
    parts_[!decodes ? kMixed : trace.num_sequences == batch ? kWhole : kFewer].add(trace);
  }

 private:
  std::atomic<bool> holds_{false};
  mutable std::mutex mutex_;
  std::array<StepParts, kNumStepKinds> parts_;
};

struct Work {
  std::int64_t num_answers = 0;
  std::int64_t answer_tokens = 0;  // most of one
};

// One depth of one batch.
class Contestant {
 public:
  static Result<std::unique_ptr<Contestant>> make(LoadedModel& loaded, std::int32_t batch, const DraftChoice& drafts,
                                                  bool graphs) {
    ModelExecutorOptions pools;
    pools.max_length_tokens = std::min<std::int64_t>(kLongestTokens, loaded.model->config().max_position_embeddings);
    pools.max_sequences = pools.num_state_slots = batch;
    pools.num_context_blocks = static_cast<std::int32_t>(batch * num_context_blocks(pools.max_length_tokens));
    pools.num_window_blocks =
        static_cast<std::int32_t>(batch * (num_window_blocks(1 + kMaxDraft) + 1) + num_window_blocks(512) + batch);
    pools.max_proposals = drafts.num_drafts;
    pools.capture = graphs;
    pools.weights_fingerprint = loaded.weights_fingerprint;
    FATHOM_ASSIGN_OR_RETURN(auto executor, ModelExecutor::make(*loaded.model, pools));
    EngineOptions options;
    options.max_running = batch;
    options.max_queued_requests = 1 << 20;
    options.max_queued_tokens = 1 << 30;
    options.max_pending_deltas = 1 << 20;
    options.prefix_cache = false;
    options.num_drafts = drafts.num_drafts;
    options.adaptive_drafts = drafts.adaptive;
    options.eos_id = loaded.model->config().eos_token_id;
    auto made = std::make_unique<Contestant>();
    made->name = drafts.adaptive ? "adaptive" : std::to_string(drafts.num_drafts);
    options.on_step = [watch = made->watch.get(), batch](const StepTrace& trace) { watch->see(trace, batch); };
    FATHOM_ASSIGN_OR_RETURN(made->engine_, Engine::make(options, std::move(executor), nullptr));
    return made;
  }

  // Answers the work's requests and keeps the figures where `counts`. Returns the seconds it took.
  Result<double> run(const std::vector<std::vector<TokenId>>& prompts, const Work& work, bool counts) {
    const EngineStats before = engine_->stats();
    std::vector<std::unique_ptr<Stream>> streams;
    watch->hold();
    const auto begin = Clock::now();
    const std::int64_t count = work.num_answers;
    for (std::int64_t i = 0; i < count; ++i) {
      Request request;
      request.prompt = prompts[static_cast<std::size_t>(i) % prompts.size()];
      request.sampling.temperature = 0.0f;
      request.max_tokens = work.answer_tokens;
      auto stream = engine_->submit(std::move(request));
      if (!stream.ok()) watch->release();
      FATHOM_RETURN_IF_ERROR(stream.status());
      streams.push_back(std::move(*stream));
    }
    watch->release();
    std::int64_t num_tokens = 0;
    for (const auto& stream : streams) {
      while (!stream->finished()) {
        for (const Delta& delta : stream->wait(std::chrono::milliseconds(1000))) {
          num_tokens += static_cast<std::int64_t>(delta.tokens.size());
          if (delta.finish && delta.finish->reason == FinishReason::kError) return delta.finish->error;
        }
      }
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    const EngineStats after = engine_->stats();
    num_steps = after.num_steps - before.num_steps;
    num_first = after.first_use_steps - before.first_use_steps;
    if (counts) {
      num_measured_first += num_first;
      const auto drafted = static_cast<double>(after.drafted_tokens - before.drafted_tokens);
      const auto accepted = static_cast<double>(after.accepted_tokens - before.accepted_tokens);
      const auto verified = static_cast<double>(after.draft_steps - before.draft_steps);
      figures.push_back({static_cast<double>(num_tokens) / seconds,
                         static_cast<double>(after.num_steps - before.num_steps) / seconds,
                         drafted > 0 ? accepted / drafted : 0, verified > 0 ? 1 + accepted / verified : 1});
    }
    return seconds;
  }

  double middle(double Figures::* field) const {
    std::vector<double> values;
    for (const Figures& one : figures) values.push_back(one.*field);
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  }
  bool is_steady() const { return static_cast<double>(num_first) <= kFewFirst * static_cast<double>(num_steps); }

  std::string name;
  std::vector<Figures> figures;               // of each repeat
  std::int64_t num_steps = 0, num_first = 0;  // of the last run; those whose shape was new
  std::int64_t num_measured_first = 0;        // of all counted runs
  std::unique_ptr<StepWatch> watch = std::make_unique<StepWatch>();

 private:
  std::unique_ptr<Engine> engine_;
};

// The mean of some logarithms and half the width of its interval of 95 %, as a ratio and a share of it.
struct Interval {
  double ratio = 1;
  double half = 0;
  double least() const { return ratio * (1 - half); }
  double most() const { return ratio * (1 + half); }
};
Interval interval_of(const std::vector<double>& ratios) {
  // Student's t by degrees of freedom.
  constexpr double kT[] = {12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14};
  const auto count = static_cast<double>(ratios.size());
  double sum = 0, squares = 0;
  for (const double ratio : ratios) sum += std::log(ratio);
  const double mean = sum / count;
  for (const double ratio : ratios) squares += (std::log(ratio) - mean) * (std::log(ratio) - mean);
  if (ratios.size() < 2) return {std::exp(mean), 1};
  const std::size_t freedom = ratios.size() - 1;
  const double t = freedom <= std::size(kT) ? kT[freedom - 1] : 2.1;
  return {std::exp(mean), std::expm1(t * std::sqrt(squares / (count - 1) / count))};
}

// Both ran in the same repeats, so a slow spell hits both.
Interval ratio(const Contestant& a, const Contestant& b) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < a.figures.size(); ++i) {
    ratios.push_back(a.figures[i].tokens_per_s / b.figures[i].tokens_per_s);
  }
  return interval_of(ratios);
}
Interval speed(const Contestant& contestant) {
  std::vector<double> speeds;
  for (const Figures& one : contestant.figures) speeds.push_back(one.tokens_per_s);
  return interval_of(speeds);
}

Result<std::vector<std::vector<TokenId>>> make_prompts(const std::string& path, const Checkpoint& checkpoint) {
  FATHOM_ASSIGN_OR_RETURN(const Tokenizer tokenizer, open_tokenizer(path));
  FATHOM_RETURN_IF_ERROR(tokenizer.check_fits_model(checkpoint.config.vocab_size));
  std::vector<std::vector<TokenId>> prompts;
  for (const bool thinking : {true, false}) {
    for (const char* task : kTasks) {
      ChatConversation chat;
      chat.messages.emplace_back().content = task;
      ChatEncodingOptions encoding;
      encoding.release = release_of_catalog(checkpoint.catalog);
      encoding.thinking = thinking;
      FATHOM_ASSIGN_OR_RETURN(const PromptText prompt, encode_chat(chat, encoding));
      prompts.push_back(tokenizer.encode(prompt));
    }
  }
  return prompts;
}

enum class Finding : std::uint8_t { kHolds, kMissed, kUnresolved };
constexpr const char* kFindings[] = {"holds", "MISSED", "not resolved"};

// Only what the whole interval says.
Finding judge(const Interval& found, double bar) {
  return found.least() >= bar ? Finding::kHolds : found.most() < bar ? Finding::kMissed : Finding::kUnresolved;
}

struct Verdict {
  std::string best;  // fixed depth
  Interval of_best;  // adaptive's speed over the best fixed depth's
  Interval of_off;   // and over that of no drafts
  Finding against_best() const { return judge(of_best, kBestBar); }
  Finding against_off() const { return judge(of_off, kOffBar); }
};

Verdict compare(const std::vector<std::unique_ptr<Contestant>>& contestants) {
  const Contestant& adaptive = *contestants.back();
  const Contestant* best = nullptr;
  for (std::size_t i = 0; i + 1 < contestants.size(); ++i) {
    const Contestant& fixed = *contestants[i];
    if (best == nullptr || ratio(fixed, *best).ratio > 1) best = &fixed;
  }
  return {best->name, ratio(adaptive, *best), ratio(adaptive, *contestants[0])};
}

// So many answers, and so long ones, that a run without drafts takes about as long as asked for.
Result<Work> plan_work(const BenchDraftOptions& options, const std::vector<std::vector<TokenId>>& prompts,
                       std::int32_t batch, const std::vector<std::unique_ptr<Contestant>>& contestants) {
  Work work{batch, kLeastAnswerTokens};
  FATHOM_RETURN_IF_ERROR(contestants[0]->run(prompts, work, false).status());  // warms up
  work.answer_tokens = kAnswerTokens;
  double seconds = 0;
  for (int time = 0; time < 2 && seconds < options.seconds; ++time) {
    FATHOM_ASSIGN_OR_RETURN(seconds, contestants[0]->run(prompts, work, false));
  }
  const double rounds = options.seconds / std::max(1e-3, seconds);
  if (rounds < 1) {
    work.answer_tokens = std::max(kLeastAnswerTokens, static_cast<std::int64_t>(kAnswerTokens * rounds));
  } else {
    work.num_answers = batch * std::min<std::int64_t>(std::lround(rounds), 200);
  }
  return work;
}

void print_parts(const Contestant& contestant) {
  const auto parts = contestant.watch->parts();
  double total_us = 0;
  for (const StepParts& part : parts) total_us += part.total_us();
  for (std::size_t kind = 0; kind < parts.size(); ++kind) {
    const StepParts& part = parts[kind];
    if (part.num_steps == 0) continue;
    const auto mean = [&part](double us) { return us / static_cast<double>(part.num_steps); };
    std::printf(
        "  %-9s %-12s %5.1f%% of time, %6lld steps, %6.1f drafts, %7.1f us: turn %.1f, schedule %.1f, prepare %.1f, "
        "forward %.1f, sample %.1f, draft %.1f, commit %.1f, answer %.1f\n",
        contestant.name.c_str(), kStepKinds[kind], 100 * part.total_us() / total_us,
        static_cast<long long>(part.num_steps), mean(part.num_drafts), mean(part.total_us()), mean(part.turn_us),
        mean(part.schedule_us), mean(part.prepare_us), mean(part.forward_us), mean(part.sample_us), mean(part.draft_us),
        mean(part.commit_us), mean(part.answer_us));
  }
}

void report(const BenchDraftOptions& options, std::int32_t batch, const Work& work,
            const std::vector<std::unique_ptr<Contestant>>& contestants, const Verdict& verdict,
            nlohmann::ordered_json& json) {
  std::printf("\nbatch %d, %lld answers of at most %lld tokens a run, %d runs\n  %-9s %9s %7s %9s %11s %12s %10s\n",
              batch, static_cast<long long>(work.num_answers), static_cast<long long>(work.answer_tokens),
              options.repeats, "depth", "tok/s", "+-", "steps/s", "acceptance", "tokens/step", "new shapes");
  for (const auto& one : contestants) {
    std::printf("  %-9s %9.0f %6.1f%% %9.0f %10.1f%% %12.2f %10lld\n", one->name.c_str(),
                one->middle(&Figures::tokens_per_s), 100 * speed(*one).half, one->middle(&Figures::steps_per_s),
                100 * one->middle(&Figures::acceptance), one->middle(&Figures::tokens_per_step),
                static_cast<long long>(one->num_measured_first));
    json["rows"].push_back({{"batch", batch},
                            {"depth", one->name},
                            {"tokens_per_s", one->middle(&Figures::tokens_per_s)},
                            {"interval", speed(*one).half},
                            {"steps_per_s", one->middle(&Figures::steps_per_s)},
                            {"acceptance", one->middle(&Figures::acceptance)},
                            {"tokens_per_step", one->middle(&Figures::tokens_per_step)},
                            {"first_use_steps", one->num_measured_first}});
  }
  if (options.parts) {
    for (const auto& one : contestants) print_parts(*one);
  }
  const char* of_best = kFindings[static_cast<std::size_t>(verdict.against_best())];
  const char* of_off = kFindings[static_cast<std::size_t>(verdict.against_off())];
  std::printf("  adaptive: %.3f +- %.3f of the best fixed depth (%s): %s; %.3f +- %.3f of off: %s\n",
              verdict.of_best.ratio, verdict.of_best.ratio * verdict.of_best.half, verdict.best.c_str(), of_best,
              verdict.of_off.ratio, verdict.of_off.ratio * verdict.of_off.half, of_off);
  std::fflush(stdout);
  json["verdicts"].push_back({{"batch", batch},
                              {"best_depth", verdict.best},
                              {"of_best", verdict.of_best.ratio},
                              {"of_best_half", verdict.of_best.half},
                              {"against_best", of_best},
                              {"of_off", verdict.of_off.ratio},
                              {"of_off_half", verdict.of_off.half},
                              {"against_off", of_off}});
}

Result<Verdict> bench_batch(const BenchDraftOptions& options, LoadedModel& loaded,
                            const std::vector<std::vector<TokenId>>& prompts, std::int32_t batch,
                            nlohmann::ordered_json& json) {
  std::vector<std::unique_ptr<Contestant>> contestants;
  for (std::int32_t depth = 0; depth <= options.most + 1; ++depth) {
    const bool adaptive = depth > options.most;
    FATHOM_ASSIGN_OR_RETURN(
        auto made, Contestant::make(loaded, batch, {adaptive ? options.most : depth, adaptive}, options.graphs));
    contestants.push_back(std::move(made));
  }
  FATHOM_ASSIGN_OR_RETURN(const Work work, plan_work(options, prompts, batch, contestants));
  // Adaptive depth learns the step times once, and each shape of a step is captured once: that is the start of an
  // engine, not its speed.
  for (auto& contestant : contestants) {
    for (int time = 0; time < options.warm_ups; ++time) {
      FATHOM_RETURN_IF_ERROR(contestant->run(prompts, work, false).status());
      if (contestant->is_steady()) break;
    }
    contestant->watch->clear();
  }
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    for (std::size_t i = 0; i < contestants.size(); ++i) {
      Contestant& next = *contestants[(i + static_cast<std::size_t>(repeat)) % contestants.size()];
      FATHOM_RETURN_IF_ERROR(next.run(prompts, work, true).status());
    }
  }
  const Verdict verdict = compare(contestants);
  report(options, batch, work, contestants, verdict, json);
  return verdict;
}

Result<bool> bench(const BenchDraftOptions& options) {
  FATHOM_ASSIGN_OR_RETURN(const std::string path, find_model(options.model.model));
  const std::int32_t largest = *std::max_element(options.batches.begin(), options.batches.end());
  LoadOptions load;
  load.device = options.model.device == "cuda" ? DeviceChoice::kCuda : DeviceChoice::kCpu;
  load.num_threads = options.model.threads;
  load.numerics = parse_numerics(options.model.numerics).value_or(Numerics::serve());
  FATHOM_ASSIGN_OR_RETURN(load.variants, parse_variants(options.model.variants));
  load.max_step_tokens = std::max<std::int64_t>(512, largest * (1 + kMaxDraft));
  load.max_logit_rows = largest * (1 + kMaxDraft);
  FATHOM_ASSIGN_OR_RETURN(LoadedModel loaded, load_model(path, load));
  FATHOM_RETURN_IF_ERROR(check_drafts("bench draft", {options.most, false}, *loaded.model));
  FATHOM_ASSIGN_OR_RETURN(const auto prompts, make_prompts(path, *loaded.checkpoint));
  nlohmann::ordered_json json;
  std::array<int, std::size(kFindings)> found{};
  for (const std::int32_t batch : options.batches) {
    FATHOM_ASSIGN_OR_RETURN(const Verdict verdict, bench_batch(options, loaded, prompts, batch, json));
    ++found[static_cast<std::size_t>(verdict.against_best())];
    ++found[static_cast<std::size_t>(verdict.against_off())];
  }
  std::printf("\nadaptive at least %.3f of the best fixed depth and %.3f of off: %d hold, %d missed, %d not resolved\n",
              kBestBar, kOffBar, found[0], found[1], found[2]);
  const bool misses = found[static_cast<std::size_t>(Finding::kMissed)] > 0;
  json["misses"] = misses;
  if (options.json) std::printf("%s\n", json.dump(2).c_str());
  return !misses;
}

}  // namespace

int run_bench_draft(const BenchDraftOptions& options) {
  const Result<bool> passed = bench(options);
  if (!passed.ok()) return report_failure("bench draft", passed.status());
  return *passed ? 0 : 1;
}

}  // namespace fathom::app
