#include "engine/engine.h"

#include <utility>

#include "engine/engine_thread.h"

namespace fathom {

Engine::Engine(std::unique_ptr<engine_detail::EngineThread> thread) : thread_(std::move(thread)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::make(const EngineOptions& options, std::unique_ptr<Executor> executor,
                                             std::shared_ptr<const Tokenizer> tokenizer) {
  const ExecutorLimits& limits = executor->limits();
  if (limits.num_context_blocks < 1 || limits.num_window_blocks < 3 || limits.num_state_slots < 1 ||
      limits.max_rows < 2 || limits.max_logits_rows < 1 || limits.max_sequences < 1) {
    return failed_precondition(
        "the cache is too small for one sequence: found " + std::to_string(limits.num_context_blocks) +
        " context and " + std::to_string(limits.num_window_blocks) + " window blocks, " +
        std::to_string(limits.num_state_slots) + " state slots and steps of " + std::to_string(limits.max_rows) +
        " rows, expected at least 1, 3, 1 and 2; give the cache more memory");
  }
  if (tokenizer != nullptr) FATHOM_RETURN_IF_ERROR(tokenizer->check_fits_model(limits.vocab_size));
  return std::unique_ptr<Engine>(
      new Engine(std::make_unique<engine_detail::EngineThread>(options, std::move(executor), std::move(tokenizer))));
}

Result<std::unique_ptr<Stream>> Engine::submit(Request request) { return thread_->submit(std::move(request)); }
EngineStats Engine::stats() const { return thread_->stats(); }
EngineHealth Engine::health() const { return thread_->health(); }
const ExecutorLimits& Engine::limits() const { return thread_->limits(); }
const EngineOptions& Engine::options() const { return thread_->options(); }
std::int64_t Engine::now_us() const { return thread_->now_us(); }
std::vector<EngineEvent> Engine::events(std::int64_t* next) const { return thread_->events(next); }
Status Engine::start_capture(std::int32_t num_steps) { return thread_->start_capture(num_steps); }
std::vector<TracedStep> Engine::stop_capture() { return thread_->stop_capture(); }
std::int32_t Engine::num_steps_to_capture() const { return thread_->num_steps_to_capture(); }
void Engine::flush_prefix_cache() { thread_->flush_prefix_cache(); }
bool Engine::drain(std::chrono::milliseconds timeout) { return thread_->drain(timeout); }
void Engine::shutdown() { thread_->shutdown(); }

}  // namespace fathom
