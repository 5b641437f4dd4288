// Who takes part in a step, with how many rows, and who gives way: the decisions of Scheduler::plan().
#include <algorithm>

#include "base/check.h"
#include "base/units.h"
#include "engine/scheduler.h"
#include "engine/scheduler_sequence.h"
#include "ops/cache_view.h"

namespace fathom {
namespace {
constexpr std::int64_t kBlock = kBlockTokens;
// A shorter beginning that another computes is not waited for.
constexpr std::int64_t kLeastAwaited = 2 * kBlock;
}  // namespace

bool Scheduler::in_prefill(const Sequence& sequence) const {
  return !sequence.prompt_done || sequence.pending_rows() > 1;
}

// Rank orders the running sequences: the first is never preempted, so there always is progress. It does not change
// while a sequence runs.
bool Scheduler::higher_rank(const Sequence& a, const Sequence& b) const {
  if (a.granted_priority != b.granted_priority) return a.granted_priority > b.granted_priority;
  return a.arrival < b.arrival;
}

// Rises while the sequence lives, so that each one is first among the waiting ones in the end.
std::int64_t Scheduler::effective_priority(const Sequence& sequence) const {
  return sequence.spec.priority + (plan_.step - sequence.arrival_step) / std::max(1, options_.ageing_steps);
}

// Blocks up to position `end`; all that are needed or none.
bool Scheduler::cover(Sequence& sequence, std::int64_t end) {
  const std::int64_t blocks = ceil_div(end, kBlock);
  const std::int64_t need_context = blocks - static_cast<std::int64_t>(sequence.context.size());
  const std::int64_t need_window = blocks - sequence.window_end();
  if (need_context > context_pool_.num_free() + context_pool_.num_cached()) return false;
  if (need_window > window_pool_.num_free() + window_pool_.num_cached()) return false;
  for (std::int64_t i = 0; i < need_context; ++i) {
    if (context_pool_.num_free() == 0) FATHOM_CHECK(prefix_cache_.evict_context_block(), "cached blocks were counted");
    sequence.context.push_back(*context_pool_.take());
  }
  for (std::int64_t i = 0; i < need_window; ++i) {
    if (window_pool_.num_free() == 0) FATHOM_CHECK(prefix_cache_.evict_window_block(), "cached blocks were counted");
    sequence.window.push_back(*window_pool_.take());
  }
  return true;
}

Scheduler::Sequence* Scheduler::preemption_victim(const Sequence& for_whom) {
  for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
    if ((*it)->paused && *it != &for_whom) return *it;
  }
  Sequence* lowest = running_.back();
  return lowest != &for_whom && higher_rank(for_whom, *lowest) ? lowest : nullptr;
}

bool Scheduler::cover_or_preempt(Sequence& sequence, std::int64_t end) {
  while (!cover(sequence, end)) {
    Sequence* victim = preemption_victim(sequence);
    if (victim == nullptr) return false;
    preempt(*victim);
  }
  return true;
}

void Scheduler::preempt(Sequence& sequence) {
  remember(EventKind::kPreempt, sequence, 0);
  release_cache(sequence);
  sequence.tokens.resize(static_cast<std::size_t>(sequence.num_known));  // drafts go
  sequence.blocked_available = -1;
  ++sequence.num_preemptions;
  ++counters_.preemptions;
  const auto later = [](const Sequence* a, const Sequence* b) { return a->arrival < b->arrival; };
  waiting_.insert(std::upper_bound(waiting_.begin(), waiting_.end(), &sequence, later), &sequence);
}

void Scheduler::plan_decodes() {
  std::vector<Sequence*> order;
  for (Sequence* sequence : running_) {
    if (!in_prefill(*sequence) && !sequence->paused && !sequence->held) order.push_back(sequence);
  }
  // Each running sequence has a row with logits for certain; drafts share the rest.
  std::int64_t draft_rows = std::min<std::int64_t>(limits_.max_rows, limits_.max_logits_rows) -
                            std::max<std::int64_t>(options_.max_running, static_cast<std::int64_t>(running_.size()));
  for (Sequence* sequence : order) {
    if (!sequence->running) continue;  // preempted by one before it
    std::int64_t drafts = std::min<std::int64_t>(sequence->num_drafts(), std::max<std::int64_t>(draft_rows, 0));
    if (drafts > 0 && !cover(*sequence, sequence->length + 1 + drafts)) drafts = 0;
    if (drafts == 0 && !cover_or_preempt(*sequence, sequence->length + 1)) continue;
    draft_rows -= drafts;
    rows_left_ -= 1 + drafts;
    sequence->tokens.resize(static_cast<std::size_t>(sequence->num_known + drafts));
    entries_.push_back({sequence, static_cast<std::int32_t>(1 + drafts), static_cast<std::int32_t>(drafts)});
  }
  logits_left_ = std::max<std::int64_t>(0, std::min<std::int64_t>(draft_rows, limits_.max_logits_rows));
}

