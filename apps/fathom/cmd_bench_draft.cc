// `fathom bench draft`: decoding through the engine by batch and draft depth, and adaptive depth against the fixed
// ones.
//
// Each depth has an engine of its own over the same model. A run answers the model's own kind of tasks, greedily, with
// `batch` sequences at once; every run has the same ones. The runs of a repeat go by turns (draft_race.h).
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "commands.h"
#include "draft_choice.h"
#include "draft_race.h"
#include "engine/load_model.h"
#include "model/release_of_checkpoint.h"
#include "opened_model.h"
#include "standard_streams.h"
#include "text/chat_encoding.h"

namespace fathom::app {
namespace {

using Racers = std::vector<std::unique_ptr<DraftRacer>>;
using Prompts = std::vector<std::vector<TokenId>>;

constexpr std::int64_t kAnswerTokens = 160;
constexpr std::int64_t kLeastAnswerTokens = 24;
constexpr double kBestBar = 0.97;  // of the best fixed depth's speed
constexpr double kOffBar = 0.996;  // of the speed without drafts: what is left is the share of time for trying out
// A fixed depth whose speed stays under this share of the best one's runs no more once it has run so often.
constexpr double kBeatenBar = 0.9;
constexpr int kBeatenRuns = 3;
constexpr std::int64_t kLearningSteps =
    300;  // of adaptive depth before it is measured: what starting may cost is spent

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

Result<Prompts> make_prompts(const std::string& path, const Checkpoint& checkpoint) {
  FATHOM_ASSIGN_OR_RETURN(const Tokenizer tokenizer, open_tokenizer(path));
  FATHOM_RETURN_IF_ERROR(tokenizer.check_fits_model(checkpoint.config.vocab_size));
  Prompts prompts;
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
Finding judge(const RatioInterval& found, double bar) {
  return found.least >= bar ? Finding::kHolds : found.most < bar ? Finding::kMissed : Finding::kUnresolved;
}

struct Verdict {
  std::string best;       // fixed depth
  RatioInterval of_best;  // adaptive's speed over the best fixed depth's
  RatioInterval of_off;   // and over that of no drafts
  Finding against_best() const { return judge(of_best, kBestBar); }
  Finding against_off() const { return judge(of_off, kOffBar); }
};

const DraftRacer& best_fixed(const Racers& racers) {
  const DraftRacer* best = racers[0].get();
  for (std::size_t i = 1; i + 1 < racers.size(); ++i) {
    if (ratio_of(*racers[i], *best).ratio > 1) best = racers[i].get();
  }
  return *best;
}

Verdict compare(const Racers& racers) {
  const DraftRacer& best = best_fixed(racers);
  return {best.name(), ratio_of(*racers.back(), best), ratio_of(*racers.back(), *racers[0])};
}

// So many answers, and so long ones, that a run without drafts takes about as long as asked for.
Result<DraftWork> plan_work(const BenchDraftOptions& options, const Prompts& prompts, std::int32_t batch,
                            const Racers& racers) {
  DraftRacer* const off = racers[0].get();
  DraftWork work{batch, kLeastAnswerTokens};
  FATHOM_RETURN_IF_ERROR(race({&off, 1}, 0, prompts, work, false));  // warms up
  work.answer_tokens = kAnswerTokens;
  double seconds = 0;
  for (int time = 0; time < 2 && seconds < options.seconds; ++time) {
    FATHOM_RETURN_IF_ERROR(race({&off, 1}, 0, prompts, work, false));
    seconds = off->run_seconds();
  }
  const double rounds = options.seconds / std::max(1e-3, seconds);
  if (rounds < 1) {
    work.answer_tokens = std::max(kLeastAnswerTokens, static_cast<std::int64_t>(kAnswerTokens * rounds));
  } else {
    work.num_answers = batch * std::min<std::int64_t>(std::lround(rounds), 200);
  }
  return work;
}

void print_parts(const DraftRacer& racer) {
  const auto parts = racer.gate().parts();
  double total_us = 0;
  for (const StepParts& part : parts) total_us += part.total_us();
  for (std::size_t kind = 0; kind < parts.size(); ++kind) {
    const StepParts& part = parts[kind];
    if (part.num_steps == 0) continue;
    const auto mean = [&part](double us) { return us / static_cast<double>(part.num_steps); };
    std::printf(
        "  %-9s %-12s %5.1f%% of time, %6lld steps, %6.1f drafts, %7.1f us: turn %.1f, schedule %.1f, prepare %.1f, "
        "forward %.1f, sample %.1f, draft %.1f, commit %.1f, answer %.1f\n",
        racer.name().c_str(), kStepKinds[kind], 100 * part.total_us() / total_us,
        static_cast<long long>(part.num_steps), mean(part.num_drafts), mean(part.total_us()), mean(part.turn_us),
        mean(part.schedule_us), mean(part.prepare_us), mean(part.forward_us), mean(part.sample_us), mean(part.draft_us),
        mean(part.commit_us), mean(part.answer_us));
  }
}

void report(const BenchDraftOptions& options, std::int32_t batch, const DraftWork& work, const Racers& racers,
            const Verdict& verdict, nlohmann::ordered_json& json) {
  std::printf("\nbatch %d, %lld answers of at most %lld tokens a run\n  %-9s %5s %9s %9s %11s %12s %10s\n", batch,
              static_cast<long long>(work.num_answers), static_cast<long long>(work.answer_tokens), "depth", "runs",
              "tok/s", "steps/s", "acceptance", "tokens/step", "new shapes");
  for (const auto& one : racers) {
    std::printf("  %-9s %5zu %9.0f %9.0f %10.1f%% %12.2f %10lld\n", one->name().c_str(), one->figures().size(),
                one->middle(&DraftRunFigures::tokens_per_s), one->middle(&DraftRunFigures::steps_per_s),
                100 * one->middle(&DraftRunFigures::acceptance), one->middle(&DraftRunFigures::tokens_per_step),
                static_cast<long long>(one->num_measured_first()));
    json["rows"].push_back({{"batch", batch},
                            {"depth", one->name()},
                            {"runs", one->figures().size()},
                            {"tokens_per_s", one->middle(&DraftRunFigures::tokens_per_s)},
                            {"steps_per_s", one->middle(&DraftRunFigures::steps_per_s)},
                            {"acceptance", one->middle(&DraftRunFigures::acceptance)},
                            {"tokens_per_step", one->middle(&DraftRunFigures::tokens_per_step)},
                            {"first_use_steps", one->num_measured_first()}});
  }
  if (options.parts) {
    for (const auto& one : racers) print_parts(*one);
  }
  const char* of_best = kFindings[static_cast<std::size_t>(verdict.against_best())];
  const char* of_off = kFindings[static_cast<std::size_t>(verdict.against_off())];
  std::printf("  adaptive: %.3f (%.3f to %.3f) of the best fixed depth (%s): %s; %.3f (%.3f to %.3f) of off: %s\n",
              verdict.of_best.ratio, verdict.of_best.least, std::min(9.999, verdict.of_best.most), verdict.best.c_str(),
              of_best, verdict.of_off.ratio, verdict.of_off.least, std::min(9.999, verdict.of_off.most), of_off);
  std::fflush(stdout);
  json["verdicts"].push_back({{"batch", batch},
                              {"best_depth", verdict.best},
                              {"of_best", verdict.of_best.ratio},
                              {"of_best_least", verdict.of_best.least},
                              {"of_best_most", verdict.of_best.most},
                              {"against_best", of_best},
                              {"of_off", verdict.of_off.ratio},
                              {"of_off_least", verdict.of_off.least},
                              {"of_off_most", verdict.of_off.most},
                              {"against_off", of_off}});
}

// Adaptive depth learns the step times once, and each shape of a step is captured once: that is the start of an
// engine, not its speed.
Status warm_up(const BenchDraftOptions& options, const Prompts& prompts, const DraftWork& work, const Racers& racers) {
  for (int time = 0; time < options.warm_ups; ++time) {
    std::vector<DraftRacer*> cold;
    for (const auto& racer : racers) {
      const bool learns = racer == racers.back();
      if (time == 0 || !racer->is_steady() || (learns && racer->num_steps() < kLearningSteps))
        cold.push_back(racer.get());
    }
    if (cold.empty()) break;
    FATHOM_RETURN_IF_ERROR(race(cold, 0, prompts, work, false));
  }
  for (const auto& racer : racers) racer->clear_parts();
  return {};
}

Result<Verdict> bench_batch(const BenchDraftOptions& options, LoadedModel& loaded, const Prompts& prompts,
                            std::int32_t batch, nlohmann::ordered_json& json) {
  Racers racers;
  for (std::int32_t depth = 0; depth <= options.most + 1; ++depth) {
    const bool adaptive = depth > options.most;
    FATHOM_ASSIGN_OR_RETURN(
        auto made, DraftRacer::make(loaded, batch, {adaptive ? options.most : depth, adaptive}, options.graphs));
    racers.push_back(std::move(made));
  }
  FATHOM_ASSIGN_OR_RETURN(const DraftWork work, plan_work(options, prompts, batch, racers));
  FATHOM_RETURN_IF_ERROR(warm_up(options, prompts, work, racers));
  std::vector<DraftRacer*> running;
  for (const auto& racer : racers) running.push_back(racer.get());
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    FATHOM_RETURN_IF_ERROR(race(running, static_cast<std::size_t>(repeat), prompts, work, true));
    if (repeat + 1 != kBeatenRuns) continue;
    const DraftRacer& best = best_fixed(racers);
    std::erase_if(running, [&](DraftRacer* racer) {
      return racer != racers[0].get() && racer != racers.back().get() && ratio_of(*racer, best).ratio < kBeatenBar;
    });
  }
  const Verdict verdict = compare(racers);
  report(options, batch, work, racers, verdict, json);
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
