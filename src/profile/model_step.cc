#include "profile/model_step.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <ctime>
#include <utility>

#include "ops/op_kind.h"
#include "profile/expert_counter.h"

namespace fathom {
namespace {

constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  return x;
}

std::uint64_t hash_floats(std::uint64_t seed, std::span<const float> values) {
  std::uint64_t hash = seed;
  for (const float value : values) hash = hash * 0x100000001b3ull ^ std::bit_cast<std::uint32_t>(value);
  return mix(hash);
}

double us_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

double cpu_time_us() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

}  // namespace

Result<std::unique_ptr<ModelStep>> ModelStep::make(Model& model, const ModelStepOptions& options) {
  if (options.batch < 1 || options.context_tokens < 1 ||
      options.context_tokens + 1 > model.config().max_position_embeddings) {
    return invalid_argument("a step of " + std::to_string(options.batch) + " sequences at context " +
                            std::to_string(options.context_tokens) + ": expected at least one sequence and 1 to " +
                            std::to_string(model.config().max_position_embeddings - 1) + " tokens");
  }
  if (options.batch > model.options().max_logit_rows || options.batch > model.options().max_tokens) {
    return invalid_argument("a batch of " + std::to_string(options.batch) +
                            " needs as many rows of logits; the model " + "was loaded for " +
                            std::to_string(model.options().max_logit_rows));
  }
  std::unique_ptr<ModelStep> step(new ModelStep(model, options));
  step->options_.chunk_tokens = std::min(options.chunk_tokens, model.options().max_tokens);
  step->window_blocks_each_ = static_cast<std::int32_t>(num_window_blocks(step->options_.chunk_tokens + kMaxDraft));
  step->context_blocks_each_ = static_cast<std::int32_t>(num_context_blocks(options.context_tokens + 1));
  ModelExecutorOptions executor;
  executor.max_length_tokens = options.context_tokens + 1;
  executor.max_sequences = options.batch;
  executor.num_state_slots = options.batch;
  executor.num_context_blocks = options.batch * step->context_blocks_each_;
  executor.num_window_blocks = options.batch * step->window_blocks_each_;
  FATHOM_ASSIGN_OR_RETURN(step->executor_, ModelExecutor::make(model, executor));
  step->executor_->segment_clock().turn(false);  // a measured step is one and the same
  step->specs_.resize(at(options.batch));
  for (std::int32_t i = 0; i < options.batch; ++i) step->specs_[at(i)].seed = static_cast<std::uint64_t>(i) + 1;
  FATHOM_RETURN_IF_ERROR(step->prefill());
  return step;
}

TokenId ModelStep::token_at(std::int32_t sequence, std::int64_t position) const {
  const std::uint64_t drawn =
      mix(static_cast<std::uint64_t>(sequence) << 32 ^ static_cast<std::uint64_t>(position + 1));
  return static_cast<TokenId>(drawn % static_cast<std::uint64_t>(model_.config().vocab_size));
}

void ModelStep::append_rows(std::int32_t sequence, std::int64_t start, std::int64_t count, std::int32_t num_logits) {
  const std::int64_t end = start + count;
  BlockTableDelta delta;
  delta.id = SequenceId(sequence + 1);
  delta.created = start == 0;
  delta.state_slot = StateSlot{sequence};
  for (std::int64_t& n = num_context_[at(sequence)]; n < num_context_blocks(end); ++n) {
    delta.appended_context.push_back(BlockId{static_cast<std::int32_t>(sequence * context_blocks_each_ + n)});
  }
  std::int64_t& first = window_begin_[at(sequence)];
  first = std::max(first, (start + 1 - kBlockTokens - kMaxDraft) / kBlockTokens);
  for (std::int64_t& n = window_end_[at(sequence)]; n * kBlockTokens < end; ++n) {
    delta.appended_window.push_back(
        WindowBlockId{static_cast<std::int32_t>(sequence * window_blocks_each_ + n % window_blocks_each_)});
  }
  delta.first_window_block = static_cast<std::int32_t>(first);
  plan_.deltas.push_back(std::move(delta));
  SequenceStep step;
  step.id = SequenceId(sequence + 1);
  step.start = start;
  step.num_tokens = static_cast<std::int32_t>(count);
  step.num_logits = num_logits;
  step.step_class = num_logits > 0 ? StepClass::kStep : StepClass::kChunk;
  plan_.sequences.push_back(step);
  for (std::int64_t p = start; p < end; ++p) plan_.tokens.push_back(TokenRef::of_id(token_at(sequence, p)));
}