// Drafts of the step after this one are made behind its rows: window blocks for them where there are any, so that
// a block's end does not cut the drafts short. Nobody gives way for it.
void Scheduler::cover_proposals() {
  if (limits_.max_proposals == 0) return;
  for (const Entry& entry : entries_) {
    Sequence& sequence = *entry.sequence;
    const std::int64_t rows_end = sequence.length + entry.num_tokens;
    if (rows_end - entry.num_drafts != sequence.num_known) continue;
    const std::int64_t end = std::min(rows_end + limits_.max_proposals, max_sequence_tokens_);
    if (end <= sequence.window_end() * kBlock) continue;
    if (window_pool_.num_free() == 0 && !prefix_cache_.evict_window_block()) return;
    sequence.window.push_back(*window_pool_.take());
  }
}

Scheduler::Sequence* Scheduler::next_waiting() {
  Sequence* best = nullptr;
  for (Sequence* sequence : waiting_) {
    if (sequence->paused) continue;
    if (sequence->spec.wait_for.value != 0) {
      const SequenceState* leader = find(sequence->spec.wait_for);
      if (leader != nullptr && !leader->prompt_done) continue;
    }
    if (leader_gets_on(*sequence)) continue;
    if (best != nullptr) {
      const std::int64_t mine = effective_priority(*sequence), theirs = effective_priority(*best);
      if (mine < theirs) continue;
      if (mine == theirs && sequence->key->service_rows >= best->key->service_rows) continue;
    }
    best = sequence;
  }
  return best;
}

// Whole blocks of tokens that two sequences begin with, at most `longest`; the first `known` are the same for certain.
std::int64_t Scheduler::common_beginning(const Sequence& a, const Sequence& b, std::int64_t known,
                                         std::int64_t longest) {
  const std::int64_t end = std::min({longest, a.num_known, b.num_known});
  if (end <= known) return known / kBlock * kBlock;
  const auto first = a.tokens.begin() + known;
  const auto parting = std::mismatch(first, a.tokens.begin() + end, b.tokens.begin() + known).first;
  return (known + (parting - first)) / kBlock * kBlock;
}

// How many of its tokens a sequence may find in the cache: one at least is computed, for its logits; decoded positions
// are rebuilt in their own class.
std::int64_t Scheduler::longest_hit(const Sequence& sequence) const {
  if (!options_.prefix_cache || !sequence.spec.use_prefix_cache || sequence.spec.prompt_logits) return 0;
  const std::int64_t longest = sequence.num_known - 1;
  return limits_.classes_differ ? std::min(longest, sequence.num_prompt) : longest;
}

// Prompts with one beginning that come together compute it once: the later one is let in when the earlier one has come
// to where they part, keeps a resume point there, and goes on from it. Not behind one that may be served later than
// itself; once in its life; and only while the earlier one gets on (next_waiting()).
bool Scheduler::awaits_beginning(Sequence& sequence) {
  if (sequence.has_awaited) return false;
  Sequence* leader = nullptr;
  std::int64_t longest = longest_hit(sequence), common = 0;
  for (Sequence* other : running_) {
    if (!in_prefill(*other) || other->paused || !other->spec.use_prefix_cache || other->key != sequence.key ||
        other->spec.cache_salt != sequence.spec.cache_salt || other->granted_priority < effective_priority(sequence)) {
      continue;
    }
    const std::int64_t least = std::max(common + kBlock, other->length + kLeastAwaited);
    if (std::min(longest, other->num_known) < least) continue;
    const std::int64_t boundary = common_beginning(sequence, *other, 0, longest);
    if (boundary < least || (limits_.classes_differ && boundary > other->num_prompt)) continue;
    leader = other;
    common = boundary;
  }
  if (leader == nullptr) return false;
  if (!resume_boundary(*leader, common)) leader->forks.push_back(common);
  sequence.has_awaited = true;
  sequence.leader = leader->spec.id;
  sequence.leader_boundary = common;
  return true;
}

// Is the beginning that the sequence waits for still on its way?
bool Scheduler::leader_gets_on(const Sequence& sequence) const {
  if (sequence.leader.value == 0) return false;
  const auto found = sequences_.find(sequence.leader);
  if (found == sequences_.end()) return false;
  const Sequence& leader = *found->second;
  return leader.running && !leader.paused && leader.length < sequence.leader_boundary &&
         plan_.step - std::max(leader.last_served_step, leader.admitted_step) <= options_.ageing_steps;
}

