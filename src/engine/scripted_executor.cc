#include "engine/scripted_executor.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/check.h"
#include "engine/hash.h"
#include "ops/cache_view.h"

namespace fathom {
namespace {

constexpr std::int64_t kBlock = kBlockTokens;
constexpr std::int64_t kStateRows = compressor_slots(4);
constexpr std::int64_t kResumeRows = 4;

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

double share_of(std::uint64_t hash) { return static_cast<double>(hash >> 11) * 0x1p-53; }

std::uint64_t chain_step(std::uint64_t chain, TokenId token) {
  return mix_hash(chain, static_cast<std::uint32_t>(token));
}

}  // namespace

ExecutorLimits ScriptedOptions::default_limits() {
  ExecutorLimits limits;
  limits.vocab_size = 512;
  limits.max_length_tokens = 16384;
  limits.max_rows = 1024;
  limits.max_logits_rows = 512;
  limits.max_sequences = 64;
  limits.num_context_blocks = 256;
  limits.num_window_blocks = 192;
  limits.num_state_slots = 32;
  limits.num_resume_slots = 64;
  limits.max_proposals = kMaxDraft;
  limits.weights_fingerprint = 0x5C1;
  return limits;
}

ScriptedExecutor::ScriptedExecutor(ScriptedOptions options) : options_(std::move(options)) {
  const ExecutorLimits& limits = options_.limits;
  context_rows_.resize(at(limits.num_context_blocks * kBlock));
  window_rows_.resize(at(limits.num_window_blocks * kBlock));
  state_rows_.resize(at(limits.num_state_slots * kStateRows));
  resume_rows_.resize(at(limits.num_resume_slots * kResumeRows));
  context_holders_.resize(at(limits.num_context_blocks));
  window_holders_.resize(at(limits.num_window_blocks));
  state_taken_.resize(at(limits.num_state_slots));
}

ScriptedExecutor::Row& ScriptedExecutor::context_row(const SequenceTables& tables, std::int64_t position) {
  return context_rows_[at(tables.context[at(position / kBlock)].value * kBlock + position % kBlock)];
}
ScriptedExecutor::Row& ScriptedExecutor::window_row(const SequenceTables& tables, std::int64_t position) {
  const WindowBlockId block = tables.window[at(position / kBlock - tables.first_window)];
  return window_rows_[at(block.value * kBlock + position % kBlock)];
}
ScriptedExecutor::Row& ScriptedExecutor::state_row(StateSlot slot, std::int64_t position) {
  return state_rows_[at(slot.value * kStateRows + position % kStateRows)];
}

void ScriptedExecutor::save(const ResumeCopy& copy) {
  FATHOM_CHECK(state_taken_[at(copy.state_slot.value)], "a resume point is saved from a living sequence");
  FATHOM_CHECK(copy.boundary_tokens > 0 && copy.boundary_tokens % kBlock == 0, "resume points end at full blocks");
  for (std::int64_t i = 0; i < kResumeRows; ++i) {
    resume_rows_[at(copy.resume_slot.value * kResumeRows + i)] =
        state_row(copy.state_slot, copy.boundary_tokens - kResumeRows + i);
  }
}

void ScriptedExecutor::restore(const ResumeCopy& copy) {
  FATHOM_CHECK(state_taken_[at(copy.state_slot.value)], "a resume point is restored into a living sequence");
  for (std::int64_t i = 0; i < kResumeRows; ++i) {
    state_row(copy.state_slot, copy.boundary_tokens - kResumeRows + i) =
        resume_rows_[at(copy.resume_slot.value * kResumeRows + i)];
  }
}

void ScriptedExecutor::release(SequenceId id) {
  const auto found = sequences_.find(id);
  FATHOM_CHECK(found != sequences_.end(), "only a known sequence is released");
  for (BlockId block : found->second.context) --context_holders_[at(block.value)];
  for (WindowBlockId block : found->second.window) --window_holders_[at(block.value)];
  state_taken_[at(found->second.state_slot.value)] = false;
  sequences_.erase(found);
}

void ScriptedExecutor::create(const BlockTableDelta& delta, SequenceTables& tables) {
  FATHOM_CHECK(delta.start_length >= 0 && delta.start_length % kBlock == 0, "a prefix hit ends at a full block");
  tables.state_slot = delta.state_slot;
  FATHOM_CHECK(!state_taken_[at(delta.state_slot.value)], "a state slot belongs to one sequence");
  state_taken_[at(delta.state_slot.value)] = true;
  tables.first_window = delta.first_window_block;
  tables.length = delta.start_length;
  FATHOM_CHECK(static_cast<std::int64_t>(delta.appended_context.size()) * kBlock >= delta.start_length,
               "a prefix hit brings its context blocks");
  // What the cache holds is what the sequence is, right or wrong.
  for (std::int64_t p = 0; p < delta.start_length; ++p) {
    const Row& row = context_rows_[at(delta.appended_context[at(p / kBlock)].value * kBlock + p % kBlock)];
    tables.tokens.push_back(row.token);
    tables.chains.push_back(chain_step(p == 0 ? options_.seed : tables.chains.back(), row.token));
  }
  // Slots still hold their last owner's rows: the new one must never read them.
}

void ScriptedExecutor::apply(const BlockTableDelta& delta) {
  if (delta.released) return release(delta.id);
  SequenceTables* tables = nullptr;
  if (delta.created) {
    const auto [place, added] = sequences_.try_emplace(delta.id);
    FATHOM_CHECK(added, "a sequence is created once");
    tables = &place->second;
    create(delta, *tables);
  } else {
    const auto found = sequences_.find(delta.id);
    FATHOM_CHECK(found != sequences_.end(), "only a created sequence has tables");
    tables = &found->second;
  }
  for (BlockId block : delta.appended_context) {
    FATHOM_CHECK(block.value >= 0 && block.value < options_.limits.num_context_blocks, "a block of the pool");
    ++context_holders_[at(block.value)];
    tables->context.push_back(block);
  }
  FATHOM_CHECK(delta.first_window_block >= tables->first_window, "window blocks leave in order");
  while (tables->first_window < delta.first_window_block) {
    FATHOM_CHECK(!tables->window.empty(), "a window block leaves that was there");
    --window_holders_[at(tables->window.front().value)];
    tables->window.erase(tables->window.begin());
    ++tables->first_window;
  }
  for (WindowBlockId block : delta.appended_window) {
    FATHOM_CHECK(block.value >= 0 && block.value < options_.limits.num_window_blocks, "a block of the pool");
    ++window_holders_[at(block.value)];
    tables->window.push_back(block);
  }
}

void ScriptedExecutor::check_plan(const StepPlan& plan) const {
  const ExecutorLimits& limits = options_.limits;
  std::int64_t rows = 0, logits_rows = 0, with_logits = 0;
  for (const SequenceStep& step : plan.sequences) {
    const auto found = sequences_.find(step.id);
    FATHOM_CHECK(found != sequences_.end(), "a step's sequences were created");
    const SequenceTables& tables = found->second;
    const std::int64_t end = step.start + step.num_tokens;
    FATHOM_CHECK(step.num_tokens > 0 && step.start == tables.length, "rows follow the committed ones");
    FATHOM_CHECK(end <= limits.max_length_tokens, "rows lie inside the context");
    FATHOM_CHECK(static_cast<std::int64_t>(tables.context.size()) * kBlock >= end, "context blocks cover the rows");
    FATHOM_CHECK(tables.first_window <= std::max<std::int64_t>(0, step.start - kBlock + 1) / kBlock,
                 "window blocks reach back far enough");
    FATHOM_CHECK((tables.first_window + static_cast<std::int64_t>(tables.window.size())) * kBlock >= end,
                 "window blocks cover the rows");
    for (std::int64_t block = step.start / kBlock; block <= (end - 1) / kBlock; ++block) {
      FATHOM_CHECK(context_holders_[at(tables.context[at(block)].value)] == 1, "a context block has one writer");
      FATHOM_CHECK(window_holders_[at(tables.window[at(block - tables.first_window)].value)] == 1,
                   "a window block has one writer");
    }
    FATHOM_CHECK(step.num_drafts >= 0 && step.num_drafts <= kMaxDraft && step.num_drafts < step.num_tokens,
                 "drafts follow a row");
    FATHOM_CHECK(step.num_logits >= 0 && step.num_logits <= step.num_tokens, "logits are of the step's rows");
    FATHOM_CHECK(step.num_drafts == 0 || step.num_logits == step.num_drafts + 1, "each draft is verified");
    rows += step.num_tokens;
    logits_rows += step.num_logits;
    with_logits += step.num_logits > 0 ? 1 : 0;
  }
  FATHOM_CHECK(rows <= limits.max_rows && logits_rows <= limits.max_logits_rows, "rows within the limits");
  FATHOM_CHECK(static_cast<std::int64_t>(plan.sequences.size()) <= limits.max_sequences, "sequences within the limits");
  FATHOM_CHECK(rows == static_cast<std::int64_t>(plan.tokens.size()), "one token a row");
  FATHOM_CHECK(with_logits == static_cast<std::int64_t>(plan.samples.size()), "one sample spec a sequence with logits");
}

void ScriptedExecutor::expect(SequenceTables& tables, const Row& row, std::int64_t position) {
  if (row.position == position && row.chain == tables.chains[at(position)]) return;
  ++num_mismatches_;
  tables.taint = mix_hash(tables.taint, mix_hash(row.chain, static_cast<std::uint64_t>(row.position)));
}

void ScriptedExecutor::write_row(SequenceTables& tables, std::int64_t position) {
  const Row row{position, tables.chains[at(position)], tables.tokens[at(position)]};
  context_row(tables, position) = row;
  window_row(tables, position) = row;
  state_row(tables.state_slot, position) = row;
}

// A model's row at `position` reads its window, the ratio-4 group before its own, and all of the context.
void ScriptedExecutor::read_row(SequenceTables& tables, std::int64_t position, bool whole_context) {
  for (std::int64_t p = std::max<std::int64_t>(0, position - kBlock + 1); p <= position; ++p) {
    expect(tables, window_row(tables, p), p);
  }
  for (std::int64_t p = std::max<std::int64_t>(0, position / 4 * 4 - 4); p <= position; ++p) {
    expect(tables, state_row(tables.state_slot, p), p);
  }
  if (!whole_context) return;
  for (std::int64_t p = 0; p <= position; ++p) expect(tables, context_row(tables, p), p);
}

void ScriptedExecutor::run_rows(const SequenceStep& step, std::span<const TokenId> tokens, SequenceTables& tables) {
  tables.tokens.resize(at(step.start));
  tables.chains.resize(at(step.start));
  for (std::int64_t i = 0; i < step.num_tokens; ++i) {
    FATHOM_CHECK(tokens[at(i)] >= 0 && tokens[at(i)] < options_.limits.vocab_size, "ids inside the vocabulary");
    tables.chains.push_back(chain_step(step.start + i == 0 ? options_.seed : tables.chains.back(), tokens[at(i)]));
    tables.tokens.push_back(tokens[at(i)]);
    write_row(tables, step.start + i);
    read_row(tables, step.start + i, i == 0 || i >= step.num_tokens - step.num_logits);
  }
}

void ScriptedExecutor::logits_of(std::uint64_t chain, std::span<const TokenId> context,
                                 std::vector<float>& logits) const {
  logits.resize(at(options_.limits.vocab_size));
  for (std::size_t id = 0; id < logits.size(); ++id) {
    logits[id] = static_cast<float>(share_of(mix_hash(chain, id))) * 8.0f - 4.0f;
  }
  if (options_.eos_id >= 0 && options_.eos_id < options_.limits.vocab_size) {
    const bool end = share_of(mix_hash(chain, 0xE05)) < options_.eos_share;
    logits[at(options_.eos_id)] = end ? 30.0f : -30.0f;
  }
  if (!options_.next_token) return;
  if (const std::optional<TokenId> token = options_.next_token(context)) logits[at(*token)] = 40.0f;
}

void ScriptedExecutor::logits_after(std::span<const TokenId> context, std::vector<float>& logits) const {
  std::uint64_t chain = options_.seed;
  for (TokenId token : context) chain = chain_step(chain, token);
  logits_of(chain, context, logits);
}

SequenceResult ScriptedExecutor::sample(const SequenceStep& step, const SampleSpec& spec, SequenceTables& tables) {
  SequenceResult result;
  result.id = step.id;
  const std::int64_t end = step.start + step.num_tokens;
  for (std::int32_t row = 0; row < step.num_logits; ++row) {
    const std::int64_t position = end - step.num_logits + row;
    const std::uint64_t chain = tables.chains[at(position)] ^ tables.taint;
    logits_of(chain, std::span(tables.tokens).first(at(position + 1)), logits_);
    const SampleSpec narrow = row_spec(spec, row, step.num_logits, options_.limits.vocab_size);
    result.tokens.push_back(sample_token(logits_, position + 1, narrow, workspace_));
  }
  const std::size_t first = at(step.num_logits - step.num_drafts - 1);
  while (result.accepted < step.num_drafts && result.tokens[first + at(result.accepted)].token ==
                                                  tables.tokens[at(end - step.num_drafts + result.accepted)]) {
    ++result.accepted;
  }
  propose(step, spec, tables, result);
  return result;
}

void ScriptedExecutor::propose(const SequenceStep& step, const SampleSpec& spec, const SequenceTables& tables,
                               SequenceResult& result) {
  FATHOM_CHECK(step.num_proposals <= options_.limits.max_proposals, "proposals within the limits");
  if (step.num_proposals == 0) return;
  const std::int64_t length = step.start + step.num_tokens - step.num_drafts + result.accepted;
  std::vector<TokenId> context(tables.tokens.begin(), tables.tokens.begin() + length);
  std::uint64_t chain = tables.chains[at(length - 1)];
  TokenId token = result.tokens[at(step.num_logits - step.num_drafts - 1 + result.accepted)].token;
  SampleSpec plain = spec;
  plain.allowed = {};
  plain.forced = {};
  plain.repetition_penalty = 1.0f;
  plain.frequency_penalty = plain.presence_penalty = 0.0f;
  plain.num_logprobs = -1;
  const double acceptance = options_.misdrafts && options_.misdrafts(context) ? 0.0 : options_.acceptance;
  for (std::int32_t i = 0; i < step.num_proposals && token >= 0; ++i) {
    context.push_back(token);
    chain = chain_step(chain, token);
    logits_of(chain ^ tables.taint, context, logits_);
    token = sample_token(logits_, static_cast<std::int64_t>(context.size()), plain, workspace_).token;
    if (share_of(mix_hash(chain, 0xACC)) >= acceptance) token = (token + 1) % options_.limits.vocab_size;
    result.proposals.push_back(token);
  }
}

Status ScriptedExecutor::launch(const StepPlan& plan) {
  FATHOM_CHECK(plan.step > last_step_, "steps rise");
  FATHOM_CHECK(results_.size() < 2, "one step in flight beyond the one waited for");
  last_step_ = plan.step;
  if (plan.step == options_.launch_fault_at_step) return internal_error("scripted fault at launch");
  for (const ResumeCopy& copy : plan.resume_saves) save(copy);
  bool releases_done = false;
  for (const BlockTableDelta& delta : plan.deltas) {
    FATHOM_CHECK(!(delta.released && releases_done), "releases stand first");
    releases_done = releases_done || !delta.released;
    apply(delta);
  }
  for (const ResumeCopy& copy : plan.resume_restores) restore(copy);
  check_plan(plan);

  std::vector<TokenId> tokens;
  for (const TokenRef& ref : plan.tokens) {
    FATHOM_CHECK((ref.id >= 0) != (ref.previous_row >= 0), "a token is an id or a row of the step before");
    tokens.push_back(ref.id >= 0 ? ref.id : previous_tokens_.at(at(ref.previous_row)));
  }
  StepResult result;
  result.step = plan.step;
  previous_tokens_.clear();
  std::size_t row = 0, spec = 0;
  for (const SequenceStep& step : plan.sequences) {
    SequenceTables& tables = sequences_.at(step.id);
    run_rows(step, std::span(tokens).subspan(row, at(step.num_tokens)), tables);
    row += at(step.num_tokens);
    tables.length = step.start + step.num_tokens - step.num_drafts;
    if (step.num_logits == 0) continue;
    result.sequences.push_back(sample(step, plan.samples[spec++], tables));
    for (const SampledToken& token : result.sequences.back().tokens) previous_tokens_.push_back(token.token);
  }
  std::int64_t num_proposals = 0;
  for (const SequenceResult& sequence : result.sequences) {
    num_proposals += static_cast<std::int64_t>(sequence.proposals.size());
  }
  result.draft_us = static_cast<double>(options_.proposal_us * num_proposals);
  result.device_us =
      static_cast<double>(options_.step_us + options_.row_us * static_cast<std::int64_t>(row)) + result.draft_us;
  if (plan.step == options_.wait_fault_at_step) {
    results_.push_back(internal_error("scripted fault in step " + std::to_string(plan.step)));
  } else {
    results_.push_back(std::move(result));
  }
  ++num_steps_;
  return {};
}

Result<StepResult> ScriptedExecutor::wait() {
  FATHOM_CHECK(!results_.empty(), "a step was launched");
  Result<StepResult> result = std::move(results_.front());
  results_.pop_front();
  while (result.ok() && result->step == options_.hang_at_step && !hang_released_.load()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (!result.ok()) return result;
  const auto us = static_cast<std::int64_t>(result->device_us);
  if (options_.clock != nullptr) options_.clock->advance_us(us);
  if (options_.wait_for_real) std::this_thread::sleep_for(std::chrono::microseconds(us));
  return result;
}

void ScriptedExecutor::commit(SequenceId id, std::int64_t length) {
  const auto found = sequences_.find(id);
  FATHOM_CHECK(found != sequences_.end(), "a committed sequence is known");
  SequenceTables& tables = found->second;
  FATHOM_CHECK(length >= 0 && length <= static_cast<std::int64_t>(tables.tokens.size()), "commits what was computed");
  tables.length = length;
}

}  // namespace fathom
