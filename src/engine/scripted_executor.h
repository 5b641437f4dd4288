// An executor without a model: the next token is a hash of the sequence's tokens, read back through the block
// tables as a model would read its cache. A lost, repeated or foreign row changes the text and is counted; a
// plan that breaks the rules of step.h fails a CHECK. For tests of the engine and the server.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/clock.h"
#include "engine/executor.h"

namespace fathom {

struct ScriptedOptions {
  ExecutorLimits limits = default_limits();
  std::uint64_t seed = 1;

  // A step takes step_us + rows * row_us + proposals * proposal_us: on `clock` if there is one, as real waiting if
  // `wait_for_real`.
  std::int64_t step_us = 1000;
  std::int64_t row_us = 50;
  std::int64_t proposal_us = 0;
  VirtualClock* clock = nullptr;
  bool wait_for_real = false;

  // EOS is the most likely token after this share of contexts, and never otherwise.
  double eos_share = 0.0;
  TokenId eos_id = 1;
  // The token to follow `context`, or none: the hash decides. Thus a test writes the answer it wants.
  std::function<std::optional<TokenId>(std::span<const TokenId> context)> next_token;
  // The share of proposals that verification will find right (without penalties and masks).
  double acceptance = 0.7;
  // Contexts behind which all proposals are wrong; none: nowhere.
  std::function<bool(std::span<const TokenId> context)> misdrafts;

  std::int64_t launch_fault_at_step = -1;  // launch() fails
  std::int64_t wait_fault_at_step = -1;    // wait() fails
  std::int64_t hang_at_step = -1;          // wait() returns only after release_hang()

  // 512 ids, 16,384 tokens, 1,024 rows a step, 256 context and 192 window blocks, 32 sequences alive, 64 resume points.
  static ExecutorLimits default_limits();
};

class ScriptedExecutor final : public Executor {
 public:
  explicit ScriptedExecutor(ScriptedOptions options);

  const ExecutorLimits& limits() const override { return options_.limits; }
  Status launch(const StepPlan& plan) override;
  Result<StepResult> wait() override;
  void commit(SequenceId id, std::int64_t length) override;

  // Rows that a step read and that were not what the sequence had written there. Any thread.
  std::int64_t num_mismatches() const { return num_mismatches_.load(); }
  std::int64_t num_steps() const { return num_steps_.load(); }
  void release_hang() { hang_released_.store(true); }

  // What a model would answer: the logits [vocab_size] that follow `context`.
  void logits_after(std::span<const TokenId> context, std::vector<float>& logits) const;

 private:
  struct Row {  // of a context block, a window block, a state slot or a resume slot
    std::int64_t position = -1;
    std::uint64_t chain = 0;  // hash of all tokens up to this one
    TokenId token = -1;
  };
  struct SequenceTables {
    StateSlot state_slot;
    std::vector<BlockId> context;
    std::vector<WindowBlockId> window;  // logical blocks first_window, first_window + 1, ...
    std::int64_t first_window = 0;
    std::int64_t length = 0;
    std::vector<TokenId> tokens;        // what the caches should hold
    std::vector<std::uint64_t> chains;  // of each prefix
    std::uint64_t taint = 0;            // what mismatches leave behind
  };

  void save(const ResumeCopy& copy);
  void restore(const ResumeCopy& copy);
  void apply(const BlockTableDelta& delta);
  void create(const BlockTableDelta& delta, SequenceTables& tables);
  void release(SequenceId id);
  void check_plan(const StepPlan& plan) const;
  void run_rows(const SequenceStep& step, std::span<const TokenId> tokens, SequenceTables& tables);
  void write_row(SequenceTables& tables, std::int64_t position);
  void read_row(SequenceTables& tables, std::int64_t position, bool whole_context);
  void expect(SequenceTables& tables, const Row& row, std::int64_t position);
  SequenceResult sample(const SequenceStep& step, const SampleSpec& spec, SequenceTables& tables);
  void propose(const SequenceStep& step, const SampleSpec& spec, const SequenceTables& tables, SequenceResult& result);
  void logits_of(std::uint64_t chain, std::span<const TokenId> context, std::vector<float>& logits) const;
  Row& context_row(const SequenceTables& tables, std::int64_t position);
  Row& window_row(const SequenceTables& tables, std::int64_t position);
  Row& state_row(StateSlot slot, std::int64_t position);

  ScriptedOptions options_;
  std::vector<Row> context_rows_, window_rows_, state_rows_, resume_rows_;
  std::vector<std::int32_t> context_holders_, window_holders_;  // sequences whose tables name the block
  std::vector<bool> state_taken_;
  std::unordered_map<SequenceId, SequenceTables> sequences_;
  std::deque<Result<StepResult>> results_;
  std::vector<TokenId> previous_tokens_;  // of the step before, one per logits row
  std::int64_t last_step_ = -1;
  std::vector<float> logits_;
  SampleWorkspace workspace_;
  std::atomic<std::int64_t> num_mismatches_{0};
  std::atomic<std::int64_t> num_steps_{0};
  std::atomic<bool> hang_released_{false};
};

}  // namespace fathom
