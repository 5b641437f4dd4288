// Decides what each step computes, and owns the cache's bookkeeping (contract: README.md in this folder).
//
// No clock, no device, no lock: plans follow from the calls made so far, so that a recorded run can be replayed
// and properties can be tested on made-up arrivals. Used by one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "engine/block_pool.h"
#include "engine/events.h"
#include "engine/executor.h"
#include "engine/prefix_cache.h"
#include "engine/step.h"

namespace fathom {

class SchedulerLog;

struct SchedulerOptions {
  std::int32_t prefill_chunk_tokens = 96;          // prefill rows of a step in which other sequences decode
  std::int32_t prefill_chunk_shared_tokens = 256;  // in which none does, but several prefill
  std::int32_t prefill_chunk_alone_tokens = 512;   // in which one sequence prefills and nothing else happens
  std::int32_t max_running = 64;
  std::int32_t ageing_steps = 64;
  bool prefix_cache = true;
  bool reuse_decoded = false;
};

struct SequenceSpec {
  SequenceId id;
  std::vector<TokenId> prompt;
  std::int32_t priority = 0;
  std::string key;
  std::string cache_salt;
  bool use_prefix_cache = true;
  bool prompt_logits = false;  // every prompt row yields logits
  SequenceId wait_for;         // not admitted before that sequence's prompt is computed (or it is gone); 0: none
};

// A sequence as the outside may see it.
struct SequenceState {
  SequenceSpec spec;
  std::int64_t num_prompt = 0;
  // The known tokens, then the drafts of the next step: [0, num_known), [num_known, size).
  std::vector<TokenId> tokens;
  std::int64_t num_known = 0;
  std::int64_t length = 0;  // tokens in the cache
  bool running = false;     // has a state slot
  bool paused = false;
  bool held = false;
  bool prompt_done = false;        // the prompt's last row was computed once
  std::int64_t cached_tokens = 0;  // of the first admission's prefix hit
  std::int32_t num_preemptions = 0;
};

struct SchedulerCounters {
  std::int32_t num_running = 0, num_waiting = 0, num_paused = 0;
  std::int64_t waiting_tokens = 0;
  std::int64_t admitted_tokens = 0, cached_tokens = 0, prefill_rows = 0, decode_rows = 0;
  std::int64_t prefix_queries = 0, prefix_hits = 0, preemptions = 0;
};

class Scheduler {
 public:
  Scheduler(const SchedulerOptions& options, const ExecutorLimits& limits);
  ~Scheduler();

  // Tokens that one sequence can ever have: the model's length and the pools' size bound it.
  std::int64_t max_sequence_tokens() const { return max_sequence_tokens_; }

  // Writes all calls from now on to `log`, which outlives this; for scheduler_log.h. To be called first.
  void record_to(const SchedulerLog* log) { log_ = log; }

  // A new sequence joins the waiting ones. Its prompt is shorter than max_sequence_tokens().
  void add(SequenceSpec spec);
  // The sequence is gone: its blocks are free at once, the executor hears of it in the next plan.
  void finish(SequenceId id, bool cancelled = false);
  // A paused sequence does not decode, and gives way first when memory runs out.
  void set_paused(SequenceId id, bool paused);
  // A held sequence takes no step that draws from it; its prompt is computed up to the last token.
  void set_held(SequenceId id, bool held);
  // The drafts of the sequence's next step (at most kMaxDraft; none where they do not fit).
  void set_drafts(SequenceId id, std::span<const TokenId> drafts);
  // null: not known (any more).
  const SequenceState* find(SequenceId id) const;

  // The next step; the caller adds its samples. A plan without sequences says that nothing can run (and is not to be
  // launched); what it would have told the executor is kept for the next one. Every plan with sequences must be
  // committed before the next one is made.
  StepPlan& plan();

  // The step's outcome for one of its sequences: the tokens it brought, in order (none for a prefill chunk that is
  // not the last; accepted drafts + 1 otherwise). Returns the committed length, for Executor::commit.
  std::int64_t commit(const SequenceStep& step, std::span<const TokenId> new_tokens);

  void flush_prefix_cache();

  bool empty() const { return sequences_.empty(); }
  const SchedulerCounters& counters() const;
  const BlockPool<BlockId>& context_pool() const { return context_pool_; }
  const BlockPool<WindowBlockId>& window_pool() const { return window_pool_; }
  std::int32_t num_free_state_slots() const { return static_cast<std::int32_t>(free_state_slots_.size()); }
  const PrefixCache& prefix_cache() const { return prefix_cache_; }
  std::int64_t step() const { return plan_.step; }
  // Events since the last call, without times.
  std::vector<EngineEvent> take_events();

 private:
  struct Sequence;
  struct Key;
  struct Entry {  // of the plan being made
    Sequence* sequence;
    std::int32_t num_tokens;
    std::int32_t num_drafts;
  };

  Sequence& get(SequenceId id);
  void plan_decodes();
  void plan_prefills();
  void cover_proposals();
  void admit_waiting();
  bool try_admit(Sequence& sequence);
  Sequence* next_waiting();
  std::int64_t chunk_rows(const Sequence& sequence, std::int64_t limit) const;
  bool cover(Sequence& sequence, std::int64_t end);
  bool cover_or_preempt(Sequence& sequence, std::int64_t end);
  Sequence* preemption_victim(const Sequence& for_whom);
  void preempt(Sequence& sequence);
  void release_cache(Sequence& sequence);
  void assemble();
  void add_delta(Sequence& sequence);
  void trim_window(Sequence& sequence);
  void publish_blocks(Sequence& sequence);
  std::int64_t publishable_tokens(const Sequence& sequence) const;
  bool resume_boundary(const Sequence& sequence, std::int64_t boundary) const;
  std::int64_t longest_hit(const Sequence& sequence) const;
  static std::int64_t common_beginning(const Sequence& a, const Sequence& b, std::int64_t known, std::int64_t longest);
  std::int64_t fork_from_running(const Sequence& sequence, const PrefixCache::Hit& hit) const;
  bool awaits_beginning(Sequence& sequence);
  bool leader_gets_on(const Sequence& sequence) const;
  std::int64_t effective_priority(const Sequence& sequence) const;
  bool higher_rank(const Sequence& a, const Sequence& b) const;
  std::int64_t prefill_budget(std::size_t num_prefills) const;
  bool in_prefill(const Sequence& sequence) const;
  void remember(EventKind kind, const Sequence& sequence, std::int32_t num_tokens);

  const SchedulerLog* log_ = nullptr;
  SchedulerOptions options_;
  ExecutorLimits limits_;
  std::int64_t max_sequence_tokens_ = 0;
  BlockPool<BlockId> context_pool_;
  BlockPool<WindowBlockId> window_pool_;
  PrefixCache prefix_cache_;
  std::vector<StateSlot> free_state_slots_;

  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  std::vector<Sequence*> running_;  // by rank
  std::vector<Sequence*> waiting_;  // by arrival
  std::map<std::string, Key> keys_;
  std::int64_t num_arrivals_ = 0;

  StepPlan plan_;
  std::vector<Entry> entries_;
  std::int64_t rows_left_ = 0;
  std::int64_t logits_left_ = 0;
  std::size_t num_uncommitted_ = 0;        // sequences of the plan
  std::vector<BlockTableDelta> releases_;  // for the next plan
  std::vector<ResumeCopy> saves_;          // for the next plan
  mutable SchedulerCounters counters_;
  std::vector<EngineEvent> events_;
};

}  // namespace fathom