// Sequence by sequence in chunks; then the plan of the step itself stands, its blocks appended by a first run.
Status ModelStep::prefill() {
  num_context_.assign(at(options_.batch), 0);
  window_begin_.assign(at(options_.batch), 0);
  window_end_.assign(at(options_.batch), 0);
  for (std::int32_t s = 0; s < options_.batch; ++s) {
    for (std::int64_t done = 0; done < options_.context_tokens;) {
      const std::int64_t count = std::min(options_.chunk_tokens, options_.context_tokens - done);
      plan_ = {};
      append_rows(s, done, count, 0);
      FATHOM_RETURN_IF_ERROR(executor_->launch(plan_));
      FATHOM_RETURN_IF_ERROR(executor_->wait().status());
      done += count;
      executor_->commit(SequenceId(s + 1), done);
    }
  }
  plan_ = {};
  for (std::int32_t s = 0; s < options_.batch; ++s) {
    append_rows(s, options_.context_tokens, 1, 1);
    plan_.samples.push_back(specs_[at(s)]);
  }
  FATHOM_RETURN_IF_ERROR(run_once().status());
  plan_.deltas.clear();
  return {};
}

Result<RepeatableStep::Run> ModelStep::run_once() {
  ++plan_.step;
  Run run;
  const double cpu_begin_us = cpu_time_us();
  const auto begin = std::chrono::steady_clock::now();
  FATHOM_RETURN_IF_ERROR(executor_->launch(plan_));
  FATHOM_ASSIGN_OR_RETURN(result_, executor_->wait());
  run.step_us = us_since(begin);
  const double cpu_us = cpu_time_us() - cpu_begin_us;
  parts_ = {result_.prepare_us, result_.forward_us, result_.sample_us, result_.draft_us, cpu_us};
  for (std::int32_t s = 0; s < options_.batch; ++s) {
    run.output_hash = hash_floats(run.output_hash, executor_->logits(s));
    const SampledToken& token = result_.sequences[at(s)].tokens.front();
    run.output_hash = mix(run.output_hash ^ static_cast<std::uint64_t>(token.token));
    executor_->commit(SequenceId(s + 1), options_.context_tokens);
  }
  executor_->reuse(std::move(result_));
  return run;
}

Result<RepeatableStep::Run> ModelStep::run(std::span<const std::string> operations, std::int32_t num_repeats) {
  auto& repeats = executor_->context().repeats;
  for (const std::string& name : operations) {
    const auto kind = parse_op_name(name);
    if (!kind) return invalid_argument("cannot repeat \"" + name + "\": not an operation");
    repeats[static_cast<std::size_t>(*kind)] = num_repeats;
  }
  Result<Run> run = run_once();
  repeats.fill(1);
  return run;
}

Result<RepeatableStep::Run> ModelStep::run_taking(Taking taking) {
  ExecutionContext& context = executor_->context();
  OpTimes* const times = context.op_times;
  if (taking == Taking::kNothing) context.op_times = nullptr;
  trace_.samples.clear();
  trace_.collect_us = 0;
  if (taking == Taking::kTrace) context.trace = &trace_;
  Result<Run> run = run_once();
  context.trace = nullptr;
  context.op_times = times;
  return run;
}

Result<double> ModelStep::count_experts() {
  ExpertCounter counter;
  executor_->context().taps = &counter;
  const Status ran = run_once().status();
  executor_->context().taps = nullptr;
  FATHOM_RETURN_IF_ERROR(ran);
  return counter.take();
}

