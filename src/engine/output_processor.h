// From the tokens of one choice to what its reader gets: text, stop conditions, what is held back.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "engine/request.h"
#include "engine/stop_strings.h"
#include "text/tokenizer.h"

namespace fathom {

class OutputProcessor {
 public:
  struct Stop {
    FinishReason reason = FinishReason::kEos;
    std::int32_t stop_string = -1;
    TokenId stop_token = -1;
  };

  // `request` and `tokenizer` (null: no text) outlive this. `eos_id`: -1 for none.
  OutputProcessor(const Request& request, const Tokenizer* tokenizer, TokenId eos_id);

  // The choice's next token. Adds to `delta` what is certain by now; a stop condition that the token meets is
  // returned, then `delta` is complete and nothing may be pushed any more.
  std::optional<Stop> push(SampledToken token, Delta& delta);
  // The end for another reason: what was held back goes out, up to a stop string if one turns out to stand there.
  std::optional<Stop> finish(Delta& delta);

  std::int64_t num_tokens() const { return num_tokens_; }
  std::int64_t num_reasoning_tokens() const { return num_reasoning_; }
  bool in_reasoning() const { return in_reasoning_; }
  // Whether EOS and stop ids may come as the token after `num_ahead` more.
  bool may_end(std::int64_t num_ahead) const { return num_tokens_ + num_ahead >= request_->min_tokens; }

 private:
  struct Pending {
    OutputToken token;
    std::int64_t begin_bytes, end_bytes;  // of its text in the whole output
  };

  // Neither reasoning nor calls, nor before min_tokens.
  bool may_stop() const { return !in_reasoning_ && !in_calls_ && num_tokens_ >= request_->min_tokens; }
  std::optional<Stop> push_answer(bool at_end, std::string& out);
  void release(Delta& delta, bool all);

  const Request* request_;
  TokenId eos_id_;
  std::unique_ptr<IncrementalDetokenizer> detokenizer_;
  StopStrings stops_;
  bool in_reasoning_;
  bool in_calls_ = false;
  std::int64_t num_tokens_ = 0, num_reasoning_ = 0;
  std::int64_t decoded_bytes_ = 0, emitted_bytes_ = 0;
  std::deque<Pending> pending_;
  std::string piece_;
  std::string
      separator_;  // the text's end, if it may be the beginning of calls: it has not been held against the stops
};

}  // namespace fathom