// The last boundary up to which the sequence is the same as one that runs now and goes on otherwise, beyond the hit; 0:
// none. Both compute these rows, since they came too close together; a resume point there spares the next one.
std::int64_t Scheduler::fork_from_running(const Sequence& sequence, const PrefixCache::Hit& hit) const {
  std::int64_t fork = 0;
  const std::size_t depth = hit.entries.size();
  for (const Sequence* other : running_) {
    if (!other->spec.use_prefix_cache || other->spec.cache_salt != sequence.spec.cache_salt) continue;
    const bool same_hit =
        depth > 0 && other->entries.size() >= depth && other->entries[depth - 1].serial == hit.entries.back().serial;
    const std::int64_t boundary = common_beginning(sequence, *other, same_hit ? hit.length : 0, longest_hit(sequence));
    if (boundary > hit.length && boundary + kBlock <= other->num_known) fork = std::max(fork, boundary);
  }
  return fork;
}

bool Scheduler::try_admit(Sequence& sequence) {
  // Those that wait for a beginning keep their places: nobody takes them meanwhile who would not come before them.
  std::int64_t reserved = 0;  // blocks that they and the prefills under way still need
  std::size_t num_places = 1;
  for (const Sequence* other : waiting_) {
    if (other == &sequence || other->paused || !leader_gets_on(*other)) continue;
    if (effective_priority(*other) < effective_priority(sequence)) continue;
    ++num_places;
    reserved += ceil_div(other->num_known + 1, kBlock) - other->leader_boundary / kBlock;
  }
  if (running_.size() + num_places > static_cast<std::size_t>(options_.max_running)) return false;
  if (free_state_slots_.size() < num_places) return false;
  for (const Sequence* other : running_) {
    if (!in_prefill(*other)) continue;
    reserved += std::max<std::int64_t>(
        0, ceil_div(other->num_known + 1, kBlock) - static_cast<std::int64_t>(other->context.size()));
  }
  const std::int64_t available = context_pool_.num_free() + context_pool_.num_cached() - reserved;
  if (sequence.blocked_available >= available) return false;

  PrefixCache::Hit hit;
  const std::int64_t longest = longest_hit(sequence);
  if (longest > 0) {
    hit = prefix_cache_.find(std::span(sequence.tokens).first(static_cast<std::size_t>(sequence.num_known)), longest,
                             sequence.spec.cache_salt);
  }
  const std::int64_t need = ceil_div(sequence.num_known + 1, kBlock) - static_cast<std::int64_t>(hit.context.size());
  if (need > context_pool_.num_free() + context_pool_.num_cached() - reserved && !running_.empty()) {
    prefix_cache_.release(hit.context, hit.entries);
    if (hit.length > 0) window_pool_.drop(hit.window);
    sequence.blocked_available = available;
    return false;
  }
  sequence.forks.clear();
  if (options_.prefix_cache && sequence.spec.use_prefix_cache && !sequence.spec.prompt_logits) {
    ++counters_.prefix_queries;
    counters_.prefix_hits += hit.length > 0 ? 1 : 0;
    const std::int64_t fork = std::max(hit.fork, fork_from_running(sequence, hit));
    if (fork > 0) sequence.forks.push_back(fork);
  }
  counters_.cached_tokens += hit.length;
  counters_.admitted_tokens += sequence.num_known;
  sequence.length = sequence.start_length = sequence.published_tokens = hit.length;
  sequence.context = std::move(hit.context);
  sequence.entries = std::move(hit.entries);
  sequence.first_window = sequence.sent_first_window = std::max<std::int64_t>(0, hit.length / kBlock - 1);
  if (hit.length > 0) sequence.window.push_back(hit.window);
  sequence.resume_slot = hit.resume_slot;
  sequence.state_slot = free_state_slots_.back();
  free_state_slots_.pop_back();
  sequence.build_target = sequence.num_known;
  sequence.granted_priority = effective_priority(sequence);
  sequence.admitted_step = plan_.step;
  sequence.running = true;
  if (sequence.num_preemptions == 0) sequence.cached_tokens = hit.length;
  std::erase(waiting_, &sequence);
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &sequence,
                                   [this](const Sequence* a, const Sequence* b) { return higher_rank(*a, *b); }),
                  &sequence);
  remember(sequence.num_preemptions == 0 ? EventKind::kAdmit : EventKind::kResume, sequence,
           static_cast<std::int32_t>(hit.length));
  return true;
}

