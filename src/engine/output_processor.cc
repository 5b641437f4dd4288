#include "engine/output_processor.h"

#include <algorithm>
#include <utility>

namespace fathom {
namespace {

// At the end of `text`, what calls may begin with before their token (spec 8.4, and OutputParser): "<" behind at most
// two line ends.
std::size_t separator_bytes(std::string_view text) {
  std::size_t begin = text.size();
  if (begin > 0 && text[begin - 1] == '<') --begin;
  for (int i = 0; i < 2 && begin > 0 && text[begin - 1] == '\n'; ++i) --begin;
  return text.size() - begin;
}

}  // namespace

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

// Holds piece_ against the stop strings. Where calls may come, what may still be their separator waits.
std::optional<OutputProcessor::Stop> OutputProcessor::push_answer(bool at_end, std::string& out) {
  separator_ += piece_;
  const bool may_call = !at_end && request_->calls_begin && !request_->stop_strings.empty();
  const std::size_t num_certain = separator_.size() - (may_call ? separator_bytes(separator_) : 0);
  const auto match = stops_.push(std::string_view(separator_).substr(0, num_certain), out);
  separator_.erase(0, num_certain);
  if (!match) return std::nullopt;
  if (request_->include_stop_string) out += request_->stop_strings[static_cast<std::size_t>(*match)];
  return Stop{FinishReason::kStopString, *match, -1};
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
  if (!in_reasoning_ && !in_calls_ && request_->calls_begin && id == *request_->calls_begin) {
    in_calls_ = true;
    stops_.flush(delta.text);
    delta.text += std::exchange(separator_, {});
  }
  if (may_stop()) {
    if (const auto match = push_answer(stop.has_value(), delta.text)) {
      stop = match;
    } else if (stop) {
      stops_.flush(delta.text);
    }
  } else {
    delta.text += piece_;
    if (stop) stops_.flush(delta.text);
  }
  if (in_reasoning_ && id == *request_->reasoning_end) in_reasoning_ = false;
  emitted_bytes_ += static_cast<std::int64_t>(delta.text.size() - before);
  release(delta, stop.has_value());
  return stop;
}

std::optional<OutputProcessor::Stop> OutputProcessor::finish(Delta& delta) {
  const std::size_t before = delta.text.size();
  piece_.clear();
  if (detokenizer_ != nullptr) detokenizer_->flush(piece_);
  std::optional<Stop> stop;
  if (may_stop()) {
    stop = push_answer(true, delta.text);
  } else {
    delta.text += piece_;
  }
  if (!stop) stops_.flush(delta.text);
  emitted_bytes_ += static_cast<std::int64_t>(delta.text.size() - before);
  release(delta, true);
  return stop;
}

}  // namespace fathom
