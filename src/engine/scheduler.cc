#include "engine/scheduler.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/units.h"
#include "engine/scheduler_log.h"
#include "engine/scheduler_sequence.h"
#include "ops/cache_view.h"

namespace fathom {
namespace {

constexpr std::int64_t kBlock = kBlockTokens;
constexpr std::int64_t kResumeEveryBlocks = 16;

SchedulerOptions within(SchedulerOptions options, const ExecutorLimits& limits) {
  // A decoding sequence needs a row with logits and three window blocks at most, and one row is left for a prefill:
  // so every running sequence can take part in every step, whatever the others do.
  options.max_running =
      std::max(1, std::min({options.max_running, limits.num_state_slots, limits.max_sequences, limits.max_logits_rows,
                            limits.max_rows - 1, limits.num_window_blocks / 3}));
  return options;
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options, const ExecutorLimits& limits)
    : options_(within(options, limits)),
      limits_(limits),
      max_sequence_tokens_(std::min(limits.max_length_tokens, limits.num_context_blocks * kBlock)),
      context_pool_(limits.num_context_blocks),
      window_pool_(limits.num_window_blocks),
      prefix_cache_(context_pool_, window_pool_, limits.num_resume_slots, limits.weights_fingerprint) {
  FATHOM_CHECK(limits.num_window_blocks >= 3 && limits.num_context_blocks >= 1 && limits.num_state_slots >= 1,
               "the pools hold one sequence");
  for (std::int32_t i = limits.num_state_slots; i-- > 0;) free_state_slots_.push_back(StateSlot(i));
}

Scheduler::~Scheduler() = default;

Scheduler::Sequence& Scheduler::get(SequenceId id) {
  const auto found = sequences_.find(id);
  FATHOM_CHECK(found != sequences_.end(), "a living sequence");
  return *found->second;
}

const SequenceState* Scheduler::find(SequenceId id) const {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? nullptr : found->second.get();
}

void Scheduler::remember(EventKind kind, const Sequence& sequence, std::int32_t num_tokens) {
  events_.push_back({kind, 0, plan_.step, sequence.spec.id, sequence.length, num_tokens});
}

std::vector<EngineEvent> Scheduler::take_events() {
  std::vector<EngineEvent> taken;
  taken.swap(events_);
  return taken;
}

void Scheduler::add(SequenceSpec spec) {
  const auto num_prompt = static_cast<std::int64_t>(spec.prompt.size());
  FATHOM_CHECK(num_prompt > 0 && num_prompt < max_sequence_tokens_, "a prompt that fits, with room for a token");
  if (log_ != nullptr) log_->add(spec);
  auto sequence = std::make_unique<Sequence>();
  sequence->tokens = std::move(spec.prompt);
  sequence->spec = std::move(spec);
  sequence->spec.prompt.clear();
  sequence->num_prompt = sequence->num_known = num_prompt;
  sequence->arrival = num_arrivals_++;
  sequence->arrival_step = plan_.step;
  const auto [key, is_new] = keys_.try_emplace(sequence->spec.key);
  if (is_new) {
    // A newcomer has no claim on the time before it came.
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const auto& [name, other] : keys_) {
      if (other.num_sequences > 0) least = std::min(least, other.service_rows);
    }
    key->second.service_rows = least == std::numeric_limits<std::int64_t>::max() ? 0 : least;
  }
  ++key->second.num_sequences;
  sequence->key = &key->second;
  remember(EventKind::kSubmit, *sequence, static_cast<std::int32_t>(num_prompt));
  waiting_.push_back(sequence.get());
  const SequenceId id = sequence->spec.id;
  FATHOM_CHECK(sequences_.emplace(id, std::move(sequence)).second, "sequence ids are never reused");
}

void Scheduler::release_cache(Sequence& sequence) {
  prefix_cache_.release(sequence.context, sequence.entries);
  for (WindowBlockId block : sequence.window) window_pool_.drop(block);
  free_state_slots_.push_back(sequence.state_slot);
  if (sequence.known) {
    BlockTableDelta delta;
    delta.id = sequence.spec.id;
    delta.released = true;
    releases_.push_back(std::move(delta));
  }
  sequence.context.clear();
  sequence.window.clear();
  sequence.entries.clear();
  sequence.first_window = sequence.length = sequence.published_tokens = sequence.start_length = 0;
  sequence.sent_context = 0;
  sequence.sent_window_end = sequence.sent_first_window = 0;
  sequence.known = sequence.running = false;
  std::erase(running_, &sequence);
  std::erase_if(entries_, [&](const Entry& entry) { return entry.sequence == &sequence; });
}

void Scheduler::finish(SequenceId id, bool cancelled) {
  Sequence& sequence = get(id);
  if (log_ != nullptr) log_->finish(id, cancelled);
  if (cancelled) remember(EventKind::kCancel, sequence, 0);
  // Who waited for a beginning that will not come may wait for another's: else all of them would compute it.
  for (Sequence* other : waiting_) {
    if (other->leader == id && sequence.length < other->leader_boundary) other->has_awaited = false;
  }
  if (sequence.running) {
    release_cache(sequence);
  } else {
    std::erase(waiting_, &sequence);
  }
  remember(EventKind::kFinish, sequence, static_cast<std::int32_t>(sequence.num_known - sequence.num_prompt));
  if (--sequence.key->num_sequences == 0) keys_.erase(sequence.spec.key);
  sequences_.erase(id);
}

void Scheduler::set_paused(SequenceId id, bool paused) {
  if (log_ != nullptr) log_->paused(id, paused);
  get(id).paused = paused;
}

void Scheduler::set_held(SequenceId id, bool held) {
  if (log_ != nullptr) log_->held(id, held);
  get(id).held = held;
}

void Scheduler::set_drafts(SequenceId id, std::span<const TokenId> drafts) {
  Sequence& sequence = get(id);
  if (log_ != nullptr) log_->drafts(id, drafts);
  const std::int64_t room = std::max<std::int64_t>(0, max_sequence_tokens_ - sequence.num_known - 1);
  const std::int64_t num = std::min({static_cast<std::int64_t>(drafts.size()), std::int64_t{kMaxDraft}, room});
  sequence.tokens.resize(static_cast<std::size_t>(sequence.num_known));
  sequence.tokens.insert(sequence.tokens.end(), drafts.begin(), drafts.begin() + num);
}

void Scheduler::flush_prefix_cache() {
  if (log_ != nullptr) log_->flush();
  prefix_cache_.clear();
}

void Scheduler::trim_window(Sequence& sequence) {
  const std::int64_t first = std::max<std::int64_t>(0, sequence.length - kBlock) / kBlock;
  while (sequence.first_window < first) {
    window_pool_.drop(sequence.window.front());
    sequence.window.erase(sequence.window.begin());
    ++sequence.first_window;
  }
}

std::int64_t Scheduler::publishable_tokens(const Sequence& sequence) const {
  if (!options_.prefix_cache || !sequence.spec.use_prefix_cache) return 0;
  // Decoded rows may differ in their bits from the prefilled rows a later prompt would have: they stay private.
  const bool decoded_too = !limits_.classes_differ || options_.reuse_decoded;
  const std::int64_t length = decoded_too ? sequence.length : std::min(sequence.length, sequence.num_prompt);
  return length / kBlock * kBlock;
}

bool Scheduler::resume_boundary(const Sequence& sequence, std::int64_t boundary) const {
  if (!options_.prefix_cache || !sequence.spec.use_prefix_cache || boundary <= 0 || boundary % kBlock != 0)
    return false;
  if (limits_.classes_differ && !options_.reuse_decoded && boundary > sequence.num_prompt) return false;
  // A prompt that ends at a block's end has two: what continues it resumes at its end, its repetition before.
  const std::int64_t target = sequence.build_target;
  return std::ranges::find(sequence.forks, boundary) != sequence.forks.end() ||
         boundary % (kResumeEveryBlocks * kBlock) == 0 || boundary == target / kBlock * kBlock ||
         boundary == (target - 1) / kBlock * kBlock;
}

void Scheduler::publish_blocks(Sequence& sequence) {
  const std::int64_t before = sequence.published_tokens;
  const std::int64_t now = publishable_tokens(sequence);
  if (now <= before) return;
  prefix_cache_.publish(std::span(sequence.tokens).first(static_cast<std::size_t>(now)),
                        std::span(sequence.context).first(static_cast<std::size_t>(now / kBlock)),
                        sequence.spec.cache_salt, sequence.entries);
  sequence.published_tokens = now;
  for (std::int64_t boundary = before + kBlock; boundary <= now; boundary += kBlock) {
    // Only the rows of the last boundary reached are still in the state slot.
    if (boundary + kBlock <= sequence.length || !resume_boundary(sequence, boundary)) continue;
    const std::int64_t logical = boundary / kBlock - 1;
    FATHOM_CHECK(logical >= sequence.first_window, "the window before a resume point is held");
    const auto slot =
        prefix_cache_.add_resume_point(sequence.entries[static_cast<std::size_t>(logical)],
                                       sequence.window[static_cast<std::size_t>(logical - sequence.first_window)]);
    if (slot) saves_.push_back({sequence.state_slot, *slot, boundary});
  }
}

std::int64_t Scheduler::commit(const SequenceStep& step, std::span<const TokenId> new_tokens) {
  FATHOM_CHECK(num_uncommitted_ > 0, "a planned step is committed, once");
  --num_uncommitted_;
  if (log_ != nullptr) log_->commit(step.id, new_tokens);
  Sequence& sequence = get(step.id);
  const auto num_new = static_cast<std::int64_t>(new_tokens.size());
  const std::int64_t accepted = std::max<std::int64_t>(0, num_new - 1);
  FATHOM_CHECK(accepted <= step.num_drafts && sequence.running, "a step brings its drafts and one token at most");
  sequence.length = step.start + step.num_tokens - step.num_drafts + accepted;
  sequence.tokens.resize(static_cast<std::size_t>(sequence.num_known));
  sequence.tokens.insert(sequence.tokens.end(), new_tokens.begin(), new_tokens.end());
  sequence.num_known += num_new;
  FATHOM_CHECK(num_new == 0 || sequence.length == sequence.num_known - 1, "the last token is not in the cache yet");
  if (sequence.length >= sequence.num_prompt) sequence.prompt_done = true;
  publish_blocks(sequence);
  trim_window(sequence);
  remember(EventKind::kCommit, sequence, static_cast<std::int32_t>(num_new));
  return sequence.length;
}

void Scheduler::add_delta(Sequence& sequence) {
  const bool trimmed = sequence.first_window != sequence.sent_first_window;
  if (sequence.known && !trimmed && sequence.sent_context == sequence.context.size() &&
      sequence.sent_window_end == sequence.window_end()) {
    return;
  }
  BlockTableDelta delta;
  delta.id = sequence.spec.id;
  delta.first_window_block = static_cast<std::int32_t>(sequence.first_window);
  if (!sequence.known) {
    delta.created = true;
    delta.state_slot = sequence.state_slot;
    delta.start_length = sequence.start_length;
    if (sequence.start_length > 0) {
      plan_.resume_restores.push_back({sequence.state_slot, sequence.resume_slot, sequence.start_length});
    }
    sequence.sent_window_end = sequence.first_window;
    sequence.known = true;
  }
  delta.appended_context.assign(sequence.context.begin() + static_cast<std::ptrdiff_t>(sequence.sent_context),
                                sequence.context.end());
  const std::int64_t from = std::max(sequence.sent_window_end, sequence.first_window) - sequence.first_window;
  delta.appended_window.assign(sequence.window.begin() + from, sequence.window.end());
  sequence.sent_context = sequence.context.size();
  sequence.sent_window_end = sequence.window_end();
  sequence.sent_first_window = sequence.first_window;
  plan_.deltas.push_back(std::move(delta));
}

void Scheduler::assemble() {
  plan_.resume_saves.swap(saves_);
  plan_.deltas.swap(releases_);
  // Also of sequences that sit this step out: a block they no longer need may have a new owner.
  for (Sequence* sequence : running_) add_delta(*sequence);
  for (const Entry& entry : entries_) {
    Sequence& sequence = *entry.sequence;
    SequenceStep step;
    step.id = sequence.spec.id;
    step.start = sequence.length;
    step.num_tokens = entry.num_tokens;
    step.num_drafts = entry.num_drafts;
    step.step_class = sequence.length < sequence.num_prompt ? StepClass::kChunk : StepClass::kStep;
    const std::int64_t end = step.start + step.num_tokens;
    if (sequence.spec.prompt_logits && !sequence.prompt_done) {
      step.num_logits = step.num_tokens;
    } else if (end - step.num_drafts == sequence.num_known) {
      step.num_logits = 1 + step.num_drafts;
    }
    for (std::int64_t p = step.start; p < end; ++p) {
      plan_.tokens.push_back(TokenRef::of_id(sequence.tokens[static_cast<std::size_t>(p)]));
    }
    plan_.sequences.push_back(step);
    sequence.last_served_step = plan_.step;
    sequence.key->service_rows += step.num_tokens;
    (in_prefill(sequence) ? counters_.prefill_rows : counters_.decode_rows) += step.num_tokens;
    remember(EventKind::kPlan, sequence, step.num_tokens);
    events_.back().prefill = in_prefill(sequence);
  }
  num_uncommitted_ = plan_.sequences.size();
}

StepPlan& Scheduler::plan() {
  FATHOM_CHECK(num_uncommitted_ == 0, "the step before is committed");
  plan_.sequences.clear();
  plan_.tokens.clear();
  plan_.samples.clear();
  plan_.deltas.clear();
  plan_.resume_saves.clear();
  plan_.resume_restores.clear();
  entries_.clear();
  rows_left_ = limits_.max_rows;
  const std::int64_t evicted = prefix_cache_.evicted_blocks();
  plan_decodes();
  plan_prefills();
  // One that is let in with all but its last token found in the cache decodes; with nothing else to do, now: nobody
  // would come to plan the next step.
  if (entries_.empty()) plan_decodes();
  cover_proposals();
  if (const std::int64_t now = prefix_cache_.evicted_blocks(); now > evicted) {
    events_.push_back({EventKind::kEvict, 0, plan_.step, {}, 0, static_cast<std::int32_t>(now - evicted)});
  }
  if (!entries_.empty()) {
    ++plan_.step;
    assemble();
  }
  if (log_ != nullptr) log_->plan(plan_);
  return plan_;
}

const SchedulerCounters& Scheduler::counters() const {
  counters_.num_running = static_cast<std::int32_t>(running_.size());
  counters_.num_waiting = static_cast<std::int32_t>(waiting_.size());
  counters_.num_paused = 0;
  counters_.waiting_tokens = 0;
  for (const Sequence* sequence : running_) counters_.num_paused += sequence->paused ? 1 : 0;
  for (const Sequence* sequence : waiting_) counters_.waiting_tokens += sequence->num_known;
  return counters_;
}

}  // namespace fathom
