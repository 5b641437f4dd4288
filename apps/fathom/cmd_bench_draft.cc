// `fathom bench draft`: decoding through the engine by batch and draft depth, and adaptive depth against the fixed
// ones.
//
// Each depth has an engine of its own over the same model; runs go by turns, so that what disturbs the machine disturbs
// all alike. A run answers the model's own kind of tasks, greedily, with `batch` sequences at once.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
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
constexpr double kBestBar = 0.97;  // of the best fixed depth's speed

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
    FATHOM_ASSIGN_OR_RETURN(made->engine_, Engine::make(options, std::move(executor), nullptr));
    return made;
  }

  // Answers `count` requests and keeps the figures where `counts`. Returns the seconds it took.
  Result<double> run(const std::vector<std::vector<TokenId>>& prompts, std::int64_t count, bool counts) {
    const EngineStats before = engine_->stats();
    const auto begin = Clock::now();
    std::vector<std::unique_ptr<Stream>> streams;
    for (std::int64_t i = 0; i < count; ++i) {
      Request request;
      request.prompt = prompts[static_cast<std::size_t>(i) % prompts.size()];
      request.sampling.temperature = 0.0f;
      request.max_tokens = kAnswerTokens;
      FATHOM_ASSIGN_OR_RETURN(auto stream, engine_->submit(std::move(request)));
      streams.push_back(std::move(stream));
    }
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
    if (counts) {
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
  // Of the speed, largest minus smallest over the middle.
  double spread() const {
    const auto [least, most] =
        std::minmax_element(figures.begin(), figures.end(),
                            [](const Figures& a, const Figures& b) { return a.tokens_per_s < b.tokens_per_s; });
    return (most->tokens_per_s - least->tokens_per_s) / middle(&Figures::tokens_per_s);
  }

  std::string name;
  std::vector<Figures> figures;  // of each repeat

 private:
  std::unique_ptr<Engine> engine_;
};

// The middle of the repeats' ratios: both ran in the same repeat, so a slow spell hits both.
double ratio(const Contestant& a, const Contestant& b) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < a.figures.size(); ++i) {
    ratios.push_back(a.figures[i].tokens_per_s / b.figures[i].tokens_per_s);
  }
  std::sort(ratios.begin(), ratios.end());
  return ratios[ratios.size() / 2];
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

struct Verdict {
  std::string best;    // fixed depth
  double of_best = 0;  // adaptive's speed over the best fixed depth's
  double of_off = 0;   // and over that of no drafts
  double off_spread = 0;
  bool holds() const { return of_best >= kBestBar && of_off >= 1.0 - std::min(off_spread, 0.01); }
};

Verdict judge(const std::vector<std::unique_ptr<Contestant>>& contestants) {
  const Contestant& adaptive = *contestants.back();
  const Contestant* best = nullptr;
  for (std::size_t i = 0; i + 1 < contestants.size(); ++i) {
    const Contestant& fixed = *contestants[i];
    if (best == nullptr || fixed.middle(&Figures::tokens_per_s) > best->middle(&Figures::tokens_per_s)) best = &fixed;
  }
  return {best->name, ratio(adaptive, *best), ratio(adaptive, *contestants[0]), contestants[0]->spread()};
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
  // How many requests fill a run; at the same time the first warms up.
  FATHOM_ASSIGN_OR_RETURN(const double seconds, contestants[0]->run(prompts, 2 * batch, false));
  const auto rounds = static_cast<std::int64_t>(options.seconds / std::max(1e-3, seconds / 2));
  const std::int64_t count = batch * std::clamp<std::int64_t>(rounds, 2, 200);
  // Adaptive depth learns the step times once; that is its start, not its speed.
  for (auto& contestant : contestants) FATHOM_RETURN_IF_ERROR(contestant->run(prompts, count, false).status());
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    for (std::size_t i = 0; i < contestants.size(); ++i) {
      Contestant& next = *contestants[(i + static_cast<std::size_t>(repeat)) % contestants.size()];
      FATHOM_RETURN_IF_ERROR(next.run(prompts, count, true).status());
    }
  }
  std::printf("\nbatch %d, %lld answers a run\n  %-9s %9s %8s %9s %11s %12s\n", batch, static_cast<long long>(count),
              "depth", "tok/s", "spread", "steps/s", "acceptance", "tokens/step");
  for (const auto& one : contestants) {
    std::printf("  %-9s %9.0f %7.1f%% %9.0f %10.1f%% %12.2f\n", one->name.c_str(), one->middle(&Figures::tokens_per_s),
                100 * one->spread(), one->middle(&Figures::steps_per_s), 100 * one->middle(&Figures::acceptance),
                one->middle(&Figures::tokens_per_step));
    json["rows"].push_back({{"batch", batch},
                            {"depth", one->name},
                            {"tokens_per_s", one->middle(&Figures::tokens_per_s)},
                            {"spread", one->spread()},
                            {"steps_per_s", one->middle(&Figures::steps_per_s)},
                            {"acceptance", one->middle(&Figures::acceptance)},
                            {"tokens_per_step", one->middle(&Figures::tokens_per_step)}});
  }
  const Verdict verdict = judge(contestants);
  std::printf("  adaptive: %.3f of the best fixed depth (%s), %.3f of off: %s\n", verdict.of_best, verdict.best.c_str(),
              verdict.of_off, verdict.holds() ? "holds" : "MISSED");
  std::fflush(stdout);
  json["verdicts"].push_back({{"batch", batch},
                              {"best_depth", verdict.best},
                              {"of_best", verdict.of_best},
                              {"of_off", verdict.of_off},
                              {"holds", verdict.holds()}});
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
  bool holds = true;
  for (const std::int32_t batch : options.batches) {
    FATHOM_ASSIGN_OR_RETURN(const Verdict verdict, bench_batch(options, loaded, prompts, batch, json));
    holds = holds && verdict.holds();
  }
  std::printf("\nadaptive within 3 %% of the best fixed depth and not slower than off: %s\n", holds ? "yes" : "NO");
  json["holds"] = holds;
  if (options.json) std::printf("%s\n", json.dump(2).c_str());
  return holds;
}

}  // namespace

int run_bench_draft(const BenchDraftOptions& options) {
  const Result<bool> holds = bench(options);
  if (!holds.ok()) return report_failure("bench draft", holds.status());
  return *holds ? 0 : 1;
}

}  // namespace fathom::app
