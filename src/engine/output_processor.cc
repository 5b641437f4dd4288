#include "engine/output_processor.h"

#include <algorithm>
#include <utility>

namespace fathom {

OutputProcessor::OutputProcessor(const Request& request, const Tokenizer* tokenizer, TokenId eos_id)
    : request_(&request),
      eos_id_(eos_id),
      stops_(request.stop_strings),
      in_reasoning_(request.reasoning_end.has_value()) {
  if (tokenizer != nullptr) {
    detokenizer_ = std::make_unique<IncrementalDetokenizer>(
        *tokenizer, request.skip_special_tokens ? SpecialText::kSkip : SpecialText::kShow);
  }
}

// Tokens whose text is out go out; all of them at the end, but those that a stop string cut off.
void OutputProcessor::release(Delta& delta, bool all) {
  while (!pending_.empty()) {
    const Pending& first = pending_.front();
    const bool out = first.end_bytes <= emitted_bytes_;
    if (!out && !all) return;
    if (out || first.begin_bytes < emitted_bytes_) delta.tokens.push_back(std::move(pending_.front().token));
    pending_.pop_front();
  }
}

std::optional<OutputProcessor::Stop> OutputProcessor::push(SampledToken token, Delta& delta) {
  const TokenId id = token.token;
  ++num_tokens_;
  if (in_reasoning_) ++num_reasoning_;
  std::optional<Stop> stop;
  if (id == eos_id_ && !request_->ignore_eos) {
    stop = Stop{FinishReason::kEos, -1, -1};
  } else if (std::find(request_->stop_token_ids.begin(), request_->stop_token_ids.end(), id) !=
             request_->stop_token_ids.end()) {
    stop = Stop{FinishReason::kStopToken, -1, id};
  }
  piece_.clear();
  const bool with_text = !stop || (stop->reason == FinishReason::kStopToken && request_->include_stop_string);
  if (detokenizer_ != nullptr && with_text) detokenizer_->push(id, piece_);
  if (stop && detokenizer_ != nullptr) detokenizer_->flush(piece_);
  pending_.push_back(
      {{std::move(token), in_reasoning_}, decoded_bytes_, decoded_bytes_ + static_cast<std::int64_t>(piece_.size())});
  decoded_bytes_ = pending_.back().end_bytes;

  const std::size_t before = delta.text.size();
  std::optional<std::int32_t> match;
  if (!in_reasoning_ && !in_calls_ && request_->calls_begin && id == *request_->calls_begin) {
    in_calls_ = true;
    stops_.flush(delta.text);
  }
  // Reasoning and calls are never stopped; neither is what comes before min_tokens: a match lies wholly behind it.
  if (in_reasoning_ || in_calls_ || num_tokens_ < request_->min_tokens) {
    delta.text += piece_;
  } else {
    match = stops_.push(piece_, delta.text);
  }
  if (in_reasoning_ && id == *request_->reasoning_end) in_reasoning_ = false;
  if (match) {
    stop = Stop{FinishReason::kStopString, *match, -1};
    if (request_->include_stop_string) delta.text += request_->stop_strings[static_cast<std::size_t>(*match)];
  } else if (stop) {
    stops_.flush(delta.text);
  }
  emitted_bytes_ += static_cast<std::int64_t>(delta.text.size() - before);
  release(delta, stop.has_value());
  return stop;
}

void OutputProcessor::finish(Delta& delta) {
  const std::size_t before = delta.text.size();
  piece_.clear();
  if (detokenizer_ != nullptr) detokenizer_->flush(piece_);
  if (in_calls_) {
    delta.text += piece_;
  } else {
    stops_.push(piece_, delta.text);
  }
  stops_.flush(delta.text);
  emitted_bytes_ += static_cast<std::int64_t>(delta.text.size() - before);
  release(delta, true);
}

}  // namespace fathom