Result<TakingCost> measure_taking(ModelStep& step, std::int32_t num_rounds) {
  TakingCost out;
  struct Times {
    double wall_us, cpu_us;
  };
  std::uint64_t hash = 0;
  const auto timed = [&](Taking taking) -> Result<Times> {
    FATHOM_ASSIGN_OR_RETURN(const RepeatableStep::Run run, step.run_taking(taking));
    if (std::exchange(hash, run.output_hash) != run.output_hash) {
      return internal_error("a step's outputs changed with what was measured beside it");
    }
    return Times{run.step_us, step.parts().cpu_us};
  };
  FATHOM_ASSIGN_OR_RETURN(const RepeatableStep::Run first, step.run_taking(Taking::kNothing));
  hash = first.output_hash;
  for (int i = 0; i < 3; ++i) FATHOM_RETURN_IF_ERROR(timed(Taking::kTrace).status());
  FATHOM_ASSIGN_OR_RETURN(Times before, timed(Taking::kNothing));
  std::vector<double> base, base_cpu, times, times_cpu, trace, trace_cpu;
  for (std::int32_t i = 0; i < num_rounds; ++i) {
    // In turn, so that neither always follows the other.
    for (const bool is_trace : {i % 2 == 0, i % 2 != 0}) {
      FATHOM_ASSIGN_OR_RETURN(const Times run, timed(is_trace ? Taking::kTrace : Taking::kTimes));
      FATHOM_ASSIGN_OR_RETURN(const Times behind, timed(Taking::kNothing));
      (is_trace ? trace : times).push_back(run.wall_us - 0.5 * (before.wall_us + behind.wall_us));
      (is_trace ? trace_cpu : times_cpu).push_back(run.cpu_us - 0.5 * (before.cpu_us + behind.cpu_us));
      base.push_back(behind.wall_us);
      base_cpu.push_back(behind.cpu_us);
      before = behind;
    }
  }
  out.base_us = median_interval(std::move(base), 0.95).us;
  out.base_cpu_us = median_interval(std::move(base_cpu), 0.95).us;
  out.times = median_interval(std::move(times), 0.95);
  out.trace = median_interval(std::move(trace), 0.95);
  out.times_cpu = median_interval(std::move(times_cpu), 0.95);
  out.trace_cpu = median_interval(std::move(trace_cpu), 0.95);
  return out;
}

Result<SegmentCost> measure_segment_times(ModelStep& step, std::int32_t num_rounds) {
  SegmentClock& clock = step.executor().segment_clock();
  std::uint64_t hash = 0;
  const auto block_us = [&](std::int64_t num_steps, bool timed) -> Result<double> {
    clock.turn(timed);
    double total_us = 0, most_us = 0;
    for (std::int64_t i = 0; i < num_steps; ++i) {
      FATHOM_ASSIGN_OR_RETURN(const RepeatableStep::Run run, step.run({}, 1));
      if (hash != 0 && hash != run.output_hash) return internal_error("a step's outputs changed with event times");
      hash = run.output_hash;
      total_us += run.step_us;
      most_us = std::max(most_us, run.step_us);
    }
    clock.turn(false);
    return num_steps == 1 ? most_us : total_us / static_cast<double>(num_steps);
  };
  SegmentCost out;
  FATHOM_RETURN_IF_ERROR(block_us(SegmentClock::kFirst - 1, true).status());
  FATHOM_ASSIGN_OR_RETURN(const double first_us, block_us(1, true));
  FATHOM_RETURN_IF_ERROR(block_us(SegmentClock::kEvery, true).status());
  FATHOM_ASSIGN_OR_RETURN(double before_us, block_us(SegmentClock::kEvery, false));
  std::vector<double> base, extra;
  for (std::int32_t round = 0; round < num_rounds; ++round) {
    FATHOM_ASSIGN_OR_RETURN(const double timed_us, block_us(SegmentClock::kEvery, true));
    FATHOM_ASSIGN_OR_RETURN(const double behind_us, block_us(SegmentClock::kEvery, false));
    extra.push_back(timed_us - 0.5 * (before_us + behind_us));
    base.push_back(behind_us);
    before_us = behind_us;
  }
  out.base_us = median_interval(std::move(base), 0.95).us;
  out.extra = median_interval(std::move(extra), 0.95);
  out.first_us = first_us - out.base_us;
  out.segments = clock.times();
  return out;
}

}  // namespace fathom