// In order, without overtaking: what waits for memory is not passed by smaller ones for ever.
void Scheduler::admit_waiting() {
  while (Sequence* next = next_waiting()) {
    if (awaits_beginning(*next)) continue;
    while (!try_admit(*next)) {
      // Whoever reads slowly, or was let in with a lower priority than this one asks for, gives way.
      if (running_.empty()) return;
      const auto paused = std::find_if(running_.rbegin(), running_.rend(), [](const Sequence* s) { return s->paused; });
      Sequence* victim = paused != running_.rend() ? *paused : running_.back();
      if (!victim->paused && victim->granted_priority >= next->spec.priority) return;
      preempt(*victim);
      next->blocked_available = -1;
    }
  }
}

std::int64_t Scheduler::prefill_budget(std::size_t num_prefills) const {
  const std::int64_t budget = !entries_.empty()  ? options_.prefill_chunk_tokens
                              : num_prefills > 1 ? options_.prefill_chunk_shared_tokens
                                                 : options_.prefill_chunk_alone_tokens;
  return std::min(std::max<std::int64_t>(budget, 1), rows_left_);
}

// How many of the sequence's next rows, at most `limit`, may stand in one step.
std::int64_t Scheduler::chunk_rows(const Sequence& sequence, std::int64_t limit) const {
  std::int64_t rows = std::min(limit, sequence.pending_rows() - (sequence.held ? 1 : 0));
  // A row of the prompt and a decoded one are of different classes.
  if (sequence.length < sequence.num_prompt) rows = std::min(rows, sequence.num_prompt - sequence.length);
  // At a resume point the state rows are saved between two steps.
  for (std::int64_t b = (sequence.length / kBlock + 1) * kBlock; b < sequence.length + rows; b += kBlock) {
    if (resume_boundary(sequence, b)) return b - sequence.length;
  }
  return rows;
}

void Scheduler::plan_prefills() {
  admit_waiting();
  std::vector<Sequence*> order;
  for (Sequence* sequence : running_) {
    if (in_prefill(*sequence) && !sequence->paused) order.push_back(sequence);
  }
  if (order.empty() || rows_left_ <= 0) return;
  // Since when it waits for its turn: those served longest ago come first, newcomers behind those who waited already.
  const auto since = [](const Sequence* s) { return std::max(s->last_served_step, s->arrival_step); };
  const auto urgency = [&](const Sequence* s) {
    return s->granted_priority + (plan_.step - since(s)) / std::max(1, options_.ageing_steps);
  };
  std::stable_sort(order.begin(), order.end(), [&](const Sequence* a, const Sequence* b) {
    const std::int64_t urgency_a = urgency(a), urgency_b = urgency(b);
    if (urgency_a != urgency_b) return urgency_a > urgency_b;
    if (a->key->service_rows != b->key->service_rows) return a->key->service_rows < b->key->service_rows;
    if (since(a) != since(b)) return since(a) < since(b);
    if ((a->last_served_step < 0) != (b->last_served_step < 0)) return a->last_served_step < 0;
    return a->arrival < b->arrival;
  });

  std::int64_t left = prefill_budget(order.size());
  const std::int64_t quantum = order.size() == 1 ? left : std::min(left, kBlock);
  bool progress = true;
  while (left > 0 && progress) {
    progress = false;
    for (Sequence* sequence : order) {
      if (left <= 0) break;
      if (!sequence->running) continue;
      const auto entry =
          std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.sequence == sequence; });
      const std::int64_t has = entry == entries_.end() ? 0 : entry->num_tokens;
      std::int64_t limit = has + std::min(quantum, left);
      const bool all_logits = sequence->spec.prompt_logits && !sequence->prompt_done;
      if (all_logits) limit = std::min(limit, std::max<std::int64_t>(has, 1) + logits_left_);
      std::int64_t more = chunk_rows(*sequence, limit) - has;
      while (more > 1 && !cover(*sequence, sequence->length + has + more)) more /= 2;
      if (more <= 0 || (more == 1 && !cover(*sequence, sequence->length + has + 1) &&
                        (has > 0 || !cover_or_preempt(*sequence, sequence->length + 1)))) {
        continue;
      }
      if (all_logits) logits_left_ -= has == 0 ? more - 1 : more;
      if (has == 0) {
        entries_.push_back({sequence, static_cast<std::int32_t>(more), 0});
      } else {
        entry->num_tokens += static_cast<std::int32_t>(more);
      }
      left -= more;
      progress = true;
    }
  }
}

}  // namespace fathom
