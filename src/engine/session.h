// One conversation driven token by token over an executor of its own: what `generate`, `chat` and `logits` use.
// Servers use the engine instead.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/model_executor.h"
#include "engine/speculation.h"

namespace fathom {

struct SessionOptions {
  std::int64_t max_context_tokens = 0;  // 0: what the config says; memory is touched only as it fills
  std::int64_t chunk_tokens = 512;      // prefill rows of a step; at most the model's
  std::int32_t num_drafts = 0;          // most drafts a step verifies; 0 where the model has no drafter
  bool adaptive_drafts = false;         // each step's number follows from measured times and acceptance
};

class Session {
 public:
  // The model must outlive the session.
  static Result<std::unique_ptr<Session>> make(Model& model, const SessionOptions& options);

  // Called after each prefill step with the tokens done and the tokens to do; false stops the prefill.
  using Progress = std::function<bool(std::int64_t done, std::int64_t total)>;

  // Brings the sequence to `prompt` and draws the token that follows. What it holds already is kept where the
  // prompt starts with all of it, or with all but the last few tokens; else it starts anew.
  // Failure: an empty prompt, one that leaves no room in the context, ids outside the vocabulary, cancelled.
  Result<SampledToken> prefill(std::span<const TokenId> prompt, const SampleSpec& spec, const Progress& progress = {});
  // Appends `token` and draws the one after. Fails with kResourceExhausted when the context is full.
  Result<SampledToken> decode(TokenId token, const SampleSpec& spec);
  // The same with drafts: appends `token` and those drafts that were right, and returns the tokens drawn, one at
  // least. All but the last are appended. Valid until the next call. The same tokens as decode() one by one.
  Result<std::span<const SampledToken>> decode_drafted(TokenId token, const SampleSpec& spec);

  // As prefill, without sampling: `visit` sees the logits [vocab] of every position in [first_visited, end),
  // ascending.
  using Visit = std::function<void(std::int64_t position, std::span<const float> logits)>;
  Status score(std::span<const TokenId> ids, std::int64_t first_visited, const Visit& visit,
               const Progress& progress = {});

  void reset();
  // Tokens whose state is cached.
  std::span<const TokenId> tokens() const { return tokens_; }
  std::int64_t max_context_tokens() const { return max_context_tokens_; }
  // Tokens of the last prefill that were in the cache before.
  std::int64_t num_reused_tokens() const { return num_reused_tokens_; }
  ModelExecutor& executor() { return *executor_; }
  // Of decode_drafted() so far.
  struct DraftCounts {
    std::int64_t steps = 0, drafted = 0, accepted = 0;
  };
  const DraftCounts& draft_counts() const { return draft_counts_; }

 private:
  Session(Model& model, const SessionOptions& options);
  Status check_prompt(std::span<const TokenId> prompt) const;
  void keep_common_prefix(std::span<const TokenId> prompt);
  // Rows [length, length + tokens.size()), logits of the last num_logits; the last num_drafts rows are drafts. What was
  // right of them stays.
  Status run_rows(std::span<const TokenId> tokens, std::int32_t num_logits, const SampleSpec& spec,
                  std::int32_t num_drafts = 0);
  std::int32_t next_depth();

  Model& model_;
  std::int64_t max_context_tokens_;
  std::int64_t chunk_tokens_;
  std::int32_t num_window_blocks_;
  std::unique_ptr<ModelExecutor> executor_;
  StepPlan plan_;      // reused
  StepResult result_;  // of the last step
  std::vector<TokenId> tokens_;
  std::int64_t num_reused_tokens_ = 0;
  std::int64_t furthest_ = 0;  // one past the last position ever computed: what rolling back is measured from
  SequenceId id_{0};
  bool created_ = false;
  std::int64_t num_context_ = 0;  // blocks in the tables
  std::int64_t window_begin_ = 0, window_end_ = 0;
  std::int32_t num_drafts_ = 0;
  bool adaptive_ = false;
  DepthPolicy depth_policy_;
  Acceptance acceptance_{DepthPolicy::kRequestTrials};
  std::vector<TokenId> drafted_rows_;  // of a step of decode_drafted(), reused
  DraftCounts draft_counts_;
};

}  // namespace fathom
