#include "engine/session.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

namespace fathom {
namespace {

constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

}  // namespace

Session::Session(Model& model, const SessionOptions& options)
    : model_(model),
      max_context_tokens_(
          options.max_context_tokens > 0
              ? std::min<std::int64_t>(options.max_context_tokens, model.config().max_position_embeddings)
              : model.config().max_position_embeddings),
      chunk_tokens_(std::min(options.chunk_tokens, model.options().max_tokens)),
      num_window_blocks_(static_cast<std::int32_t>(num_window_blocks(chunk_tokens_ + kMaxDraft))) {}

Result<std::unique_ptr<Session>> Session::make(Model& model, const SessionOptions& options) {
  std::unique_ptr<Session> session(new Session(model, options));
  ModelExecutorOptions executor;
  executor.max_length_tokens = session->max_context_tokens_;
  executor.num_context_blocks = static_cast<std::int32_t>(num_context_blocks(session->max_context_tokens_));
  executor.num_window_blocks = session->num_window_blocks_;
  executor.max_proposals = options.num_drafts;
  FATHOM_ASSIGN_OR_RETURN(session->executor_, ModelExecutor::make(model, executor));
  // Every draft has a row with logits, and so has the token before the first.
  session->num_drafts_ =
      std::min({options.num_drafts, session->executor_->limits().max_proposals,
                static_cast<std::int32_t>(std::min(session->chunk_tokens_, model.options().max_logit_rows)) - 1});
  session->adaptive_ = options.adaptive_drafts;
  session->drafted_rows_.reserve(1 + kMaxDraft);
  // Reserved, not touched: nothing is allocated while an answer grows.
  session->tokens_.reserve(at(session->max_context_tokens_));
  session->plan_.tokens.reserve(at(session->chunk_tokens_));
  session->plan_.sequences.resize(1);
  session->plan_.samples.reserve(1);
  session->plan_.deltas.resize(1);
  return session;
}

void Session::reset() {
  if (created_) {
    BlockTableDelta& delta = plan_.deltas[0];
    delta = {};
    delta.id = id_;
    delta.released = true;
    StepPlan release;
    release.step = ++plan_.step;
    release.deltas.push_back(delta);
    FATHOM_CHECK(executor_->launch(release).ok() && executor_->wait().ok(), "a release computes nothing");
  }
  created_ = false;
  ++id_.value;
  tokens_.clear();
  num_context_ = window_begin_ = window_end_ = furthest_ = 0;
}

Status Session::check_prompt(std::span<const TokenId> prompt) const {
  if (prompt.empty()) return invalid_argument("the prompt is empty: found 0 tokens, expected at least 1");
  const auto count = static_cast<std::int64_t>(prompt.size());
  if (count > max_context_tokens_) {
    return invalid_argument("the prompt does not fit the context: found " + std::to_string(count) +
                            " tokens, expected at most " + std::to_string(max_context_tokens_) +
                            " (--max-context, or the model's max_position_embeddings)");
  }
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] < 0 || prompt[i] >= model_.config().vocab_size) {
      return invalid_argument("token id out of range: found " + std::to_string(prompt[i]) + " at index " +
                              std::to_string(i) + ", expected 0 to " + std::to_string(model_.config().vocab_size - 1));
    }
  }
  return {};
}

// Rows further back than kMaxDraft have left the compressors' slots and the window blocks: then start anew.
void Session::keep_common_prefix(std::span<const TokenId> prompt) {
  const auto [own, other] = std::mismatch(tokens_.begin(), tokens_.end(), prompt.begin(), prompt.end());
  // The last token is computed again when the prompt brings nothing new: its logits are wanted.
  const std::int64_t common =
      std::min<std::int64_t>(own - tokens_.begin(), static_cast<std::int64_t>(prompt.size()) - 1);
  if (created_ && furthest_ - common > kMaxDraft) reset();
  num_reused_tokens_ = created_ ? common : 0;
  tokens_.resize(at(num_reused_tokens_));
  if (created_) executor_->commit(id_, num_reused_tokens_);
}

std::int32_t Session::next_depth() {
  if (!adaptive_ || num_drafts_ == 0) return num_drafts_;
  if (depth_policy_.is_known(1, id_.value)) return depth_policy_.choose_known(num_drafts_);
  const Acceptance* own = &acceptance_;
  return depth_policy_.choose({&own, 1}, num_drafts_);
}

Status Session::run_rows(std::span<const TokenId> tokens, std::int32_t num_logits, const SampleSpec& spec,
                         std::int32_t num_drafts) {
  const auto length = static_cast<std::int64_t>(tokens_.size());
  const auto count = static_cast<std::int64_t>(tokens.size());
  const std::int64_t end = length + count;
  BlockTableDelta& delta = plan_.deltas[0];
  delta.id = id_;
  delta.created = !created_;
  delta.released = false;
  delta.state_slot = StateSlot{0};
  delta.appended_context.clear();
  delta.appended_window.clear();
  for (; num_context_ < num_context_blocks(end); ++num_context_) {
    delta.appended_context.push_back(BlockId{static_cast<std::int32_t>(num_context_)});
  }
  // Logical window block b lies in block b mod n. Rows may be taken back by kMaxDraft, so blocks stay that long.
  window_begin_ = std::max(window_begin_, (length + 1 - kBlockTokens - kMaxDraft) / kBlockTokens);
  if (!created_) window_end_ = window_begin_;
  for (; window_end_ * kBlockTokens < end; ++window_end_) {
    delta.appended_window.push_back(WindowBlockId{static_cast<std::int32_t>(window_end_ % num_window_blocks_)});
  }
  FATHOM_CHECK(window_end_ - window_begin_ <= num_window_blocks_, "window blocks of one step fit their ring");
  delta.first_window_block = static_cast<std::int32_t>(window_begin_);
  created_ = true;

  SequenceStep& step = plan_.sequences[0];
  step.id = id_;
  step.start = length;
  step.num_tokens = static_cast<std::int32_t>(count);
  step.num_logits = num_logits;
  step.num_drafts = num_drafts;
  step.num_proposals = num_logits == 1 + num_drafts ? next_depth() : 0;
  plan_.drafter_feed = adaptive_ ? depth_policy_.feed() : DrafterFeed::kRows;
  step.step_class = count == 1 + num_drafts ? StepClass::kStep : StepClass::kChunk;
  plan_.tokens.clear();
  for (const TokenId token : tokens) plan_.tokens.push_back(TokenRef::of_id(token));
  plan_.samples.clear();
  if (num_logits > 0) plan_.samples.push_back(spec);
  ++plan_.step;
  FATHOM_RETURN_IF_ERROR(executor_->launch(plan_));
  executor_->reuse(std::move(result_));
  FATHOM_ASSIGN_OR_RETURN(result_, executor_->wait());
  const std::int64_t kept = count - num_drafts + (num_drafts > 0 ? result_.sequences[0].accepted : 0);
  executor_->commit(id_, length + kept);
  furthest_ = std::max(furthest_, end);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.begin() + kept);
  return {};
}

