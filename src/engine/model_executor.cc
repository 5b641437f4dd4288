#include "engine/model_executor.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "engine/filled_batch.h"

namespace fathom {
namespace {

constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// Times of a step's parts, each since the one before.
class Laps {
 public:
  double lap_us() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double, std::micro>(now - std::exchange(last_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace

ModelExecutor::ModelExecutor(Model& model, const ModelExecutorOptions& options)
    : model_(model), context_(model.make_context()), segments_(model.config().num_hidden_layers) {
  const ModelConfig& config = model.config();
  limits_.vocab_size = config.vocab_size;
  limits_.max_length_tokens = options.max_length_tokens > 0
                                  ? std::min<std::int64_t>(options.max_length_tokens, config.max_position_embeddings)
                                  : config.max_position_embeddings;
  limits_.max_rows = static_cast<std::int32_t>(model.options().max_tokens);
  limits_.max_logits_rows = static_cast<std::int32_t>(model.options().max_logit_rows);
  limits_.max_sequences = options.max_sequences;
  limits_.num_context_blocks = options.num_context_blocks;
  limits_.num_window_blocks = options.num_window_blocks;
  limits_.num_state_slots = options.num_state_slots;
  limits_.num_resume_slots = options.num_resume_slots;
  limits_.max_proposals = 0;
  limits_.classes_differ = model.backend().device().backend != BackendKind::kCpu;
  limits_.weights_fingerprint = options.weights_fingerprint;
  capture_ = options.capture && !model.backend().is_host_memory();
  // A graph holds the addresses of this executor's arrays: no other executor may replay it.
  if (model.backend().is_host_memory()) context_.op_times = &op_times_;
  static std::atomic<std::int32_t> num_executors{0};
  capture_owner_ = 3 * num_executors++;  // the trunk's, and two of the drafter
}

Result<std::unique_ptr<ModelExecutor>> ModelExecutor::make(Model& model, const ModelExecutorOptions& options) {
  std::unique_ptr<ModelExecutor> executor(new ModelExecutor(model, options));
  FATHOM_RETURN_IF_ERROR(executor->allocate_pools(options.max_proposals));
  ExecutorLimits& limits = executor->limits_;
  if (options.max_proposals > 0) {
    FATHOM_ASSIGN_OR_RETURN(executor->drafter_,
                            make_drafter(model, {limits.max_sequences, limits.num_state_slots, limits.num_resume_slots,
                                                 limits.num_window_blocks, executor->capture_,
                                                 executor->capture_owner_ + 1, &executor->segments_}));
    if (executor->drafter_ != nullptr) {
      limits.max_proposals = std::min(options.max_proposals, executor->drafter_->max_proposals());
    }
  }
  StepInputLimits input;
  input.max_tokens = limits.max_rows;
  input.max_sequences = limits.max_sequences;
  input.max_logit_rows = limits.max_logits_rows;
  // Sequences may share context blocks, so the tables can name more entries than the pool has blocks.
  input.max_context_entries = limits.max_sequences * num_context_blocks(limits.max_length_tokens);
  input.max_window_entries = limits.max_sequences * num_window_blocks(limits.max_rows + kMaxDraft);
  FATHOM_ASSIGN_OR_RETURN(executor->input_, StepInput::make(model.backend(), input));
  executor->tokens_.reserve(at(limits.max_rows));
  executor->previous_tokens_.reserve(at(limits.max_logits_rows));
  if (!model.backend().is_host_memory()) {
    FATHOM_ASSIGN_OR_RETURN(DeviceSampler sampler, DeviceSampler::make(model.backend(), limits.vocab_size,
                                                                       limits.max_logits_rows, limits.max_sequences));
    executor->sampler_ = std::move(sampler);
  }
  return executor;
}

Status ModelExecutor::allocate_pools(std::int32_t max_proposals) {
  const CacheLayout& layout = model_.cache_layout();
  Backend& backend = model_.backend();
  pools_.context_block_bytes = layout.context_block_bytes;
  pools_.window_block_bytes = layout.window_block_bytes;
  pools_.state_slot_bytes = layout.state_slot_bytes;
  // Captured steps and draft passes fill up with rows of nobody.
  const std::int64_t num_spare = max_proposals > 0 && !backend.is_host_memory() ? 1 : 0;
  fills_up_ = num_spare > 0;
  FATHOM_ASSIGN_OR_RETURN(
      context_pool_,
      backend.allocate((limits_.num_context_blocks + num_spare) * layout.context_block_bytes, "context blocks"));
  FATHOM_ASSIGN_OR_RETURN(
      window_pool_,
      backend.allocate((limits_.num_window_blocks + num_spare) * layout.window_block_bytes, "window blocks"));
  FATHOM_ASSIGN_OR_RETURN(state_pool_, backend.allocate((limits_.num_state_slots + num_spare) * layout.state_slot_bytes,
                                                        "compressor states"));
  FATHOM_ASSIGN_OR_RETURN(resume_pool_,
                          backend.allocate(limits_.num_resume_slots * layout.resume_rows_bytes, "resume points"));
  pools_.context = context_pool_.data;
  pools_.window = window_pool_.data;
  pools_.state = state_pool_.data;
  return {};
}

Status ModelExecutor::copy_resume_rows(const ResumeCopy& copy, bool save) {
  const CacheLayout& layout = model_.cache_layout();
  std::byte* state = pools_.state + copy.state_slot.value * layout.state_slot_bytes;
  std::byte* resume = resume_pool_.data + copy.resume_slot.value * layout.resume_rows_bytes;
  for (const ResumePiece& piece : layout.resume_pieces(copy.boundary_tokens)) {
    std::byte* in_state = state + piece.state_offset_bytes;
    std::byte* in_resume = resume + piece.resume_offset_bytes;
    FATHOM_RETURN_IF_ERROR(save ? model_.backend().copy(in_resume, in_state, piece.num_bytes)
                                : model_.backend().copy(in_state, in_resume, piece.num_bytes));
  }
  if (drafter_ != nullptr) return save ? drafter_->save(copy) : drafter_->restore(copy);
  return {};
}

void ModelExecutor::apply(const BlockTableDelta& delta) {
  if (delta.released) {
    FATHOM_CHECK(sequences_.erase(delta.id) == 1, "a released sequence was created");
    return;
  }
  if (delta.created) {
    const auto [entry, inserted] = sequences_.try_emplace(delta.id);
    FATHOM_CHECK(inserted, "sequence ids are never reused");
    entry->second.context.reserve(at(num_context_blocks(limits_.max_length_tokens)));
    entry->second.window.reserve(at(num_window_blocks(limits_.max_rows + kMaxDraft)));
    entry->second.state_slot = delta.state_slot.value;
    entry->second.first_window = delta.first_window_block;
    entry->second.length = delta.start_length;
    if (drafter_ != nullptr) drafter_->create(delta.state_slot);
  }
  const auto found = sequences_.find(delta.id);
  FATHOM_CHECK(found != sequences_.end(), "a changed sequence was created");
  SequenceTables& tables = found->second;
  for (const BlockId block : delta.appended_context) tables.context.push_back(block.value);
  for (const WindowBlockId block : delta.appended_window) tables.window.push_back(block.value);
  if (delta.first_window_block > tables.first_window) {
    const std::int32_t gone = delta.first_window_block - tables.first_window;
    FATHOM_CHECK(at(gone) <= tables.window.size(), "only window blocks it has can go");
    tables.window.erase(tables.window.begin(), tables.window.begin() + gone);
    tables.first_window = delta.first_window_block;
  }
}

Status ModelExecutor::fill_step(const StepPlan& plan) {
  tokens_.clear();
  for (const TokenRef& ref : plan.tokens) {
    FATHOM_CHECK((ref.id >= 0) != (ref.previous_row >= 0), "a token is an id or a row of the step before");
    FATHOM_CHECK(ref.id >= 0 || at(ref.previous_row) < previous_tokens_.size(), "the step before has that row");
    tokens_.push_back(ref.id >= 0 ? ref.id : previous_tokens_[at(ref.previous_row)]);
    FATHOM_CHECK(tokens_.back() < limits_.vocab_size, "token ids lie inside the vocabulary");
  }
  input_.clear();
  std::int32_t row = 0;
  for (const SequenceStep& step : plan.sequences) {
    const auto found = sequences_.find(step.id);
    FATHOM_CHECK(found != sequences_.end(), "a step's sequences were created");
    const SequenceTables& tables = found->second;
    FATHOM_CHECK(step.start == tables.length, "rows follow the committed ones");
    FATHOM_CHECK(step.start + step.num_tokens <= limits_.max_length_tokens, "rows lie inside the context");
    SequenceRows rows;
    rows.tokens = std::span(tokens_).subspan(at(row), at(step.num_tokens));
    rows.start = step.start;
    // Only what the rows can see: a sequence may hold more window blocks than that.
    const std::int64_t end = step.start + step.num_tokens;
    const std::int64_t first_seen = std::max<std::int64_t>(0, step.start + 1 - kBlockTokens) / kBlockTokens;
    const std::int64_t num_seen = num_context_blocks(end) - first_seen;
    FATHOM_CHECK(first_seen >= tables.first_window, "window blocks reach back far enough");
    const std::int64_t skipped = first_seen - tables.first_window;
    FATHOM_CHECK(at(skipped + num_seen) <= tables.window.size(), "window blocks cover the rows");
    FATHOM_CHECK(at(num_context_blocks(end)) <= tables.context.size(), "context blocks cover the rows");
    rows.context_table = std::span(tables.context).first(at(num_context_blocks(end)));
    rows.window_table = std::span(tables.window).subspan(at(skipped), at(num_seen));
    rows.window_first = static_cast<std::int32_t>(first_seen);
    rows.state_slot = tables.state_slot;
    input_.add(rows);
    row += step.num_tokens;
    for (std::int32_t i = step.num_logits; i > 0; --i) input_.add_logit_row(row - i);
  }
  num_empty_ = num_empty_sequences(plan);
  for (std::int32_t e = 0; e < num_empty_; ++e) add_empty_sequence(plan.sequences.front().num_tokens);
  return input_.upload();
}

// A verifying step's sequences vary in number and its depth does: steps of one depth are filled up to few batches, so
// that few graphs serve them all.
std::int32_t ModelExecutor::num_empty_sequences(const StepPlan& plan) const {
  if (!fills_up_ || !capture_) return 0;
  const std::int32_t num_drafts = plan.sequences.front().num_drafts, num_rows = 1 + num_drafts;
  const bool alike = std::all_of(plan.sequences.begin(), plan.sequences.end(), [&](const SequenceStep& step) {
    return step.step_class == StepClass::kStep && step.num_drafts == num_drafts && step.num_tokens == num_rows &&
           step.num_logits == num_rows;
  });
  if (!alike || num_drafts == 0) return 0;
  const auto batch = static_cast<std::int32_t>(plan.sequences.size());
  const std::int32_t filled = filled_batch(batch);
  const std::int32_t most =
      std::min(limits_.max_sequences, std::min(limits_.max_rows, limits_.max_logits_rows) / num_rows);
  return std::max(0, std::min(filled, most) - batch);
}

// It sees itself alone, in blocks and a state that no sequence has.
void ModelExecutor::add_empty_sequence(std::int32_t num_rows) {
  static constexpr TokenId kTokens[1 + kMaxDraft]{};
  SequenceRows rows;
  rows.tokens = std::span(kTokens).first(at(num_rows));
  rows.context_table = {&limits_.num_context_blocks, 1};
  rows.window_table = {&limits_.num_window_blocks, 1};
  rows.state_slot = limits_.num_state_slots;
  input_.add(rows);
  for (std::int32_t i = num_rows; i > 0; --i) input_.add_logit_row(input_.num_tokens() - i);
}

void ModelExecutor::sample_sequence(const SequenceStep& step, const SampleSpec& spec, std::span<const TokenId> tokens,
                                    std::int32_t first_logit_row, std::span<const SampledRow> drawn,
                                    SequenceResult& result) {
  const std::int64_t end = step.start + step.num_tokens;
  result.id = step.id;
  result.accepted = 0;
  result.proposals.clear();
  result.tokens.clear();
  for (std::int32_t i = 0; i < step.num_logits; ++i) {
    if (!drawn.empty()) {
      const SampledRow& row = drawn[at(first_logit_row + i)];
      SampledToken& token = result.tokens.emplace_back();
      token.token = row.token, token.logprob = row.logprob;
      for (std::int32_t k = 0; k < row.num_top; ++k) token.top.push_back({row.top_token[k], row.top_logprob[k]});
    } else {
      const SampleSpec narrow = row_spec(spec, i, step.num_logits, limits_.vocab_size);
      const std::int64_t position = end - step.num_logits + i;
      result.tokens.push_back(sample_token(logits(first_logit_row + i), position + 1, narrow, workspace_));
    }
    previous_tokens_.push_back(result.tokens.back().token);
  }
  const std::int32_t first = step.num_logits - step.num_drafts - 1;
  const std::span<const TokenId> drafts = tokens.last(at(step.num_drafts));
  while (result.accepted < step.num_drafts &&
         result.tokens[at(first + result.accepted)].token == drafts[at(result.accepted)]) {
    ++result.accepted;
  }
}

// Decode and verification steps launch the same kernels at any length, so a device with graphs replays them.
Result<View> ModelExecutor::forward(const StepPlan& plan, bool draw) {
  // Also false where a preempted sequence is rebuilt, whose rows are of class step but may be many.
  const bool are_short = std::all_of(plan.sequences.begin(), plan.sequences.end(),
                                     [](const SequenceStep& step) { return step.num_tokens <= kMaxDraft + 1; });
  input_.set_short_sequences(are_short);
  const auto launches = [this, draw](ExecutionContext& context) {
    const View made = model_.forward(context, input_, pools_);
    if (draw && !made.empty()) sampler_->launch(context, made);
    return made;
  };
  const bool replayable = capture_ && context_.taps == nullptr && context_.trace == nullptr &&
                          std::all_of(plan.sequences.begin(), plan.sequences.end(),
                                      [](const SequenceStep& step) { return step.step_class == StepClass::kStep; });
  if (!replayable) return launches(context_);
  const CaptureKey key{capture_owner_,
                       input_.num_tokens(),
                       static_cast<std::int32_t>(plan.sequences.size()) + num_empty_,
                       input_.num_logit_rows(),
                       draw,
                       are_short};
  context_.capture_max_position = limits_.max_length_tokens - 1;
  // Whoever profiles has asked for segments of its own.
  const SegmentTiming asked = context_.segments;
  if (asked == SegmentTiming::kNone) context_.segments = segments_.next(key);
  const Status status = model_.backend().launch_captured(
      key, context_, [&launches](ExecutionContext& context) { static_cast<void>(launches(context)); });
  context_.capture_max_position = 0;
  context_.segments = asked;
  FATHOM_RETURN_IF_ERROR(status);
  return model_.replayed(input_);
}

Status ModelExecutor::run_step(const StepPlan& plan, StepResult& result) {
  Laps laps;
  std::int64_t first_uses = model_.backend().num_first_uses();
  const auto is_first = [&] { return std::exchange(first_uses, model_.backend().num_first_uses()) != first_uses; };
  FATHOM_RETURN_IF_ERROR(fill_step(plan));
  bool draw = false;
  if (sampler_) {
    FATHOM_ASSIGN_OR_RETURN(draw, sampler_->fill(plan, num_empty_ * plan.sequences.front().num_logits));
  }
  result.prepare_us = laps.lap_us();
  FATHOM_ASSIGN_OR_RETURN(device_logits_, forward(plan, draw));
  ++num_forwards_;
  logits_ = nullptr;
  std::span<const SampledRow> drawn;
  if (device_logits_.empty()) {
    FATHOM_RETURN_IF_ERROR(model_.backend().finish());
  } else if (draw) {
    FATHOM_ASSIGN_OR_RETURN(drawn, sampler_->take());  // the step's one wait
  } else {
    FATHOM_RETURN_IF_ERROR(fetch_logits());
  }
  segments_.read(model_.backend());
  result.forward_us = laps.lap_us();
  result.is_first_forward = is_first();

  previous_tokens_.clear();
  drafted_.clear();
  std::size_t num_with_logits = 0;
  std::int32_t row = 0, logit_row = 0;
  for (const SequenceStep& step : plan.sequences) {
    const std::span<const TokenId> tokens = std::span(tokens_).subspan(at(row), at(step.num_tokens));
    row += step.num_tokens;
    SequenceTables& tables = sequences_.find(step.id)->second;
    tables.length = step.start + step.num_tokens - step.num_drafts;
    drafted_.push_back({&step, nullptr, nullptr, tokens, row - step.num_tokens, StateSlot(tables.state_slot),
                        tables.window, tables.first_window});
    if (step.num_logits == 0) continue;
    if (num_with_logits == result.sequences.size()) result.sequences.emplace_back();
    sample_sequence(step, plan.samples[num_with_logits], tokens, logit_row, drawn, result.sequences[num_with_logits]);
    ++num_with_logits;
    logit_row += step.num_logits;
  }
  result.sequences.resize(num_with_logits);
  result.sample_us = laps.lap_us();
  if (drafter_ == nullptr) return {};
  const Status drafted = draft(plan, result);
  result.draft_us = laps.lap_us();
  result.is_first_draft = is_first();
  return drafted;
}

Status ModelExecutor::draft(const StepPlan& plan, StepResult& result) {
  std::size_t next = 0;
  for (DraftedSequence& sequence : drafted_) {
    if (sequence.step->num_logits == 0) continue;
    sequence.spec = &plan.samples[next];
    sequence.result = &result.sequences[next++];
    sequence.result->proposals.clear();
  }
  if (plan.drafter_feed != DrafterFeed::kRows && drafter_->may_rest()) {
    return plan.drafter_feed == DrafterFeed::kNothing ? Status() : drafter_->keep(context_, drafted_);
  }
  return drafter_->run(context_, input_, pools_, drafted_);
}

void ModelExecutor::set_trace(StepTrace* trace) {
  const bool wanted = trace != nullptr && tracer_ != nullptr;
  if (wanted && !is_device_traced_) {
    if (const Status started = tracer_->start(); started.ok()) {
      is_device_traced_ = true;
      has_dropped_ = false;
    } else {
      log_warning("captures see the host alone, and steps launched without graphs: " + started.message());
      tracer_.reset();
    }
  } else if (!wanted && is_device_traced_) {
    tracer_->stop();
    is_device_traced_ = false;
  }
  context_.trace = is_device_traced_ ? nullptr : trace;
  context_.observer = is_device_traced_ ? tracer_->observer() : nullptr;
  model_.backend().log_replays(is_device_traced_ ? &replayed_ : nullptr);
}

void ModelExecutor::add_device_samples(TracedStep& step) {
  if (!is_device_traced_) return;
  step.on_device = true;
  Result<std::vector<DeviceSample>> samples = tracer_->end_step(replayed_);
  if (samples.ok()) {
    step.device = std::move(*samples);
    return;
  }
  step.device_fault = samples.status().message();
  // Graphs that were made before the records began may be told apart no more: once, they are made anew.
  if (!std::exchange(has_dropped_, true)) model_.backend().drop_captured();
}

Status ModelExecutor::launch(const StepPlan& plan) {
  FATHOM_CHECK(num_results_ < 2, "at most one step beyond the one being waited for");
  if (is_device_traced_) {
    replayed_.clear();
    tracer_->begin_step();
  }
  const auto begin = std::chrono::steady_clock::now();
  if (context_.trace != nullptr) context_.trace->origin = begin;
  for (const ResumeCopy& copy : plan.resume_saves) FATHOM_RETURN_IF_ERROR(copy_resume_rows(copy, true));
  for (const BlockTableDelta& delta : plan.deltas) apply(delta);
  for (const ResumeCopy& copy : plan.resume_restores) FATHOM_RETURN_IF_ERROR(copy_resume_rows(copy, false));

  StepResult result = std::move(spare_);
  spare_ = {};
  result.step = plan.step;
  result.prepare_us = result.forward_us = result.sample_us = result.draft_us = 0;
  result.is_first_forward = result.is_first_draft = false;
  if (plan.sequences.empty()) {
    result.sequences.clear();
    previous_tokens_.clear();
  } else {
    FATHOM_RETURN_IF_ERROR(run_step(plan, result));
  }
  const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
  result.device_us = time.count();
  results_[num_results_++] = std::move(result);
  return {};
}

Result<StepResult> ModelExecutor::wait() {
  FATHOM_CHECK(num_results_ > 0, "a launched step is waited for");
  StepResult oldest = std::move(results_[0]);
  if (--num_results_ > 0) results_[0] = std::move(results_[1]);
  return oldest;
}

void ModelExecutor::commit(SequenceId id, std::int64_t length) {
  const auto found = sequences_.find(id);
  FATHOM_CHECK(found != sequences_.end(), "a committed sequence was created");
  found->second.length = length;
}

Status ModelExecutor::fetch_logits() {
  if (model_.backend().is_host_memory()) {
    logits_ = device_logits_.as<float>();
    return model_.backend().finish();
  }
  host_logits_.resize(at(device_logits_.shape.num_elements()));
  FATHOM_RETURN_IF_ERROR(model_.backend().download(reinterpret_cast<std::byte*>(host_logits_.data()),
                                                   device_logits_.data, device_logits_.num_bytes()));
  logits_ = host_logits_.data();
  return {};
}

std::span<const float> ModelExecutor::logits(std::int32_t row) {
  if (logits_ == nullptr && !device_logits_.empty()) {
    const Status fetched = fetch_logits();
    if (!fetched.ok()) log_error("the step's logits cannot be fetched: " + fetched.message());
  }
  FATHOM_CHECK(logits_ != nullptr && row < input_.num_logit_rows(), "the last step has that row of logits");
  return {logits_ + std::int64_t{row} * limits_.vocab_size, at(limits_.vocab_size)};
}

}  // namespace fathom
