#include "profile/synthetic_load.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <unordered_map>
#include <utility>

#include "engine/model_executor.h"
#include "profile/expert_counter.h"

namespace fathom {
namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(5);  // a stream holds more steps than that
constexpr auto kPatience = std::chrono::minutes(30);

Result<std::unique_ptr<ModelExecutor>> make_executor(Model& model, const SyntheticLoadOptions& options) {
  ModelExecutorOptions pools;
  const std::int64_t longest = options.context_tokens + options.num_warmup + options.num_steps;
  // The first sequences decode while the last are prefilled.
  const std::int64_t early = options.batch * (ceil_div(options.context_tokens, std::int64_t{64}) + 2);
  pools.max_length_tokens = std::min<std::int64_t>(longest * (1 + options.num_drafts) + early + kBlockTokens,
                                                   model.config().max_position_embeddings);
  pools.max_sequences = pools.num_state_slots = options.batch;
  pools.num_resume_slots = 2 * options.batch;
  pools.num_context_blocks = static_cast<std::int32_t>(2 * options.batch * num_context_blocks(pools.max_length_tokens));
  pools.num_window_blocks =
      static_cast<std::int32_t>(options.batch * num_window_blocks(1 + kMaxDraft) +
                                num_window_blocks(options.chunk_tokens) + options.batch + pools.num_resume_slots);
  pools.max_proposals = options.num_drafts;
  return ModelExecutor::make(model, pools);
}

bool is_full_decode(const StepTrace& trace, std::int32_t batch) {
  return trace.num_sequences == batch && trace.num_tokens == batch + trace.num_drafts;
}

class Load {
 public:
  Load(const SyntheticLoadOptions& options, std::int32_t vocab_size) : options_(options) {
    std::mt19937_64 random(options.seed);
    prompts_.resize(static_cast<std::size_t>(options.batch));
    for (std::vector<TokenId>& prompt : prompts_) {
      prompt.resize(static_cast<std::size_t>(options.context_tokens));
      for (TokenId& token : prompt) token = static_cast<TokenId>(random() % static_cast<std::uint64_t>(vocab_size));
    }
  }

  Status start(Model& model, std::shared_ptr<const Tokenizer> tokenizer) {
    FATHOM_ASSIGN_OR_RETURN(auto executor, make_executor(model, options_));
    executor->context().taps = &experts_;
    EngineOptions engine;
    engine.prefill_chunk_tokens = engine.prefill_chunk_shared_tokens = engine.prefill_chunk_alone_tokens =
        static_cast<std::int32_t>(options_.chunk_tokens);
    engine.max_running = options_.batch;
    engine.num_drafts = options_.num_drafts;
    engine.seed = options_.seed;
    engine.on_step = [this](const StepTrace& trace) {
      const double hit = experts_.take();
      if (begun_.load()) experts_hit_[trace.step] = hit;
      if (!armed_.load() || !is_full_decode(trace, options_.batch)) return;
      armed_.store(false);
      started_ = engine_->start_capture(options_.num_warmup + options_.num_steps);
      begun_.store(true);
    };
    FATHOM_ASSIGN_OR_RETURN(engine_, Engine::make(engine, std::move(executor), std::move(tokenizer)));
    return {};
  }

  Result<std::vector<TimelineStep>> run() {
    begun_.store(false);
    experts_hit_.clear();  // the engine is idle
    armed_.store(true);
    std::vector<std::unique_ptr<Stream>> streams;
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
      Request request;
      request.prompt = prompts_[i];
      request.sampling.seed = options_.seed * 1000 + i;
      request.ignore_eos = true;
      FATHOM_ASSIGN_OR_RETURN(auto stream, engine_->submit(std::move(request)));
      streams.push_back(std::move(stream));
    }
    const auto begin = std::chrono::steady_clock::now();
    while (!begun_.load() || engine_->num_steps_to_capture() > 0) {
      for (const auto& stream : streams) {
        for (const Delta& delta : stream->take()) {
          if (delta.finish) return ended_early(*delta.finish);
        }
      }
      if (const EngineHealth health = engine_->health(); !health.ok) return unavailable(health.reason);
      if (std::chrono::steady_clock::now() - begin > kPatience) {
        return unavailable("the synthetic load did not reach " + std::to_string(options_.num_steps) +
                           " steps of the full batch in 30 minutes; lower --context, --batch or --steps");
      }
      std::this_thread::sleep_for(kPollInterval);
    }
    FATHOM_RETURN_IF_ERROR(started_);
    const std::vector<TracedStep> traces = engine_->stop_capture();
    streams.clear();
    while (engine_->stats().num_running > 0) std::this_thread::sleep_for(kPollInterval);

    std::vector<TimelineStep> steps;
    for (std::size_t i = static_cast<std::size_t>(options_.num_warmup); i < traces.size(); ++i) {
      if (!is_full_decode(traces[i], options_.batch)) continue;
      steps.push_back(step_of_trace(traces[i]));
      steps.back().experts_hit = experts_hit_[traces[i].step];
    }
    if (std::cmp_less(steps.size(), options_.num_steps)) {
      return internal_error("the synthetic load: found " + std::to_string(steps.size()) +
                            " steps of the full batch, expected " + std::to_string(options_.num_steps));
    }
    return steps;
  }

 private:
  Status ended_early(const Finish& finish) const {
    return failed_precondition("the synthetic load: a request ended (" +
                               std::string(finish_reason_name(finish.reason)) +
                               ") before all steps were measured; lower --context or --steps");
  }

  const SyntheticLoadOptions options_;
  std::vector<std::vector<TokenId>> prompts_;
  // The engine's thread alone writes both while it has requests.
  ExpertCounter experts_;
  std::unordered_map<std::int64_t, double> experts_hit_;  // by step
  std::unique_ptr<Engine> engine_;
  Status started_;  // written before begun_
  std::atomic<bool> armed_{false}, begun_{false};
};

}  // namespace

Result<std::vector<std::vector<TimelineStep>>> run_synthetic_load(Model& model,
                                                                  std::shared_ptr<const Tokenizer> tokenizer,
                                                                  const SyntheticLoadOptions& options) {
  if (options.context_tokens + options.num_warmup + options.num_steps > model.config().max_position_embeddings) {
    return invalid_argument("--context " + std::to_string(options.context_tokens) + " with " +
                            std::to_string(options.num_warmup + options.num_steps) +
                            " steps: the model takes at most " +
                            std::to_string(model.config().max_position_embeddings) + " tokens");
  }
  Load load(options, model.config().vocab_size);
  FATHOM_RETURN_IF_ERROR(load.start(model, std::move(tokenizer)));
  std::vector<std::vector<TimelineStep>> repeats;
  for (std::int32_t r = 0; r < options.num_repeats; ++r) {
    FATHOM_ASSIGN_OR_RETURN(auto steps, load.run());
    repeats.push_back(std::move(steps));
  }
  return repeats;
}

}  // namespace fathom