Result<SampledToken> Session::prefill(std::span<const TokenId> prompt, const SampleSpec& spec,
                                      const Progress& progress) {
  FATHOM_RETURN_IF_ERROR(check_prompt(prompt));
  keep_common_prefix(prompt);
  const auto total = static_cast<std::int64_t>(prompt.size());
  for (std::int64_t done = num_reused_tokens_; done < total;) {
    const std::int64_t count = std::min(chunk_tokens_, total - done);
    const bool last = done + count == total;
    FATHOM_RETURN_IF_ERROR(run_rows(prompt.subspan(at(done), at(count)), last ? 1 : 0, spec));
    done += count;
    if (progress && !progress(done, total) && !last) return cancelled("the prompt was stopped");
  }
  return std::move(result_.sequences[0].tokens[0]);
}

Result<SampledToken> Session::decode(TokenId token, const SampleSpec& spec) {
  FATHOM_CHECK(created_ && token >= 0 && token < model_.config().vocab_size, "decode follows a prefill");
  if (static_cast<std::int64_t>(tokens_.size()) >= max_context_tokens_) {
    return resource_exhausted("the context is full: " + std::to_string(max_context_tokens_) +
                              " tokens; raise --max-context or start anew");
  }
  FATHOM_RETURN_IF_ERROR(run_rows({&token, 1}, 1, spec));
  return std::move(result_.sequences[0].tokens[0]);
}

Result<std::span<const SampledToken>> Session::decode_drafted(TokenId token, const SampleSpec& spec) {
  FATHOM_CHECK(created_ && token >= 0 && token < model_.config().vocab_size, "decoding follows a prefill");
  const std::int64_t room = max_context_tokens_ - static_cast<std::int64_t>(tokens_.size());
  if (room <= 0) {
    return resource_exhausted("the context is full: " + std::to_string(max_context_tokens_) +
                              " tokens; raise --max-context or start anew");
  }
  drafted_rows_.assign(1, token);
  for (const TokenId draft : result_.sequences[0].proposals) {
    if (std::cmp_less(drafted_rows_.size(), room)) drafted_rows_.push_back(draft);
  }
  const auto num_drafts = static_cast<std::int32_t>(drafted_rows_.size()) - 1;
  const auto begin = std::chrono::steady_clock::now();
  FATHOM_RETURN_IF_ERROR(run_rows(drafted_rows_, 1 + num_drafts, spec, num_drafts));
  const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
  const SequenceResult& got = result_.sequences[0];
  DraftedStep step;
  step.batch = 1;
  step.num_drafts = num_drafts;
  step.num_proposals = plan_.sequences[0].num_proposals;
  step.num_tokens = got.accepted + 1;
  step.us = time.count();
  step.propose_us = result_.draft_us;
  step.is_first_verify = result_.is_first_forward;
  step.is_first_propose = result_.is_first_draft;
  depth_policy_.add_step(step);
  depth_policy_.add_drafts(num_drafts, got.accepted);
  acceptance_.fade();
  acceptance_.add(num_drafts, got.accepted);
  ++draft_counts_.steps;
  draft_counts_.drafted += num_drafts;
  draft_counts_.accepted += got.accepted;
  return std::span(got.tokens).first(at(got.accepted) + 1);
}

Status Session::score(std::span<const TokenId> ids, std::int64_t first_visited, const Visit& visit,
                      const Progress& progress) {
  FATHOM_RETURN_IF_ERROR(check_prompt(ids));
  reset();
  SampleSpec greedy;
  greedy.temperature = 0.0f;
  const auto total = static_cast<std::int64_t>(ids.size());
  const std::int64_t scored_rows = std::min(chunk_tokens_, model_.options().max_logit_rows);
  for (std::int64_t done = 0; done < total;) {
    // Chunks without logits may be long; those with are bounded by the rows that may yield them.
    std::int64_t count = std::min(chunk_tokens_, first_visited - done);
    if (count <= 0) count = std::min(scored_rows, total - done);
    const bool visited = done >= first_visited;
    FATHOM_RETURN_IF_ERROR(
        run_rows(ids.subspan(at(done), at(count)), visited ? static_cast<std::int32_t>(count) : 0, greedy));
    for (std::int64_t i = 0; visited && i < count; ++i) {
      visit(done + i, executor_->logits(static_cast<std::int32_t>(i)));
    }
    done += count;
    if (progress && !progress(done, total)) return cancelled("scoring was stopped");
  }
  return {};
}

}  // namespace fathom
